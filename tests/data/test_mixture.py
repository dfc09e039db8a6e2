import pickle

import numpy as np
import pytest

from hf_vanilla_transformer import train_tokenizer
from hf_vanilla_transformer.data.batching import Seq2SeqCollator, TokenRows
from hf_vanilla_transformer.data.bpe_dropout import BpeDropout
from hf_vanilla_transformer.data.cleaning import tokenize_pairs
from hf_vanilla_transformer.data.mixture import MixedRows, WeightedBatchSampler
from hf_vanilla_transformer.data.phrases import splits


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([text for phrase in splits()["train"][:500] for text in (phrase.en, phrase.de)], 400)


@pytest.fixture(scope="module")
def rows(tokenizer) -> list[TokenRows]:
    from datasets import Dataset

    phrases = splits()["train"]
    sources = []
    for start, end, prefix in ((0, 400, ()), (400, 500, (7, 8))):
        pairs = {"source": [p.en for p in phrases[start:end]], "target": [p.de for p in phrases[start:end]]}
        tokens, _ = tokenize_pairs(Dataset.from_dict(pairs), tokenizer, 250)
        sources.append(TokenRows(tokens, prefix))
    return sources


def sampler_of(mixture: MixedRows) -> WeightedBatchSampler:
    return mixture.sampler(256, seed=1, readers=1)


def test_pairs_are_those_of_the_sources_with_their_prefix(rows):
    mixture = MixedRows(rows, [1.0, 2.0])
    assert len(mixture) == len(rows[0]) + len(rows[1])
    numbers = [len(mixture) - 1, 0, len(rows[0]), 3]
    found = mixture.__getitems__([5 * len(mixture) + number for number in numbers])  # the epoch changes nothing
    for number, row in zip(numbers, found, strict=True):
        source = rows[number >= len(rows[0])]
        expected = source.dataset[number - (source is rows[1]) * len(rows[0])]
        assert row["input_ids"].tolist() == [*source.prefix, *expected["input_ids"]]
        assert row["labels"].tolist() == expected["labels"]
    lengths = [(len(row["input_ids"]), len(row["labels"])) for row in map(mixture.__getitem__, range(len(mixture)))]
    assert [tuple(pair) for pair in zip(*(side.tolist() for side in mixture.lengths), strict=True)] == lengths


def test_batches_with_dropout_fit_and_differ_between_epochs_only(rows, tokenizer):
    mixture = MixedRows(rows, [1.0, 2.0], BpeDropout(tokenizer, 0.2, seed=3))
    plain = MixedRows(rows, [1.0, 2.0])
    sampler = sampler_of(mixture)
    collate = Seq2SeqCollator(0, 1)
    texts: list[dict[int, list[int]]] = []
    for epoch in (0, 1):
        sampler.set_epoch(epoch)
        texts.append({})
        for numbers in sampler:
            found = pickle.loads(pickle.dumps(mixture)).__getitems__(numbers)
            again = mixture.__getitems__(numbers[::-1])[::-1]
            batch = collate(found)
            assert max(batch["input_ids"].numel(), batch["labels"].numel()) <= 256
            for number, row, same in zip(numbers, found, again, strict=True):
                assert row["input_ids"].tolist() == same["input_ids"].tolist()
                pair = number % len(mixture)
                original = plain[pair]
                for side in ("input_ids", "labels"):
                    assert tokenizer.decode(row[side]) == tokenizer.decode(original[side])
                texts[-1][pair] = row["labels"].tolist()
    both = texts[0].keys() & texts[1].keys()
    assert np.mean([texts[0][pair] != texts[1][pair] for pair in both]) > 0.5
    assert len(list(sampler)) == len(sampler)


def test_dropout_makes_no_pair_longer_than_the_positions(rows, tokenizer):
    longest = int(max(side.max() for side in rows[0].lengths))
    mixture = MixedRows(rows[:1], [1.0], BpeDropout(tokenizer, 0.9, seed=3), longest)
    drawn = [row for numbers in sampler_of(mixture) for row in mixture.__getitems__(numbers)]
    assert max(len(row[side]) for row in drawn for side in ("input_ids", "labels")) <= longest
    plain = MixedRows(rows[:1], [1.0], BpeDropout(tokenizer, 0.9, seed=3))
    drawn = [row for numbers in sampler_of(plain) for row in plain.__getitems__(numbers)]
    assert max(len(row[side]) for row in drawn for side in ("input_ids", "labels")) > longest


@pytest.mark.parametrize("weight", [1.0, 2.0, 0.75])
def test_dropout_is_rarely_given_up_for_lack_of_room(rows, tokenizer, weight):
    dropout = BpeDropout(tokenizer, 0.1, seed=3)
    mixture = MixedRows(rows[:1], [weight], dropout)
    sampler = sampler_of(mixture)
    for epoch in (0, 1, 5):
        sampler.set_epoch(epoch)
        batches = list(sampler)
        assert len(batches) == len(sampler)
        tokens = [[len(row["labels"]) for row in mixture.__getitems__(numbers)] for numbers in batches]
        numbers = np.concatenate(batches)
        texts = [np.asarray(rows[0].dataset[number]["labels"]) for number in (numbers % len(mixture)).tolist()]
        drawn = np.array(list(map(len, dropout(texts, numbers, 1))))
        assert np.mean(drawn == np.concatenate(tokens)) > 0.95
        if weight != 0.75:  # which leaves room for the longest pair of each group
            without = list(sampler_of(MixedRows(rows[:1], [weight])))
            lengths = rows[0].lengths[1]
            original = sum(int(lengths[number % len(mixture)]) for batch in without for number in batch)
            assert sum(map(sum, tokens)) / len(batches) > 0.95 * original / len(without)


def test_a_resumed_epoch_has_the_batches_of_one_that_follows_others(rows, tokenizer):
    dropout = BpeDropout(tokenizer, 0.1, seed=3)
    samplers = [sampler_of(MixedRows(rows, [1.0, 0.5], dropout)) for _ in range(2)]
    for epoch in range(3):
        samplers[0].set_epoch(epoch)
        batches = list(samplers[0])
    samplers[1].set_epoch(2)
    assert list(samplers[1]) == batches


def test_a_pair_that_is_used_twice_in_an_epoch_is_segmented_twice(rows, tokenizer):
    mixture = MixedRows(rows[:1], [2.0], BpeDropout(tokenizer, 0.1, seed=3))
    uses: dict[int, list[list[int]]] = {}
    for numbers in sampler_of(mixture):
        for number, row in zip(numbers, mixture.__getitems__(numbers), strict=True):
            uses.setdefault(number % len(mixture), []).append(row["labels"].tolist())
    assert len(uses) == len(mixture)
    assert np.mean([first != second for first, second in uses.values()]) > 0.3
