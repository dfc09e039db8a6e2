"""Files that are either whole or not there, and what tells whether they still are as they were written."""

import hashlib
from pathlib import Path


def write_whole(file: str | Path, text: str) -> None:
    """Writes `text` under another name, which then takes the place of `file`: nobody ever sees half of it."""
    unfinished = Path(f"{file}.unfinished")
    try:
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(file)
    finally:
        unfinished.unlink(missing_ok=True)


def checksum(file: Path) -> str:
    """BLAKE2b of a file's content, 16 bytes in hexadecimal."""
    digest = hashlib.blake2b(digest_size=16)
    with file.open("rb") as content:
        while block := content.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
