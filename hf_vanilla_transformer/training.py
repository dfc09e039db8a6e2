"""What `vanilla-transformer train` and `accelerate launch scripts/train.py` run: from text to a model folder."""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import fields, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import transformers
from datasets import Dataset
from transformers import (
    AutoTokenizer,
    HfArgumentParser,
    IntervalStrategy,
    Seq2SeqTrainingArguments,
    set_seed,
)

from . import __version__, hub
from .arguments import DataArguments, ModelArguments, VanillaTransformerTrainingArguments, check_flags
from .checkpoints import STATE, fault_of, newest_checkpoint
from .data import Cleaning, describe_drops, load_hub_pairs, load_pairs, tokenize_pairs
from .loading import load, load_config, load_model
from .modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from .phrases import splits
from .presets import paper_config, preset
from .recipes import (
    PROCESSES,
    check_same_run,
    differences,
    plain,
    read_recipe,
    recorded_settings,
    write_settings,
)
from .safeguards import explained, one_run
from .shards import ShardStream, check_languages_of, is_prepared, load_shards
from .tokenizer import check_tokenizer, fingerprint, train_tokenizer
from .trainer import VanillaTransformerTrainer


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    """Each flag under its one name, without the many aliases and choices of transformers' flags."""

    def __init__(self, prog: str):
        super().__init__(prog, max_help_position=34, width=119)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        value = "" if action.nargs == 0 else f" {action.dest.rpartition('_')[2].upper()}"
        return (action.option_strings or [action.dest])[0] + value

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.option_strings and action.option_strings[0].startswith("--no_"):
            return f"Turns --{action.dest} off."
        return action.help if action.default in (None, [], argparse.SUPPRESS) else super()._get_help_string(action)


class _Parser(HfArgumentParser):
    """Wrong flags end the program with status 2 and one line, not with a page of usage."""

    def error(self, message: str):
        self.exit(2, f"{self.prog}: {message} (--help lists the flags)\n")


_TRAIN = "Train the original Transformer on parallel text. A recipe is a YAML file of flags; flags win."


def parse_arguments(argv: Sequence[str], verb: str = "train", about: str = _TRAIN, *more: type) -> Any:
    """`[RECIPE.yaml] [flags]`: flags win over the recipe, the recipe over the preset, the preset over the defaults.

    Gives `ModelArguments`, `DataArguments`, `VanillaTransformerTrainingArguments` and one each of the dataclasses
    `more`. Wrong flags, and values out of range, end the program with status 2.

    Raises:
        ValueError: for a recipe that cannot be used.
    """
    types: Any = (ModelArguments, DataArguments, VanillaTransformerTrainingArguments, *more)
    parser: Any = _Parser(
        types,
        prog=f"vanilla-transformer {verb}",
        usage="%(prog)s [RECIPE.yaml] [flags]",
        description=about,
        allow_abbrev=False,
        formatter_class=_Help,
    )
    next(action for action in parser._actions if action.dest == "output_dir").required = True
    words = list(argv)
    if words and not words[0].startswith("-"):
        words = [*read_recipe(words[0], {action.dest for action in parser._actions}), *words[1:]]
    flags = parser.parse_args(words)
    if flags.dataset_name and flags.train_file:
        parser.error("give either --train_file or --dataset_name")
    if flags.validation_file or flags.dataset_name or not flags.train_file:
        parser.set_defaults(eval_strategy="steps")
    try:
        parser.set_defaults(**preset(flags.preset).training)
        arguments = parser.parse_args_into_dataclasses(words, look_for_args_file=False)
        check_flags(arguments[2])
        _check_sizes(arguments[0])
    except (ValueError, TypeError) as error:  # TypeError: what a dictionary such as --accelerator_config must not hold
        parser.error(" ".join(str(error).split()))
    return arguments


def _check_sizes(model: ModelArguments) -> None:
    """See that the model's flags are in range; the sizes of a model to go on from are compared with its own later."""
    changes = model.config_overrides()
    if model.model_name_or_path:
        changes = {name: value for name, value in changes.items() if name.endswith("dropout")}
    paper_config(model.preset, **changes)


def read_pairs(data: DataArguments, languages: tuple[str, str]) -> dict[str, Dataset]:
    """The pairs of "train" and, where there are any, of "validation"."""
    pairs: dict[str, Dataset] = {}
    if data.dataset_name:
        splits_wanted = ("train",) if data.validation_file else ("train", "validation")
        pairs = load_hub_pairs(data.dataset_name, data.dataset_config_name, *languages, splits_wanted)
    elif data.train_file is None:
        if sorted(languages) != ["de", "en"]:
            raise ValueError(
                "The built-in phrases are English and German (en, de); other languages need --train_file."
            )
        phrases = splits()
        for name in ("train", "validation"):
            source, target = ([getattr(phrase, language) for phrase in phrases[name]] for language in languages)
            pairs[name] = Dataset.from_dict({"source": source, "target": target})
    if is_prepared(data.validation_file):
        raise ValueError(f"--validation_file {data.validation_file}: validation text is not to be prepared.")
    for name, file in {"train": data.train_file, "validation": data.validation_file}.items():
        if file and not is_prepared(file):
            pairs[name] = load_pairs(file, *languages)
    if "train" not in pairs and not is_prepared(data.train_file):
        raise ValueError(f"{data.dataset_name} has no split train.")
    return pairs


def _texts(pairs: Dataset) -> Iterator[str]:
    for batch in pairs.iter(1000):
        for column in ("source", "target"):
            yield from (text for text in batch[column] if text)


def run_settings(config: Any, *arguments: Any) -> dict[str, Any]:
    """The resolved settings of a run: this package's own, and those of `Trainer`'s that are not its defaults."""
    # making arguments sets up the processes of the run anew: on a CPU they must stay there
    defaults = vars(Seq2SeqTrainingArguments(".", use_cpu=arguments[-1].use_cpu)) | {"use_cpu": False}
    own = set(vars(VanillaTransformerTrainingArguments)["__annotations__"])
    settings: dict[str, Any] = {}
    for group in arguments:
        for field in fields(group):
            value = getattr(group, field.name)
            known = field.name in defaults and field.name not in own
            if field.init and value not in (None, []) and not (known and value == defaults[field.name]):
                settings[field.name] = plain(value)
    if "model_name_or_path" not in settings:  # else they are in the model's own folder
        for field in fields(ModelArguments):
            settings[field.name] = getattr(config, field.name, settings.get(field.name))
    for name in ("hub_token", "resume_from_checkpoint"):  # a secret; and where this start begins, not what the run is
        settings.pop(name, None)
    settings[PROCESSES] = arguments[-1].world_size
    return {name: value for name, value in settings.items() if value is not None}


def _learn_tokenizer(pairs: Dataset, vocab_size: int, asked_for: bool, report: Callable[[str], None]) -> Any:
    """A joint vocabulary from the training text. One that was asked for must come out at its size."""
    report(f"Learning a joint vocabulary of {vocab_size:,} tokens ...")
    tokenizer = train_tokenizer(_texts(pairs), vocab_size)
    if len(tokenizer) < vocab_size:
        message = f"The training text allows a vocabulary of {len(tokenizer):,} tokens, not of {vocab_size:,}"
        if asked_for:
            raise ValueError(f"{message}; set --vocab_size to at most that.")
        report(f"{message} like the preset's.")
    return tokenizer


def _pairs_of(tokens: Any) -> int:
    return tokens.pairs if isinstance(tokens, ShardStream) else len(tokens)


def tokenized(
    model: ModelArguments,
    data: DataArguments,
    args: VanillaTransformerTrainingArguments,
    config: Any,
    named: str | None,
    report: Callable[[str], Any],
) -> tuple[Any, dict[str, Any]]:
    """The tokenizer and the tokenised text, "train" and where there is any "validation".

    Args:
        named: where the tokenizer is; None learns one from the training text and saves it in `args.output_dir`.
    """
    prepared = data.train_file if is_prepared(data.train_file) else None
    cleaning = Cleaning(data.max_sentence_tokens, data.max_length_ratio) if data.clean else None
    folder = str(args.output_dir)
    with args.main_process_first(desc="reading the text"):
        pairs = read_pairs(data, (config.source_lang, config.target_lang))
        if args.process_index == 0 and not named:
            asked_for = model.vocab_size is not None
            _learn_tokenizer(pairs["train"], config.vocab_size, asked_for, report).save_pretrained(folder)
        tokenizer = load(AutoTokenizer, named or folder)
        tokens: dict[str, Any] = {}
        if prepared and data.streaming:
            seed = args.seed if args.data_seed is None else args.data_seed
            tokens["train"] = ShardStream(prepared, args.max_tokens, seed, args.process_index, args.world_size)
        elif prepared:
            tokens["train"] = load_shards(prepared)
        if prepared:
            check_languages_of(prepared, (config.source_lang, config.target_lang))
            report(f"train: {_pairs_of(tokens['train']):,} prepared pairs")
        for name, split in pairs.items():
            tokens[name], drops = tokenize_pairs(
                split, tokenizer, args.max_tokens, cleaning if name == "train" else None
            )
            report(f"{name}: {len(tokens[name]):,} of {len(split):,} pairs; dropped: {describe_drops(drops)}")
    return tokenizer, tokens


def run_train(
    model_arguments: ModelArguments, data: DataArguments, args: VanillaTransformerTrainingArguments
) -> VanillaTransformerTrainer | None:
    """Trains a model and leaves it with its tokenizer in `args.output_dir`, or goes on with the run that is there.

    The folder's `settings.yaml` says which run that is. A finished one is left alone, and gives None.

    Raises:
        ValueError: for data or settings that cannot be used, saying which and why; the folder is as it was.
    """
    assert args.output_dir is not None  # transformers has set it where nobody else has
    with one_run(args.output_dir) if args.process_index == 0 else nullcontext(), explained():
        return _run(model_arguments, data, args, args.output_dir)


def _run(
    model_arguments: ModelArguments, data: DataArguments, args: VanillaTransformerTrainingArguments, folder: str
) -> VanillaTransformerTrainer | None:
    def report(message: str) -> None:
        if args.process_index == 0:
            print(message, file=sys.stderr, flush=True)

    pretrained = model_arguments.model_name_or_path
    set_seed(args.seed)
    config, data = resolve(model_arguments, data)
    settings = run_settings(config, model_arguments, data, args)
    goes_on = check_same_run(settings, folder)
    if goes_on and not args.resume_from_checkpoint and _is_finished(folder, args):
        report(f"The run in {folder} is finished; there is nothing left to do.")
        return None
    checkpoint = _checkpoint(args, folder if goes_on else None, report)
    prepared = data.train_file if is_prepared(data.train_file) else None
    if data.streaming and not prepared:
        raise ValueError("--streaming reads a folder that scripts/prepare_data.py made: give it as --train_file.")
    named = folder if goes_on else prepared or model_arguments.tokenizer_name or checkpoint or pretrained
    tokenizer, tokens = tokenized(model_arguments, data, args, config, named, report)
    if pretrained:
        # half precision would lose small updates, and a moving average even more
        model = load_model(pretrained, config=config, dtype=torch.float32)
    else:
        config.vocab_size = len(tokenizer)
        model = VanillaTransformerForConditionalGeneration(config)
    check_tokenizer(tokenizer, config)
    if args.resume_from_checkpoint:
        _check_checkpoint(args.resume_from_checkpoint, config, tokenizer, settings)
    model.generation_config.update(**model_arguments.generation_overrides())
    report(f"{model.num_parameters():,} parameters, a vocabulary of {len(tokenizer):,}")
    if "validation" not in tokens:
        if args.early_stopping_patience is not None:
            raise ValueError(f"{data.dataset_name} has no split validation, which early stopping needs.")
        args.eval_strategy = IntervalStrategy.NO
    trainer = VanillaTransformerTrainer(
        model,
        args,
        train_dataset=tokens["train"],
        eval_dataset=tokens.get("validation"),
        processing_class=tokenizer,
    )
    if args.process_index == 0:
        if named not in (None, folder):  # else it is there already, and other processes may be reading it
            tokenizer.save_pretrained(folder)
        versions = f"hf_vanilla_transformer {__version__}, {_versions()}"
        write_settings(settings, folder, f"The resolved settings of this run, a recipe of their own ({versions})")
    if checkpoint:
        report(f"Going on from {checkpoint}")
    trainer.train(resume_from_checkpoint=checkpoint)
    state = trainer.state
    if trainer.safeguards.stopped and state.global_step < state.max_steps:
        without = " without --resume_from_checkpoint" if args.resume_from_checkpoint else ""
        report(
            f"Stopped by SIGTERM after {state.global_step:,} updates; the same command{without} goes on from there."
        )
        return trainer
    trainer.save_model(_internal_call=True)
    trainer.save_state()
    record = _record(trainer, settings, data, model_arguments, _pairs_of(tokens["train"]))
    if not prepared:
        record["example"] = _example(data, tokenizer, tokens["train"])
    if args.process_index == 0:
        hub.write_record(folder, record)
        hub.write_card(folder)
    metric = str(args.metric_for_best_model).removeprefix("eval_")
    for log in state.log_history:
        if state.best_metric is not None and log.get(f"eval_{metric}") == state.best_metric:
            report(f"Best {metric}: {state.best_metric:.4g}, after {log['step']:,} updates")
            break
    report(f"The model, its tokenizer and its card are in {folder}")
    if args.push_to_hub:
        report(f"Uploaded to {trainer.push_to_hub()}")
    return trainer


# Of a run's settings, what says something of the machine or of private text: no card holds it
_PRIVATE = (
    *("output_dir", "train_file", "validation_file", "model_name_or_path", "tokenizer_name", "hub_", "push_to_hub"),
    *("license", "run_name", "disable_tqdm", "deepspeed"),
)


def _is_local(dataset_name: str | None) -> bool:
    """Whether `--dataset_name` names a folder of this machine."""
    return dataset_name is not None and Path(dataset_name).exists()


def _example(data: DataArguments, tokenizer: Any, tokens: Dataset) -> str:
    """A sentence for the card, from text that is public: the built-in phrases, or a data set of the Hub."""
    if data.train_file or _is_local(data.dataset_name):
        return "Hello!"
    texts = (tokenizer.decode(row["input_ids"], skip_special_tokens=True) for row in islice(tokens, 100))
    return next((text for text in texts if len(text) < 80), "Hello!")


def _record(
    trainer: VanillaTransformerTrainer,
    settings: dict[str, Any],
    data: DataArguments,
    model: ModelArguments,
    pairs: int,
) -> dict[str, Any]:
    """What the card says about a training run; nothing in it tells of the machine's folders."""
    args: Any = trainer.args
    state = trainer.state
    hub_dataset = None if _is_local(data.dataset_name) else data.dataset_name
    public = {
        name: value
        for name, value in settings.items()
        if not name.startswith(_PRIVATE) and not str(value).startswith(("/", "~"))
    }
    if not hub_dataset:
        public.pop("dataset_name", None)
    validation = [
        {
            "updates": log["step"],
            "perplexity": round(log["eval_perplexity"], 2),
            "bleu": round(log["eval_bleu"], 2) if "eval_bleu" in log else None,
        }
        for log in state.log_history
        if "eval_perplexity" in log
    ]
    local = data.dataset_name or data.train_file
    name = hub_dataset or (Path(local).resolve().name if local else "the built-in phrases")
    record = {
        "data": name,
        "dataset_name": hub_dataset,
        "base_model": model.model_name_or_path and Path(model.model_name_or_path).name,
        "pairs": pairs,
        "updates": state.global_step,
        "seconds": round(trainer.speed.total_seconds),
        "hardware": hub.hardware(args.world_size),
        "software": f"hf_vanilla_transformer {__version__}, {_versions()}",
        "license": model.license,
        "settings": public,
        "validation": validation,
    }
    if validation and args.eval_bleu:
        record["scores"] = trainer.score()
    return record


def _versions() -> str:
    return f"transformers {transformers.__version__}, torch {torch.__version__}"


def _checkpoint(args: Any, folder: str | None, report: Callable[[str], Any]) -> str | None:
    """Return the checkpoint to resume from: that of the flag, else the newest whole one of the run in `folder`.

    Raises:
        ValueError: if training cannot go on from it.
    """
    asked_for = args.resume_from_checkpoint
    if not asked_for:
        newest = newest_checkpoint(folder, report) if folder else None
        return str(newest) if newest else None
    if not Path(asked_for).is_dir():
        raise ValueError(f"--resume_from_checkpoint {asked_for}: there is no such folder.")
    fault = fault_of(Path(asked_for))
    if fault:
        raise ValueError(f"--resume_from_checkpoint {asked_for}: {fault}.")
    return asked_for


def _check_checkpoint(checkpoint: str, config: Any, tokenizer: Any, settings: dict[str, Any]) -> None:
    """See that a checkpoint holds a model of this configuration and vocabulary, and that batches go on as before.

    Raises:
        ValueError: if it does not.
    """
    theirs = load_config(checkpoint)
    for name in ("vocab_size", *(field.name for field in fields(ModelArguments) if hasattr(config, field.name))):
        if not name.endswith("dropout") and getattr(theirs, name, None) != getattr(config, name):
            raise ValueError(
                f"--resume_from_checkpoint {checkpoint}: its {name} is {getattr(theirs, name, None)}, not "
                f"{getattr(config, name)}."
            )
    if fingerprint(load(AutoTokenizer, checkpoint)) != fingerprint(tokenizer):
        raise ValueError(f"--resume_from_checkpoint {checkpoint}: its vocabulary is not the one of this run.")
    before = recorded_settings(Path(checkpoint).parent)
    changed = differences(before, settings) if before else {}
    for name in (PROCESSES, *(("dataloader_num_workers",) if settings.get("streaming") else ())):
        if name in changed:
            raise ValueError(f"--resume_from_checkpoint {checkpoint}: {changed[name]}, which changes the batches.")


def resolve(model: ModelArguments, data: DataArguments) -> tuple[Any, DataArguments]:
    """The model's configuration, and the languages where they were left to it.

    Raises:
        ValueError: for a model to go on from that is of other sizes than those given.
    """
    changes = model.config_overrides()
    if model.model_name_or_path:
        config = load_config(model.model_name_or_path)
        for name, value in changes.items():
            if not name.endswith("dropout") and value != getattr(config, name):
                raise ValueError(f"--{name} {value}: {model.model_name_or_path} has {getattr(config, name)}.")
        config.update(changes)
    else:
        config = paper_config(model.preset, **changes)
    config.source_lang = data.source_lang or config.source_lang or "en"
    config.target_lang = data.target_lang or config.target_lang or "de"
    return config, replace(data, source_lang=config.source_lang, target_lang=config.target_lang)


def _is_finished(folder: str, args: VanillaTransformerTrainingArguments) -> bool:
    """Whether the run in `folder` has made all the updates, or epochs, that are asked for."""
    name = "max_steps" if args.max_steps > 0 else "num_train_epochs"
    try:
        return json.loads(Path(folder, STATE).read_text("utf-8"))[name] >= getattr(args, name)
    except (OSError, ValueError, TypeError, LookupError):  # not there, or damaged: then the checkpoints tell
        return False
