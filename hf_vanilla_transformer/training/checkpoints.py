"""The checkpoints of a run: the newest to go on from, and the mean of the last.

"a single model obtained by averaging the last 5 checkpoints" (section 6.1).
"""

import json
import re
import shutil
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from ..files import MODEL_FILES, STATE, WEIGHTS, checksum, replacing

OPTIMIZER = "optimizer.pt"
CHECKSUMS = "checksums.json"
UNFINISHED = "checkpoint-unfinished"  # where a checkpoint is written before it gets its name


def checkpoint_folders(folder: str | Path) -> list[Path]:
    """The `checkpoint-N` folders of a training run that hold weights, the oldest first."""
    found = [path for path in Path(folder).glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", path.name)]
    return sorted((path for path in found if (path / WEIGHTS).is_file()), key=lambda path: int(path.name[11:]))


def write_checksums(folder: Path) -> None:
    """Writes what `fault_of` compares with: the checksum of every file in `folder`."""
    sums = {file.name: checksum(file) for file in sorted(folder.iterdir()) if file.is_file()}
    (folder / CHECKSUMS).write_text(json.dumps(sums, indent=2), "utf-8")


def fault_of(folder: Path) -> str | None:
    """Why training cannot go on from this checkpoint (files that are missing or not as they were written), or None."""
    try:
        if (folder / CHECKSUMS).is_file():
            sums = json.loads((folder / CHECKSUMS).read_text("utf-8"))
            missing = [name for name in sums if not (folder / name).is_file()]
            if missing:
                return f"{missing[0]} is missing"
            broken = [name for name, before in sums.items() if checksum(folder / name) != before]
            if broken:
                return f"{broken[0]} is corrupt"
            # FSDP and DeepSpeed write the optimizer into files and folders of their own
            whole = any(folder.glob("optimizer*")) or any(folder.glob("global_step*"))
            return None if whole else f"it has no {OPTIMIZER}, so the learning rate would start over"
        json.loads((folder / STATE).read_text())
        with safe_open(folder / WEIGHTS, "pt"):
            return None if zipfile.is_zipfile(folder / OPTIMIZER) else f"{OPTIMIZER} is torn"
    except (OSError, ValueError, TypeError, AttributeError, SafetensorError) as error:
        return f"it cannot be read ({error})"


def newest_checkpoint(folder: str | Path, report: Callable[[str], Any] = print) -> Path | None:
    """The newest whole checkpoint of a training run, or None if it has not come to its first.

    Raises:
        ValueError: if there are checkpoints, but none that training can go on from.
    """
    found = checkpoint_folders(folder)
    for checkpoint in reversed(found):
        fault = fault_of(checkpoint)
        if fault is None:
            return checkpoint
        report(f"{checkpoint} is of no use: {fault}")
    if found:
        raise ValueError(f"{folder} has checkpoints, but none is whole; move them away to start again.")
    return None


def average_checkpoints(folders: Sequence[str | Path], output_dir: str | Path) -> None:
    """Writes the mean of the weights in `folders` to `output_dir`, with the last one's configuration and tokenizer.

    The arithmetic is float64, the result in the weights' own type. One set of weights and one sum are in memory at a
    time.

    Raises:
        ValueError: if there is nothing to average, weights are damaged or differ in names or shapes, or `output_dir`
            holds a model.
        FileNotFoundError: if a folder has no weights in one safetensors file.
    """
    if not folders:
        raise ValueError("There are no checkpoints to average.")
    output = Path(output_dir)
    if any((output / name).exists() for name in (WEIGHTS, "config.json")):
        raise ValueError(f"{output} holds a model already; choose another --output_dir.")
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
            raise ValueError(f"{folder} holds another model than {folders[0]}: names or shapes of weights differ.")
        for name, weight in weights.items():
            dtypes[name] = weight.dtype
            sums[name] = sums[name] + weight.double() if name in sums else weight.double()
    output.mkdir(parents=True, exist_ok=True)
    last = Path(folders[-1])
    for pattern in MODEL_FILES:
        for file in last.glob(pattern):
            if file.parent != output:
                shutil.copy2(file, output)
    mean = {name: (total / len(folders)).to(dtypes[name]) for name, total in sums.items()}
    with replacing(output / WEIGHTS) as unfinished:
        save_file(mean, unfinished, metadata={"format": "pt"})
