"""Recipes: files of flags in YAML; and the resolved settings that every run leaves in its folder, a recipe as well."""

import difflib
import json
from collections.abc import Collection
from dataclasses import fields
from enum import Enum
from pathlib import Path
from typing import Any

import yaml

from .arguments import NEVER_RECORDED, NOAM, DataArguments, VanillaTransformerTrainingArguments
from .files import write_whole

SETTINGS = "settings.yaml"  # in the output folder of a run
PROCESSES = "processes"  # recorded there, but no flag: the launcher decides

# What may change when a run goes on: it decides where and how long, not which model training leads to
_FREE_PREFIXES = ("eval_", "logging_", "log_", "save_", "dataloader_", "hub_", "push_to_hub")
_FREE = {
    *("output_dir", "validation_file", "report_to", "run_name", "disable_tqdm", "use_cpu", "generation_num_beams"),
    *("num_beams", "length_penalty", "bleu_tokenize", "early_stopping_patience", "load_best_model_at_end"),
    *("metric_for_best_model", "greater_is_better", "preset", "license"),
}
_UNRECORDED = NEVER_RECORDED | {"resume_from_checkpoint"}  # earlier versions did, without any effect
_LENGTH = {"max_steps", "num_train_epochs"}
_ENDLESS_SCHEDULES = ("noam", "constant", "constant_with_warmup")  # their rates do not depend on when training ends


def read_recipe(path: str, known: Collection[str]) -> list[str]:
    """The flags that a recipe stands for: `max_steps: 100` is `--max_steps 100`, a list several words.

    Raises:
        ValueError: if the file is no mapping of flags' names to plain values, with the line.
    """
    try:
        root = yaml.compose(Path(path).read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise ValueError(f"{path}{line}: not YAML ({getattr(error, 'problem', None) or error}).") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 ({error.reason} at byte {error.start}).") from None
    if not isinstance(root, yaml.MappingNode):
        raise ValueError(f"{path}: a recipe is lines such as `max_steps: 100000`.")
    flags: dict[str, list[str]] = {}
    for key, value in root.value:
        where = f"{path}, line {key.start_mark.line + 1}"
        if key.value == PROCESSES:
            continue
        if not isinstance(key.value, str) or key.value not in known:
            near = difflib.get_close_matches(str(key.value), known, n=1)
            raise ValueError(
                f"{where}: unknown key {str(key.value)!r}{f'; did you mean {near[0]!r}?' if near else '.'}"
            )
        if key.value in flags:
            raise ValueError(f"{where}: {key.value!r} is there twice.")
        values = value.value if isinstance(value, yaml.SequenceNode) else [value]
        if not all(isinstance(item, yaml.ScalarNode) for item in values):
            raise ValueError(f"{where}: {key.value!r} must be a plain value or a list of them.")
        empty = any(item.tag == "tag:yaml.org,2002:null" for item in values)
        flags[key.value] = [] if empty else [f"--{key.value}", *(item.value for item in values)]
    return [word for words in flags.values() for word in words]


def plain(value: Any) -> Any:
    """Return a setting as a recipe can hold it and a flag can take it: text, a number, or a list of them."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (list, tuple)):
        values = [plain(item) for item in value]
        return " ".join(values) if any(isinstance(item, Enum) for item in value) else values
    if hasattr(value, "to_dict"):
        value = value.to_dict()
    if isinstance(value, dict):
        return json.dumps(value)
    return value if isinstance(value, (str, int, float)) or value is None else str(value)


def write_settings(settings: dict[str, Any], folder: str, head: str, name: str = SETTINGS) -> None:
    """Writes `settings` as a recipe into `folder`, under the comment `head`."""
    file = Path(folder, name)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, f"# {head}\n{yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)}")


def differences(before: dict[str, Any], settings: dict[str, Any]) -> dict[str, str]:
    """Each setting that differs, and in words how. What an earlier version did not know had its default."""
    types: tuple[Any, ...] = (DataArguments, VanillaTransformerTrainingArguments)
    defaults = {field.name: field.default for group in types for field in fields(group)}
    defaults[PROCESSES] = settings.get(PROCESSES)  # was not recorded
    ignored = _UNRECORDED | ({"lr_scheduler_kwargs"} if settings.get("lr_scheduler_type") == NOAM else set())
    before = {name: plain(value) for name, value in before.items() if name not in ignored}
    before = {**{name: defaults[name] for name in settings if name in defaults}, **before}
    pairs = {name: (before.get(name), settings.get(name)) for name in {**before, **settings}}
    return {name: f"{name} {there} there, {now} now" for name, (there, now) in pairs.items() if there != now}


def recorded_settings(folder: str | Path) -> dict[str, Any] | None:
    """Return the settings of the run in `folder`, or None if it holds none.

    Raises:
        ValueError: if they are damaged.
    """
    file = Path(folder, SETTINGS)
    if not file.is_file():
        return None
    try:
        settings = dict(yaml.safe_load(file.read_text("utf-8")))
    except (yaml.YAMLError, UnicodeDecodeError, TypeError, ValueError):
        settings = {None: None}
    if not all(isinstance(name, str) for name in settings):
        raise ValueError(f"{file} is damaged; choose another --output_dir, or write it again as it was.")
    return settings


def check_same_run(settings: dict[str, Any], folder: str) -> bool:
    """Whether `folder` holds a run of these settings, to be gone on with, or none.

    Raises:
        ValueError: if it holds another run or a model from elsewhere; nothing in it is touched.
    """
    file = Path(folder, SETTINGS)
    before = recorded_settings(folder)
    if before is None:
        if Path(folder, "config.json").exists():
            raise ValueError(f"{folder} holds a model already; choose another --output_dir.")
        return False
    free = _FREE | (_LENGTH if settings["lr_scheduler_type"] in _ENDLESS_SCHEDULES else set())
    bound = {"dataloader_num_workers"} if settings.get("streaming") else set()  # each worker makes its own batches
    changes = [
        words
        for name, words in differences(before, settings).items()
        if name in bound or (name not in free and not name.startswith(_FREE_PREFIXES))
    ]
    if changes:
        launch = ""
        if before.get(PROCESSES, settings.get(PROCESSES)) != settings.get(PROCESSES):
            launch = f" Launch it with `torchrun --nproc_per_node {before[PROCESSES]}`."
        raise ValueError(
            f"{folder} holds a run with other settings: {'; '.join(changes)}.{launch} Choose another --output_dir, or "
            f"repeat the settings in {file} to go on with that run."
        )
    return True
