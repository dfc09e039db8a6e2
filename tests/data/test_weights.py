"""Weights of sources: how often each pair is used over the epochs."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_vanilla_transformer.data.mixture import WeightedBatchSampler, temperature_weights


def lengths(count: int, seed: int = 0) -> tuple[list[int], list[int]]:
    generator = np.random.default_rng(seed)
    source = generator.integers(1, 60, count)
    return source.tolist(), np.maximum(1, source + generator.integers(-5, 6, count)).tolist()


def epochs(sampler: WeightedBatchSampler, count: int) -> list[list[list[int]]]:
    """Return the batches of the first epochs as pairs, after checking that their numbers name the epoch."""
    found = []
    for epoch in range(count):
        sampler.set_epoch(epoch)
        batches = list(sampler)
        numbers = [number for batch in batches for number in batch]
        assert len(set(numbers)) == len(numbers)  # every use of a pair has its own number
        assert {number // sampler.num_pairs // sampler.uses_per_epoch for number in numbers} <= {epoch}
        found.append([[number % sampler.num_pairs for number in batch] for batch in batches])
    return found


def uses(batches: list[list[int]], sizes: list[int]) -> list[int]:
    """Return how many pairs of each source the batches use."""
    source = np.searchsorted(np.cumsum(sizes), np.concatenate(batches), side="right")
    return np.bincount(source, minlength=len(sizes)).tolist()


def test_sources_are_used_as_often_as_their_weights_say():
    sizes, weights = [1000, 500, 3000, 777], [1, 2, 0.5, 1.3]
    source, target = lengths(sum(sizes))
    sampler = WeightedBatchSampler(source, target, 256, sizes, weights)
    for batches in epochs(sampler, 3):
        assert len(batches) == len(sampler)
        for used, size, weight in zip(uses(batches, sizes), sizes, weights, strict=True):
            assert used == pytest.approx(weight * size, rel=0.01)
        for batch in batches:
            assert max(max(source[i] for i in batch), max(target[i] for i in batch)) * len(batch) <= 256


def test_a_weight_of_one_half_uses_the_other_half_in_the_next_epoch():
    source, target = lengths(1000)
    first, second, third = (
        {i for b in e for i in b} for e in epochs(WeightedBatchSampler(source, target, 128, [1000], [0.5]), 3)
    )
    assert len(first) == 500
    assert first | second == set(range(1000))
    assert third == first


def test_over_many_epochs_every_pair_of_a_source_is_used_about_equally_often():
    source, target = lengths(640)
    counts: Counter[int] = Counter()
    for batches in epochs(WeightedBatchSampler(source, target, 128, [640], [1.25]), 32):
        counts.update(i for batch in batches for i in batch)
    assert set(counts) == set(range(640))
    assert 38 <= min(counts.values()) <= max(counts.values()) <= 42  # 32 times 1.25 is 40


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=4),
    data=st.data(),
    seed=st.integers(0, 5),
)
def test_every_epoch_has_the_same_number_of_batches_that_all_fit(sizes, data, seed):
    weights = data.draw(st.lists(st.floats(0.03, 3.5), min_size=len(sizes), max_size=len(sizes)))
    source, target = lengths(sum(sizes), seed)
    sampler = WeightedBatchSampler(source, target, 70, sizes, weights, seed)
    used = None
    for batches in epochs(sampler, 4):
        assert len(batches) == len(sampler)
        for batch in batches:
            assert max(max(source[i] for i in batch), max(target[i] for i in batch)) * len(batch) <= 70
        now = uses(batches, sizes) if batches else [0] * len(sizes)
        assert used is None or now == used
        used = now
        for count, size, weight in zip(now, sizes, weights, strict=True):
            assert abs(count - weight * size) <= 1
            assert count > 0


def test_the_same_seed_gives_the_same_epochs():
    source, target = lengths(300)
    first, again, other = (
        epochs(WeightedBatchSampler(source, target, 128, [200, 100], [0.4, 2], seed), 2) for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


def test_a_pair_that_never_fits_is_named_by_its_number():
    with pytest.raises(ValueError, match="Pair 3 has 11 tokens, which exceeds max_tokens"):
        WeightedBatchSampler([1, 1, 1, 11], [1, 1, 1, 2], 10, [3, 1], [2.5, 1])


def test_a_source_without_pairs_is_allowed():
    sampler = WeightedBatchSampler([3, 4], [3, 4], 10, [0, 2], [0.5, 1])
    assert sorted(i for batch in sampler for i in batch) == [0, 1]
    assert list(WeightedBatchSampler([], [], 10, [0], [0.5])) == []


def test_temperature_flattens_the_shares_of_the_sources():
    sizes = [8000, 1000]
    for temperature, share in ((1, 8), (3, 2)):
        weights = temperature_weights(sizes, temperature)
        assert weights[0] == 1.0
        assert sizes[0] * weights[0] / (sizes[1] * weights[1]) == pytest.approx(share)
