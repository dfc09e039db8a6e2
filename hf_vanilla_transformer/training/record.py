"""Record what the model card says about a training run, without private text or local paths."""

from pathlib import Path

import torch
import transformers

from ..files import JsonObject, public_name
from ..inference.hardware import hardware
from ..sharing.card import conversion
from ..version import __version__
from .arguments import Recipe, meaning
from .progress import validations
from .text import TokenizedText
from .trainer import VanillaTransformerTrainer

# of the packages that determine the results of training
VERSIONS = f"hf_vanilla_transformer {__version__}, transformers {transformers.__version__}, torch {torch.__version__}"


def training_record(
    trainer: VanillaTransformerTrainer, settings: JsonObject, recipe: Recipe, text: TokenizedText
) -> JsonObject:
    """Return what the card says about a finished run; call it on every process, since all compute validation BLEU."""
    args = recipe.args
    license = recipe.model.license
    state = trainer.state
    names = recipe.data.dataset_name or []
    base_model = recipe.model.model_name_or_path
    hub_datasets = [name for name in names if not Path(name).exists()]
    public = {
        name: value
        for name, value in settings.items()
        if not meaning(name).private and not str(value).startswith(("/", "~"))
    }
    dataset_name = hub_datasets[0] if len(hub_datasets) == 1 else hub_datasets or None
    if hub_datasets and hub_datasets == names:
        public |= {"dataset_name": dataset_name}
    validation = [one._asdict() for one in validations(state.log_history)]
    labels = [Path(file).resolve().name for file in recipe.data.train_file or []]
    labels += map(public_name, names)
    record = {
        "data": ", ".join(dict.fromkeys(labels)) or "the built-in phrases",
        "dataset_name": dataset_name,
        "base_model": base_model and public_name(base_model),
        "pairs": sum(source["pairs"] for source in text.sources),
        "sources": text.sources,
        "updates": state.global_step,
        "seconds": round(trainer.meter.total_seconds),
        "hardware": hardware(args.device, args.world_size),
        "software": VERSIONS,
        "license": license,
        "settings": public,
        "validation": validation,
    }
    # a model that was converted from one of another system still is after fine-tuning
    if base_model and (origin := conversion(base_model)):
        record |= {**origin, "license": license} if license else origin
    if validation and args.eval_bleu:
        scores = trainer.score()
        for score, direction in zip(scores, text.directions.values(), strict=True):
            score["direction"] = direction
        record["scores"] = scores
    return record
