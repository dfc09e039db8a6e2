"""Finding duplicates by digests, against a set of all pairs in memory."""

from hypothesis import given, settings
from hypothesis import strategies as st

from hf_vanilla_transformer.corpus import deduplication
from hf_vanilla_transformer.corpus.deduplication import digest, duplicates_of, find_duplicates, number_of_ranges

# Digests of few values, among them the first and last of the ranges
HALVES = st.sampled_from([0, 1, (1 << 61) - 1, 1 << 61, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
DIGESTS = st.tuples(HALVES, HALVES).map(lambda halves: b"".join(half.to_bytes(8, "little") for half in halves))


@settings(max_examples=100, deadline=None)
@given(pieces=st.lists(st.lists(DIGESTS, max_size=20), min_size=1, max_size=4), ranges=st.sampled_from([1, 2, 8]))
def test_every_repetition_and_nothing_else_is_found_in_one_of_the_ranges(pieces, ranges, tmp_path_factory):
    folder = tmp_path_factory.mktemp("digests")
    seen: set[bytes] = set()
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


def test_the_ranges_are_enough_for_the_pairs_and_a_power_of_two():
    limit = deduplication.PAIRS_PER_RANGE
    assert [number_of_ranges(n) for n in (1, limit, limit + 1, 3 * limit, 5 * limit)] == [1, 1, 2, 4, 8]


def test_pairs_that_differ_only_in_where_the_source_ends_have_different_digests():
    assert len({digest("a", "b"), digest("a\0b", ""), digest("", "a\0b"), digest("ab", "")}) == 4
