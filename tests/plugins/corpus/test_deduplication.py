"""Finding duplicates by digests, against a set of all pairs in memory."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_vanilla_transformer.data.cleaning import pair_digest
from hf_vanilla_transformer.data.formats import DataError
from hf_vanilla_transformer.plugins.corpus import deduplication
from hf_vanilla_transformer.plugins.corpus.deduplication import duplicates_of, find_duplicates, number_of_ranges

# Few values, among them the first and last of the ranges
DIGESTS = st.sampled_from([-(1 << 63), -1, 0, 1, (1 << 61) - 1, 1 << 61, (1 << 63) - 1])


@settings(max_examples=100, deadline=None)
@given(pieces=st.lists(st.lists(DIGESTS, max_size=20), min_size=1, max_size=4), ranges=st.sampled_from([1, 2, 8]))
def test_every_repetition_and_nothing_else_is_found_in_one_of_the_ranges(pieces, ranges, tmp_path_factory):
    folder = tmp_path_factory.mktemp("digests")
    seen: set[int] = set()
    expected: list[list[int]] = []
    for piece in pieces:
        expected.append([])
        for row, value in enumerate(piece):
            if value in seen:
                expected[-1].append(row)
            seen.add(value)
    files = [folder / f"digests-{i}.npy" for i in range(len(pieces))]
    for file, piece in zip(files, pieces, strict=True):
        deduplication.write_digests(file, piece)
    found = [folder / f"duplicates-{i}.npy" for i in range(ranges)]
    counts = [find_duplicates(files, i, ranges, file) for i, file in enumerate(found)]
    assert sum(counts) == sum(map(len, pieces))
    assert [duplicates_of(found, i).tolist() for i in range(len(pieces))] == expected


@pytest.mark.parametrize(
    "change",
    [
        lambda content: b"PK\x03\x04" + content[4:],
        lambda content: content.replace(b"(2,)", b"(9" + b"9" * 20 + b",)"),
        lambda content: content.replace(b"}", b"("),
        lambda content: content[:-3],
        lambda content: b"",
    ],
    ids=["a zip file", "a shape too large", "no Python literal", "truncated", "empty"],
)
def test_a_damaged_file_is_named(tmp_path, change):
    file = tmp_path / "digests-0.npy"
    deduplication.write_digests(file, [1, 2])
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(DataError, match=f"^{re.escape(str(file))} is damaged; start the job again in a new folder"):
        find_duplicates([file], 0, 1, tmp_path / "found.npy")


def test_the_ranges_are_enough_for_the_pairs_and_a_power_of_two():
    limit = deduplication.PAIRS_PER_RANGE
    assert [number_of_ranges(n) for n in (1, limit, limit + 1, 3 * limit, 5 * limit)] == [1, 1, 2, 4, 8]


def test_pairs_that_differ_only_in_where_the_source_ends_have_different_digests():
    assert len({pair_digest("a", "b"), pair_digest("a\0b", ""), pair_digest("", "a\0b"), pair_digest("ab", "")}) == 4
