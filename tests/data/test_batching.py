"""Batches by token count: completeness, limits, shuffling and padding."""

import pickle
from collections import Counter

import numpy as np
import pytest
import torch
from accelerate.data_loader import BatchSamplerShard
from datasets import Dataset, concatenate_datasets
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_vanilla_transformer.data import batching
from hf_vanilla_transformer.data.batching import (
    MaxTokensBatchSampler,
    Seq2SeqCollator,
    TokenRows,
    as_rows,
    batches_by_length,
    by_name,
)


@st.composite
def corpora(draw):
    """Draw source lengths, target lengths and max_tokens."""
    max_tokens = draw(st.integers(1, 300))
    longest = draw(st.integers(1, max_tokens))
    pairs = draw(st.lists(st.tuples(*[st.integers(1, longest)] * 2), min_size=1, max_size=80))
    return *map(list, zip(*pairs, strict=True)), max_tokens


def epoch(sampler: MaxTokensBatchSampler, number: int) -> list[list[int]]:
    sampler.set_epoch(number)
    return list(sampler)


def composition(batches: list[list[int]]) -> set[frozenset[int]]:
    return set(map(frozenset, batches))


def realistic_lengths(
    pairs: int, median: float = 13, spread: float = 0.3, ratio_spread: float = 0.16
) -> tuple[np.ndarray, np.ndarray]:
    """Return log-normal source lengths, and target lengths by log-normal ratios; the defaults resemble Multi30k."""
    rng = np.random.default_rng(0)
    source = rng.lognormal(np.log(median), spread, pairs)
    target = source * rng.lognormal(0.0, ratio_spread, pairs)
    return tuple(np.clip(np.rint(side), 2, 250).astype(int) for side in (source, target))


properties = settings(max_examples=150, deadline=None)


@given(corpora(), st.booleans())
@properties
def test_every_epoch_yields_every_pair_exactly_once(corpus, shuffle):
    sampler = MaxTokensBatchSampler(*corpus, shuffle=shuffle)
    for number in range(3):
        assert sorted(i for batch in epoch(sampler, number) for i in batch) == list(range(len(corpus[0])))


@given(corpora(), st.booleans())
@properties
def test_neither_side_of_a_batch_exceeds_max_tokens_including_padding(corpus, shuffle):
    *sides, max_tokens = corpus
    sampler = MaxTokensBatchSampler(*corpus, shuffle=shuffle)
    for number in range(3):
        for batch in epoch(sampler, number):
            assert all(len(batch) * max(side[i] for i in batch) <= max_tokens for side in sides)


@given(corpora())
@properties
def test_every_epoch_has_len_batches(corpus):
    sampler = MaxTokensBatchSampler(*corpus)
    assert {len(epoch(sampler, number)) for number in range(4)} == {len(sampler)}


@given(corpora(), st.integers(0, 5), st.integers(0, 5))
@properties
def test_the_same_seed_and_epoch_produce_the_same_batches(corpus, seed, number):
    first, second = (MaxTokensBatchSampler(*corpus, seed=seed) for _ in range(2))
    epoch(second, number + 1)
    assert epoch(first, number) == epoch(second, number)


def test_epochs_differ_in_order_and_in_composition():
    sampler = MaxTokensBatchSampler(*realistic_lengths(2000), 512)
    first, second = epoch(sampler, 0), epoch(sampler, 1)
    assert first != second
    assert [len(batch) for batch in first] != [len(batch) for batch in second]
    assert len(composition(first) - composition(second)) > len(first) / 2


def test_seeds_differ_in_order_and_in_composition():
    first, second = (MaxTokensBatchSampler(*realistic_lengths(2000), 512, seed=seed) for seed in range(2))
    for number in (0, 1):
        one, other = epoch(first, number), epoch(second, 0)
        assert [len(batch) for batch in one] != [len(batch) for batch in other]
        assert composition(one) != composition(other)


def test_without_shuffling_every_epoch_is_ordered_from_short_to_long():
    source, target = realistic_lengths(2000)
    sampler = MaxTokensBatchSampler(source, target, 1024, shuffle=False)
    batches = epoch(sampler, 0)
    assert batches == epoch(sampler, 7)
    means = np.array([(source + target)[batch].mean() for batch in batches])
    assert (means.argmin(), means.argmax()) == (0, len(means) - 1)
    assert np.corrcoef(np.arange(len(means)), means)[0, 1] > 0.9


@pytest.mark.parametrize(
    ("lengths", "max_tokens"),
    [((29_000, 13, 0.3, 0.16), 4096), ((10_000, 22, 0.45, 0.24), 4096), ((500_000, 26, 0.6, 0.2), 25_000)],
    ids=["Multi30k", "WMT sample", "WMT"],
)
def test_at_most_a_tenth_of_the_tokens_is_padding(lengths, max_tokens):
    sides = realistic_lengths(*lengths)
    batches = list(MaxTokensBatchSampler(*sides, max_tokens))
    for lengths in sides:
        assert lengths.sum() / sum(len(batch) * lengths[batch].max() for batch in batches) >= 0.9


@given(corpora(), st.integers(1, 8))
@properties
def test_processes_get_equally_many_batches_and_together_cover_every_pair(corpus, world_size):
    sampler = MaxTokensBatchSampler(*corpus)
    whole = epoch(sampler, 3)
    shards = [list(BatchSamplerShard(sampler, world_size, rank, even_batches=True)) for rank in range(world_size)]
    assert len({len(shard) for shard in shards}) == 1
    seen = Counter(tuple(batch) for shard in shards for batch in shard)
    assert set(seen) == set(map(tuple, whole))
    assert 0 <= seen.total() - len(whole) < world_size


@pytest.mark.parametrize("sides", [([3, 4, 11], [1, 1, 1]), ([1, 1, 1], [3, 4, 11])])
def test_a_pair_longer_than_max_tokens_is_named(sides):
    with pytest.raises(ValueError, match=r"Pair 2 has 11 tokens.*10"):
        MaxTokensBatchSampler(*sides, max_tokens=10)


def test_a_pair_of_max_tokens_fills_a_batch_by_itself():
    assert list(MaxTokensBatchSampler([33, 2], [2, 33], 33, shuffle=False)) in ([[0], [1]], [[1], [0]])


def test_length_lists_of_unequal_size_are_rejected():
    with pytest.raises(ValueError, match="2 source lengths but 3 target lengths"):
        MaxTokensBatchSampler([1, 2], [1, 2, 3], 10)


@pytest.mark.parametrize("shuffle", [True, False])
def test_no_pairs_make_no_batches(shuffle):
    sampler = MaxTokensBatchSampler([], [], 10, shuffle=shuffle)
    assert len(sampler) == 0
    assert list(sampler) == []


def test_a_million_pairs_are_planned_once_and_by_length(monkeypatch):
    lengths = realistic_lengths(1_000_000, 26, 0.6, 0.2)
    sorted_pairs: list[int] = []
    steps: list[int] = []
    lexsort = np.lexsort

    def counting_lexsort(keys):
        sorted_pairs.append(len(keys[0]))
        return lexsort(keys)

    def counting_zip(*iterables, strict):
        rows = list(zip(*iterables, strict=strict))
        steps.append(len(rows))
        return rows

    monkeypatch.setattr(np, "lexsort", counting_lexsort)
    monkeypatch.setattr(batching, "zip", counting_zip, raising=False)
    sampler = MaxTokensBatchSampler(*lengths, 25_000)
    # Python's own loop is over the rounded lengths that occur, of which there are 8 per power of two.
    assert sorted_pairs == [1_000_000]
    assert len(steps) == 1
    assert steps[0] < 64
    assert sum(map(len, sampler)) == 1_000_000
    assert sorted_pairs == [1_000_000] * 2


def test_the_collator_pads_both_sides_and_shifts_the_labels():
    pairs = [{"input_ids": [5, 6, 2], "labels": [7, 2]}, {"input_ids": [8, 2], "labels": [9, 10, 11, 2]}]
    expected = {
        "input_ids": [[5, 6, 2], [8, 2, 90]],
        "attention_mask": [[1, 1, 1], [1, 1, 0]],
        "decoder_input_ids": [[91, 7, 90, 90], [91, 9, 10, 11]],
        "labels": [[7, 2, -100, -100], [9, 10, 11, 2]],
    }
    batch = Seq2SeqCollator(pad_token_id=90, decoder_start_token_id=91)(pairs)
    assert {name: tensor.tolist() for name, tensor in batch.items()} == expected
    assert {tensor.dtype for tensor in batch.values()} == {torch.int64}


@given(st.lists(st.lists(st.integers(4, 99), min_size=1, max_size=9), min_size=1, max_size=9))
@settings(max_examples=50, deadline=None)
def test_the_decoder_input_is_the_labels_shifted_by_one_position(targets):
    batch = Seq2SeqCollator(0, 1)([{"input_ids": [2], "labels": target} for target in targets])
    for inputs, labels, target in zip(batch["decoder_input_ids"], batch["labels"], targets, strict=True):
        assert inputs.tolist()[: len(target)] == [1, *target[:-1]]
        assert not inputs[len(target) :].any()
        assert labels.tolist() == target + [-100] * (len(labels) - len(target))


@pytest.mark.parametrize(
    ("longest", "limit", "max_tokens", "padded"),
    [
        (16, 99, 99, 16),
        (17, 99, 99, 18),
        (33, 99, 99, 36),
        (33, 34, 99, 34),
        (33, 99, 71, 35),
        (33, 99, None, 36),
        (61, 0, 200, 61),
    ],
)
def test_few_lengths_are_padded_to_on_request(longest, limit, max_tokens, padded):
    rows = [{"input_ids": [5] * longest, "labels": [6, 2]}, {"input_ids": [7, 2], "labels": [8] * longest}]
    exact, rounded = Seq2SeqCollator(0, 1)(rows), Seq2SeqCollator(0, 1, limit, max_tokens)(rows)
    for name, value in rounded.items():
        assert value.shape == (2, padded)
        assert torch.equal(value[:, :longest], exact[name])
        assert (value[:, longest:] == (-100 if name == "labels" else 0)).all()


@given(corpora(), st.lists(st.integers(301, 900), max_size=4))
@settings(deadline=None)
def test_batches_by_length_puts_each_too_long_pair_in_a_batch_of_its_own(corpus, long):
    source, target, max_tokens = corpus
    batches = batches_by_length([*source, *long], [*target, *([3] * len(long))], max_tokens)
    expected = MaxTokensBatchSampler(source, target, max_tokens, shuffle=False)
    assert batches[: len(expected)] == list(expected)
    assert sorted(batches[len(expected) :]) == [[len(source) + i] for i in range(len(long))]


@pytest.fixture
def tokens() -> Dataset:
    """Rows of three tables, some without tokens, of which every other row is selected."""
    rows = [{"input_ids": list(range(i % 7)), "labels": list(range(i % 5, 5))} for i in range(40)]
    parts = [Dataset.from_list(rows[start:end]) for start, end in ((0, 10), (10, 11), (11, 40))]
    return concatenate_datasets(parts).select(range(39, 0, -2))


def test_token_rows_are_those_of_the_dataset(tokens):
    rows, indices = TokenRows(tokens), [3, 0, 19, 3, 7]
    assert len(rows) == len(tokens) == 20
    found = [{name: ids.tolist() for name, ids in row.items()} for row in rows.__getitems__(indices)]
    assert found == [tokens[i] for i in indices]
    tagged = TokenRows(tokens, prefix=[7, 8])
    assert tagged[3]["input_ids"].tolist() == [7, 8, *tokens[3]["input_ids"]]
    assert tagged[3]["labels"].tolist() == tokens[3]["labels"]
    whole = tokens.flatten_indices()
    found = [{name: ids.tolist() for name, ids in row.items()} for row in TokenRows(whole).__getitems__(indices)]
    assert found == [tokens[i] for i in indices]


def test_token_rows_can_be_sent_to_another_process(tokens):
    rows = TokenRows(tokens)
    rows.__getitems__([0])
    copy = pickle.loads(pickle.dumps(rows))
    assert [row["labels"].tolist() for row in copy.__getitems__([5])] == [tokens[5]["labels"]]


def test_rows_of_a_dataset_are_given_as_it_gives_them(tokens):
    for dataset in (tokens, tokens.with_format("torch"), tokens.add_column("domain", ["news"] * 20), list(tokens)):
        rows = as_rows(dataset)
        assert [list(map(int, row["labels"])) for row in rows.__getitems__([3, 0])] == [
            tokens[3]["labels"],
            tokens[0]["labels"],
        ]
        assert [side.tolist() for side in rows.lengths] == [list(map(len, tokens[side])) for side in batching.SIDES]


@pytest.mark.parametrize(
    ("dataset", "problem"),
    [
        ([], "The dataset is empty"),
        (
            [{"source": "a dog", "target": "ein Hund"}],
            '"input_ids" and "labels", token ids; this one has only source, ',
        ),
        ([{}], "this one has only nothing"),
        (["a dog"], "this one has str"),
        (Dataset.from_dict({"input_ids": [[1, 2]]}), "this one has only input_ids"),
        (
            [{"input_ids": "a dog", "labels": "ein Hund"}],
            '"input_ids" in the rows of a dataset must be lists',
        ),
        (
            [{"input_ids": [5, 2], "labels": ["ein", "Hund"]}],
            '"labels" in the rows of a dataset must be lists',
        ),
        (
            [{"input_ids": [[5], [2]], "labels": [5]}],
            '"input_ids" in the rows of a dataset must be lists',
        ),
    ],
)
def test_a_dataset_without_pairs_of_token_ids_is_refused(dataset, problem):
    with pytest.raises(ValueError, match=problem):
        as_rows(dataset)


def test_empty_pairs_take_up_a_row():
    batches = MaxTokensBatchSampler([0, 3, 0], [0, 2, 0], max_tokens=8)
    assert sorted(row for batch in batches for row in batch) == [0, 1, 2]


def test_an_empty_dictionary_of_datasets_is_refused():
    with pytest.raises(ValueError, match="the dictionary of datasets is empty"):
        by_name({})


def test_a_list_without_rows_has_no_lengths():
    assert [side.tolist() for side in batching.GivenRows([]).lengths] == [[], []]
