"""Parse the flags of `train` and `tune`, and recipes: YAML files of such flags."""

import argparse
import difflib
import math
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import yaml
from transformers import Seq2SeqTrainingArguments

from ..errors import UserError
from ..files import compose_yaml
from ..flags import Decides, FlagParser, Flags, Part, Settings
from .arguments import INHERITED, RUN_FLAGS, DataArguments, ModelArguments, check_flags, meaning
from .presets import PAIRS_PER_BATCH, SMALL_TEXT, fit_to, paper_config, preset
from .settings import FACTS, recorded_settings, resolve_config

_Value = TypeVar("_Value")


def parse_arguments(
    argv: Sequence[str],
    prog: str = "vanilla-transformer train",
    description: str = "Train the original Transformer on parallel text.",
    *more: type[Flags],
) -> list[Any]:
    """Parse `[RECIPE.yaml] [flags]`; flags override the recipe, the recipe the preset, and the preset the defaults.

    Without a preset, the text is counted to find one that fits. Invalid flags, and values out of range, end the
    program with exit status 2.

    Returns:
        Instances of `ModelArguments`, `DataArguments`, `VanillaTransformerTrainingArguments` and each dataclass in
        `more`.

    Raises:
        ValueError: for an invalid recipe.
    """
    parser = FlagParser(
        (*RUN_FLAGS, *more),
        prog=prog,
        usage="%(prog)s [RECIPE.yaml] [flags]",
        description=f"{description} A recipe is a YAML file of flags; flags on the command line override it.",
        takes_recipe=True,
        hidden={name for name, known in INHERITED.items() if known.refused},
    )
    # Not given, they follow the text, or the other flags
    fitted = {name: flag.default for name, flag in parser.flags.items() if meaning(name).fitted}
    parser.set_defaults(preset=None, **dict.fromkeys(fitted))
    words = list(argv)
    if words and not words[0].startswith("-"):
        recipe = read_recipe(words.pop(0), parser.flags)
        flags = parser.parse_args([*_as_words(recipe), *words])
        words = [*_as_words(_without_replaced(recipe, flags)), *words]
    flags = parser.parse_args(words)
    # from the configuration of `accelerate launch`
    precision = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    if precision in parser.flags and not (flags.bf16 or flags.fp16):
        parser.set_defaults(**{precision: True})
    if flags.validation_file or flags.dataset_name or not flags.train_file:
        parser.set_defaults(eval_strategy="steps")
    name, training, reason = _choose_preset(parser, flags)
    try:
        parser.set_defaults(preset=name, **fitted)
        parser.set_defaults(**_without_replaced(training, flags))
        # The number of updates of the preset would win over the epochs
        if flags.num_train_epochs is not None:
            parser.set_defaults(max_steps=-1)
        arguments = parser.instances(words)
        model, _, args = arguments[:3]
        check_flags(args)
        _check_sizes(model)
    except (ValueError, TypeError) as error:
        # TypeError: wrong keys in a dictionary such as --accelerator_config
        parser.error(" ".join(str(error).split()))
    if reason and args.process_index == 0:
        length = f"{args.max_steps:,} updates" if args.max_steps > 0 else f"{args.num_train_epochs:g} epochs"
        print(f"{reason} for {length}; set --preset or --max_steps to change this.", file=sys.stderr)
    return arguments


def _choose_preset(parser: FlagParser, flags: argparse.Namespace) -> tuple[str, Settings, str]:
    """Return the preset that is given, that of the run in the output folder, or one that fits the text.

    Returns:
        Its name, its training settings, and why it was chosen if neither the user nor the default did.

    Raises:
        ValueError: if the settings in the folder are damaged.
    """
    if flags.preset is None and (before := recorded_settings(flags.output_dir)):
        name = str(argparse.Namespace(**{**vars(ModelArguments()), **before}).preset)
        # As they were fitted when the run began
        return name, {key: before.get(key, value) for key, value in preset(name).training.items()}, ""
    try:
        if flags.preset is not None:
            return flags.preset, preset(flags.preset).training, ""
        given = DataArguments(**{flag.name: getattr(flags, flag.name) for flag in fields(DataArguments)})
    except ValueError as error:
        parser.error(str(error))

    from ..data.source import Source  # slow to import
    from .text import training_sources

    # The languages of a pretrained model are the default
    try:
        _, data = resolve_config(ModelArguments(model_name_or_path=flags.model_name_or_path), given)
        pairs = Source(training_sources(data)).count(SMALL_TEXT)
    except (ValueError, OSError):
        # Reported when the text is read, after everything that is checked before
        return "base", preset("base").training, ""
    updates = flags.max_steps
    epochs = flags.num_train_epochs
    if updates == -1 and epochs is None:
        epochs = Seq2SeqTrainingArguments.num_train_epochs
    if epochs is not None and (updates is None or updates < 1):
        updates = math.ceil(epochs * pairs / PAIRS_PER_BATCH)
    name, training = fit_to(pairs, updates, flags.warmup_steps)
    if pairs >= SMALL_TEXT:
        return name, training, ""
    few = f"The text has {pairs:,} pairs, too few for the preset base ({SMALL_TEXT:,})"
    return name, training, f"{few}: training with the preset {name}"


def _without_replaced(settings: Mapping[str, _Value], flags: argparse.Namespace) -> dict[str, _Value]:
    """Return the settings of a recipe or preset without those that no longer hold with the flags.

    For example, its learning rate is meant for its own schedule.
    """
    replaced: set[str] = set()
    for flag in (flag for kind in RUN_FLAGS for flag in fields(kind)):
        before = _as_list(settings.get(flag.name, flag.default))
        if meaning(flag.name).replaces and before != _as_list(getattr(flags, flag.name)):
            replaced.update(meaning(flag.name).replaces)
    return {name: value for name, value in settings.items() if name not in replaced}


def _as_list(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


def _as_words(recipe: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a recipe as command-line words: `max_steps: 100` becomes `--max_steps 100`, a list several words."""
    return [word for name, values in recipe.items() for word in (f"--{name}", *values)]


def _check_sizes(model: ModelArguments) -> None:
    """Check that the model's flags are in range; the sizes of a pretrained model are checked when it is loaded."""
    changes = model.overrides(Part.CONFIG)
    if model.model_name_or_path:
        changes = {name: value for name, value in changes.items() if meaning(name).decides is not Decides.SIZES}
    paper_config(model.preset, **changes)


def read_recipe(path: str, known: Collection[str]) -> dict[str, list[str]]:
    """Return the flags of a recipe, each with its words on a command line; those without a value are left out.

    Args:
        known: all flags.

    Raises:
        ValueError: if the file is not a mapping of the flag names in `known` to plain values, with the line number.
    """
    flags: dict[str, list[str]] = {}
    seen: set[str] = set()
    for key, value in _read_mapping(path):
        where = f"{path}, line {key.start_mark.line + 1}"
        if key.value in FACTS:
            continue
        if not isinstance(key.value, str) or key.value not in known:
            near = difflib.get_close_matches(str(key.value), known, n=1)
            raise UserError(
                f"{where}: unknown key {str(key.value)!r}{f'; did you mean {near[0]!r}?' if near else '.'}"
            )
        if key.value in seen:
            raise UserError(f"{where}: {key.value!r} appears twice.")
        seen.add(key.value)
        values = value.value if isinstance(value, yaml.SequenceNode) else [value]
        if not all(isinstance(item, yaml.ScalarNode) for item in values):
            raise UserError(f"{where}: {key.value!r} must be a plain value or a list of them.")
        if not any(item.tag == "tag:yaml.org,2002:null" for item in values):
            flags[key.value] = [item.value for item in values]
    return flags


def _read_mapping(path: str) -> list[tuple[yaml.Node, yaml.Node]]:
    """Return the keys and values of a YAML mapping as nodes, which hold their line numbers."""
    try:
        root = compose_yaml(Path(path))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise UserError(f"{path}{line}: not YAML ({getattr(error, 'problem', None) or error}).") from None
    except ValueError as error:
        raise UserError(f"{path}: {error}.") from None
    if not isinstance(root, yaml.MappingNode):
        raise UserError(f"{path}: a recipe must consist of lines such as `max_steps: 100000`.")
    return root.value
