"""Find duplicates in a corpus of any size, in bounded memory, by the digests of its pairs (`cleaning.pair_digest`).

The digests of each piece of the corpus are written in sorted order, so that those in one of several equal ranges of
digests are consecutive; all pieces' digests in a range fit into memory.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from tokenize import TokenError

import numpy as np

from ...data.formats import DataError
from ...files import replacing

PAIRS_PER_RANGE = 1 << 22  # 4 million pairs, for which `find_duplicates` needs less than 300 MB
_DIGEST = np.dtype([("digest", "i8"), ("row", "u4")], align=True)  # searched without being copied
_PLACE = np.dtype([("piece", "u4"), ("row", "u4")], align=True)


def write_digests(file: Path, digests: Sequence[int]) -> None:
    """Write the digests of a piece, one per row."""
    records = np.zeros(len(digests), _DIGEST)
    records["digest"] = digests
    records["row"] = np.arange(len(digests))
    # stable: equal digests stay in row order
    _save(file, records[np.argsort(records["digest"], kind="stable")])


def number_of_ranges(pairs: int) -> int:
    """Return the number of ranges of digests for a corpus of `pairs` pairs, a power of two."""
    return 1 << max(0, -(-pairs // PAIRS_PER_RANGE) - 1).bit_length()


def _load(file: Path, dtype: np.dtype) -> np.ndarray:
    """Return an array of records in a file, of which only the pages in use occupy memory.

    Raises:
        DataError: if the file is damaged.
    """
    with suppress(ValueError, OverflowError, TokenError):
        # unlike np.load, it does not take what starts as a zip file for one
        array = np.lib.format.open_memmap(file, mode="r")
        if array.dtype == dtype and array.ndim == 1:
            return array
    raise DataError(f"{file} is damaged; start the job again in a new folder.")


def find_duplicates(files: Iterable[Path], index: int, ranges: int, output: Path) -> int:
    """Write which rows of which pieces repeat an earlier row, as far as their digests are in one range.

    Args:
        files: the digests of the pieces, in order.
        index: which of `ranges` equal ranges.

    Returns:
        The number of digests in the range.
    """
    width = (1 << 64) // ranges
    first = index * width - (1 << 63)
    bounds = np.array([first, first + width - 1], "i8")
    records = []
    pieces = []
    for piece, file in enumerate(files):
        # mapped, so that only the pages of this range are read
        digests = _load(file, _DIGEST)
        start = np.searchsorted(digests["digest"], bounds[0], side="left")
        end = np.searchsorted(digests["digest"], bounds[1], side="right")
        records.append(np.array(digests[start:end]))
        pieces.append(np.full(end - start, piece, "u4"))

    found = np.concatenate(records) if records else np.zeros(0, _DIGEST)
    # stable: equal digests stay in the order of pieces and rows
    order = np.argsort(found["digest"], kind="stable")
    found = found[order]
    # every digest that equals the one before it; the first of equal ones stays
    repeated = np.zeros(len(found), bool)
    repeated[1:] = found["digest"][1:] == found["digest"][:-1]

    places = np.zeros(int(repeated.sum()), _PLACE)
    places["piece"] = np.concatenate([*pieces, np.zeros(0, "u4")])[order][repeated]
    places["row"] = found["row"][repeated]
    _save(output, np.sort(places, order=("piece", "row")))
    return len(found)


def duplicates_of(files: Iterable[Path], piece: int) -> np.ndarray:
    """Return the rows of a piece that repeat earlier rows, in ascending order.

    Args:
        files: what `find_duplicates` has written for all ranges.
    """
    rows = []
    for file in files:
        places = _load(file, _PLACE)
        start, end = np.searchsorted(places["piece"], np.array([piece, piece + 1], "u4"))
        rows.append(np.array(places["row"][start:end]))
    return np.sort(np.concatenate(rows)) if rows else np.zeros(0, "u4")


def _save(file: Path, array: np.ndarray) -> None:
    with replacing(file, shared=True) as unfinished, unfinished.open("wb") as output:
        np.save(output, array)
