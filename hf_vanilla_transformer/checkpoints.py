"""The checkpoints of a run: the newest to go on from, and the mean of the last.

"a single model obtained by averaging the last 5 checkpoints" (section 6.1).
"""

import json
import re
import shutil
import zipfile
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

WEIGHTS = "model.safetensors"
OPTIMIZER = "optimizer.pt"
STATE = "trainer_state.json"  # what the trainer writes last


def checkpoint_folders(folder: str | Path) -> list[Path]:
    """The `checkpoint-N` folders of a training run that hold weights, the oldest first."""
    found = [path for path in Path(folder).glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", path.name)]
    return sorted((path for path in found if (path / WEIGHTS).is_file()), key=lambda path: int(path.name[11:]))


def _is_whole(folder: Path) -> bool:
    """Whether training can go on from this checkpoint: one cut off while it was written misses files or their ends."""
    try:
        json.loads((folder / STATE).read_text())
        with safe_open(folder / WEIGHTS, "pt"):
            return zipfile.is_zipfile(folder / OPTIMIZER)
    except (OSError, ValueError, SafetensorError):
        return False


def newest_checkpoint(folder: str | Path) -> Path | None:
    """The newest whole checkpoint of a training run, or None if it has not come to its first.

    Raises:
        ValueError: if there are checkpoints, but none that training can go on from.
    """
    found = checkpoint_folders(folder)
    whole = [checkpoint for checkpoint in found if _is_whole(checkpoint)]
    if found and not whole:
        raise ValueError(f"{folder} has checkpoints, but none is whole; move them away to start again.")
    return whole[-1] if whole else None


def average_checkpoints(folders: Sequence[str | Path], output_dir: str | Path) -> None:
    """Writes the mean of the weights in `folders` to `output_dir`, with the last one's configuration and tokenizer.

    The arithmetic is float64, the result in the weights' own type. One set of weights and one sum are in memory at a
    time.

    Raises:
        ValueError: if there is nothing to average, or the folders hold weights of different names or shapes.
        FileNotFoundError: if a folder has no weights in one safetensors file.
    """
    if not folders:
        raise ValueError("There are no checkpoints to average.")
    sums: dict[str, torch.Tensor] = {}
    dtypes: dict[str, torch.dtype] = {}
    for folder in map(Path, folders):
        if not (folder / WEIGHTS).is_file():
            raise FileNotFoundError(f"{folder} has no {WEIGHTS}.")
        weights = load_file(folder / WEIGHTS)
        if sums and {k: v.shape for k, v in weights.items()} != {k: v.shape for k, v in sums.items()}:
            raise ValueError(f"{folder} holds another model than {folders[0]}: names or shapes of weights differ.")
        for name, weight in weights.items():
            dtypes[name] = weight.dtype
            sums[name] = sums[name] + weight.double() if name in sums else weight.double()
    output = Path(output_dir)
    output.mkdir(parents=True, exist_ok=True)
    last = Path(folders[-1])
    for pattern in ("*config.json", "tokenizer*.json", "special_tokens_map.json", "*_vanilla_transformer.py"):
        for file in last.glob(pattern):
            if file.parent != output:
                shutil.copy2(file, output)
    mean = {name: (total / len(folders)).to(dtypes[name]) for name, total in sums.items()}
    unfinished = output / f"{WEIGHTS}.unfinished"
    try:
        save_file(mean, unfinished, metadata={"format": "pt"})
        unfinished.replace(output / WEIGHTS)
    finally:
        unfinished.unlink(missing_ok=True)
