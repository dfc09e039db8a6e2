"""The identity of a text is its content: whoever compares text with that of an earlier call compares what is here.

The digest is of the whole file, so that no change goes unnoticed. A core reads about 1 GB per second, far more than it
tokenises. Text for which that is too long has been prepared: its manifest holds the digests of its shards.
"""

from functools import lru_cache
from pathlib import Path

from ..files import checksum
from .formats import READERS, ending_of

# Reading so many bytes takes longer than a tick of the clock of a file system, so that a later write changes the state
_LARGE = 1 << 26


def identify(file: str) -> str:
    """Return the identity of a file of text: the ending that says how to read it, if any, and its digest.

    Raises:
        OSError: if it cannot be read.
    """
    status = Path(file).stat()
    # With the time of the last change (ctime), which no program can set, unlike that of the last modification
    state = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    digest = _digest_once(file, state) if status.st_size >= _LARGE else checksum(Path(file))
    ending = ending_of(file)
    return f"{ending} {digest}" if ending in READERS else digest


@lru_cache
def _digest_once(file: str, state: tuple[int, ...]) -> str:
    """Return the digest of a large file, which a process reads only once while its state is the same."""
    return checksum(Path(file))
