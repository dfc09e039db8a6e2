"""Code that creates a file when it is run, in the forms in which files of strangers could bring it."""

import pickle
from pathlib import Path


class Code:
    """Creates a file when it is unpickled."""

    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (self.marker,)


def pickled(marker: Path) -> bytes:
    """Return a pickle, of a protocol that torch reads too, that creates a file."""
    return pickle.dumps(Code(marker), protocol=2)


def module(marker: Path) -> str:
    """Return the source of a module that creates a file when it is imported."""
    return f"from pathlib import Path\nPath({str(marker)!r}).touch()\n\ndef call(*args, **kwargs): ...\n"


def tagged(marker: Path) -> str:
    """Return YAML that creates a file if its tags may call functions."""
    return f"!!python/object/apply:os.mknod [{str(marker)!r}]"
