import json

import pytest
import sacrebleu
import torch

from hf_vanilla_transformer import train_tokenizer, translate
from hf_vanilla_transformer.cli import main
from hf_vanilla_transformer.data.phrases import splits
from hf_vanilla_transformer.inference.ensemble import Ensemble
from hf_vanilla_transformer.study.comparison import compare_translations, score_translations

REFERENCES = [" ".join(f"w{(7 * i + j) % 23}" for j in range(3 + i % 40)) for i in range(60)]
SOURCES = [f"source {i}" for i in range(60)]


def damaged(every: int) -> list[str]:
    """The references with every `every`-th word replaced."""
    return [" ".join("x" if j % every == 0 else word for j, word in enumerate(text.split())) for text in REFERENCES]


def test_scores_and_signatures_are_sacrebleus_and_the_better_system_is_significant():
    result = compare_translations(SOURCES, REFERENCES, {"bad": damaged(3), "good": damaged(6)}, "none")
    assert (result["a"], result["b"], result["sentences"]) == ("bad", "good", 60)
    for side, lines in (("a", damaged(3)), ("b", damaged(6))):
        expected = {
            "bleu": sacrebleu.corpus_bleu(lines, [REFERENCES], tokenize="none", force=True).score,
            "chrf": sacrebleu.corpus_chrf(lines, [REFERENCES]).score,
            "ter": sacrebleu.corpus_ter(lines, [REFERENCES]).score,
        }
        for name, score in expected.items():
            measure = result["scores"][name]
            assert measure[side]["score"] == pytest.approx(score)
            low, high = measure[side]["interval"]
            assert low < score < high
            assert "bs:1000" in measure["signature"]
    assert result["scores"]["bleu"]["difference"] > 0 > result["scores"]["ter"]["difference"]
    assert all(measure["p"] < 0.05 for measure in result["scores"].values())


def test_equal_systems_do_not_differ():
    result = compare_translations(SOURCES, REFERENCES, {"a": damaged(4), "b": damaged(4)})
    assert all(measure["p"] > 0.05 and measure["difference"] == 0 for measure in result["scores"].values())
    assert result["b_better"] == result["a_better"] == []


def test_buckets_hold_every_sentence_once_by_the_words_of_its_reference():
    rows = compare_translations(SOURCES, REFERENCES, {"a": damaged(3), "b": REFERENCES})["by_length"]
    words = [len(text.split()) for text in REFERENCES]
    counts = {
        "1-10": sum(n <= 10 for n in words),
        "11-20": sum(10 < n <= 20 for n in words),
        "21-30": sum(20 < n <= 30 for n in words),
        "31-50": sum(30 < n <= 50 for n in words),
    }
    assert {row["words"]: row["sentences"] for row in rows} == counts
    assert all(row["bleu_b"] == pytest.approx(100) and row["bleu_a"] < 100 for row in rows)
    short = [i for i, n in enumerate(words) if n <= 10]
    expected = sacrebleu.corpus_chrf([damaged(3)[i] for i in short], [[REFERENCES[i] for i in short]]).score
    assert rows[0]["chrf_a"] == pytest.approx(expected)


def test_the_sentences_that_differ_most_come_first_on_both_sides():
    ours, theirs = list(REFERENCES), list(REFERENCES)
    theirs[7], theirs[20] = "nothing alike", f"{REFERENCES[20]} w1"
    ours[31] = "nothing either"
    result = compare_translations(SOURCES, REFERENCES, {"a": ours, "b": theirs})
    assert [row["line"] for row in result["a_better"]] == [8, 21]
    (row,) = result["b_better"]
    assert row.pop("chrf_difference") > 50
    expected = {"source": SOURCES[31], "reference": REFERENCES[31], "a": "nothing either", "b": REFERENCES[31]}
    assert row == {"line": 32, **expected}


def test_unequal_numbers_of_lines_are_named():
    with pytest.raises(ValueError, match="short has 59 translations of 60 lines"):
        compare_translations(SOURCES, REFERENCES, {"a": REFERENCES, "short": REFERENCES[1:]})


@pytest.fixture
def saved(small_model, tmp_path, monkeypatch):
    """Two models with one tokenizer, in folders, and a Moses pair."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    sides = {"en": ["a dog runs", "two men", "the dog sleeps here"], "de": ["ein hund rennt", "zwei männer", "hund"]}
    tokenizer = train_tokenizer((sides["en"] + sides["de"]) * 3, 290)
    models = {}
    for name, d_model in (("one", 32), ("two", 64)):
        models[name] = small_model(
            vocab_size=len(tokenizer), d_model=d_model, source_lang="en", target_lang="de", lm_head_bias=True
        )
        models[name].lm_head.bias.data[:260] = -20.0
        models[name].lm_head.bias.data[2] = 3.0
        models[name].save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    for language, lines in sides.items():
        (tmp_path / f"test.{language}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return tmp_path, models, tokenizer, sides


def test_given_translations_score_what_the_models_loss_says(saved, capsys):
    folder, models, tokenizer, sides = saved
    assert main(["score", str(folder / "one"), "--test_file", str(folder / "test"), "--max_tokens", "9"]) == 0
    captured = capsys.readouterr()
    rows = [json.loads(line) for line in captured.out.splitlines()]
    for row, source, target in zip(rows, sides["en"], sides["de"], strict=True):
        inputs, labels = (tokenizer(text, return_tensors="pt")["input_ids"] for text in (source, target))
        with torch.no_grad():
            loss = models["one"](input_ids=inputs, labels=labels).loss.item()  # transformers' own, a token
        assert row["tokens"] == labels.shape[1]
        assert row["log_probability"] == pytest.approx(-loss * labels.shape[1], rel=1e-4)
        assert row["perplexity"] == pytest.approx(torch.tensor(loss).exp().item(), rel=1e-3)
    assert f"3 pairs, {sum(row['tokens'] for row in rows)} tokens" in captured.err


def test_an_ensemble_scores_by_the_mean_probability(saved):
    _, models, tokenizer, sides = saved
    pair = tuple(models.values())
    (score, tokens), *_ = score_translations(Ensemble(pair), tokenizer, sides["en"], sides["de"])
    inputs, labels = (tokenizer(sides[side][0], return_tensors="pt")["input_ids"] for side in ("en", "de"))
    with torch.no_grad():
        each = [model(input_ids=inputs, labels=labels).logits.softmax(-1)[0] for model in pair]
    chosen = ((each[0] + each[1]) / 2).gather(-1, labels[0][:, None])
    assert tokens == labels.shape[1]
    assert score == pytest.approx(chosen.log().sum().item(), rel=1e-4)


def test_compare_takes_models_and_files_of_translations(saved, capsys):
    folder, models, tokenizer, sides = saved
    (folder / "out.txt").write_text("".join(f"{line}\n" for line in sides["de"]), encoding="utf-8")
    words = ["compare", str(folder / "one"), str(folder / "out.txt"), "--test_file", str(folder / "test")]
    assert main([*words, "--num_beams", "2", "--bleu_tokenize", "none"]) == 0
    result = json.loads(capsys.readouterr().out)
    ours = translate(models["one"], tokenizer, sides["en"], num_beams=2)
    assert result["scores"]["chrf"]["a"]["score"] == pytest.approx(sacrebleu.corpus_chrf(ours, [sides["de"]]).score)
    assert result["scores"]["ter"]["b"]["score"] == 0
    assert result["a"].endswith("one")
    assert result["b"].endswith("out.txt")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"ein hund\xff\n", "out.txt, line 1: not UTF-8"),
        (b"ein\rhund\nzwei\n", "out.txt has 2 translations of 3 lines"),
    ],
)
def test_files_that_cannot_be_compared_are_named_before_anything_is_translated(
    content, message, saved, capsys, monkeypatch
):
    folder = saved[0]
    (folder / "out.txt").write_bytes(content)
    monkeypatch.setattr("hf_vanilla_transformer.inference.translation.translate", None)
    assert main(["compare", str(folder / "one"), str(folder / "out.txt"), "--test_file", str(folder / "test")]) == 1
    assert message in capsys.readouterr().err


def test_models_of_other_languages_are_not_taken_together(saved, capsys):
    folder, models, *_ = saved
    models["two"].config.source_lang, models["two"].config.target_lang = "de", "en"
    models["two"].save_pretrained(folder / "two")
    for verb in ("compare", "evaluate"):
        assert main([verb, str(folder / "one"), str(folder / "two"), "--test_file", str(folder / "test")]) == 1
        assert "one: en to de; " in (err := capsys.readouterr().err)
        assert "two: de to en" in err


def test_what_is_neither_a_file_nor_a_model_is_called_so(saved, capsys):
    folder = saved[0]
    assert (
        main(["compare", str(folder / "one"), str(folder / "missing.txt"), "--test_file", str(folder / "test")]) == 1
    )
    assert "missing.txt, which is no folder" in capsys.readouterr().err


def test_files_alone_are_compared_on_the_built_in_phrases(tmp_path, capsys):
    phrases = splits()["test"]
    for name in ("a", "b"):
        (tmp_path / name).write_text("".join(f"{phrase.de}\n" for phrase in phrases), encoding="utf-8")
    files = [str(tmp_path / name) for name in ("a", "b")]
    assert main(["compare", *files]) == 2
    assert "give --source_lang and --target_lang" in capsys.readouterr().err
    assert main(["compare", *files, "--source_lang", "en", "--target_lang", "de"]) == 0
    assert json.loads(capsys.readouterr().out)["scores"]["bleu"]["p"] == 1


def test_several_models_translate_as_their_ensemble(saved, capsys):
    folder, models, tokenizer, sides = saved
    words = ["evaluate", str(folder / "one"), str(folder / "two"), "--test_file", str(folder / "test")]
    assert main(words) == 0
    expected = translate(Ensemble(tuple(models.values())), tokenizer, sides["en"])
    score = sacrebleu.corpus_chrf(expected, [sides["de"]]).score
    assert json.loads(capsys.readouterr().out)["chrf"] == pytest.approx(score)
    assert main([*words, "--backend", "ctranslate2"]) == 2
    assert "needs --backend torch" in capsys.readouterr().err


def test_models_with_other_tokenizers_make_no_ensemble(saved, capsys):
    folder, models, tokenizer, _ = saved
    other = train_tokenizer(["ganz andere wörter und noch mehr davon"] * 9, len(tokenizer))
    other.save_pretrained(folder / "two")
    models["two"].resize_token_embeddings(len(other))
    models["two"].save_pretrained(folder / "two")
    assert main(["translate", str(folder / "one"), str(folder / "two")]) == 1
    assert "have different vocabularies" in capsys.readouterr().err


def test_one_long_pair_leaves_the_others_their_batches(small_model):
    tokenizer = train_tokenizer([""], 260)
    model, counts = small_model(vocab_size=260), []
    texts = ["ab"] * 30 + ["x" * 400]
    scores = score_translations(model, tokenizer, texts, texts, max_tokens=40, progress=counts.append)
    assert sorted(counts) == [1, *[10] * 3]
    alone = score_translations(model, tokenizer, texts[-1:], texts[-1:])
    assert scores[-1] == pytest.approx(alone[0], rel=1e-5)
