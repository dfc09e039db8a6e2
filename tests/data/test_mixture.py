import pickle

import numpy as np
import pytest

from hf_vanilla_transformer import train_tokenizer
from hf_vanilla_transformer.data.batching import Seq2SeqCollator
from hf_vanilla_transformer.data.bpe_dropout import BpeDropout
from hf_vanilla_transformer.data.cleaning import tokenize_pairs
from hf_vanilla_transformer.data.mixture import Mixture, TokenSource
from hf_vanilla_transformer.data.phrases import splits


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([text for phrase in splits()["train"][:500] for text in (phrase.en, phrase.de)], 400)


@pytest.fixture(scope="module")
def sources(tokenizer) -> list[TokenSource]:
    from datasets import Dataset

    phrases = splits()["train"]
    found = []
    for name, start, end, prefix, weight in (("a", 0, 400, (), 1.0), ("b", 400, 500, (7, 8), 2.0)):
        pairs = {"source": [p.en for p in phrases[start:end]], "target": [p.de for p in phrases[start:end]]}
        tokens, _ = tokenize_pairs(Dataset.from_dict(pairs), tokenizer, 250)
        found.append(TokenSource(name, tokens, prefix, weight))
    return found


def test_pairs_are_those_of_the_sources_with_their_prefix(sources):
    mixture = Mixture(sources)
    assert len(mixture) == len(sources[0].tokens) + len(sources[1].tokens)
    numbers = [len(mixture) - 1, 0, len(sources[0].tokens), 3]
    rows = mixture.__getitems__([5 * len(mixture) + number for number in numbers])  # the epoch changes nothing
    for number, row in zip(numbers, rows, strict=True):
        source = sources[number >= len(sources[0].tokens)]
        expected = source.tokens[number - (source is sources[1]) * len(sources[0].tokens)]
        assert row["input_ids"].tolist() == [*source.prefix, *expected["input_ids"]]
        assert row["labels"].tolist() == expected["labels"]
    lengths = [(len(row["input_ids"]), len(row["labels"])) for row in map(mixture.__getitem__, range(len(mixture)))]
    assert [tuple(pair) for pair in zip(*(side.tolist() for side in mixture.lengths), strict=True)] == lengths


def test_batches_with_dropout_fit_and_differ_between_epochs_only(sources, tokenizer):
    mixture = Mixture(sources, BpeDropout(tokenizer, 0.2, seed=3))
    sampler, collate, plain = mixture.sampler(256, seed=1), Seq2SeqCollator(0, 1), Mixture(sources)
    texts: list[dict[int, list[int]]] = []
    for epoch in (0, 1):
        sampler.set_epoch(epoch)
        texts.append({})
        for numbers in sampler:
            rows = pickle.loads(pickle.dumps(mixture)).__getitems__(numbers)
            again = mixture.__getitems__(numbers[::-1])[::-1]
            batch = collate(rows)
            assert max(batch["input_ids"].numel(), batch["labels"].numel()) <= 256
            for number, row, same in zip(numbers, rows, again, strict=True):
                assert row["input_ids"].tolist() == same["input_ids"].tolist()
                pair = number % len(mixture)
                original = plain[pair]
                for side in ("input_ids", "labels"):
                    assert tokenizer.decode(row[side]) == tokenizer.decode(original[side])
                texts[-1][pair] = row["labels"].tolist()
    both = texts[0].keys() & texts[1].keys()
    assert np.mean([texts[0][pair] != texts[1][pair] for pair in both]) > 0.5
    assert len(list(sampler)) == len(sampler)


@pytest.mark.parametrize("weight", [1.0, 2.0, 0.75])
def test_dropout_is_rarely_given_up_for_lack_of_room(sources, tokenizer, weight):
    source = TokenSource("a", sources[0].tokens, weight=weight)
    mixture = Mixture([source], BpeDropout(tokenizer, 0.1, seed=3))
    sampler = mixture.sampler(256, seed=1)
    for epoch in (0, 1, 5):
        sampler.set_epoch(epoch)
        batches = list(sampler)
        assert len(batches) == len(sampler)
        tokens = [[len(row["labels"]) for row in mixture.__getitems__(numbers)] for numbers in batches]
        drawn = mixture.segmented_lengths(np.concatenate(batches))[1]
        assert np.mean(drawn == np.concatenate(tokens)) > 0.95
        if weight != 0.75:  # which leaves room for the longest pair of each group
            without = list(Mixture([source]).sampler(256, seed=1))
            original = sum(int(source.tokens[number % len(mixture)]["target_length"]) for b in without for number in b)
            assert sum(map(sum, tokens)) / len(batches) > 0.95 * original / len(without)


def test_a_pair_that_is_used_twice_in_an_epoch_is_segmented_twice(sources, tokenizer):
    mixture = Mixture([TokenSource("a", sources[0].tokens, weight=2.0)], BpeDropout(tokenizer, 0.1, seed=3))
    uses: dict[int, list[list[int]]] = {}
    for numbers in mixture.sampler(256, seed=1):
        for number, row in zip(numbers, mixture.__getitems__(numbers), strict=True):
            uses.setdefault(number % len(mixture), []).append(row["labels"].tolist())
    assert len(uses) == len(mixture)
    assert np.mean([first != second for first, second in uses.values()]) > 0.3
