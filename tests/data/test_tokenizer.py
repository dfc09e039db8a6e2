"""The joint byte-pair encoding: lossless encoding, special tokens, vocabulary size and loading."""

import json
import re
import subprocess
import sys
from collections import Counter
from random import Random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from hf_vanilla_transformer import VanillaTransformerConfig
from hf_vanilla_transformer.data.bpe_dropout import BpeDropout
from hf_vanilla_transformer.data.tokenizer import check_tokenizer, fingerprint, follow_tokenizer, train_tokenizer

PAD, START, END, UNKNOWN = range(4)
AWKWARD = [
    "",
    " ",
    "  two before, two after  ",
    "a  b   c",
    "\n",
    "first\nsecond\r\n",
    "\ttab",
    "\0",
    "a\0b",
    "👩‍👩‍👧 flies 🇩🇪",
    "e\u0301 is not é",
    "</s>",
    "a <s> b </s> <pad><unk>",
    "\u2028\x85\x0b",
]


def texts(words: int, seed: int = 0) -> list[str]:
    rng = Random(seed)
    vocabulary = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyzäöüß", k=rng.randint(2, 9))) for _ in range(words)]
    return [" ".join(rng.choices(vocabulary, k=8)) for _ in range(words)]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(texts(300), 500)


def awkward_examples(test):
    for text in AWKWARD:
        test = example(text)(test)
    return test


def test_special_tokens_have_ids_0_to_3(tokenizer):
    assert tokenizer.convert_ids_to_tokens([0, 1, 2, 3]) == ["<pad>", "<s>", "</s>", "<unk>"]
    ids = tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id
    assert ids == (PAD, START, END, UNKNOWN)


@awkward_examples
@given(st.text())
@settings(max_examples=200, deadline=None)
def test_decoding_restores_every_text(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=True) == text


@awkward_examples
@given(st.text())
@settings(max_examples=200, deadline=None)
def test_the_only_special_token_of_an_encoding_is_the_final_end_token(tokenizer, text):
    for ids in (tokenizer(text)["input_ids"], tokenizer(text_target=text)["input_ids"]):
        assert ids[-1] == END
        assert all(i > UNKNOWN for i in ids[:-1])


def test_a_word_is_the_same_token_at_the_start_as_inside_a_sentence():
    tokenizer = train_tokenizer(["the cat saw the cat"] * 9, 300)
    *_, inside, end = tokenizer.encode("the cat")
    assert tokenizer.encode("cat") == [inside, end]


def test_the_most_frequent_pair_is_merged_first():
    corpus = ["zqzq xy", "zqzq ab"] * 3
    pairs = Counter(pair for text in corpus for word in text.split() for pair in zip("Ġ" + word, word, strict=False))
    assert train_tokenizer(corpus, 300).convert_ids_to_tokens(260) == "".join(pairs.most_common(1)[0][0])


def test_training_is_deterministic():
    first, second = (train_tokenizer(iter(texts(300)), 600) for _ in range(2))
    assert first.backend_tokenizer.to_str() == second.backend_tokenizer.to_str()


@pytest.mark.parametrize("vocab_size", [260, 261, 700])
def test_enough_text_fills_the_vocabulary(vocab_size):
    tokenizer = train_tokenizer(texts(500), vocab_size)
    assert len(tokenizer) == len(set(tokenizer.get_vocab().values())) == vocab_size


def test_little_text_yields_a_smaller_vocabulary_that_still_covers_every_byte():
    tokenizer = train_tokenizer(["ab ab"], 37000)
    assert 260 < len(tokenizer) < 270
    assert tokenizer.decode(tokenizer.encode("Größe 漢"), skip_special_tokens=True) == "Größe 漢"


@pytest.mark.parametrize("model", ["bpe", "unigram"])
def test_nothing_is_learnt_from_the_end_of_a_word_that_is_too_long_for_a_sentence(model):
    start = "x" * 250
    vocabulary = train_tokenizer([f"{start}{'qu' * 50_000} ab", f"a {start}{'qu' * 9}"] * 3, 300, model).get_vocab()
    assert any("xx" in token for token in vocabulary)
    assert not any("qu" in token for token in vocabulary)


def test_a_vocabulary_too_small_for_special_tokens_and_bytes_is_rejected():
    with pytest.raises(ValueError, match=r"at least 260.*259"):
        train_tokenizer(["a"], 259)


def test_padding_is_id_0_on_the_right_and_masked_out(tokenizer):
    short, long = tokenizer.encode("a"), tokenizer.encode("a longer sentence than the other")
    batch = tokenizer.pad({"input_ids": [short, long]})
    rest = len(long) - len(short)
    assert batch["input_ids"] == [short + [0] * rest, long]
    assert batch["attention_mask"] == [[1] * len(short) + [0] * rest, [1] * len(long)]


SYMBOLS = ["a b a c u s", "AE1 B AH0", "漢 字 </s>", "ß ü"]


@pytest.mark.parametrize("model", ["word", "char"])
def test_symbols_are_never_divided_and_come_back(model):
    tokenizer = train_tokenizer(SYMBOLS, 100, model)
    for text in [*SYMBOLS, "", "ß"]:
        ids = tokenizer(text)["input_ids"]
        split = text.split() if model == "word" else list(text)
        known = [UNKNOWN if symbol == "</s>" else tokenizer.get_vocab()[symbol] for symbol in split]
        assert ids == [*known, END]
        assert tokenizer.decode(ids, skip_special_tokens=True) == text.removesuffix(" </s>" if model == "word" else "")
    assert tokenizer("z")["input_ids"] == [UNKNOWN, END]


def test_the_most_frequent_symbols_fill_a_vocabulary_of_words():
    tokenizer = train_tokenizer(["b a b c", "c b"], 6, "word")
    assert tokenizer.convert_ids_to_tokens(range(len(tokenizer))) == ["<pad>", "<s>", "</s>", "<unk>", "b", "c"]


@pytest.mark.parametrize("model", ["bpe", "word", "char", "subword-nmt"])
def test_text_is_normalised_before_any_kind_of_vocabulary(model):
    tokenizer = train_tokenizer(["ﬁ n ﬁ n"] * 3, 300, model, "nfkc")
    assert tokenizer.decode(tokenizer("ﬁ n")["input_ids"], skip_special_tokens=True) == "fi n"


@pytest.mark.parametrize("model", ["bpe", "word", pytest.param("char", marks=pytest.mark.slow), "subword-nmt"])
def test_a_saved_tokenizer_loads_without_this_package(model, tmp_path):
    corpus = [*texts(30), *AWKWARD] if model == "bpe" else [*texts(30), "a dog </s> ."]
    tokenizer = train_tokenizer(corpus, 500, model)
    tokenizer.save_pretrained(tmp_path)
    script = """
import json, sys
from transformers import AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
texts = json.loads(sys.argv[2])
ids = tokenizer(texts)["input_ids"]
assert "hf_vanilla_transformer" not in sys.modules
specials = [tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id]
print(json.dumps([specials, ids, tokenizer.batch_decode(ids, skip_special_tokens=True)]))
"""
    command = [sys.executable, "-c", script, str(tmp_path), json.dumps(corpus)]
    output = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path).stdout
    restored = [text.replace(" </s>", "") if model == "word" else text for text in corpus]
    assert json.loads(output) == [[0, 1, 2, 3], [tokenizer.encode(text) for text in corpus], restored]


def test_a_fingerprint_depends_on_the_vocabulary_but_not_on_padding_settings():
    one, other = (train_tokenizer([text] * 3, 270) for text in ("a dog runs", "two men sit"))
    before = fingerprint(one)
    one(["a", "a dog"], padding=True, truncation=True, max_length=3)
    assert fingerprint(one) == before != fingerprint(other)


def test_a_tokenizer_with_gaps_in_its_ids_gets_an_embedding_for_every_id():
    tokenizer = train_tokenizer(texts(100), 300)
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    content["model"]["vocab"] = {token: i if i < 299 else 350 for token, i in content["model"]["vocab"].items()}
    gapped = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(content)), pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )
    config = VanillaTransformerConfig(vocab_size=300)
    follow_tokenizer(config, gapped)
    assert config.vocab_size == 351
    check_tokenizer(gapped, config)
    with pytest.raises(ValueError, match="351 tokens, but the model has 300"):
        check_tokenizer(gapped, VanillaTransformerConfig(vocab_size=300))
    rows = [np.array(ids) for ids in gapped(texts(20))["input_ids"]]
    restored = [gapped.decode(ids) for ids in BpeDropout(gapped, 0.5, 0)(rows, 0, 0)]
    assert restored == [gapped.decode(ids) for ids in rows]


@pytest.mark.parametrize("model", ["word", "char"])
def test_a_vocabulary_without_room_for_special_tokens_is_refused(model):
    with pytest.raises(ValueError, match="vocab_size must be at least 4, the special tokens, got 3"):
        train_tokenizer(["a dog"], 3, model)
    assert len(train_tokenizer(["a dog"], 4, model)) == 4


ADDED = ["<x>", "漢字", "{0}"]
WITH_ADDED = ["a<x>b", "a <x> b", "<x>b", "<x>", "<x> <x><x>", " <x>", "  a 漢字<x> {0}b  ", "{0}", "not漢字"]


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("kind", ["bpe", "unigram", "nfkc"])
def test_tokens_that_are_added_are_found_everywhere_and_decode_exactly(kind, normalized, tmp_path):
    """As those of BART, whose tokenizer is byte-level, too."""
    settings = {"normalization": "nfkc"} if kind == "nfkc" else {"model": kind}
    ours = train_tokenizer(texts(300), 400, **settings)
    bart = Tokenizer(models.BPE())
    bart.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bart.decoder = decoders.ByteLevel()
    alphabet = trainers.BpeTrainer(vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    bart.train_from_iterator(texts(30), alphabet)
    for tokenizer in (PreTrainedTokenizerFast(tokenizer_object=bart), ours):
        tokenizer.add_tokens([AddedToken(token, normalized=normalized) for token in ADDED])
        tokenizer.save_pretrained(tmp_path / type(tokenizer).__name__)
        again = AutoTokenizer.from_pretrained(tmp_path / type(tokenizer).__name__)
        for text in WITH_ADDED:
            ids = tokenizer(text)["input_ids"]
            assert again(text)["input_ids"] == ids
            found = [token for token in tokenizer.convert_ids_to_tokens(ids) if token in ADDED]
            assert found == re.findall("|".join(map(re.escape, ADDED)), text)
            assert tokenizer.decode(ids, skip_special_tokens=True) == text


@pytest.mark.parametrize("model", ["bpe", "word"])
def test_a_vocabulary_is_learnt_only_from_lists_of_texts(model):
    for texts in ("abc", b"abc", 3):
        with pytest.raises(ValueError, match=f"from a list of texts, not from {texts!r}: put it into a list"):
            train_tokenizer(texts, 300, model)
    for item in (b"abc", 3, ("a", "b"), {"translation": {"en": "a"}}, None):
        with pytest.raises(ValueError, match=f"learnt from texts, but one of them is of type {type(item).__name__}: "):
            train_tokenizer(iter(["a", item]), 300, model)
