"""Record the resolved settings of a run in its folder, as a recipe, and compare them with those of another run."""

import json
from dataclasses import fields, replace
from enum import Enum
from pathlib import Path

import yaml
from transformers import Seq2SeqTrainingArguments

from ..errors import UserError
from ..files import SETTINGS, read_yaml, write_whole
from ..flags import Decides, Part, Settings
from ..loading import load_config
from ..model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..model.text_rules_vanilla_transformer import Directions, parse_language_pair
from .arguments import RUN_FLAGS, TEXT, VALIDATION, DataArguments, ModelArguments, ResolvedFlags, decided_by, meaning
from .presets import paper_config

PROCESSES = "processes"  # recorded with the settings, but not a flag: set by the launcher
PAIRS = "training_pairs"  # likewise: how many the training text has
_TEXTS = (PAIRS, TEXT, VALIDATION)  # likewise, and known once the text has been read
FACTS = (PROCESSES, *_TEXTS)


def resolve_config(model: ModelArguments, data: DataArguments) -> tuple[VanillaTransformerConfig, DataArguments]:
    """Return the model's configuration, and `data` with both languages set, or with several language pairs.

    Raises:
        ValueError: if a flag contradicts the size of a pretrained model, or the languages are not clear.
    """
    changes = model.overrides(Part.CONFIG)
    base = model.model_name_or_path
    if base:
        config = load_config(base)
        for name, value in changes.items():
            if meaning(name).decides is Decides.SIZES and value != getattr(config, name):
                raise UserError(f"--{name} {value}: {base} has {getattr(config, name)}; omit the flag.")
        config.update(changes)
    else:
        config = paper_config(model.preset, **changes)

    given = data.language_pairs or []
    if config.language_pairs and not given:
        if not (data.source_lang and data.target_lang):
            raise UserError(f"{base} translates {', '.join(config.language_pairs)}: give --language_pairs.")
        given = [f"{data.source_lang}-{data.target_lang}"]
        data = replace(data, source_lang=None, target_lang=None)

    # Fine-tuning adds directions: the model keeps those that it has.
    pairs = list(dict.fromkeys([*(config.language_pairs or ()), *map("-".join, map(parse_language_pair, given))]))
    # not by a model that was converted
    named = config.source_lang and config.target_lang
    own = f"{config.source_lang}-{config.target_lang}" if named else pairs and pairs[0]
    if len(pairs) > 1 or config.language_pairs or (base and pairs and pairs != [own]):
        config.language_pairs = pairs
        known = Directions(config)
        config.source_lang = known.sources[0] if len(known.sources) == 1 else None
        config.target_lang = known.targets[0] if len(known.targets) == 1 else None
        return config, replace(data, language_pairs=given)

    # A single direction needs no tags, so it is stored as two languages and not as a list of pairs.
    languages = parse_language_pair(pairs[0]) if pairs else (data.source_lang, data.target_lang)
    config.source_lang = languages[0] or config.source_lang or "en"
    config.target_lang = languages[1] or config.target_lang or "de"
    return config, replace(data, source_lang=config.source_lang, target_lang=config.target_lang, language_pairs=None)


def run_settings(flags: ResolvedFlags) -> Settings:
    """Return the settings of a run: all of this package's, and those of transformers that are not its defaults."""
    # creating arguments sets up the distributed processes again: those of a run on the CPU must stay there
    defaults = vars(Seq2SeqTrainingArguments(".", use_cpu=flags.args.use_cpu)) | {"use_cpu": False}
    settings: Settings = {}
    for group in (flags.model, flags.data, flags.args):
        for field in fields(group):
            value = getattr(group, field.name)
            if isinstance(group, DataArguments) and isinstance(value, list) and len(value) == 1:
                # as recorded when these flags took only one value
                value = value[0]
            # Ours are recorded even with their defaults, which another version may change
            is_default = "meaning" not in field.metadata and value == defaults.get(field.name)
            unset = value in (None, []) or is_default
            if field.init and meaning(field.name).recorded and not unset:
                settings[field.name] = _to_plain(value)

    if not flags.model.model_name_or_path:
        # the sizes of a pretrained model are in its own folder
        for field in fields(ModelArguments):
            settings[field.name] = getattr(flags.config, field.name, settings.get(field.name))
    settings[PROCESSES] = flags.args.world_size
    return {name: value for name, value in settings.items() if value is not None}


def _to_plain(value: object) -> str | float | list[object] | None:
    """Convert a setting to a form that fits in a recipe and that a flag can parse: text, a number, or a list."""
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, (list, tuple)):
        # transformers parses lists of its own options, such as --fsdp, from one text
        words = [str(item.value) for item in value if isinstance(item, Enum)]
        return " ".join(words) if words else list(value)
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


def differences(before: Settings, settings: Settings) -> dict[str, str]:
    """Describe each setting that has changed. One that is not recorded, as by another transformers, is the default.

    The same text under another name is no change. Text that has not been read yet is taken to be the same.
    """
    old = {name: _to_plain(value) for name, value in before.items() if meaning(name).recorded}
    # None of these has a default; without a record of them, they are taken to have been the same.
    defaults = {name: settings[name] for name in FACTS if name in settings}
    defaults |= {field.name: field.default for group in RUN_FLAGS for field in fields(group)}
    old = {**{name: defaults[name] for name in settings if name in defaults}, **old}
    now = {**{name: old[name] for name in _TEXTS if name in old}, **settings}
    changed = [name for name in {**old, **now} if old.get(name) != now.get(name)]
    changes = {name: f"{name} was {old.get(name)}, now {now.get(name)}" for name in changed}
    # A digest says nothing to the user
    changes |= {name: f"{name} has changed" for name in (TEXT, VALIDATION) if name in changed}
    same = {name for name in (TEXT, VALIDATION) if name in before and name not in changed}
    return {name: change for name, change in changes.items() if meaning(name).content not in same}


def compare_validations(before: Settings, settings: Settings) -> bool:
    """Return whether the validations of a run before and after a change of its settings are comparable."""
    return all(decided_by(name, settings) is not Decides.SCORES for name in differences(before, settings))


def check_continues(before: Settings, settings: Settings, checkpoint: str) -> None:
    """Check that a run can start from a checkpoint of another run, at its position in the text.

    Raises:
        ValueError: if a change of settings would change the batches, or would be undone by the checkpoint.
    """
    for name, change in differences(before, settings).items():
        if name in (PROCESSES, PAIRS) or decided_by(name, settings) is Decides.BATCHES:
            reason = "which changes the batches"
        elif decided_by(name, settings) is Decides.OPTIMIZER:
            reason = "but the optimizer resumes with its former settings"
        else:
            continue
        raise UserError(
            f"--resume_from_checkpoint {checkpoint}: {change}, {reason}. To start from these weights instead, give "
            f"--model_name_or_path {checkpoint}."
        )


def renames_text(before: Settings, settings: Settings) -> bool:
    """Return whether the training text of a run that has recorded its content now has another name."""
    names = {name for name in {**before, **settings} if meaning(name).content == TEXT}
    return TEXT in before and any(before.get(name) != settings.get(name) for name in names)


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
    if not isinstance(settings, dict) or not all(isinstance(name, str) for name in settings):
        raise UserError(f"{file} is damaged; choose another --output_dir, or restore the file.")
    return settings


def more_text(folder: str) -> str:
    """Return how to continue the run in a folder with more text than it was trained on."""
    start = f"--model_name_or_path {folder} --train_file OLD NEW --output_dir ANOTHER"
    return f"To continue with more text, start a run from its model: {start}."


def check_same_run(settings: Settings, folder: str) -> bool:
    """Return True if `folder` holds a run with these settings, which can be resumed, and False if it holds no run.

    Raises:
        ValueError: if it holds a run with different settings, or a model without a run. Nothing in it is changed.
    """
    before = recorded_settings(folder)
    if before is None:
        if Path(folder, "config.json").exists():
            raise UserError(f"{folder} already holds a model; choose another --output_dir.")
        return False
    free = (Decides.LENGTH, Decides.SCORES, Decides.NOTHING)
    changed = differences(before, settings)
    changes = [change for name, change in changed.items() if decided_by(name, settings) not in free]
    if changes:
        launch = ""
        if before.get(PROCESSES, settings.get(PROCESSES)) != settings.get(PROCESSES):
            launch = f" Launch it with `torchrun --nproc_per_node {before[PROCESSES]}`."
        text = f" {more_text(folder)}" if any(meaning(name).content == TEXT for name in changed) else ""
        raise UserError(
            f"{folder} holds a run with different settings: {'; '.join(changes)}.{launch} Choose another "
            f"--output_dir, or use the settings in {Path(folder, SETTINGS)} to resume that run.{text}"
        )
    return True
