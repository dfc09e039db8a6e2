"""Find, verify and average the checkpoints of a training run.

Section 6.1 of the paper uses "a single model obtained by averaging the last 5 checkpoints".
"""

import json
import re
import shutil
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from ..files import MODEL_FILES, STATE, WEIGHTS, checksum, replacing

OPTIMIZER = "optimizer.pt"
CHECKSUMS = "checksums.json"
UNFINISHED = "checkpoint-unfinished"  # folder in which a checkpoint is written before it is renamed


def checkpoint_folders(folder: str | Path) -> list[Path]:
    """Return the `checkpoint-N` folders of a training run that contain weights, oldest first."""
    found = [path for path in Path(folder).glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", path.name)]
    return sorted((path for path in found if (path / WEIGHTS).is_file()), key=lambda path: int(path.name[11:]))


def write_checksums(folder: Path) -> None:
    """Write the checksum of every file in `folder`, for `find_fault` to compare."""
    sums = {file.name: checksum(file) for file in sorted(folder.iterdir()) if file.is_file()}
    (folder / CHECKSUMS).write_text(json.dumps(sums, indent=2), "utf-8")


def find_fault(folder: Path) -> str | None:
    """Return why training cannot resume from this checkpoint (a missing or corrupt file), or None if it can."""
    try:
        if (folder / CHECKSUMS).is_file():
            sums = json.loads((folder / CHECKSUMS).read_text("utf-8"))
            missing = [name for name in sums if not (folder / name).is_file()]
            if missing:
                return f"{missing[0]} is missing"
            corrupt = [name for name, expected in sums.items() if checksum(folder / name) != expected]
            if corrupt:
                return f"{corrupt[0]} is corrupt"
            # FSDP and DeepSpeed save the optimizer in their own files and folders
            has_optimizer = any(folder.glob("optimizer*")) or any(folder.glob("global_step*"))
            return None if has_optimizer else f"it has no {OPTIMIZER}, so the learning rate would restart"
        json.loads((folder / STATE).read_text())
        with safe_open(folder / WEIGHTS, "pt"):
            return None if zipfile.is_zipfile(folder / OPTIMIZER) else f"{OPTIMIZER} is truncated"
    except (OSError, ValueError, TypeError, AttributeError, SafetensorError) as error:
        return f"it cannot be read ({error})"


def newest_checkpoint(folder: str | Path, report: Callable[[str], None] = print) -> Path | None:
    """Return the newest intact checkpoint of a training run, or None if the run has no checkpoint yet.

    Raises:
        ValueError: if there are checkpoints, but training cannot resume from any of them.
    """
    found = checkpoint_folders(folder)
    for checkpoint in reversed(found):
        fault = find_fault(checkpoint)
        if fault is None:
            return checkpoint
        report(f"Skipping {checkpoint}: {fault}")
    if found:
        raise ValueError(f"{folder} has checkpoints, but none is intact; move them away to start the run again.")
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
    if not folders:
        raise ValueError("There are no checkpoints to average.")
    output = Path(output_dir)
    if any((output / name).exists() for name in (WEIGHTS, "config.json")):
        raise ValueError(f"{output} already holds a model; choose another --output_dir.")
    sums: dict[str, torch.Tensor] = {}
    dtypes: dict[str, torch.dtype] = {}
    for folder in map(Path, folders):
        if not (folder / WEIGHTS).is_file():
            raise FileNotFoundError(f"{folder} has no {WEIGHTS}.")
        try:
            weights = load_file(folder / WEIGHTS)
        except SafetensorError as error:
            raise ValueError(f"{folder / WEIGHTS} is damaged ({error}); average other checkpoints.") from None
        if sums and {k: v.shape for k, v in weights.items()} != {k: v.shape for k, v in sums.items()}:
            raise ValueError(f"{folder} holds a different model from {folders[0]}: names or shapes of weights differ.")
        for name, weight in weights.items():
            dtypes[name] = weight.dtype
            sums[name] = sums[name] + weight.double() if name in sums else weight.double()
    output.mkdir(parents=True, exist_ok=True)
    last = Path(folders[-1])
    for pattern in MODEL_FILES:
        for file in last.glob(pattern):
            if file.is_file() and file.parent != output:
                shutil.copy2(file, output)
    mean = {name: (total / len(folders)).to(dtypes[name]) for name, total in sums.items()}
    with replacing(output / WEIGHTS) as unfinished:
        save_file(mean, unfinished, metadata={"format": "pt"})
