"""Resolve a run: flags over a recipe (a YAML file of flags), the recipe over a preset, the preset over the defaults.

`parse_arguments` decides all of it once, before any text is read, and returns a `Recipe`. Its settings are recorded in
the folder of the run, again as a recipe.
"""

import argparse
import json
import math
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

import yaml
from transformers import Seq2SeqTrainingArguments, TrainingArguments

from ..errors import UserError
from ..files import MAX_YAML_BYTES, SETTINGS, read_document, read_yaml, write_whole
from ..flags import Decides, FlagParser, Flags, Settings, details
from ..loading import load_config
from ..model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..model.text_rules_vanilla_transformer import Directions, parse_language_pair
from .arguments import FACTS, NO_EFFECT, PROCESSES, RUN_FLAGS, DataArguments, ModelArguments, Recipe, meaning
from .presets import PAIRS_PER_BATCH, SMALL_TEXT, fit_to, paper_config, preset

_Value = TypeVar("_Value")


def parse_arguments(
    argv: Sequence[str],
    prog: str = "vanilla-transformer train",
    description: str = "Train the original Transformer on parallel text.",
    *more: type[Flags],
) -> list[Any]:
    """Parse `[RECIPE.yaml] [flags]`; flags override the recipe, the recipe the preset, and the preset the defaults.

    Without a preset, that of the run in the output folder holds, or the text is counted to find one that fits. Invalid
    flags, and values out of range, end the program with exit status 2.

    Returns:
        A `Recipe`, and an instance of each dataclass in `more`.

    Raises:
        ValueError: for an invalid recipe, or flags that contradict a pretrained model.
    """
    parser = FlagParser(
        (*RUN_FLAGS, *more),
        prog=prog,
        usage="%(prog)s [RECIPE.yaml] [flags]",
        description=f"{description} A recipe is a YAML file of flags; flags on the command line override it.",
        takes_recipe=True,
        hidden=NO_EFFECT,
    )
    given = _given(parser, argv)
    flags = argparse.Namespace(**{**dict.fromkeys(parser.flags), **given})  # None for those that are not given
    recorded = recorded_settings(flags.output_dir)
    try:
        name, training, reason = _choose_preset(flags, recorded)
        defaults = {**_outer_defaults(parser, flags), **_without_replaced(training, given)}
        # The number of updates of the preset would win over the epochs
        if flags.num_train_epochs is not None:
            defaults |= {"max_steps": -1}
        model, data, args, *others = parser.instances({**defaults, **given, "preset": name})
        args.check_metric()
        _check_sizes(model)
    except (ValueError, TypeError) as error:
        # TypeError: wrong keys in a dictionary such as --accelerator_config
        parser.error(" ".join(str(error).split()))
    if reason and args.process_index == 0:
        length = f"{args.max_steps:,} updates" if args.max_steps > 0 else f"{args.num_train_epochs:g} epochs"
        print(f"{reason} for {length}; set --preset or --max_steps to change this.", file=sys.stderr)
    config = _resolve_config(model)
    data = _resolve_directions(config, data)
    if recorded:
        args.keep_choices(recorded)
    settings = _run_settings(model, data, args, config)
    return [Recipe(model, data, args, config, str(args.output_dir), settings, recorded), *others]


def _given(parser: FlagParser, argv: Sequence[str]) -> Settings:
    """Return the flags of the command line and of its recipe, without those that have their defaults."""
    words = list(argv)
    if not words or words[0].startswith("-"):
        return parser.given(words)
    recipe = read_recipe(words.pop(0), parser.flags)
    given = parser.given([*_as_words(recipe), *words])
    return parser.given([*_as_words(_without_replaced(recipe, given)), *words])


def _outer_defaults(parser: FlagParser, flags: argparse.Namespace) -> Settings:
    """Return the defaults that follow the launcher and the other flags."""
    defaults: Settings = {}
    # from the configuration of `accelerate launch`
    precision = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    if precision in parser.flags and not (flags.bf16 or flags.fp16):
        defaults[precision] = True
    if flags.validation_file or flags.dataset_name or not flags.train_file:
        defaults |= {"eval_strategy": "steps"}
    return defaults


def _choose_preset(flags: argparse.Namespace, recorded: Settings | None) -> tuple[str, Settings, str]:
    """Return the preset that is given, that of the run in the output folder, or one that fits the text.

    Returns:
        Its name, its training settings, and why it was chosen if neither the user nor the default did.

    Raises:
        ValueError: for an unknown name, or flags of the text out of range.
    """
    if flags.preset is not None:
        return flags.preset, preset(flags.preset).training, ""
    if recorded:
        name = str(argparse.Namespace(**{**vars(ModelArguments()), **recorded}).preset)
        # As they were fitted when the run began
        return name, {key: recorded.get(key, value) for key, value in preset(name).training.items()}, ""
    text_flags = {flag.name: getattr(flags, flag.name) for flag in fields(DataArguments)}
    data = DataArguments(**{name: value for name, value in text_flags.items() if value is not None})

    from ..data.source import Source  # slow to import
    from .text import training_sources

    # The languages of a pretrained model are the default
    try:
        config = load_config(flags.model_name_or_path) if flags.model_name_or_path else VanillaTransformerConfig()
        pairs = Source(training_sources(_resolve_directions(config, data))).count(SMALL_TEXT)
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


def _without_replaced(settings: Mapping[str, _Value], given: Settings) -> dict[str, _Value]:
    """Return the settings of a recipe or preset without those that no longer hold with the flags that are given.

    For example, its learning rate is meant for its own schedule.
    """
    replaced: set[str] = set()
    for flag in (flag for kind in RUN_FLAGS for flag in fields(kind) if flag.name in given):
        if _as_list(settings.get(flag.name, flag.default)) != _as_list(given[flag.name]):
            replaced.update(meaning(flag.name).replaces)
    return {name: value for name, value in settings.items() if name not in replaced}


def _as_list(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


def _as_words(recipe: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a recipe as command-line words: `max_steps: 100` becomes `--max_steps 100`, a list several words."""
    return [word for name, values in recipe.items() for word in (f"--{name}", *values)]


def _check_sizes(model: ModelArguments) -> None:
    """Check that the model's flags are in range; the sizes of a pretrained model are checked when it is loaded."""
    changes = model.overrides(VanillaTransformerConfig.__annotations__)
    if model.model_name_or_path:
        changes = {name: value for name, value in changes.items() if meaning(name).decides is not Decides.SIZES}
    paper_config(model.preset, **changes)


def _resolve_config(model: ModelArguments) -> VanillaTransformerConfig:
    """Return the configuration of the model: that of the preset or the pretrained model, changed by the flags.

    Raises:
        ValueError: if a flag contradicts the size of a pretrained model.
    """
    changes = model.overrides(VanillaTransformerConfig.__annotations__)
    base = model.model_name_or_path
    if not base:
        return paper_config(model.preset, **changes)
    config = load_config(base)
    for name, value in changes.items():
        if meaning(name).decides is Decides.SIZES and value != getattr(config, name):
            raise UserError(f"--{name} {value}: {base} has {getattr(config, name)}; omit the flag.")
    # The validation of this run will find its own
    config.update({**changes, "doubtful_score": None})
    return config


def _resolve_directions(config: VanillaTransformerConfig, data: DataArguments) -> DataArguments:
    """Set the languages of a model, and return the flags of its text with both languages, or several pairs.

    Fine-tuning adds directions to those of the model. A single direction needs no tags, so it is stored as two
    languages and not as a list of pairs.

    Raises:
        ValueError: if a model of several directions is given text without one.
    """
    given = data.language_pairs or []
    if config.language_pairs and not given:
        if not (data.source_lang and data.target_lang):
            raise UserError(f"The model translates {Directions(config)}: give --language_pairs.")
        given = [f"{data.source_lang}-{data.target_lang}"]
    if not given:
        config.source_lang = data.source_lang or config.source_lang or "en"
        config.target_lang = data.target_lang or config.target_lang or "de"
        return replace(data, source_lang=config.source_lang, target_lang=config.target_lang)

    pairs = list(dict.fromkeys([*Directions(config).pairs, *map(parse_language_pair, given)]))
    if len(pairs) == 1 and not config.language_pairs:
        config.source_lang, config.target_lang = pairs[0]
        return replace(data, source_lang=config.source_lang, target_lang=config.target_lang, language_pairs=None)
    config.language_pairs = ["-".join(pair) for pair in pairs]
    known = Directions(config)
    config.source_lang = known.sources[0] if len(known.sources) == 1 else None
    config.target_lang = known.targets[0] if len(known.targets) == 1 else None
    return replace(data, source_lang=None, target_lang=None, language_pairs=given)


def read_recipe(path: str, known: Collection[str]) -> dict[str, list[str]]:
    """Return the flags of a recipe, each with its words on a command line; those without a value are left out.

    Args:
        known: all flags.

    Raises:
        ValueError: if the file is not a mapping of the flag names in `known` to plain values, with the line number.
    """
    flags: dict[str, list[str]] = {}
    for key, value in _read_mapping(path):
        where = f"{path}, line {key.start_mark.line + 1}"
        if key.value in FACTS:
            continue
        if not isinstance(key.value, str) or key.value not in known:
            raise UserError(f"{where}: unknown key {str(key.value)!r}; `train --help` lists the flags.")
        if key.value in flags:
            raise UserError(f"{where}: {key.value!r} appears twice.")
        values = value.value if isinstance(value, yaml.SequenceNode) else [value]
        if not all(isinstance(item, yaml.ScalarNode) for item in values):
            raise UserError(f"{where}: {key.value!r} must be a plain value or a list of them.")
        if not any(item.tag == "tag:yaml.org,2002:null" for item in values):
            flags[key.value] = [item.value for item in values]
    return flags


def _read_mapping(path: str) -> list[tuple[yaml.Node, yaml.Node]]:
    """Return the keys and values of a YAML mapping as nodes, which hold their line numbers."""
    try:
        root = yaml.compose(read_document(Path(path), MAX_YAML_BYTES), Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise UserError(f"{path}{line}: not YAML ({getattr(error, 'problem', None) or error}).") from None
    except ValueError as error:
        raise UserError(f"{path}: {error}.") from None
    if not isinstance(root, yaml.MappingNode):
        raise UserError(f"{path}: a recipe must consist of lines such as `max_steps: 100000`.")
    return root.value


def _run_settings(
    model: ModelArguments, data: DataArguments, args: TrainingArguments, config: VanillaTransformerConfig
) -> Settings:
    """Return the settings of a run: all of this package's, and those of transformers that are not its defaults."""
    # creating arguments sets up the distributed processes again: those of a run on the CPU must stay there
    defaults = vars(Seq2SeqTrainingArguments(".", use_cpu=args.use_cpu)) | {"use_cpu": False}
    settings: Settings = {}
    groups: tuple[Flags | TrainingArguments, ...] = (model, data, args)
    for group in groups:
        for field in fields(group):
            value = getattr(group, field.name)
            # Ours are recorded even with their defaults, which another version may change
            is_default = details(field).meaning is None and value == defaults.get(field.name)
            unset = value in (None, []) or is_default
            if field.init and meaning(field.name).recorded and not unset:
                settings[field.name] = _to_plain(value)

    if not model.model_name_or_path:
        # the sizes of a pretrained model are in its own folder
        for field in fields(ModelArguments):
            settings[field.name] = getattr(config, field.name, settings.get(field.name))
    settings[PROCESSES] = args.world_size
    return {name: value for name, value in settings.items() if value is not None}


def _to_plain(value: object) -> str | float | list[object] | None:
    """Convert a setting to a form that fits in a recipe and that a flag can parse: text, a number, or a list."""
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, (list, tuple)):
        # transformers parses lists of its own options, such as --fsdp, from one text
        words = [str(item.value) for item in value if isinstance(item, Enum)]
        items = [" ".join(words)] if words else list(value)
        return items[0] if len(items) == 1 else items
    if hasattr(value, "to_dict"):
        value = value.to_dict()
    if isinstance(value, dict):
        return json.dumps(value)
    return value if isinstance(value, (str, int, float)) or value is None else str(value)


def write_settings(settings: Settings, folder: str, comment: str, name: str = SETTINGS) -> None:
    """Write `settings` to `folder` as a recipe, with `comment` as its first line."""
    file = Path(folder, name)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, f"# {comment}\n{yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)}")


def recorded_settings(folder: str | Path) -> Settings | None:
    """Return the settings of the run in `folder`, or None if there is no run.

    Raises:
        ValueError: if they are damaged.
    """
    file = Path(folder, SETTINGS)
    if not file.is_file():
        return None
    try:
        settings = read_yaml(file)
    except ValueError:
        settings = None
    if not isinstance(settings, dict) or not all(map(_is_setting, settings, settings.values())):
        raise UserError(f"{file} is damaged; choose another --output_dir, or restore the file.")
    return settings


def _is_setting(name: object, value: object) -> bool:
    """Return whether a pair of a recorded run is a setting: a name, and text, a number or a list of these."""
    items = value if isinstance(value, list) else [value]
    return isinstance(name, str) and all(isinstance(item, (str, int, float)) for item in items)
