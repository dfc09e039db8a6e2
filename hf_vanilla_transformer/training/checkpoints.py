"""Find, verify and average the checkpoints of a training run.

Section 6.1 of the paper uses "a single model obtained by averaging the last 5 checkpoints".
"""

import json
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import TrainerState

from ..errors import UserError
from ..files import MODEL, STATE, WEIGHTS, checksum, inside, model_files, new_folder, read_json, weight_files

CHECKSUMS = "checksums.json"
UNFINISHED = "checkpoint-unfinished"  # folder in which a checkpoint is written before it is renamed


def checkpoint_folders(folder: str | Path) -> list[Path]:
    """Return the `checkpoint-N` folders of a training run that contain weights, oldest first."""
    with_weights = [file.parent for file in Path(folder).glob(f"checkpoint-*/{WEIGHTS}")]
    numbered = [path for path in with_weights if re.fullmatch(r"checkpoint-\d+", path.name)]
    return sorted(numbered, key=lambda path: int(path.name.removeprefix("checkpoint-")))


def write_checksums(folder: Path) -> None:
    """Write the checksum of every file in `folder`, for `find_fault` to compare."""
    sums = {file.name: checksum(file) for file in sorted(folder.iterdir()) if file.is_file()}
    (folder / CHECKSUMS).write_text(json.dumps(sums, indent=2), "utf-8")


def find_fault(folder: Path) -> str | None:
    """Return why training cannot resume from this checkpoint (a missing or corrupt file), or None if it can."""
    if not folder.is_dir():
        return "there is no such folder"
    try:
        sums = read_json(folder / CHECKSUMS)
        for name, expected in sums.items():
            file = inside(folder, name)
            if not file.is_file():
                return f"{name} is missing"
            if checksum(file) != expected:
                return f"{name} is corrupt"
        if (folder / STATE).is_file():
            TrainerState(**read_json(folder / STATE))
    except FileNotFoundError:
        # written last
        return f"it has no {CHECKSUMS}, so it was not finished"
    except (OSError, ValueError, AttributeError, TypeError) as error:
        # the last two: JSON, but not an object, or one with other keys
        return f"it cannot be read ({error})"
    return None


def newest_checkpoint(folder: str | Path, report: Callable[[str], None] = print) -> Path | None:
    """Return the newest intact checkpoint of a training run, or None if the run has no checkpoint yet.

    Raises:
        ValueError: if there are checkpoints, but training cannot resume from any of them.
    """
    checkpoints = checkpoint_folders(folder)
    for checkpoint in reversed(checkpoints):
        fault = find_fault(checkpoint)
        if fault is None:
            return checkpoint
        report(f"Skipping {checkpoint}: {fault}")

    # Starting again without a word would throw away what may be weeks of training
    if checkpoints:
        advice = "move them away to start the run again"
        if weight_files(Path(folder)):
            # Nor would the run start again over its own model
            advice = f"to train its model further, give --model_name_or_path {folder} --output_dir ANOTHER"
        raise UserError(f"{folder} has checkpoints, but none is intact; {advice}.")
    return None


def average_checkpoints(folders: Sequence[str | Path], output_dir: str | Path) -> None:
    """Write the mean of the weights in `folders` to `output_dir`, with the configuration and tokenizer of the last.

    The mean is computed in float64 and saved in the dtype of the weights. Only one set of weights and one sum are in
    memory at a time.

    Raises:
        ValueError: if `folders` is empty, if weights are damaged or differ in their names or shapes, or if
            `output_dir` already holds a model.
        FileNotFoundError: if a folder does not have its weights in a single safetensors file.
    """
    with new_folder(output_dir, MODEL) as output:
        write_average(folders, output)


def write_average(folders: Sequence[str | Path], output: Path) -> None:
    """Write the mean of the weights in `folders` to an existing folder; the rest is as in `average_checkpoints`."""
    if not folders:
        raise UserError("There are no checkpoints to average.")
    sums: dict[str, torch.Tensor] = {}
    for folder in map(Path, folders):
        if not (folder / WEIGHTS).is_file():
            raise FileNotFoundError(f"{folder} has no {WEIGHTS}.")
        try:
            weights = load_file(folder / WEIGHTS)
        except SafetensorError as error:
            raise UserError(f"{folder / WEIGHTS} is damaged ({error}); average other checkpoints.") from None
        if sums and {k: v.shape for k, v in weights.items()} != {k: v.shape for k, v in sums.items()}:
            raise UserError(f"{folder} holds a different model from {folders[0]}: names or shapes of weights differ.")
        for name, weight in weights.items():
            # float64, because a sum in bfloat16 would lose what distinguishes neighbouring checkpoints
            sums[name] = sums.get(name, 0.0) + weight.double()

    for file in model_files(Path(folders[-1])).values():
        shutil.copy2(file, output)
    # `weights` are those of the last folder, in whose dtypes the mean is saved
    mean = {name: (total / len(folders)).to(weights[name].dtype) for name, total in sums.items()}
    save_file(mean, output / WEIGHTS, metadata={"format": "pt"})
