"""Metrics, compared with sacreBLEU itself."""

import json
import os
import subprocess
import sys

import evaluate
import pytest
import sacrebleu

from hf_vanilla_transformer.inference.metrics import Bleu, check_tokenization, evaluate_translations

PREDICTIONS = ["A man sleeps in a green room.", "Two dogs run through the deep snow !", "nothing alike here at all"]
REFERENCES = [
    "A man is sleeping in a green room.",
    "Two dogs run through the snow!",
    "Ein Junge mit Kopfhörern , allein",
]
VERSION = f"version:{sacrebleu.__version__}"


@pytest.fixture(autouse=True)
def separate_metrics_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(evaluate.config, "HF_METRICS_CACHE", str(tmp_path))


def test_scores_equal_those_of_sacrebleu():
    result = evaluate_translations(PREDICTIONS, REFERENCES)
    assert {name: result[name] for name in ("bleu", "chrf", "chrf++", "ter")} == {
        "bleu": sacrebleu.corpus_bleu(PREDICTIONS, [REFERENCES]).score,
        "chrf": sacrebleu.corpus_chrf(PREDICTIONS, [REFERENCES]).score,
        "chrf++": sacrebleu.corpus_chrf(PREDICTIONS, [REFERENCES], word_order=2).score,
        "ter": sacrebleu.corpus_ter(PREDICTIONS, [REFERENCES]).score,
    }
    assert 0 < result["bleu"] < result["chrf"] < 100


def test_signatures_are_those_of_sacrebleu():
    assert evaluate_translations(PREDICTIONS, REFERENCES)["signatures"] == {
        "bleu": f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|{VERSION}",
        "chrf": f"nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|{VERSION}",
        "chrf++": f"nrefs:1|case:mixed|eff:yes|nc:6|nw:2|space:no|{VERSION}",
        "ter": f"nrefs:1|case:lc|tok:tercom|norm:no|punct:yes|asian:no|{VERSION}",
    }


def test_tokenize_none_scores_the_text_without_tokenising_it():
    result = evaluate_translations(PREDICTIONS, REFERENCES, bleu_tokenize="none")
    assert result["bleu"] == sacrebleu.corpus_bleu(PREDICTIONS, [REFERENCES], tokenize="none", force=True).score
    assert result["bleu"] != sacrebleu.corpus_bleu(PREDICTIONS, [REFERENCES]).score
    assert "|tok:none|" in result["signatures"]["bleu"]


def test_perfect_translations_get_perfect_scores():
    result = evaluate_translations(REFERENCES, REFERENCES)
    assert result["bleu"] == pytest.approx(100)
    assert result["chrf"] == pytest.approx(100)
    assert result["ter"] == 0


@pytest.mark.parametrize(("predictions", "references"), [(["a"], ["a", "b"]), (["a", "b"], ["a"]), ([], [])])
def test_mismatched_or_empty_lists_are_an_error_that_names_their_lengths(predictions, references):
    with pytest.raises(ValueError, match=f"{len(predictions)} translations against {len(references)} references"):
        evaluate_translations(predictions, references)


def test_bleu_is_a_metric_of_evaluate_that_accepts_batches_and_can_be_combined():
    metric = evaluate.combine([Bleu()])
    metric.add_batch(predictions=PREDICTIONS[:2], references=REFERENCES[:2])
    metric.add_batch(predictions=PREDICTIONS[2:], references=REFERENCES[2:])
    result = metric.compute()
    assert result["bleu"] == sacrebleu.corpus_bleu(PREDICTIONS, [REFERENCES]).score
    assert result["signature"] == f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|{VERSION}"


def test_bleu_tokenisation_is_an_argument_of_compute():
    result = Bleu().compute(predictions=PREDICTIONS, references=REFERENCES, tokenize="char")
    assert result["bleu"] == sacrebleu.corpus_bleu(PREDICTIONS, [REFERENCES], tokenize="char").score


def test_scoring_needs_no_network(tmp_path):
    script = """
import json, socket, sys
def refuse(*args, **kwargs):
    raise AssertionError("network")
socket.socket.connect = socket.getaddrinfo = refuse
from hf_vanilla_transformer.inference.metrics import evaluate_translations
print(json.dumps(evaluate_translations(*json.loads(sys.argv[1]))))
"""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    command = [sys.executable, "-c", script, json.dumps([PREDICTIONS, REFERENCES])]
    output = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
    assert json.loads(output)["bleu"] == sacrebleu.corpus_bleu(PREDICTIONS, [REFERENCES]).score


def test_unknown_tokenisation_is_an_error_that_lists_the_known_ones():
    check_tokenization("intl")
    with pytest.raises(ValueError, match="Unknown tokenisation 'foo' for BLEU; choose one of 13a, char"):
        check_tokenization("foo")
