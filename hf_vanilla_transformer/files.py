"""Atomic and durable writes, bounded reading of JSON and YAML, a model's file names, checksums, optional packages."""

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import yaml

from .errors import MissingExtraError, UserError
from .version import install_command

JsonObject: TypeAlias = dict[str, Any]  # an object in a JSON file

# Files in the folder of a trained model, which is also the folder of its training run
CARD = "README.md"
RECORD = "training.json"  # facts about the training, for the model card
SETTINGS = "settings.yaml"  # the settings of the run, as a recipe
STATE = "trainer_state.json"  # in the folders of the run and of each checkpoint
WEIGHTS = "model.safetensors"
WEIGHT_FILES = "model*.safetensors*"  # large models are saved in several shards
MODEL = (WEIGHTS, "config.json")  # of which a folder with a model has at least one
# What transformers and tokenizers save beside the weights. Not patterns, which would also match `aws_config.json`
CONFIGS = ("config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json")
VOCABULARIES = (
    *("tokenizer.json", "tokenizer.model", "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt"),
    *("source.spm", "target.spm", "spiece.model", "sentencepiece.bpe.model"),
)
MODEL_TYPES = ("vanilla_transformer", "marian")  # in which a model can be saved and shared: this package's, MarianMT
CORPUS_MANIFEST = "translation.json"  # in a folder of translations
UNFINISHED = ".unfinished"  # ending of what is being written
_FILLING = ".filling"  # ending of a folder inside the new one whose files it becomes

_CANNOT_WRITE = "Cannot write"
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)  # only writing fails with these
# Of file systems in user space, some of which cannot sync folders; the last one: of Windows
_CANNOT_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF)
# How errors of packages written in Rust, such as tokenizers and safetensors, quote one of the operating system
_RUST_ERROR = re.compile(r"\(os error (\d+)\)")
# What NumPy, torch and SQLite say, without the cause, if only a part could be written
_SHORT_WRITE = re.compile(
    r"\d+ requested and \d+ written|PytorchStreamWriter|unexpected pos|database or disk is full|disk I/O error"
)

MAX_JSON_BYTES = 1 << 28  # the largest tokenizers have some 40 MB
MAX_YAML_BYTES = 1 << 20  # parsed in Python, about a megabyte per second
MAX_NESTING = 100  # levels of JSON; what reads it later may be recursive


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a saved model, one or several shards, without others of similar names."""
    name = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors")
    return sorted(file for file in folder.iterdir() if name.fullmatch(file.name))


def model_files(folder: Path) -> dict[str, Path]:
    """Return the files of a saved model besides its weights by name; its code is that of the installed package.

    Raises:
        ValueError: as `own_files`.
    """
    saved = own_files(folder / name for name in (*CONFIGS, *VOCABULARIES))
    code = (Path(__file__).parent / "model").glob("*_vanilla_transformer.py")
    return {file.name: file for file in (*saved, *code)}


def own_files(files: Iterable[Path]) -> list[Path]:
    """Return those of the files that exist, after checking that none is a link to a file outside its folder.

    Raises:
        ValueError: if one is, unless it leads to the Hub's cache, whose files are links.
    """
    existing = [file for file in files if file.is_file()]
    for file in existing:
        if _leads_out(file, file.parent):
            raise UserError(f"{file} is a link to a file elsewhere, which may not be meant to be shared; copy it.")
    return existing


def inside(folder: str | Path, name: str) -> Path:
    """Return the path of what a document calls `name` in a folder; whoever wrote it may have meant another place.

    Raises:
        ValueError: if it is, or leads to, a place outside the folder, unless it is a link to the Hub's cache.
    """
    path = Path(folder, name)
    try:
        leads_out = not Path(os.path.abspath(path)).is_relative_to(os.path.abspath(folder))
        leads_out = leads_out or _leads_out(path, Path(folder))
    # a null character in the name, or a loop of links
    except (ValueError, RuntimeError):
        leads_out = True
    if leads_out:
        raise UserError(f"{folder} names {name[:200]!r}, which is outside the folder; nothing is read there.")
    return path


def _leads_out(path: Path, folder: Path) -> bool:
    """Return whether a path in a folder leads to a place that is neither there nor in the Hub's cache."""
    from huggingface_hub.constants import HF_HUB_CACHE  # slow to import

    return not any(path.resolve().is_relative_to(Path(place).resolve()) for place in (folder, HF_HUB_CACHE))


def write_failure(error: BaseException) -> str | None:
    """Return the cause of an error that a package raised because it could not write, or None for any other error."""
    if match := not isinstance(error, OSError) and _RUST_ERROR.search(str(error)):
        return os.strerror(int(match[1]))
    if isinstance(error, OSError) and error.errno in _UNWRITABLE:
        return os.strerror(error.errno)
    # Optuna's error about a database does not repeat its cause
    if _SHORT_WRITE.search(f"{error} {error.__cause__}"):
        return "the disk is full or has failed"
    # Explained by an inner block, for a temporary place; an error of reading has causes, too
    is_explained = str(error).startswith(_CANNOT_WRITE)
    return write_failure(error.__cause__) if error.__cause__ and is_explained else None


@contextmanager
def writing(place: str | Path) -> Iterator[None]:
    """Turn the errors of packages that cannot write into an `OSError` that names the place, as few of them do."""
    try:
        yield
    except Exception as error:
        if (cause := write_failure(error)) is None:
            raise
        raise OSError(f"{_CANNOT_WRITE} {place}: {cause}.") from error


def _sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk, where they survive a power cut.

    Raises:
        OSError: if they cannot be written.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except PermissionError:
        # A folder may be writable but not readable; on Windows, no folder can be opened
        if path.is_dir():
            return
        raise
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise OSError(error.errno, os.strerror(error.errno or 0), str(path)) from error
    finally:
        os.close(descriptor)


def move_into_place(places: Mapping[Path, Path]) -> None:
    """Rename finished files and folders. A power cut leaves each either as it was before or complete.

    A file system may write a name to the disk long before the content of its file, and before or after any other name.
    So the content comes first, then the names, and then what the caller writes about them, such as a manifest.

    Args:
        places: the new path of each file or folder.
    """
    for source in places:
        for path in (source, *source.rglob("*")) if source.is_dir() else (source,):
            _sync(path)
    for source, place in places.items():
        source.replace(place)
    for folder in {place.parent for place in places.values()}:
        _sync(folder)


@contextmanager
def replacing(file: str | Path, shared: bool = False) -> Iterator[Path]:
    """Yield a temporary path to write to, and move it to `file` as `move_into_place` does if the block succeeds.

    If the block fails, the temporary file is removed and `file` is left unchanged.

    Args:
        shared: whether several processes may write the file at once, so that each needs its own temporary path. What
            a killed process leaves is then not replaced by the next one.
    """
    # In the same folder, because a file can only be moved atomically inside one file system
    unfinished = Path(f"{file}.{secrets.token_hex(4)}{UNFINISHED}" if shared else f"{file}{UNFINISHED}")
    try:
        with writing(file):
            yield unfinished
        try:
            with writing(file):
                move_into_place({unfinished: Path(file)})
        except FileNotFoundError:
            # A process that has seen the whole job finished may remove what is left over, and with it this file
            if not (shared and Path(file).exists()):
                problem = "Another process has written or removed it at the same time; run the command again."
                raise UserError(f"{file}: {problem}") from None
    finally:
        unfinished.unlink(missing_ok=True)


def write_whole(file: str | Path, text: str, shared: bool = False) -> None:
    """Write `text` to `file` atomically: readers see either the old content or all of the new, even after a power cut.

    Args:
        shared: as in `replacing`.
    """
    with replacing(file, shared) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


def _has_locks(folder: Path) -> bool:
    """Return whether files in a folder can be locked; on some network file systems, they cannot."""
    try:
        import fcntl
    except ImportError:
        # Windows, which always locks files
        return True
    with tempfile.TemporaryFile(dir=folder) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
    return True


@contextmanager
def locking(file: Path, busy: str) -> Iterator[None]:
    """Create a file that no other process creates with this function as long as the block runs.

    The operating system ends the lock of a killed process. On a file system without locks, the existence of the file
    is the lock: what a killed process has left is recognised on its own machine, while the message to users of other
    machines says which file to delete.

    Args:
        busy: message if another process holds the lock.

    Raises:
        UserError: if another process holds the lock.
        OSError: if the folder cannot be written to.
    """
    from filelock import FileLock, SoftFileLock, Timeout

    with writing(file.parent):
        is_native = _has_locks(file.parent)
        lock = FileLock(file) if is_native else SoftFileLock(file)
        try:
            # The second attempt: the first one removes what a killed process has left
            lock.acquire(timeout=0 if is_native else 0.2)
        except Timeout:
            advice = "" if is_native else f" If no process is using it any more, delete {file}."
            raise UserError(busy + advice) from None
    try:
        yield
    finally:
        if is_native:
            # While it is still locked, so that the file of a process that starts now is not the one deleted
            file.unlink(missing_ok=True)
        lock.release()


def read_document(file: Path, max_bytes: int) -> str:
    """Return the text of a JSON or YAML file, of which no more than `max_bytes` are read.

    Raises:
        OSError: if it cannot be read.
        ValueError: if it is too large or not UTF-8.
    """
    with file.open("rb") as content:
        data = content.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise UserError(f"larger than {max_bytes:,} bytes")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"not UTF-8 ({error.reason} at byte {error.start})") from None


def check_nesting(document: object) -> None:
    """Check that what JSON contained has at most `MAX_NESTING` levels.

    Raises:
        ValueError: if it has more.
    """
    level = [document]
    for _ in range(MAX_NESTING):
        lists = [item for item in level if isinstance(item, list)]
        lists += [list(item.values()) for item in level if isinstance(item, dict)]
        level = list(chain.from_iterable(lists))
        if not level:
            return
    raise UserError(f"nested more than {MAX_NESTING} levels deep")


def read_json(file: Path) -> Any:
    """Return the content of a JSON file.

    Raises:
        OSError: if it cannot be read.
        ValueError: if it is damaged, or has more than `MAX_NESTING` levels.
    """
    try:
        document = json.loads(read_document(file, MAX_JSON_BYTES))
        check_nesting(document)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file} is damaged: {error}") from None
    return document


def read_yaml(file: Path) -> Any:
    """Return the content of a YAML file.

    Raises:
        OSError: if it cannot be read.
        ValueError: if it is damaged, or as `read_document`.
    """
    try:
        return yaml.safe_load(read_document(file, MAX_YAML_BYTES))
    except RecursionError:
        raise UserError(f"{file} is damaged: nested too deeply") from None
    except (yaml.YAMLError, ValueError, LookupError, AttributeError) as error:
        # YAML raises the last two for values that do not suit their tags
        raise UserError(f"{file} is damaged: {' '.join(str(error).split())}") from None


def check_folder(path: str | Path) -> None:
    """Check that a path can be that of a folder.

    Raises:
        ValueError: if it, or a part of it, is a file.
    """
    for part in (Path(path), *Path(path).parents):
        if part.exists() and not part.is_dir():
            raise UserError(f"{part} is a file, not a folder; choose another output folder.")


@contextmanager
def replacing_files(folder: str | Path, shared: bool = False) -> Iterator[Path]:
    """Yield an empty folder to fill, and move each of its files to `folder`, atomically, if the block succeeds.

    If the block fails, `folder` is left unchanged.

    Args:
        shared: as in `replacing`.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if not shared:
        # What killed processes have left
        for left in folder.glob(f"*{_FILLING}"):
            shutil.rmtree(left, ignore_errors=True)
    with _folder_of_same_name(folder, UNFINISHED if shared else _FILLING, within=folder) as unfinished:
        yield unfinished
        files = sorted(file for file in unfinished.rglob("*") if file.is_file())
        places = {file: folder / file.relative_to(unfinished) for file in files}
        for place in places.values():
            place.parent.mkdir(parents=True, exist_ok=True)
        move_into_place(places)


@contextmanager
def new_folder(path: str | Path, names: Collection[str] = ()) -> Iterator[Path]:
    """Yield an empty folder to fill, and move it to `path` if the block succeeds.

    If the block fails, it is removed and `path` is left unchanged.

    Args:
        names: entries that `path` must not contain, whatever else it contains; by default, it must be empty.

    Raises:
        ValueError: if `path` already exists and is in use, or as `check_folder`.
    """
    check_folder(path)
    # A link cannot be replaced by a folder, but what it leads to can
    target = Path(os.path.realpath(path))
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        with _folder_of_same_name(target, UNFINISHED, within=target.parent) as unfinished:
            yield unfinished
            try:
                move_into_place({unfinished: target})
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                    raise
                # another process has been faster
                raise _in_use(path, names) from None
        return
    lock = target / f"lock{_FILLING}"
    with locking(lock, f"Another process is writing to {path}; wait until it ends, or choose another folder."):
        entries = {entry.name for entry in target.iterdir()} - {lock.name}
        # Left by a process that was killed while it moved the files here
        is_unfinished = any(name.endswith(_FILLING) for name in entries)
        if (entries & {*names} if names else entries) and not is_unfinished:
            raise _in_use(path, names)
        # Not replaced: it may be a mount point, or its parent read-only
        with replacing_files(target) as unfinished:
            yield unfinished


def _in_use(path: str | Path, names: Collection[str]) -> UserError:
    """Return the error for a folder that already contains files, as in `new_folder`."""
    advice = f"a folder without {' and '.join(names)}" if names else "a new or empty folder"
    return UserError(f"{path} is in use: choose {advice}.")


@contextmanager
def _folder_of_same_name(folder: Path, ending: str, within: Path) -> Iterator[Path]:
    """Yield a temporary folder on the disk of `within`, whose name is that of `folder`, for the titles of cards."""
    with writing(folder), tempfile.TemporaryDirectory(ending, dir=within) as scratch:
        # Not the temporary folder itself, which only its owner may read
        unfinished = Path(scratch, folder.resolve().name)
        unfinished.mkdir()
        yield unfinished


def checksum(file: Path) -> str:
    """Return the BLAKE2b digest of a file: 16 bytes in hexadecimal."""
    # hashlib.file_digest is part of Python only since 3.11
    digest = hashlib.blake2b(digest_size=16)
    with file.open("rb") as content:
        # 1 MiB at a time: weights need not fit into memory
        while block := content.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def digest(content: object) -> str:
    """Return the BLAKE2b digest of what is given in types of JSON: 16 bytes in hexadecimal."""
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=16).hexdigest()


def public_name(name: str) -> str:
    """Return how cards and results call a model or a text: a local one without its folder, one on the Hub as it is."""
    return Path(name).resolve().name if Path(name).exists() else name


def import_extra(module: str, extra: str) -> ModuleType:
    """Import a module that is installed by an extra of this package.

    Raises:
        MissingExtraError: if it is not installed; the message names the extra to install.
    """
    try:
        return import_module(module)
    except ImportError as error:
        name = module.partition(".")[0]
        message = f"{name} is not installed; in a clone of this package: {install_command(extra)}"
        raise MissingExtraError(message) from error
