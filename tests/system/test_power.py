"""A power cut just after a verb has ended, with a disk of its own whose image is copied."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from small import write_phrases

from hf_vanilla_transformer.cli import main
from hf_vanilla_transformer.data.phrases import splits
from hf_vanilla_transformer.data.shards import load_shards
from hf_vanilla_transformer.files import checksum

MOUNT = ["mount", "-o", "loop"]


@pytest.fixture
def disk(tmp_path) -> Iterator[Path]:
    """The folder of a new disk."""
    place = tmp_path / "disk"
    place.mkdir()
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(1 << 25)
    if not shutil.which("mkfs.ext4") or os.geteuid():
        pytest.skip("a disk cannot be made here")
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    if subprocess.run([*MOUNT, image, place], capture_output=True).returncode:
        pytest.skip("a disk cannot be mounted here")
    yield place
    subprocess.run(["umount", place], check=True)


@pytest.fixture
def after_power_cut(disk, tmp_path) -> Iterator[Callable[[], Path]]:
    """A function that returns the folder of the disk as a power cut would leave it now."""
    place = tmp_path / "after"
    place.mkdir()

    def cut() -> Path:
        # the disk learns the names of all files, as it does by itself within 5 seconds; their content follows later
        folder = os.open(disk, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
        shutil.copyfile(tmp_path / "image", tmp_path / "copy")
        subprocess.run([*MOUNT, tmp_path / "copy", place], check=True)
        return place

    yield cut
    subprocess.run(["umount", place])


def test_what_a_verb_has_finished_survives_a_power_cut(disk, after_power_cut, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = write_phrases(tmp_path / "train", splits()["train"][:60])
    shards = disk / "shards"
    flags = ["--source_lang", "en", "--target_lang", "de", "--vocab_size", "300", "--workers", "1"]
    (disk / "control").write_text("not synced")
    assert main(["prepare", str(text), *flags, "--output_dir", str(shards)]) == 0
    expected = {file.name: checksum(file) for file in shards.iterdir()}

    left = after_power_cut()
    # which shows that content that is not synced is lost here
    assert (left / "control").read_text() != "not synced"
    assert {file.name: checksum(file) for file in (left / "shards").iterdir()} == expected
    assert json.loads((left / "shards" / "manifest.json").read_text())["whole"]
    assert len(load_shards(str(left / "shards"))) > 30
