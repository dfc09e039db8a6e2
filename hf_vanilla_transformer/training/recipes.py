"""Parse the flags of `train` and `tune`, and recipes: YAML files of such flags."""

import argparse
import difflib
import os
from collections.abc import Collection, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml
from transformers import HfArgumentParser

from .arguments import (
    NEVER_RECORDED,
    NOAM,
    DataArguments,
    ModelArguments,
    VanillaTransformerTrainingArguments,
    check_flags,
)
from .presets import paper_config, preset
from .settings import PAIRS, PROCESSES


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    """Show each flag under one name, without the many aliases and choices of transformers' flags."""

    def __init__(self, prog: str):
        super().__init__(prog, max_help_position=34, width=119)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        value = "" if action.nargs == 0 else f" {action.dest.rpartition('_')[2].upper()}"
        return (action.option_strings or [action.dest])[0] + value

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.option_strings and action.option_strings[0].startswith("--no_"):
            return f"Turn off --{action.dest}."
        return action.help if action.default in (None, [], argparse.SUPPRESS) else super()._get_help_string(action)


class _Parser(HfArgumentParser):
    """Report wrong flags in one line, with exit status 2, instead of a page of usage."""

    def error(self, message: str):
        self.exit(2, f"{self.prog}: {message} (--help lists the flags)\n")


_TRAIN = (
    "Train the original Transformer on parallel text. A recipe is a YAML file of flags; flags on the command line "
    "override it."
)


def parse_arguments(argv: Sequence[str], verb: str = "train", description: str = _TRAIN, *more: type) -> Any:
    """Parse `[RECIPE.yaml] [flags]`; flags override the recipe, the recipe the preset, and the preset the defaults.

    Invalid flags, and values out of range, end the program with exit status 2.

    Returns:
        Instances of `ModelArguments`, `DataArguments`, `VanillaTransformerTrainingArguments` and each dataclass in
        `more`.

    Raises:
        ValueError: for an invalid recipe.
    """
    types: Any = (ModelArguments, DataArguments, VanillaTransformerTrainingArguments, *more)
    parser: Any = _Parser(
        types,
        prog=f"vanilla-transformer {verb}",
        usage="%(prog)s [RECIPE.yaml] [flags]",
        description=description,
        allow_abbrev=False,
        formatter_class=_Help,
    )
    for action in parser._actions:
        if action.dest == "output_dir":
            action.required = True
        elif action.dest in NEVER_RECORDED:  # they are refused
            action.help = argparse.SUPPRESS
    words = list(argv)
    if words and not words[0].startswith("-"):
        words = _with_recipe(parser, words)
    flags = parser.parse_args(words)
    precision = os.environ.get("ACCELERATE_MIXED_PRECISION")  # from the configuration of `accelerate launch`
    if precision in ("bf16", "fp16") and not (flags.bf16 or flags.fp16):
        parser.set_defaults(**{precision: True})
    if flags.validation_file or flags.dataset_name or not flags.train_file:
        parser.set_defaults(eval_strategy="steps")
    try:
        defaults = dict(preset(flags.preset).training)
        if flags.lr_scheduler_type != NOAM:
            defaults.pop("learning_rate", None)  # a factor of the Noam schedule
        parser.set_defaults(**defaults)
        arguments = parser.parse_args_into_dataclasses(words, look_for_args_file=False)
        check_flags(arguments[2], arguments[1])
        _check_sizes(arguments[0])
    except (ValueError, TypeError) as error:  # TypeError: wrong keys in a dictionary such as --accelerator_config
        parser.error(" ".join(str(error).split()))
    return arguments


def _with_recipe(parser: Any, words: list[str]) -> list[str]:
    """Replace the recipe, the first of the words, with its flags, except for those that other flags replace."""
    file, *words = words
    known = {action.dest for action in parser._actions}
    given = {word.partition("=")[0] for word in words}
    overridden = ("source_lang", "target_lang") if "--language_pairs" in given else ()
    recipe = read_recipe(file, known, overridden)
    schedule = dict(pairwise(recipe)).get("--lr_scheduler_type", NOAM)
    if parser.parse_args([*recipe, *words]).lr_scheduler_type != schedule:
        # the recipe's learning rate is meant for its own schedule
        recipe = read_recipe(file, known, (*overridden, "learning_rate"))
    return [*recipe, *words]


def _check_sizes(model: ModelArguments) -> None:
    """Check that the model's flags are in range; the sizes of a pretrained model are checked when it is loaded."""
    changes = model.config_overrides()
    if model.model_name_or_path:
        changes = {name: value for name, value in changes.items() if name.endswith("dropout")}
    paper_config(model.preset, **changes)


def read_recipe(path: str, known: Collection[str], overridden: Collection[str] = ()) -> list[str]:
    """Return a recipe as command-line words: `max_steps: 100` becomes `--max_steps 100`, a list several words.

    Args:
        known: all flags.
        overridden: flags to leave out, because another flag on the command line replaces them.

    Raises:
        ValueError: if the file is not a mapping of the flag names in `known` to plain values, with the line number.
    """
    flags: dict[str, list[str]] = {}
    for key, value in _read_mapping(path):
        where = f"{path}, line {key.start_mark.line + 1}"
        if key.value in (PROCESSES, PAIRS):
            continue
        if not isinstance(key.value, str) or key.value not in known:
            near = difflib.get_close_matches(str(key.value), known, n=1)
            raise ValueError(
                f"{where}: unknown key {str(key.value)!r}{f'; did you mean {near[0]!r}?' if near else '.'}"
            )
        if key.value in flags:
            raise ValueError(f"{where}: {key.value!r} appears twice.")
        values = value.value if isinstance(value, yaml.SequenceNode) else [value]
        if not all(isinstance(item, yaml.ScalarNode) for item in values):
            raise ValueError(f"{where}: {key.value!r} must be a plain value or a list of them.")
        empty = any(item.tag == "tag:yaml.org,2002:null" for item in values)
        flags[key.value] = [] if empty else [f"--{key.value}", *(item.value for item in values)]
    return [word for name, words in flags.items() if name not in overridden for word in words]


def _read_mapping(path: str) -> list[tuple[Any, Any]]:
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
