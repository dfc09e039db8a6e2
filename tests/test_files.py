import errno
import hashlib
import json
import os
import resource
import subprocess
import sys
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
import yaml
from safetensors.torch import save_file

from hf_vanilla_transformer import files, train_tokenizer
from hf_vanilla_transformer.files import (
    MAX_NESTING,
    checksum,
    import_extra,
    locking,
    new_folder,
    read_json,
    read_yaml,
    replacing,
    replacing_files,
    write_whole,
)


def test_a_failed_write_keeps_the_old_file_and_leaves_no_other(tmp_path, monkeypatch):
    file = tmp_path / "text.json"
    write_whole(file, "old")
    write_whole(str(file), "neu: ä")
    assert file.read_text("utf-8") == "neu: ä"

    def write_part(self, text, encoding):
        with self.open("w") as content:
            content.write(text[:2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", write_part)
    with pytest.raises(OSError, match="No space left"):
        write_whole(file, "newer")
    assert file.read_text("utf-8") == "neu: ä"
    assert list(tmp_path.iterdir()) == [file]


def test_replacing_moves_the_new_file_into_place_after_the_block(tmp_path):
    file = tmp_path / "weights.bin"
    file.write_bytes(b"old")
    with replacing(file) as unfinished:
        unfinished.write_bytes(b"new")
        assert file.read_bytes() == b"old"
    assert file.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [file]


def test_replacing_creates_a_file_that_did_not_exist(tmp_path):
    with replacing(str(tmp_path / "weights.bin")) as unfinished:
        unfinished.write_bytes(b"new")
        assert not (tmp_path / "weights.bin").exists()
    assert (tmp_path / "weights.bin").read_bytes() == b"new"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_replacing_keeps_the_old_file_if_the_block_fails(error, tmp_path):
    file = tmp_path / "weights.bin"
    file.write_bytes(b"old")

    def write_part(path):
        path.write_bytes(b"ne")
        raise error

    with pytest.raises(error), replacing(file) as unfinished:
        write_part(unfinished)
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]


def test_a_new_folder_appears_when_it_is_complete(tmp_path):
    target = tmp_path / "parent" / "model"
    with new_folder(target) as unfinished:
        (unfinished / "config.json").write_text("{}")
        assert not target.exists()
    assert [file.name for file in target.iterdir()] == ["config.json"]
    assert list(target.parent.iterdir()) == [target]


def test_a_new_folder_may_take_the_place_of_an_empty_one(tmp_path):
    (tmp_path / "model").mkdir()
    with new_folder(str(tmp_path / "model")) as unfinished:
        (unfinished / "config.json").write_text("{}")
    assert (tmp_path / "model" / "config.json").read_text() == "{}"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_new_folder_leaves_nothing_behind_if_the_block_fails(error, tmp_path):
    def write_part(folder):
        (folder / "config.json").write_text("{")
        raise error

    with pytest.raises(error), new_folder(tmp_path / "model") as unfinished:
        write_part(unfinished)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("folder", "is in use: choose a new or empty folder"),
        ("folder/file", "folder/file is a file, not a folder; choose another output folder"),
        ("folder/file/below/it", "folder/file is a file, not a folder; choose another output folder"),
    ],
)
def test_a_new_folder_does_not_replace_existing_files(name, message, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_text("mine")
    with pytest.raises(ValueError, match=message), new_folder(tmp_path / name):
        pass
    assert (tmp_path / "folder" / "file").read_text() == "mine"
    assert [file.name for file in tmp_path.rglob("*")] == ["folder", "file"]


def test_an_optional_module_is_imported_by_its_full_name():
    assert import_extra("json", "plots") is json
    assert import_extra("json.decoder", "plots") is json.decoder


def test_a_missing_optional_module_names_the_extra_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    message = r'^matplotlib is not installed; in a clone of this package: pip install "\.\[plots\]"$'
    with pytest.raises(ImportError, match=message):
        import_extra("matplotlib.figure", "plots")


def test_a_checksum_is_the_blake2b_digest_of_the_whole_file(tmp_path):
    content = bytes(range(256)) * 9000  # larger than one read
    (tmp_path / "file").write_bytes(content)
    assert checksum(tmp_path / "file") == hashlib.blake2b(content, digest_size=16).hexdigest()


@pytest.fixture
def full_disk():
    """Let no file grow beyond 1,000 bytes, which fails as a full disk does, but with EFBIG."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def write_array(file: Path) -> None:
    with file.open("wb") as output:
        np.save(output, np.zeros(10_000))


def write_arrow(file: Path) -> None:
    with pa.OSFile(str(file), "wb") as output:
        output.write(b"x" * 10_000)


# How files of this package are written: most of these errors name no place, and some are no OSError
WRITERS = {
    "text": lambda file: file.write_text("x" * 10_000),
    "NumPy": write_array,
    "Arrow": write_arrow,
    "torch": lambda file: torch.save({"weight": torch.zeros(10_000)}, file),
    "safetensors": lambda file: save_file({"weight": torch.zeros(10_000)}, file),
    "tokenizers": lambda file: train_tokenizer(["a dog"], 260).backend_tokenizer.save(str(file)),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_a_full_disk_is_an_os_error_of_one_line_that_names_the_place(writer, full_disk, tmp_path):
    reason = "the disk is full or has failed" if writer in ("NumPy", "torch") else "File too large"
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match=reason) as error, replacing(tmp_path / "file") as unfinished:
        WRITERS[writer](unfinished)
    assert str(error.value) == f"Cannot write {tmp_path / 'file'}: {reason}."
    for place, context in {"folder": replacing_files, "new": new_folder}.items():
        with pytest.raises(OSError, match=reason) as error, context(tmp_path / place) as unfinished:
            WRITERS[writer](unfinished / "file")
        assert str(error.value) == f"Cannot write {tmp_path / place}: {reason}."
    assert list(tmp_path.rglob("*")) == [tmp_path / "folder"]


def test_other_errors_of_a_block_are_not_explained_as_a_full_disk(tmp_path):
    with pytest.raises(FileNotFoundError, match="missing"), replacing(tmp_path / "file"):
        (tmp_path / "missing").read_text()
    with pytest.raises(BrokenPipeError), new_folder(tmp_path / "new"):
        raise BrokenPipeError(32, "Broken pipe")


def test_files_of_a_folder_are_replaced_and_others_stay(tmp_path):
    (tmp_path / "old").write_text("old")
    (tmp_path / "both").write_text("old")
    (tmp_path / "killed.filling").mkdir()
    with replacing_files(tmp_path) as unfinished:
        assert unfinished.name == tmp_path.name
        (unfinished / "both").write_text("new")
        (unfinished / "below").mkdir()
        (unfinished / "below" / "new").write_text("new")
        assert (tmp_path / "both").read_text() == "old"
    contents = {str(file.relative_to(tmp_path)): file.read_text() for file in tmp_path.rglob("*") if file.is_file()}
    assert contents == {"old": "old", "both": "new", "below/new": "new"}


def test_an_existing_empty_folder_is_filled_and_not_replaced(tmp_path):
    # as a mount point must be, and a folder whose parent is read-only
    target = tmp_path / "mounted"
    target.mkdir()
    inode = target.stat().st_ino
    with new_folder(target) as unfinished:
        (unfinished / "config.json").write_text("{}")
    assert target.stat().st_ino == inode
    assert [file.name for file in target.iterdir()] == ["config.json"]


@pytest.mark.parametrize("exists", [True, False])
def test_a_new_folder_is_made_where_a_link_leads(exists, tmp_path):
    target = tmp_path / "disk" / "model"
    if exists:
        target.mkdir(parents=True)
    (tmp_path / "link").symlink_to(target)
    with new_folder(tmp_path / "link") as unfinished:
        (unfinished / "config.json").write_text("{}")
    assert (tmp_path / "link").is_symlink()
    assert [file.name for file in target.iterdir()] == ["config.json"]
    assert [file.name for file in target.parent.iterdir()] == ["model"]


@pytest.mark.slow
def test_a_new_folder_is_made_in_an_empty_mount_point(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("a file system cannot be mounted here")
    try:
        with new_folder(disk) as unfinished:
            (unfinished / "config.json").write_text("{}")
        assert [file.name for file in disk.iterdir()] == ["config.json"]
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.fixture
def disk(tmp_path, monkeypatch):
    """The calls that decide what a power cut leaves, in order: what is synced, and what gets which name."""
    calls = []
    sync, replace = os.fsync, Path.replace

    def note_sync(descriptor: int) -> None:
        calls.append(("sync", Path(os.readlink(f"/proc/self/fd/{descriptor}")).name))
        sync(descriptor)

    def note_replace(source: Path, target: Path) -> Path:
        calls.append(("name", target.name))
        return replace(source, target)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(Path, "replace", note_replace)
    return calls


def test_a_file_is_on_the_disk_before_its_name_and_the_name_before_the_next_file(disk, tmp_path):
    write_whole(tmp_path / "part", "text", shared=True)
    write_whole(tmp_path / "note", "part is complete")
    (temporary, *part), note = disk[:3], disk[3:]
    assert temporary[0] == "sync"
    assert temporary[1].startswith("part.")
    assert part == [("name", "part"), ("sync", tmp_path.name)]
    assert note == [("sync", "note.unfinished"), ("name", "note"), ("sync", tmp_path.name)]


@pytest.mark.parametrize("context", [new_folder, replacing_files])
def test_all_files_of_a_folder_are_on_the_disk_before_the_first_name(context, disk, tmp_path):
    with context(tmp_path / "model") as unfinished:
        (unfinished / "config").mkdir()
        for name in ("a", "b", "config/c"):
            (unfinished / name).write_text(name)
    groups = [(kind, sorted(name for _, name in calls)) for kind, calls in groupby(disk, itemgetter(0))]
    contents, *names = groups
    assert contents[0] == "sync"
    assert {"a", "b", "c"} <= {*contents[1]}
    if context is new_folder:
        assert names == [("name", ["model"]), ("sync", [tmp_path.name])]
    else:
        assert names == [("name", ["a", "b", "c"]), ("sync", ["config", "model"])]


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP, errno.ENOSYS])
def test_a_file_system_that_cannot_sync_is_written_to_without(code, tmp_path, monkeypatch):
    def refuse(descriptor: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", refuse)
    write_whole(tmp_path / "file", "text")
    assert (tmp_path / "file").read_text() == "text"


@pytest.mark.parametrize(("code", "reason"), [(errno.EIO, "Input/output error"), (errno.ENOSPC, "No space left")])
def test_what_cannot_be_synced_gets_no_name(code, reason, tmp_path, monkeypatch):
    """A network file system reports a full disk only then."""

    def fail(descriptor: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match=f"{reason}.*file|file.*{reason}"):
        write_whole(tmp_path / "file", "text")
    assert list(tmp_path.iterdir()) == []


HOLDER = """
import os, sys
from pathlib import Path
sys.path.insert(0, {root!r})
if {code}:
    import fcntl
    def refuse(*args):
        raise OSError({code}, os.strerror({code}))
    fcntl.flock = refuse
from hf_vanilla_transformer.files import locking
with locking(Path({lock!r}), "busy"):
    print("locked", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(params=[0, errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP], ids=["flock", "ENOSYS", "ENOLCK", "ENOTSUP"])
def lock(request, tmp_path, monkeypatch):
    """The file of a lock, on a file system where flock succeeds or fails with an error."""

    def refuse(*args):
        raise OSError(request.param, os.strerror(request.param))

    if request.param:
        monkeypatch.setattr("fcntl.flock", refuse)
    return Lock(tmp_path / "run.lock", request.param)


class Lock:
    def __init__(self, file: Path, code: int):
        self.file = file
        self.code = code

    def hold(self) -> subprocess.Popen:
        """Start a process that holds it until its input ends."""
        root = str(Path(files.__file__).parents[1])
        words = [sys.executable, "-c", HOLDER.format(root=root, code=self.code, lock=str(self.file))]
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdout.readline() == "locked\n"
        return process


def test_a_lock_refuses_other_processes_until_its_own_ends(lock):
    with lock.hold() as holder:
        with pytest.raises(ValueError, match=r"^busy") as error, locking(lock.file, "busy"):
            pass
        # deleting the file of a lock of the operating system would admit two processes
        assert ("delete" in str(error.value)) == bool(lock.code)
        holder.stdin.close()
        assert holder.wait(timeout=60) == 0
    with locking(lock.file, "busy"), pytest.raises(ValueError, match=r"^busy"), locking(lock.file, "busy"):
        pass
    assert not lock.file.exists()


def test_a_killed_process_leaves_no_lock_that_blocks(lock):
    with lock.hold() as holder:
        holder.kill()
        holder.wait(timeout=60)
    assert lock.file.exists()
    with locking(lock.file, "busy"):
        pass
    assert not lock.file.exists()


def test_the_error_of_a_lock_held_by_another_machine_says_which_file_to_delete(tmp_path, monkeypatch):
    def refuse(*args):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr("fcntl.flock", refuse)
    (tmp_path / "run.lock").write_text("1\nelsewhere\n")
    message = f"busy If no process is using it any more, delete {tmp_path / 'run.lock'}."
    with pytest.raises(ValueError, match=message), locking(tmp_path / "run.lock", "busy"):
        pass
    (tmp_path / "run.lock").unlink()
    with locking(tmp_path / "run.lock", "busy"):
        pass


@pytest.mark.parametrize("exists", [False, True])
def test_of_two_processes_that_write_a_new_folder_only_one_succeeds(exists, tmp_path):
    target = tmp_path / "model"
    if exists:
        target.mkdir()

    def write_twice() -> None:
        with new_folder(target) as first, new_folder(target) as second:
            (first / "weights").write_text("first")
            (second / "weights").write_text("second")

    with pytest.raises(ValueError, match=r"model is in use: choose|Another process is writing to .*model; wait"):
        write_twice()
    assert [file.read_text() for file in target.iterdir()] == ([] if exists else ["second"])
    assert list(tmp_path.iterdir()) == [target]


def test_of_two_processes_that_write_a_file_one_says_so(tmp_path):
    def write_twice() -> None:
        with replacing(tmp_path / "plot.svg") as first, replacing(tmp_path / "plot.svg") as second:
            assert first == second
            second.write_text("second")

    with pytest.raises(
        ValueError, match=r"plot\.svg: Another process has written or removed it at the same time; run"
    ):
        write_twice()
    assert [file.read_text() for file in tmp_path.iterdir()] == ["second"]


@pytest.mark.parametrize("context", [replacing_files, new_folder, locking])
def test_a_read_only_disk_is_an_error_that_names_the_place(context, tmp_path, monkeypatch):
    def refuse(path, *_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    place = tmp_path / "place"
    place.mkdir()
    monkeypatch.setattr(os, "mkdir", refuse)
    monkeypatch.setattr(os, "open", refuse)
    arguments = (place / "run.lock", "busy") if context is locking else (place,)
    with pytest.raises(OSError, match=r"^Cannot write .*place: Read-only file system\.$"), context(*arguments):
        pass


READERS = {"x.json": read_json, "x.yaml": read_yaml}


def test_json_may_be_nested_as_deep_as_the_limit(tmp_path):
    file = tmp_path / "x.json"
    write_whole(file, "[" * MAX_NESTING + "]" * MAX_NESTING)
    assert read_json(file)
    for levels in (MAX_NESTING + 1, 900):
        write_whole(file, "[" * levels + "]" * levels)
        with pytest.raises(ValueError, match=r"x\.json is damaged: nested more than 100 levels deep"):
            read_json(file)


@pytest.mark.parametrize("name", READERS)
def test_a_document_that_is_nested_too_deeply_is_damaged(name, tmp_path):
    write_whole(tmp_path / name, "[" * 100_000 + "]" * 100_000)
    with pytest.raises(ValueError, match=f"{name} is damaged: "):
        READERS[name](tmp_path / name)


@pytest.mark.parametrize("name", READERS)
def test_no_more_of_a_document_is_read_than_the_limit(name, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MAX_YAML_BYTES", 20)
    monkeypatch.setattr(files, "MAX_JSON_BYTES", 20)
    write_whole(tmp_path / name, "[" + "1, " * 10 + "1]")
    with pytest.raises(ValueError, match=f"{name} is damaged: larger than 20 bytes"):
        READERS[name](tmp_path / name)


@pytest.mark.parametrize(
    "content",
    [
        "a: 2020-13-45",
        "a: !!timestamp x",
        "a: !!int ''",
        "a: !!binary x",
        "a: !!python/name:os.system ''",
        "? [a]\n: b",
        "a: b: c",
        b"a: \xff",
        "\0",
    ],
)
def test_what_is_not_yaml_is_refused_in_one_line(content, tmp_path):
    (tmp_path / "x.yaml").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=r"x\.yaml is damaged: .") as error:
        read_yaml(tmp_path / "x.yaml")
    assert "\n" not in str(error.value)


def test_aliases_of_yaml_are_shared_and_not_expanded(tmp_path):
    lines = ["a0: &a0 [x, x]", *(f"a{i + 1}: &a{i + 1} [*a{i}, *a{i}]" for i in range(200))]
    write_whole(tmp_path / "x.yaml", "\n".join(lines))
    last = read_yaml(tmp_path / "x.yaml")["a200"]
    assert last[0] is last[1]


def test_yaml_is_read_as_pyyaml_reads_it(tmp_path):
    content = {"a": [1, 2.5, None, True, "x: y"], "b": {"c": "2020-01-01"}, "d": "é"}
    write_whole(tmp_path / "x.yaml", yaml.safe_dump(content))
    assert read_yaml(tmp_path / "x.yaml") == content
    write_whole(tmp_path / "x.yaml", "")
    assert read_yaml(tmp_path / "x.yaml") is None


@pytest.mark.parametrize("names", [(), ("config.json",)])
def test_a_folder_in_use_stays_as_it_is_whatever_others_write_in_it(names, tmp_path):
    """`.unfinished` is the ending of what a running process writes, or a killed one has left."""
    folder = tmp_path / "used"
    (folder / "draft.unfinished").mkdir(parents=True)
    (folder / "draft.unfinished" / "README.md").write_text("mine")
    for name in ("config.json", "settings.yaml.unfinished"):
        (folder / name).write_text("mine")
    with pytest.raises(ValueError, match="used is in use: choose a"), new_folder(folder, names) as unfinished:
        (unfinished / "config.json").write_text("new")
    with replacing_files(folder) as unfinished:
        (unfinished / "new").write_text("new")
    contents = {str(file.relative_to(folder)): file.read_text() for file in folder.rglob("*") if file.is_file()}
    kept = ("draft.unfinished/README.md", "config.json", "settings.yaml.unfinished")
    assert contents == {**dict.fromkeys(kept, "mine"), "new": "new"}
