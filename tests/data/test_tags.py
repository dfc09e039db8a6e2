import pytest
from transformers import AutoTokenizer

from hf_vanilla_transformer import VanillaTransformerConfig, train_tokenizer
from hf_vanilla_transformer.data.tokenizer import add_tags, prefix_ids
from hf_vanilla_transformer.model.text_rules_vanilla_transformer import parse_language_pair

PAIRS = ["en-de", "en-fr", "de-en"]


@pytest.fixture
def tokenizer():
    return train_tokenizer(["the dog runs", "der hund rennt"] * 3, 300)


def test_a_tag_in_a_text_is_ordinary_text_also_after_loading(tokenizer, tmp_path):
    before = tokenizer("a <2de> b <bt>")["input_ids"]
    size = len(tokenizer)
    assert add_tags(tokenizer, ["<2de>", "<bt>", "<2de>"]) == ["<2de>", "<bt>"]
    assert len(tokenizer) == size + 2
    tokenizer.save_pretrained(tmp_path)
    for other in (tokenizer, AutoTokenizer.from_pretrained(tmp_path)):
        assert other("a <2de> b <bt>")["input_ids"] == before
        assert other.convert_tokens_to_ids(["<2de>", "<bt>"]) == [size, size + 1]
        assert other.decode([size, *other("the dog")["input_ids"]], skip_special_tokens=True) == "the dog"
        assert add_tags(other, ["<bt>"]) == []


def test_tags_that_collide_with_text_or_have_another_form_are_refused(tokenizer):
    for tag in ("bt", "<b t>", "<>", "<a><b>", ""):
        with pytest.raises(ValueError, match="cannot be a tag: tags have the form"):
            add_tags(tokenizer, [tag])
    with pytest.raises(ValueError, match="<unk> cannot be a tag: the tokenizer uses it already"):
        add_tags(tokenizer, ["<unk>"])
    tokenizer.add_tokens(["<br>"])
    with pytest.raises(ValueError, match="<br> cannot be a tag: it is an ordinary token"):
        add_tags(tokenizer, ["<br>"])


def test_language_pairs_have_one_form():
    assert parse_language_pair("en-de") == ("en", "de")
    for pair in ("en", "en-", "-de", "en-en", "zh-Hans-en", ""):
        with pytest.raises(ValueError, match="is not a language pair"):
            parse_language_pair(pair)


def test_the_prefix_names_the_target_language_and_the_tag(tokenizer):
    add_tags(tokenizer, ["<2de>", "<2fr>", "<2en>", "<bt>"])
    config = VanillaTransformerConfig(vocab_size=len(tokenizer), language_pairs=PAIRS)
    ids = tokenizer.convert_tokens_to_ids
    assert prefix_ids(config, tokenizer, "en", "fr") == ids(["<2fr>"])
    assert prefix_ids(config, tokenizer, target_lang="de", tag="<bt>") == ids(["<2de>", "<bt>"])
    single = VanillaTransformerConfig(vocab_size=len(tokenizer), source_lang="en", target_lang="de")
    assert prefix_ids(single, tokenizer, "en", "de") == []
    assert prefix_ids(single, tokenizer, tag="<bt>") == ids(["<bt>"])


def test_unknown_languages_and_tags_are_refused_with_those_that_there_are(tokenizer):
    add_tags(tokenizer, ["<2de>", "<2fr>", "<2en>"])
    config = VanillaTransformerConfig(vocab_size=len(tokenizer), language_pairs=PAIRS)
    with pytest.raises(ValueError, match="translates into de, fr, en, not into 'nl'"):
        prefix_ids(config, tokenizer, "en", "nl")
    with pytest.raises(ValueError, match="translates into de, fr, en: choose one"):
        prefix_ids(config, tokenizer)
    with pytest.raises(ValueError, match="no tag <bt>; it has none"):
        prefix_ids(config, tokenizer, "en", "de", "<bt>")


def test_a_direction_that_was_not_trained_is_allowed_with_a_warning(tokenizer, caplog):
    add_tags(tokenizer, ["<2de>", "<2fr>", "<2en>"])
    config = VanillaTransformerConfig(vocab_size=len(tokenizer), language_pairs=PAIRS)
    assert prefix_ids(config, tokenizer, "de", "fr") == tokenizer.convert_tokens_to_ids(["<2fr>"])
    prefix_ids(config, tokenizer, "de", "fr")  # warns only once
    assert [record.getMessage() for record in caplog.records] == [
        "This model was not trained to translate from de to fr, only en-de, en-fr, de-en; the quality may be low."
    ]


def test_tags_with_another_role_are_no_tags_of_text(tokenizer):
    add_tags(tokenizer, ["<2de>", "<2fr>", "<2en>", "<bt>"])
    config = VanillaTransformerConfig(vocab_size=len(tokenizer), language_pairs=PAIRS)
    for tag in ("<pad>", "</s>", "<2fr>"):
        with pytest.raises(ValueError, match=f"no tag {tag}; it has <bt>"):
            prefix_ids(config, tokenizer, "en", "de", tag)
