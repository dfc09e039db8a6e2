import hashlib
from pathlib import Path

import pytest

from hf_vanilla_transformer.files import checksum, write_whole


def test_a_file_is_the_old_one_or_the_new_one_and_nothing_lies_beside_it(tmp_path, monkeypatch):
    file = tmp_path / "text.json"
    write_whole(file, "old")
    write_whole(str(file), "neu: ä")
    assert file.read_text("utf-8") == "neu: ä"

    def cut_off(self, text, encoding):
        with self.open("w") as content:
            content.write(text[:2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", cut_off)
    with pytest.raises(OSError, match="No space left"):
        write_whole(file, "newer")
    assert file.read_text("utf-8") == "neu: ä"
    assert list(tmp_path.iterdir()) == [file]


def test_a_checksum_is_blake2b_of_the_whole_file(tmp_path):
    content = bytes(range(256)) * 9000  # more than is read at once
    (tmp_path / "file").write_bytes(content)
    assert checksum(tmp_path / "file") == hashlib.blake2b(content, digest_size=16).hexdigest()
