"""Write the model card of a saved model from the files in its folder."""

import json
import math
import platform
from dataclasses import dataclass
from pathlib import Path

import torch
import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from jinja2 import TemplateError
from safetensors import SafetensorError, safe_open

from ..files import CARD, RECORD, WEIGHT_FILES, JsonObject, read_json, write_whole
from ..model.loading import load_config
from ..model.text_rules_vanilla_transformer import Directions

_METRICS = {"bleu": "BLEU", "chrf": "chrF", "chrf++": "chrF++", "ter": "TER"}


@dataclass(frozen=True)
class CardDetails:
    """Details of a model card that override or complement what is in the folder of the model.

    Args:
        name: the repository id; by default the name of the folder.
        license: the licence of the model; by default the one given to `train`.
        scores: the output of `vanilla-transformer evaluate`, one object per text; by default the scores on the
            validation text.
        tags: tags for the Hub in addition to the standard ones.
    """

    name: str | None = None
    license: str | None = None
    scores: list[JsonObject] | None = None
    tags: list[str] | None = None


def model_card(folder: str | Path, details: CardDetails | None = None) -> ModelCard:
    """Return the card of the model saved in `folder`.

    Raises:
        OSError: if the configuration of the model cannot be loaded.
        ValueError: if the training record, the scores or the generation config are damaged.
    """
    try:
        return _fill_card(Path(folder), details or CardDetails())
    except (TypeError, LookupError, AttributeError, ArithmeticError, TemplateError) as error:
        raise ValueError(
            f"Cannot write a model card: {Path(folder) / RECORD} or the scores are damaged ({error}). Remove the "
            "damaged file and try again."
        ) from error


def _fill_card(folder: Path, details: CardDetails) -> ModelCard:
    config = load_config(str(folder))
    generation = _read_object(folder / "generation_config.json")
    training = _read_object(folder / RECORD)

    # What the caller gives wins over what the training recorded.
    license = details.license or training.get("license")
    scores = details.scores or training.get("scores") or []
    # as recorded by earlier versions
    scores = [scores] if isinstance(scores, dict) else scores
    base_model = training.get("base_model")

    title = (details.name or folder.resolve().name).split("/")[-1]
    pairs = Directions(config).pairs
    languages = dict.fromkeys(language for pair in pairs for language in pair)
    directions = ", ".join(map(" to ".join, pairs))

    return ModelCard.from_template(
        ModelCardData(
            language=list(languages) or None,
            license=license,
            library_name="transformers",
            pipeline_tag="translation",
            tags=["vanilla_transformer", "translation", *(details.tags or ())],
            # otherwise a local folder
            base_model=base_model if base_model and "/" in base_model else None,
            datasets=training.get("dataset_name"),
            metrics=["bleu", "chrf"] if scores else None,
            model_name=title,
            eval_results=[result for part in scores for result in _eval_results(part, pairs)] or None,
        ),
        template_str=_read_template(),
        name=title,
        location=json.dumps(details.name or str(folder)),
        repository=details.name or folder,
        languages=directions or "from one language to another",
        pairs=pairs,
        multilingual=len(pairs) > 1,
        sinusoidal=config.position_embedding == "sinusoidal",
        parameters=f"{_count_parameters(folder):,}",
        config=config,
        generation={"num_beams": 1, "length_penalty": 1.0, **generation},
        training=training,
        settings=yaml.safe_dump(training.get("settings", {}), sort_keys=False, allow_unicode=True).strip(),
        time=_format_duration(training.get("seconds", 0)),
        license=license,
        validation=_about_ten_updates(training.get("validation", [])),
        example=json.dumps(training.get("example", "Hello!"), ensure_ascii=False),
        scores=[{**part, "metrics": _score_rows(part)} for part in scores],
    )


def _about_ten_updates(rows: list[JsonObject]) -> list[JsonObject]:
    """Return the rows of about ten of the updates after which there was a validation, including the last."""
    updates = list(dict.fromkeys(row["updates"] for row in rows))
    chosen = set(updates[::-1][:: max(1, len(updates) // 10)])
    return [row for row in rows if row["updates"] in chosen]


def _eval_results(scores: JsonObject, pairs: list[tuple[str, str]]) -> list[EvalResult]:
    """Return the scores on one text in the format of the Hub's model index."""
    direction = scores.get("direction") or ", ".join(map("-".join, pairs)) or "None-None"
    return [
        EvalResult(
            task_type="translation",
            task_name=f"Translation {direction.replace('-', ' to ')}",
            dataset_type=scores["text"],
            dataset_name=scores["text"],
            dataset_config=direction,
            metric_type=metric,
            metric_name=f"{label} ({scores['signatures'][metric]})",
            metric_value=round(scores[metric], 2),
        )
        for metric, label in _METRICS.items()
        if metric in scores
    ]


def _score_rows(scores: JsonObject) -> list[dict[str, str]]:
    """Return one dictionary per metric for the results section of the template."""
    return [
        {"name": label, "value": f"{scores[metric]:.2f}", "signature": scores["signatures"][metric]}
        for metric, label in _METRICS.items()
        if metric in scores
    ]


def _read_template() -> str:
    """Return the template of the card, from the installed package or from a checkout of the repository."""
    package = Path(__file__).parent.parent
    files = (folder / "model_cards" / "template.md" for folder in (package, package.parent))
    return next(file for file in files if file.is_file()).read_text("utf-8")


def _read_object(file: Path) -> JsonObject:
    """Return the JSON object in `file`, or an empty one if the file does not exist."""
    content = read_json(file) if file.is_file() else {}
    if not isinstance(content, dict):
        raise ValueError(f"{file} is damaged: it does not contain a JSON object.")
    return content


def _count_parameters(folder: Path) -> int:
    """Return the number of parameters in the safetensors files of `folder`; tied weights are saved only once.

    Raises:
        ValueError: if a file is damaged.
    """
    count = 0
    for file in folder.glob(WEIGHT_FILES):
        if file.suffix == ".safetensors":
            try:
                with safe_open(file, "pt") as weights:
                    names = weights.keys()
                    count += sum(math.prod(weights.get_slice(name).get_shape()) for name in names)
            except SafetensorError as error:
                raise ValueError(f"{file} is damaged: {error}") from None
    return count


def _format_duration(seconds: float) -> str:
    return f"{seconds / 3600:.1f} hours" if seconds >= 5400 else f"{seconds / 60:.0f} minutes"


def hardware(device: torch.device, processes: int = 1) -> str:
    """Return the number and model of the accelerators, or of the CPU, used by a training run on this machine."""
    if device.type == "cuda":
        return f"{processes} x {torch.cuda.get_device_name()}"
    cpu = platform.processor() or platform.machine()
    information = Path("/proc/cpuinfo")
    if information.is_file():
        models = [line for line in information.read_text().splitlines() if line.startswith("model name")]
        cpu = models[0].split(":", 1)[1].strip() if models else cpu
    return f"{processes} x {torch.get_num_threads()} threads of {cpu}"


def read_scores(file: str) -> list[JsonObject]:
    """Return the scores in `file`, which holds the output of `vanilla-transformer evaluate`: one or more JSON objects.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if it does not contain such scores.
    """
    try:
        text = Path(file).read_text("utf-8").strip()
        scores = []
        # Several objects follow each other without a comma, so the file as a whole is not JSON.
        while text:
            part, end = json.JSONDecoder().raw_decode(text)
            scores.append(part)
            text = text[end:].lstrip()
        if scores and all(
            {"bleu", "chrf", "ter", "signatures", "text", "sentences"} <= part.keys() for part in scores
        ):
            return scores
    except (json.JSONDecodeError, UnicodeDecodeError, AttributeError):
        pass
    raise ValueError(f"{file} does not contain the JSON output of `vanilla-transformer evaluate`.")


def write_record(folder: str | Path, record: JsonObject) -> None:
    """Write the training record, from which the card is made, into `folder`."""
    write_whole(Path(folder, RECORD), json.dumps(record, indent=2, ensure_ascii=False) + "\n")


def write_card(folder: str | Path) -> None:
    """Write the card of the model saved in `folder` into the same folder."""
    write_whole(Path(folder, CARD), str(model_card(folder)))


def record_average(run: str | Path, output_dir: str | Path, count: int) -> None:
    """Write the training record and the card of the average of `count` checkpoints of a run.

    The scores of the run are left out because they belong to its last checkpoint, and those of its validations if they
    belong to moving averages.
    """
    record = _read_object(Path(run, RECORD))
    record.pop("scores", None)
    if record.get("settings", {}).get("ema_decay"):
        record.pop("validation", None)
    if record:
        write_record(output_dir, {**record, "averaged": count})
    write_card(output_dir)
