"""N-best lists that a model of the opposite direction reranks."""

import copy
import json

import pytest
import torch

from hf_vanilla_transformer import Ensemble, Translator, train_tokenizer
from hf_vanilla_transformer.cli import main
from hf_vanilla_transformer.data.tokenizer import add_tags
from hf_vanilla_transformer.errors import UserError
from hf_vanilla_transformer.inference.reranking import RerankingTranslator

SENTENCES = ["a dog runs", "", "two men sit on a bench and talk about the weather", "cats", "the dog sleeps here"]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(SENTENCES * 3, 300)


@pytest.fixture
def translators(small_model, tokenizer) -> list[Translator]:
    """Translators from English to German and back, whose searches find readable text of up to five tokens."""
    found = []
    for seed, (source_lang, target_lang) in enumerate([("en", "de"), ("de", "en")]):
        torch.manual_seed(seed)
        model = small_model(
            vocab_size=len(tokenizer), lm_head_bias=True, source_lang=source_lang, target_lang=target_lang
        )
        model.lm_head.weight.data[:] *= 3
        if source_lang == "en":
            # only merged tokens, which decode to readable text
            model.lm_head.bias.data[:260] = -1e4
            model.lm_head.bias.data[2] = 1.0
        model.generation_config.max_new_tokens = 5
        found.append(Translator(model, tokenizer, f"the model {source_lang}-{target_lang}"))
    return found


def log_probability(translator: Translator, source: str, target: str) -> tuple[float, int]:
    """Return log P(target | source) and the number of target tokens, one pair at a time."""
    inputs = translator.tokenizer(source, return_tensors="pt")
    labels = translator.tokenizer(text_target=target, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        loss = translator.model(**inputs, labels=labels).loss
    return -loss.item() * labels.shape[1], labels.shape[1]


@pytest.mark.parametrize("penalty", [0.6, 1.0])
def test_the_order_is_that_of_both_directions(translators, penalty):
    forward, reverse = translators
    settings = {"num_beams": 4, "length_penalty": penalty, "nbest": 4}
    lists = forward.translate(SENTENCES, **settings)
    found = RerankingTranslator(forward, reverse, 2.0).translate(SENTENCES, **settings)
    changed = 0
    for sentence, before, after in zip(SENTENCES, lists, found, strict=True):
        totals = {}
        for hypothesis in before.hypotheses if sentence else []:
            total, tokens = log_probability(reverse, hypothesis.text, sentence)
            totals[hypothesis.text] = hypothesis.score + 2.0 * total / ((5 + tokens) / 6) ** penalty
        expected = sorted(totals, key=totals.__getitem__, reverse=True) or [""] * 4
        assert [hypothesis.text for hypothesis in after.hypotheses] == expected
        scores = sorted(totals.values(), reverse=True) or [0.0] * 4
        assert [hypothesis.score for hypothesis in after.hypotheses] == pytest.approx(scores, rel=1e-4)
        changed += before.text != after.text
    assert changed
    best = RerankingTranslator(forward, reverse, 2.0).translate(SENTENCES, num_beams=4, length_penalty=penalty)
    assert [each.text for each in best] == [each.text for each in found]
    assert {len(each.hypotheses) for each in best} == {1}


def test_without_weight_nothing_changes(translators):
    forward, reverse = translators
    expected = forward.translate(SENTENCES, num_beams=4)
    found = RerankingTranslator(forward, reverse, 0.0).translate(SENTENCES, num_beams=4)
    assert [each.text for each in found] == [each.text for each in expected]


def test_a_sentence_for_which_the_reverse_model_has_no_positions_keeps_its_order(translators, small_model, tokenizer):
    """Its tag counts, too; other sentences are reranked."""
    forward, _ = translators
    tagged = copy.deepcopy(tokenizer)
    add_tags(tagged, ["<2en>"])
    texts = ["cats", SENTENCES[2]]
    lists = forward.translate(texts, num_beams=4, nbest=4)
    longest = max(len(tokenizer(hypothesis.text)["input_ids"]) for hypothesis in lists[0].hypotheses)
    orders = []
    for positions in (longest, longest + 1):
        torch.manual_seed(5)
        reverse = small_model(
            vocab_size=len(tagged),
            position_embedding="learned",
            max_position_embeddings=positions,
            language_pairs=["de-en", "de-fr"],
        )
        translator = RerankingTranslator(forward, Translator(reverse, tagged), 50.0)
        found = translator.translate(texts, num_beams=4, nbest=4)
        assert found[1] == lists[1]
        orders.append([hypothesis.text for hypothesis in found[0].hypotheses])
    assert orders[0] == [hypothesis.text for hypothesis in lists[0].hypotheses]
    assert sorted(orders[1]) == sorted(orders[0])
    assert orders[1] != orders[0]


def test_doubt_is_about_the_translation_that_is_chosen(translators):
    forward, reverse = translators
    (plain,) = forward.translate(SENTENCES[2:3], num_beams=4, nbest=4)
    (found,) = RerankingTranslator(forward, reverse, 50.0).translate(SENTENCES[2:3], num_beams=4)
    assert found.text != plain.text
    scores = {hypothesis.text: hypothesis.score for hypothesis in plain.hypotheses}
    # of five tokens each, at the length penalty of the paper
    means = [scores[text] * (10 / 6) ** 0.6 / 5 for text in (plain.text, found.text)]
    # between both
    forward.model.config.doubtful_score = sum(means) / 2
    doubtful = [
        each.translate(SENTENCES[2:3], num_beams=4, scores=True)[0].doubtful
        for each in (forward, RerankingTranslator(forward, reverse, 50.0))
    ]
    assert doubtful == [(), (found.text,)]


def test_models_of_several_directions_take_the_one_that_is_given(translators, small_model, tokenizer):
    """Such as one model that translates both ways."""
    tagged = copy.deepcopy(tokenizer)
    add_tags(tagged, ["<2de>", "<2en>"])
    both = Translator(small_model(vocab_size=len(tagged), language_pairs=["en-de", "de-en"]), tagged, "both")
    with pytest.raises(UserError, match="choose one as the target language"):
        RerankingTranslator(both, both, 0.5)
    reranking = RerankingTranslator(both, both, 0.5, "en", "de")
    assert reranking.translate(SENTENCES, num_beams=4, source_lang="en", target_lang="de")
    with pytest.raises(UserError, match="The reverse model is for en-de, not for de-en"):
        reranking.translate(SENTENCES, num_beams=4, source_lang="de", target_lang="en")


def test_an_ensemble_and_a_page_are_reranked(translators):
    forward, reverse = translators
    ensemble = Translator(Ensemble([forward.model, forward.model]), forward.tokenizer)
    expected = RerankingTranslator(forward, reverse, 2.0).translate(SENTENCES, num_beams=4)
    reranking = RerankingTranslator(ensemble, reverse, 2.0)
    assert [each.text for each in reranking.translate(SENTENCES, num_beams=4)] == [each.text for each in expected]
    (page,) = reranking.translate_html([f"<p>{SENTENCES[2]}</p>"], num_beams=4)
    assert page.text == f"<p>{expected[2].text}</p>"


def test_a_translator_that_cannot_rerank_says_why(translators):
    forward, reverse = translators
    with pytest.raises(UserError, match="en-de must translate in the opposite direction"):
        RerankingTranslator(forward, forward, 0.5)
    reranking = RerankingTranslator(forward, reverse, 0.5)
    for settings, reason in (({"num_beams": 1}, "use several beams"), ({"do_sample": True}, "do not sample")):
        with pytest.raises(UserError, match=reason):
            reranking.translate(SENTENCES, **settings)


def test_the_flags_of_evaluate_and_translate(translators, tmp_path, capsys):
    forward, reverse = translators
    for name, translator in (("forward", forward), ("reverse", reverse)):
        translator.model.save_pretrained(tmp_path / name)
        translator.tokenizer.save_pretrained(tmp_path / name)
    for language in ("en", "de"):
        (tmp_path / f"text.{language}").write_text("".join(f"{line}\n" for line in SENTENCES if line))
    flags = ["--reverse_model", str(tmp_path / "reverse"), "--reverse_weight", "2", "--num_beams", "4"]
    test_file = ["--test_file", str(tmp_path / "text"), "--output", str(tmp_path / "table.tsv")]
    assert main(["evaluate", str(tmp_path / "forward"), *test_file, *flags]) == 0
    assert json.loads(capsys.readouterr().out)["sentences"] == 4
    table = [line.split("\t") for line in (tmp_path / "table.tsv").read_text().splitlines()]
    sentences = [row[table[0].index("source")] for row in table[1:]]
    expected = [each.text for each in RerankingTranslator(forward, reverse, 2.0).translate(sentences, num_beams=4)]
    assert [row[table[0].index("translation")] for row in table[1:]] == expected
    assert expected != [each.text for each in forward.translate(sentences, num_beams=4)]

    (tmp_path / "page.html").write_text(f"<p>{SENTENCES[2]}</p>")
    assert (
        main(
            [
                "translate",
                str(tmp_path / "forward"),
                str(tmp_path / "page.html"),
                "--output_dir",
                str(tmp_path / "out"),
                *flags,
            ]
        )
        == 0
    )
    reranking = RerankingTranslator(forward, reverse, 2.0)
    assert (
        f"<p>{reranking.translate(SENTENCES[2:3], num_beams=4)[0].text}</p>"
        in (tmp_path / "out" / "page.html").read_text()
    )
    job = ["--input_files", str(tmp_path / "text.en"), "--output_dir", str(tmp_path / "job")]
    assert main(["translate", str(tmp_path / "forward"), *job, *flags]) == 2
    assert "--input_files cannot rerank: omit --reverse_model" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--reverse_weight", "2"], "--reverse_weight has no effect without --reverse_model"),
        (["--reverse_model", "reverse", "--num_beams", "1"], "use several --num_beams"),
        (["--reverse_model", "reverse", "--do_sample"], "omit --do_sample"),
    ],
)
def test_flags_that_contradict_each_other_are_found_before_text_is_read(translators, tmp_path, capsys, flags, message):
    for name, translator in zip(("forward", "reverse"), translators, strict=True):
        translator.model.save_pretrained(tmp_path / name)
        translator.tokenizer.save_pretrained(tmp_path / name)
    flags = [str(tmp_path / flag) if flag == "reverse" else flag for flag in flags]
    assert main(["translate", str(tmp_path / "forward"), *flags]) in (1, 2)
    assert message in capsys.readouterr().err
