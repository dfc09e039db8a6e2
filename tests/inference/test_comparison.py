import pytest
import sacrebleu
import torch

from hf_vanilla_transformer import Translator, train_tokenizer
from hf_vanilla_transformer.inference.comparison import compare_translations, score_translations
from hf_vanilla_transformer.inference.ensemble import Ensemble
from hf_vanilla_transformer.inference.metrics import evaluate_translations

REFERENCES = [" ".join(f"w{(7 * i + j) % 23}" for j in range(3 + i % 40)) for i in range(60)]
SOURCES = [f"source {i}" for i in range(60)]


def damaged(every: int) -> list[str]:
    """Return the references with every `every`-th word replaced."""
    return [" ".join("x" if j % every == 0 else word for j, word in enumerate(text.split())) for text in REFERENCES]


def test_scores_are_those_of_sacrebleu_and_a_clear_difference_is_significant():
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


def test_the_papers_bleu_is_compared_beside_sacrebleus():
    hyphenated = [text.replace(" w1", "-w1") for text in REFERENCES]
    lines = [text.replace(" w1", "-w1") for text in damaged(6)]
    result = compare_translations(SOURCES, hyphenated, {"bad": damaged(6), "good": lines}, "none", paper_bleu=True)
    plain = compare_translations(SOURCES, hyphenated, {"bad": damaged(6), "good": lines}, "none")
    paper = result["scores"].pop("paper_bleu")
    assert result == plain
    expected = evaluate_translations(lines, hyphenated, "none", paper_bleu=True)
    assert paper["b"]["score"] == pytest.approx(expected["paper_bleu"])
    assert paper["b"]["score"] != pytest.approx(result["scores"]["bleu"]["b"]["score"])
    assert paper["difference"] > 0
    assert "|bs:1000|seed:12345|case:mixed|eff:no|tok:none-compounds|smooth:none|" in paper["signature"]


def test_equal_systems_do_not_differ_significantly():
    result = compare_translations(SOURCES, REFERENCES, {"a": damaged(4), "b": damaged(4)})
    assert all(measure["p"] > 0.05 and measure["difference"] == 0 for measure in result["scores"].values())
    assert result["b_better"] == result["a_better"] == []


def test_length_buckets_contain_each_sentence_once():
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


def test_the_sentences_that_differ_most_are_listed_first_for_both_systems():
    lines_a, lines_b = list(REFERENCES), list(REFERENCES)
    lines_b[7], lines_b[20] = "nothing alike", f"{REFERENCES[20]} w1"
    lines_a[31] = "nothing either"
    result = compare_translations(SOURCES, REFERENCES, {"a": lines_a, "b": lines_b})
    assert [row["line"] for row in result["a_better"]] == [8, 21]
    (row,) = result["b_better"]
    assert row.pop("chrf_difference") > 50
    expected = {"source": SOURCES[31], "reference": REFERENCES[31], "a": "nothing either", "b": REFERENCES[31]}
    assert row == {"line": 32, **expected}


def test_different_numbers_of_lines_are_reported():
    with pytest.raises(ValueError, match="short has 59 translations for 60 lines"):
        compare_translations(SOURCES, REFERENCES, {"a": REFERENCES, "short": REFERENCES[1:]})


def test_an_ensemble_scores_with_the_mean_probability_of_its_models(small_model):
    sources, targets = ["a dog runs", "two men", "the dog sleeps here"], ["ein hund rennt", "zwei männer", "hund"]
    tokenizer = train_tokenizer((sources + targets) * 3, 290)
    models = []
    for d_model in (32, 64):
        model = small_model(vocab_size=len(tokenizer), d_model=d_model, lm_head_bias=True)
        model.lm_head.bias.data[:260] = -20.0
        model.lm_head.bias.data[2] = 3.0
        models.append(model)
    (score, tokens), *_ = score_translations(Translator(Ensemble(tuple(models)), tokenizer), sources, targets)
    inputs, labels = (tokenizer(texts[0], return_tensors="pt")["input_ids"] for texts in (sources, targets))
    with torch.no_grad():
        first, second = (model(input_ids=inputs, labels=labels).logits.softmax(-1)[0] for model in models)
    chosen = ((first + second) / 2).gather(-1, labels[0][:, None])
    assert tokens == labels.shape[1]
    assert score == pytest.approx(chosen.log().sum().item(), rel=1e-4)


def test_a_pair_longer_than_a_batch_is_scored_alone(small_model):
    tokenizer = train_tokenizer([""], 260)
    model, counts = small_model(vocab_size=260), []
    texts = ["ab"] * 30 + ["x" * 400]
    scores = score_translations(Translator(model, tokenizer), texts, texts, max_tokens=40, progress=counts.append)
    assert sorted(counts) == [1, *[10] * 3]
    alone = score_translations(Translator(model, tokenizer), texts[-1:], texts[-1:])
    assert scores[-1] == pytest.approx(alone[0], rel=1e-5)
