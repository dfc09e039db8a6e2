"""Vocabularies of many scripts: combining marks, text without spaces, and what stays as it was."""

import unicodedata
from itertools import chain

import pytest
from guide_pages import GUIDE
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from hf_vanilla_transformer.data.cleaning import Cleaning, clean_batch
from hf_vanilla_transformer.data.phrases import splits
from hf_vanilla_transformer.data.tokenizer import SPECIAL_TOKENS, train_tokenizer

SENTENCES = {
    "Arabic, vowelled": "ذَهَبَ الوَلَدُ إِلَى المَدْرَسَةِ فِي الصَّبَاحِ",
    "Bengali": "ছেলেটি সকালে স্কুলে গিয়েছিল এবং বই পড়েছিল",
    "Burmese": "ကောင်လေး ကျောင်းသို့ မနက်ခင်း သွားခဲ့သည်",
    "Devanagari": "लड़का सुबह स्कूल गया और उसने किताब पढ़ी",
    "German, decomposed": unicodedata.normalize("NFD", "Der Bär läuft früh über die grüne Straße"),
    "Greek, decomposed": unicodedata.normalize("NFD", "Το παιδί πήγε στο σχολείο νωρίς το πρωί"),  # noqa: RUF001
    "Hebrew, pointed": "הַיֶּלֶד הָלַךְ לְבֵית הַסֵּפֶר בַּבֹּקֶר",
    "Khmer": "ក្មេងប្រុស ទៅ សាលារៀន នៅពេលព្រឹក",
    "Tamil": "சிறுவன் காலையில் பள்ளிக்குச் சென்றான்",
    "Telugu": "అబ్బాయి ఉదయం పాఠశాలకు వెళ్ళాడు",
    "Thai": "เด็กชาย ไป โรงเรียน ใน ตอนเช้า",
    "Vietnamese, decomposed": unicodedata.normalize("NFD", "Cậu bé đã đến trường vào buổi sáng sớm"),
}
PLAIN = {
    "Chinese": "男孩早上去了学校",
    "English": "The boy went to school in the morning",
    "Russian": "Мальчик утром пошёл в школу",
}
ENGLISH = "The boy went to school in the morning"


@pytest.mark.parametrize("sentence", SENTENCES.values(), ids=SENTENCES)
def test_frequent_words_are_one_token_each_in_every_script(sentence):
    tokenizer = train_tokenizer([sentence, ENGLISH] * 50, 2000)
    assert len(tokenizer(sentence)["input_ids"]) == len(sentence.split()) + 1  # and </s>


@pytest.mark.parametrize("sentence", SENTENCES.values(), ids=SENTENCES)
def test_marks_stay_with_their_letters_in_unigram_vocabularies(sentence):
    tokenizer = train_tokenizer([sentence, ENGLISH] * 50, 600, "unigram")
    pieces = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str(sentence)
    assert len(pieces) == len(sentence.split())
    assert tokenizer.decode(tokenizer(sentence)["input_ids"], skip_special_tokens=True) == sentence


@pytest.mark.parametrize("sentence", SENTENCES.values(), ids=SENTENCES)
def test_the_length_ratio_drops_no_clean_pair_of_any_script(sentence):
    words = sentence.split()
    texts = [" ".join(words[start : start + 3]) for start in range(len(words) - 2)]
    english = [" ".join(ENGLISH.split()[start : start + 3]) for start in range(len(texts))]
    tokenizer = train_tokenizer(chain(texts, english), 1000)
    rows = clean_batch({"source": english, "target": texts[: len(english)]}, tokenizer, 256, Cleaning(256, 4.0))
    assert set(rows["drop"]) == {-1}


@pytest.fixture(scope="module")
def scripts():
    return train_tokenizer([*SENTENCES.values(), *PLAIN.values()] * 5, 1500)


@given(st.text(st.sampled_from(sorted({*"".join([*SENTENCES.values(), *PLAIN.values()]), "\u200d", "\ufe0f", "❤"}))))
@settings(max_examples=200, deadline=None)
def test_decoding_restores_text_of_all_scripts_mixed(scripts, text):
    assert scripts.decode(scripts(text)["input_ids"], skip_special_tokens=True) == text


@pytest.mark.parametrize("model", ["bpe", "unigram"])
def test_text_without_spaces_is_cut_into_words_of_at_most_100_letters(model):
    """Learning from one word of 40,000 letters ended with a segmentation fault (unigram), or took minutes (BPE)."""
    line = "".join(chr(0x4E00 + 7 * i % 500) for i in range(40_000))
    tokenizer = train_tokenizer([line, ENGLISH], 800, model)
    pieces = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str(line)
    assert max(end - start for _, (start, end) in pieces) == 100
    assert tokenizer.decode(tokenizer(line)["input_ids"], skip_special_tokens=True) == line


@pytest.mark.parametrize("model", ["bpe", "unigram"])
def test_no_token_is_longer_than_a_word_of_100_letters(model):
    lines = ["a" * 30_000, "ab" * 15_000, "-" * 30_000, "7" * 30_000, "\u4e2d\u6587" * 15_000, ENGLISH]
    tokenizer = train_tokenizer(lines * 3, 1200, model)
    tokens = [tokenizer.decode(number) for number in range(4, len(tokenizer))]
    # with the space before a word
    assert 8 < max(map(len, tokens)) <= 101
    for line in lines:
        assert tokenizer.decode(tokenizer(line)["input_ids"], skip_special_tokens=True) == line


def piece_sizes(tokenizer, line: str) -> list[int]:
    return [end - start for _, (start, end) in tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str(line)]


@pytest.mark.parametrize("unit", ["a", "\u4e2d", "\u0915\u093e", "\u0301", "7", "-", " ", "\u200d", "\U0001f600"])
def test_a_long_line_is_segmented_in_pieces_whose_size_does_not_grow(unit, scripts):
    # The cost of a piece depends on its size alone, so the work for a line grows with the number of pieces.
    short, long = (piece_sizes(scripts, unit * (characters // len(unit))) for characters in (10_000, 1_000_000))
    assert max(long) == max(short) <= 1100
    assert sum(long) == 1_000_000


def gpt2_vocabulary(texts, vocab_size: int) -> Tokenizer:
    """The vocabulary as it was before words kept their marks: the pre-tokeniser of tokenizers with GPT-2's pattern."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Prepend(" ")
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=alphabet,
        show_progress=False,
        min_frequency=2,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def check_same(texts: list[str], vocab_size: int) -> None:
    ours = train_tokenizer(texts, vocab_size)
    before = gpt2_vocabulary(texts, vocab_size)
    assert ours.get_vocab() == before.get_vocab()
    expected = [encoding.ids for encoding in before.encode_batch(texts)]
    assert [ids[:-1] for ids in ours(texts)["input_ids"]] == expected


def test_vocabulary_and_ids_of_text_without_marks_are_as_before():
    check_same([text for phrase in splits()["train"][:3000] for text in (phrase.en, phrase.de)], 1500)
    check_same(["don't  stop —\t'tis 42,000 €!  ", "x\n\n y", *PLAIN.values()] * 3, 400)


def test_vocabulary_and_ids_of_multi30k_are_as_before(multi30k):
    lines = [
        line for name in ("en", "de") for line in (multi30k / f"train.{name}").read_text("utf-8").splitlines()[:5000]
    ]
    check_same([line for line in lines if not any(map(unicodedata.combining, line))], 4000)


def test_the_table_of_the_guide_is_what_is_measured():
    page = (GUIDE / "spreadsheet.md").read_text("utf-8")
    for name, sentence in {**SENTENCES, **PLAIN}.items():
        texts = [sentence, ENGLISH] * 50
        words = len(sentence.split())
        before = len(gpt2_vocabulary(texts, 2000).encode(sentence).ids) / words
        now = (len(train_tokenizer(texts, 2000)(sentence)["input_ids"]) - 1) / words
        assert f"| {name} | {before:.1f} | {now:.1f} |" in page
