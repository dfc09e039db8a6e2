"""Write files whole or not at all, name the files of a trained model, and import what only an extra installs."""

import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

# In the folder of a trained model, which is also the folder of its training run
CARD = "README.md"
RECORD = "training.json"  # what the card says about the training
SETTINGS = "settings.yaml"  # the settings of the run, as a recipe
STATE = "trainer_state.json"  # of a run and of each of its checkpoints
WEIGHTS = "model.safetensors"
WEIGHT_FILES = "model*.safetensors*"  # large models are saved in several files
MODEL_FILES = (
    "*config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "*_vanilla_transformer.py",
)  # beside the weights


@contextmanager
def replacing(file: str | Path) -> Iterator[Path]:
    """Yield another path to write to, which takes the place of `file` once the block has succeeded."""
    unfinished = Path(f"{file}.unfinished")
    try:
        yield unfinished
        unfinished.replace(file)
    finally:
        unfinished.unlink(missing_ok=True)


def write_whole(file: str | Path, text: str) -> None:
    """Write `text` to `file` so that readers see either all of it or what was there before."""
    with replacing(file) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


@contextmanager
def new_folder(path: str | Path) -> Iterator[Path]:
    """Yield a folder to create and fill, which becomes `path` once the block has succeeded.

    Raises:
        ValueError: if `path` already exists and is not an empty folder.
    """
    target = Path(path)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ValueError(f"{target} is in use; give a new folder.")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as place:
        unfinished = Path(place, target.name)
        yield unfinished
        unfinished.replace(target)


def checksum(file: Path) -> str:
    """Return the BLAKE2b digest of a file's content, 16 bytes in hexadecimal."""
    digest = hashlib.blake2b(digest_size=16)
    with file.open("rb") as content:
        while block := content.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def import_extra(module: str, extra: str) -> Any:
    """Return the module `module`, which the extra `extra` of this package installs.

    Raises:
        ImportError: if it is not installed, saying how to install it.
    """
    try:
        return import_module(module)
    except ImportError as error:
        name = module.partition(".")[0]
        raise ImportError(f'{name} is not installed: pip install "hf-vanilla-transformer[{extra}]".') from error
