"""The folder of a run: one run at a time, the settings that it records as a recipe, and which run may resume in it."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields
from enum import Enum
from pathlib import Path

import yaml
from transformers import Seq2SeqTrainingArguments

from ..errors import UserError
from ..files import SETTINGS, check_folder, locking, read_yaml, write_whole
from ..flags import Decides, Settings
from .arguments import PAIRS, PROCESSES, TEXT, VALIDATION, ModelArguments, Recipe, decided_by, meaning

_TEXTS = (PAIRS, TEXT, VALIDATION)  # known once the text has been read
FACTS = (PROCESSES, *_TEXTS)  # recorded with the settings, but not flags


@contextmanager
def one_run(folder: str | Path) -> Iterator[None]:
    """Lock `folder` for a single run, as `locking`.

    Raises:
        ValueError: if another run is using the folder, or it is a file.
    """
    folder = Path(folder)
    check_folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    busy = f"Another run is using {folder}; wait until it ends or choose another folder."
    try:
        with locking(folder / "run.lock", busy):
            yield
    finally:
        # A run that was refused leaves no trace; a folder that is not empty is not removed
        with suppress(OSError):
            folder.rmdir()


def run_settings(recipe: Recipe) -> Settings:
    """Return the settings of a run: all of this package's, and those of transformers that are not its defaults."""
    # creating arguments sets up the distributed processes again: those of a run on the CPU must stay there
    defaults = vars(Seq2SeqTrainingArguments(".", use_cpu=recipe.args.use_cpu)) | {"use_cpu": False}
    settings: Settings = {}
    for group in (recipe.model, recipe.data, recipe.args):
        for field in fields(group):
            value = getattr(group, field.name)
            # Ours are recorded even with their defaults, which another version may change
            is_default = "meaning" not in field.metadata and value == defaults.get(field.name)
            unset = value in (None, []) or is_default
            if field.init and meaning(field.name).recorded and not unset:
                settings[field.name] = _to_plain(value)

    if not recipe.model.model_name_or_path:
        # the sizes of a pretrained model are in its own folder
        for field in fields(ModelArguments):
            settings[field.name] = getattr(recipe.config, field.name, settings.get(field.name))
    settings[PROCESSES] = recipe.args.world_size
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


def differences(before: Settings, settings: Settings) -> dict[str, str]:
    """Describe each setting that has changed.

    The same text under another name is no change. Text that has not been read yet is taken to be the same.
    """
    now = {**{name: before[name] for name in _TEXTS if name in before}, **settings}
    same = {name for name in (TEXT, VALIDATION) if name in before and before[name] == now[name]}
    changes: dict[str, str] = {}
    for name in {**before, **now}:
        known = meaning(name)
        if before.get(name) == now.get(name) or known.content in same or not known.recorded:
            continue
        # A digest says nothing to the user
        is_digest = name in (TEXT, VALIDATION)
        values = "has changed" if is_digest else f"was {before.get(name)}, now {now.get(name)}"
        changes[name] = f"{name} {values}"
    return changes


def compare_validations(before: Settings, settings: Settings) -> bool:
    """Return whether the validations of a run before and after a change of its settings are comparable."""
    return all(decided_by(name, settings) is not Decides.SCORES for name in differences(before, settings))


def check_continues(before: Settings, settings: Settings, checkpoint: str) -> None:
    """Check that a run can start from a checkpoint of another run, at its position in the text.

    Raises:
        ValueError: if a change of settings would change the batches, or would be undone by the checkpoint.
    """
    reasons = {
        Decides.BATCHES: "which changes the batches",
        Decides.OPTIMIZER: "but the optimizer resumes with its former settings",
    }
    for name, change in differences(before, settings).items():
        if reason := reasons.get(decided_by(name, settings)):
            raise UserError(
                f"--resume_from_checkpoint {checkpoint}: {change}, {reason}. To start from these weights instead, "
                f"give --model_name_or_path {checkpoint}."
            )


def renames_text(before: Settings, settings: Settings) -> bool:
    """Return whether the training text of a run now has another name."""
    names = {name for name in {**before, **settings} if meaning(name).content == TEXT} - {TEXT}
    return any(before.get(name) != settings.get(name) for name in names)


def more_text(folder: str) -> str:
    """Return how to continue the run in a folder with more text than it was trained on."""
    start = f"--model_name_or_path {folder} --train_file OLD NEW --output_dir ANOTHER"
    return f"To continue with more text, start a run from its model: {start}."


def check_same_run(before: Settings | None, settings: Settings, folder: str) -> bool:
    """Return True if `folder` holds a run with these settings, which can be resumed, and False if it holds no run.

    Args:
        before: the settings that the run has recorded, if there is one.

    Raises:
        ValueError: if it holds a run with different settings, or a model without a run. Nothing in it is changed.
    """
    if before is None:
        if Path(folder, "config.json").exists():
            raise UserError(f"{folder} already holds a model; choose another --output_dir.")
        return False
    free = (Decides.LENGTH, Decides.SCORES, Decides.NOTHING)
    changes = {
        name: change
        for name, change in differences(before, settings).items()
        if decided_by(name, settings) not in free
    }
    if changes:
        launch = f" Launch it with `torchrun --nproc_per_node {before[PROCESSES]}`." if PROCESSES in changes else ""
        text = f" {more_text(folder)}" if any(meaning(name).content == TEXT for name in changes) else ""
        raise UserError(
            f"{folder} holds a run with different settings: {'; '.join(changes.values())}.{launch} Choose another "
            f"--output_dir, or use the settings in {Path(folder, SETTINGS)} to resume that run.{text}"
        )
    return True
