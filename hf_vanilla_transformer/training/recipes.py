"""Parse the flags of `train` and `tune`, and recipes: YAML files of such flags."""

import argparse
import difflib
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import yaml

from ..flags import Decides, FlagParser, Flags, Part
from .arguments import INHERITED, RUN_FLAGS, ModelArguments, check_flags, meaning
from .presets import paper_config, preset
from .settings import FACTS

_Value = TypeVar("_Value")

_TRAIN = (
    "Train the original Transformer on parallel text. A recipe is a YAML file of flags; flags on the command line "
    "override it."
)


def parse_arguments(
    argv: Sequence[str], verb: str = "train", description: str = _TRAIN, *more: type[Flags]
) -> list[Any]:
    """Parse `[RECIPE.yaml] [flags]`; flags override the recipe, the recipe the preset, and the preset the defaults.

    Invalid flags, and values out of range, end the program with exit status 2.

    Returns:
        Instances of `ModelArguments`, `DataArguments`, `VanillaTransformerTrainingArguments` and each dataclass in
        `more`.

    Raises:
        ValueError: for an invalid recipe.
    """
    parser = FlagParser(
        (*RUN_FLAGS, *more),
        prog=f"vanilla-transformer {verb}",
        usage="%(prog)s [RECIPE.yaml] [flags]",
        description=description,
        takes_recipe=True,
        hidden={name for name, known in INHERITED.items() if known.refused},
    )
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
    try:
        parser.set_defaults(**_without_replaced(preset(flags.preset).training, flags))
        arguments = parser.instances(words)
        model, data, args = arguments[:3]
        check_flags(args, data)
        _check_sizes(model)
    except (ValueError, TypeError) as error:
        # TypeError: wrong keys in a dictionary such as --accelerator_config
        parser.error(" ".join(str(error).split()))
    return arguments


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
            raise ValueError(
                f"{where}: unknown key {str(key.value)!r}{f'; did you mean {near[0]!r}?' if near else '.'}"
            )
        if key.value in seen:
            raise ValueError(f"{where}: {key.value!r} appears twice.")
        seen.add(key.value)
        values = value.value if isinstance(value, yaml.SequenceNode) else [value]
        if not all(isinstance(item, yaml.ScalarNode) for item in values):
            raise ValueError(f"{where}: {key.value!r} must be a plain value or a list of them.")
        if not any(item.tag == "tag:yaml.org,2002:null" for item in values):
            flags[key.value] = [item.value for item in values]
    return flags


def _read_mapping(path: str) -> list[tuple[yaml.Node, yaml.Node]]:
    """Return the keys and values of a YAML mapping as nodes, which hold their line numbers."""
    try:
        root = yaml.compose(Path(path).read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise ValueError(f"{path}{line}: not YAML ({getattr(error, 'problem', None) or error}).") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 ({error.reason} at byte {error.start}).") from None
    if not isinstance(root, yaml.MappingNode):
        raise ValueError(f"{path}: a recipe must consist of lines such as `max_steps: 100000`.")
    return root.value
