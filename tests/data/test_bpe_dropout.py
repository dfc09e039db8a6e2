"""BPE dropout against the published algorithm, written out here without caches or seeds."""

import itertools
import pickle
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from hf_vanilla_transformer import train_tokenizer
from hf_vanilla_transformer.data.bpe_dropout import VARIANTS, BpeDropout
from hf_vanilla_transformer.data.phrases import splits
from hf_vanilla_transformer.data.tokenizer import add_tags

TEXTS = [text for phrase in splits()["train"][:2000] for text in (phrase.en, phrase.de)]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(TEXTS, 600)


def ids_of(tokenizer, text: str) -> np.ndarray:
    return np.array(tokenizer(text)["input_ids"], dtype=np.int32)


def test_without_dropout_the_segmentation_is_that_of_the_tokenizer(tokenizer):
    dropout = BpeDropout(tokenizer, 0.0, seed=0)
    for text in [*TEXTS[:200], "Zwölf, 3.14 naïve Wörter!?", "", " a  b "]:
        ids = ids_of(tokenizer, text)
        assert dropout([ids], 1, 2)[0].tolist() == ids.tolist()


def test_dropout_changes_the_tokens_but_not_the_text(tokenizer):
    dropout = BpeDropout(tokenizer, 0.3, seed=0)
    changed = 0
    for number, text in enumerate(TEXTS[:200]):
        [ids] = dropout([ids_of(tokenizer, text)], number)
        assert tokenizer.decode(ids, skip_special_tokens=True) == text
        assert ids[-1] == tokenizer.eos_token_id
        changed += ids.tolist() != tokenizer(text)["input_ids"]
    assert changed > 150


def reference_length(word: Sequence[str], ranks: dict, p: float, generator: np.random.Generator) -> int:
    """Algorithm 1 of Provilkov et al. 2020: drop each possible merge with probability p, then apply the best left."""
    symbols = list(word)
    while True:
        pairs = [(ranks[pair], i) for i in range(len(symbols) - 1) if (pair := tuple(symbols[i : i + 2])) in ranks]
        pairs = [pair for pair in pairs if generator.random() >= p]
        if not pairs:
            return len(symbols)
        i = min(pairs)[1]
        symbols = [*symbols[:i], symbols[i] + symbols[i + 1], *symbols[i + 2 :]]


def lazy_segmentation(dropout: BpeDropout, word: tuple[int, ...], variant: int) -> tuple[int, ...]:
    """The same algorithm without any data structure, drawing numbers for merges from the best on until one is kept."""
    text = "".join(dropout.tokens[token] for token in word)
    generator = random.Random(f"{dropout.seed} {variant} {text}")
    symbols = list(text)
    while True:
        pairs = enumerate(itertools.pairwise(symbols))
        merges = sorted((dropout.ranks[pair], i) for i, pair in pairs if pair in dropout.ranks)
        i = next((i for _, i in merges if generator.random() >= dropout.probability), None)
        if i is None:
            return tuple(dropout.vocabulary[symbol] for symbol in symbols)
        symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]


@pytest.mark.parametrize("probability", [0.0, 0.1, 0.7])
def test_each_word_is_segmented_as_without_data_structures(tokenizer, probability):
    dropout = BpeDropout(tokenizer, probability, seed=3)
    words = sorted({word for text in TEXTS for word in text.split()})[:300]
    words += ["a", "aaaaaaa", "".join(words), "\u4e2d\u6587" * 20]
    for number, word in enumerate(words):
        ids = tuple(ids_of(tokenizer, word)[:-1].tolist())
        assert dropout.segment(ids, number) == lazy_segmentation(dropout, ids, number)


class CountedRank(int):
    """A rank that counts how often it is compared."""

    comparisons = 0

    def __lt__(self, other):
        CountedRank.comparisons += 1
        return int(self) < int(other)

    def __eq__(self, other):
        CountedRank.comparisons += 1
        return int(self) == int(other)

    __hash__ = int.__hash__


def test_the_work_for_a_word_does_not_grow_with_the_square_of_its_length(tokenizer):
    dropout = BpeDropout(tokenizer, 0.1, seed=0)
    dropout.ranks = {pair: CountedRank(rank) for pair, rank in dropout.ranks.items()}
    work = []
    for length in (1_000, 8_000):
        letters = "".join(TEXTS).replace(" ", "")[:length]
        ids = tuple(ids_of(tokenizer, letters)[:-1].tolist())
        CountedRank.comparisons = 0
        dropout.segment(ids, 0)
        work.append(CountedRank.comparisons)
    # n log n, where the square would be 64
    assert work[1] < 16 * work[0]


def test_words_grow_as_in_the_published_algorithm(tokenizer):
    dropout, generator = BpeDropout(tokenizer, 0.1, seed=0), np.random.default_rng(0)
    words = sorted({word for text in TEXTS for word in text.split()})[:300]
    ours = reference = 0
    for word in words:
        ids = ids_of(tokenizer, word)[:-1]
        text = "".join(tokenizer.convert_ids_to_tokens(ids.tolist()))
        ours += sum(len(dropout.segment(tuple(ids.tolist()), variant)) for variant in range(VARIANTS))
        reference += sum(reference_length(text, dropout.ranks, 0.1, generator) for _ in range(VARIANTS))
    assert ours / reference == pytest.approx(1.0, abs=0.02)
    assert ours > VARIANTS * sum(len(ids_of(tokenizer, word)) - 1 for word in words)


def test_segmentations_depend_on_the_seed_and_the_key_only(tokenizer):
    ids = ids_of(tokenizer, TEXTS[0] + " " + TEXTS[1])
    dropout = BpeDropout(tokenizer, 0.3, seed=1)
    first = dropout([ids], 3, 7)[0].tolist()
    among_others = dropout([ids[:9], ids, ids], np.array([3, 3, 4]), 7)
    assert among_others[1].tolist() == first
    assert pickle.loads(pickle.dumps(dropout))([ids], 3, 7)[0].tolist() == first
    others = [BpeDropout(tokenizer, 0.3, seed=2)([ids], 3, 7), dropout([ids], 4, 7), dropout([ids], 3, 8)]
    assert all(other[0].tolist() != first for other in [*others, [among_others[2]]])


def test_the_words_of_a_text_are_segmented_independently(tokenizer):
    word = ids_of(tokenizer, max(TEXTS[1].split(), key=len))[:-1]
    dropout = BpeDropout(tokenizer, 0.5, seed=1)
    forms = Counter(dropout.segment(tuple(word.tolist()), variant) for variant in range(VARIANTS))
    [ids] = dropout([np.tile(word, 2000)], 0)
    seen: Counter[tuple[int, ...]] = Counter()
    form: tuple[int, ...] = ()
    for token in ids.tolist():
        form = (*form, token)
        if tokenizer.decode(form) == tokenizer.decode(word):
            seen[form] += 1
            form = ()
    assert seen.keys() == forms.keys()
    assert len(forms) > 2
    for form, count in forms.items():
        assert seen[form] / 2000 == pytest.approx(count / VARIANTS, abs=0.04)


@pytest.mark.slow
def test_another_process_draws_the_same_segmentations(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    code = f"""if True:
        import numpy as np
        from transformers import AutoTokenizer
        from hf_vanilla_transformer.data.bpe_dropout import BpeDropout
        tokenizer = AutoTokenizer.from_pretrained({str(tmp_path)!r})
        ids = np.array(tokenizer({TEXTS[5]!r})["input_ids"])
        print(BpeDropout(tokenizer, 0.3, seed=1)([ids], 3, 7)[0].tolist())"""
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    expected = BpeDropout(tokenizer, 0.3, seed=1)([ids_of(tokenizer, TEXTS[5])], 3, 7)[0].tolist()
    assert output.strip() == str(expected)


def test_tags_are_never_segmented(tokenizer):
    tagged = train_tokenizer(TEXTS, 600)
    add_tags(tagged, ["<2de>"])
    ids = np.array([tagged.convert_tokens_to_ids("<2de>"), *tagged(TEXTS[0])["input_ids"]])
    for number in range(20):
        assert BpeDropout(tagged, 0.5, seed=0)([ids], number)[0][0] == ids[0]


def test_other_vocabularies_are_refused(tokenizer):
    with pytest.raises(ValueError, match="this tokenizer is Unigram"):
        BpeDropout(train_tokenizer(TEXTS, 400, "unigram"), 0.1, seed=0)


def test_bytes_of_unknown_characters_stay_as_they_are():
    merges = [("\u2581", "a"), ("a", "b"), ("\u2581a", "b")]
    symbols = ["<unk>", "<pad>", "</s>", "\u2581", "a", "b", "<0xC3>", "<0xA9>", "<", "0", "x", "C", "3", ">"]
    symbols += ["".join(merge) for merge in merges]
    model = models.BPE({token: i for i, token in enumerate(symbols)}, merges, byte_fallback=True, unk_token="<unk>")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(model), eos_token="</s>", pad_token="<pad>")
    ids = np.array(tokenizer.convert_tokens_to_ids(["\u2581ab", "<0xC3>", "<0xA9>", "\u2581ab", "</s>"]))
    seen = {tuple(tokenizer.convert_ids_to_tokens(BpeDropout(tokenizer, 0.5, 0)([ids], i)[0])) for i in range(40)}
    assert len(seen) > 1
    assert all("".join(tokens) == "\u2581ab<0xC3><0xA9>\u2581ab</s>" for tokens in seen)
    assert all("<0xC3>" in tokens and "<" not in tokens for tokens in seen)


@pytest.mark.parametrize("probability", [0.0, 0.1, 0.7])
def test_words_that_end_with_a_mark_are_segmented_alike(probability):
    tokenizer = train_tokenizer(TEXTS, 600, "subword-nmt")
    dropout, generator = BpeDropout(tokenizer, probability, seed=0), np.random.default_rng(0)
    for number, text in enumerate([*TEXTS[:50], "Hund漢e Hund"]):
        [ids] = dropout([ids_of(tokenizer, text)], number)
        assert tokenizer.decode(ids, skip_special_tokens=True) == text.replace("漢", "")
    ours = reference = 0
    for word in sorted({word for text in TEXTS for word in text.split()})[:300]:
        ids = tuple(ids_of(tokenizer, word)[:-1].tolist())
        ours += sum(len(dropout.segment(ids, variant)) for variant in range(VARIANTS))
        symbols = [*word[:-1], f"{word[-1]}</w>"]
        reference += sum(reference_length(symbols, dropout.ranks, probability, generator) for _ in range(VARIANTS))
    assert ours / reference == pytest.approx(1.0, abs=0.02)
