"""Metrics, compared with sacreBLEU itself."""

import json
import math
import os
import random
import subprocess
import sys
from collections import Counter

import evaluate
import pytest
import sacrebleu
from sacremoses import MosesTokenizer

from hf_vanilla_transformer.inference.metrics import Bleu, check_tokenization, error_rates, evaluate_translations

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


@pytest.mark.slow
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


# Compounds of every kind, quotation marks that Moses escapes, and sentences that differ in case only
COMPOUNDS = [
    'Das Open-Source-Projekt A-B-C kostet 3-4 Mio. Euro, sagt der "CDU-Chef".',
    "Er trägt ein T-Shirt -- und eine E-Mail-Adresse hat er auch nicht.",
    "Die Frankfurt-Berlin-Strecke ist z.B. am 3. Mai gesperrt & das ist gut so.",
    "Kein Bindestrich weit und breit, nur ein Gedankenstrich - wie hier.",
]
TRANSLATED = [
    'Das Open-Source Projekt A-B-C kostet 3-4 Mio. Euro, sagt der "CDU-Chef".',
    "Er trägt ein T-shirt -- und eine E-Mail-Adresse hat er nicht.",
    "Die Strecke Frankfurt-Berlin ist z.B. am 3. Mai gesperrt & das ist gut so.",
    "Kein Bindestrich weit und breit, nur ein Gedankenstrich - wie dort.",
]


def split_compounds(text: str) -> list[str]:
    """Return the tokens of a text, with compounds split as the definition says, character by character."""
    tokens = []
    for token in text.split():
        pieces, start, place = [], 0, 1
        while token != "@-@" and place < len(token) - 1:
            if token[place] == "-":
                pieces += [token[start:place], "##AT##-##AT##"]
                # The right neighbour is used up: it is not the left one of the next hyphen
                start, place = place + 1, place + 3
            else:
                place += 1
        tokens += [*pieces, token[start:]]
    return tokens


def bleu_of_tokens(predictions: list[list[str]], references: list[list[str]]) -> float:
    """Return cased BLEU of four-grams without smoothing, in percent (Papineni et al. 2002)."""
    logs = []
    for n in range(1, 5):
        matches = total = 0
        for prediction, reference in zip(predictions, references, strict=True):
            counts, known = (
                Counter(tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1))
                for tokens in (prediction, reference)
            )
            matches += sum((counts & known).values())
            total += sum(counts.values())
        if not matches:
            return 0.0
        logs.append(math.log(matches / total))
    length, reference_length = (sum(map(len, texts)) for texts in (predictions, references))
    return 100 * math.exp(sum(logs) / 4 + min(0, 1 - reference_length / length))


def moses(lines: list[str]) -> list[str]:
    return [MosesTokenizer("de").tokenize(line, return_str=True, escape=False) for line in lines]


@pytest.mark.parametrize(("tokenize", "tokenise"), [("13a", moses), ("none", list)])
def test_the_papers_bleu_is_that_of_its_definition(tokenize, tokenise):
    expected = bleu_of_tokens(*([*map(split_compounds, tokenise(lines))] for lines in (TRANSLATED, COMPOUNDS)))
    result = evaluate_translations(TRANSLATED, COMPOUNDS, tokenize, paper_bleu=True)
    assert 40 < expected < 90
    assert result["paper_bleu"] == pytest.approx(expected, abs=1e-6)
    # Without the splitting, or without regard to case, the score is another
    unsplit = bleu_of_tokens(*([line.split() for line in tokenise(lines)] for lines in (TRANSLATED, COMPOUNDS)))
    lower = evaluate_translations(
        *([each.lower() for each in lines] for lines in (TRANSLATED, COMPOUNDS)), tokenize, True
    )
    assert abs(unsplit - expected) > 0.5
    assert abs(lower["paper_bleu"] - expected) > 0.5
    name = {"13a": "moses.de", "none": "none"}[tokenize]
    signature = f"nrefs:1|case:mixed|eff:no|tok:{name}-compounds|smooth:none|{VERSION}"
    assert result["signatures"]["paper_bleu"] == signature


def test_both_neighbours_of_a_hyphen_are_used_up():
    expected = "a ##AT##-##AT## b-c ab ##AT##-##AT## cd ##AT##-##AT## -e - -x y-"
    assert " ".join(split_compounds("a-b-c ab-cd--e - -x y-")) == expected
    result = evaluate_translations(["a-b-c-d"], ["a ##AT##-##AT## b-c ##AT##-##AT## d"], "none", paper_bleu=True)
    assert result["paper_bleu"] < 100


def test_the_papers_bleu_does_not_smooth():
    result = evaluate_translations(["ein Hund rennt heute"], ["ein Hund schläft heute"], paper_bleu=True)
    assert result["bleu"] > 0 == result["paper_bleu"]


def test_hyphens_that_moses_has_split_are_not_split_again():
    aggressive = [MosesTokenizer("de").tokenize(line, True, True) for line in COMPOUNDS]
    assert sum(line.count(" @-@ ") for line in aggressive) > 5
    changed = [line.replace("gut", "schön") for line in aggressive]
    result = evaluate_translations(changed, aggressive, "none", paper_bleu=True)
    expected = bleu_of_tokens(*([line.split() for line in lines] for lines in (changed, aggressive)))
    assert result["paper_bleu"] == pytest.approx(expected, abs=1e-6)


def edits(first: list[str], second: list[str]) -> int:
    """The definition of Levenshtein's distance, which takes exponential time."""
    if not first or not second:
        return len(first) + len(second)
    kept = edits(first[1:], second[1:]) + (first[0] != second[0])
    return min(kept, edits(first[1:], second) + 1, edits(first, second[1:]) + 1)


def test_a_word_is_correct_if_it_equals_any_reference_of_its_source():
    sources = ["a", "b", "a", "c"]
    predictions = ["X Y", "X Z", "X Y", "Y X Y"]
    references = ["X", "X Y Z", "X Y", "X Y Z Z"]
    rates = error_rates(sources, predictions, references, "word")
    assert rates["exact_match"] == pytest.approx(100 / 3)
    assert rates["word_error_rate"] == pytest.approx(200 / 3)
    # none in the two symbols of the second reference of "a", one in three, and three in four
    assert rates["symbol_error_rate"] == pytest.approx(100 * (0 + 1 + 3) / (2 + 3 + 4))


@pytest.mark.parametrize("symbols", ["word", "char"])
def test_symbol_errors_are_the_fewest_edits(symbols):
    rng = random.Random(0)
    lines = [" ".join(rng.choices("ABC", k=rng.randint(0, 4))) for _ in range(60)]
    split = str.split if symbols == "word" else list
    for prediction, reference in zip(lines[::2], lines[1::2], strict=True):
        expected = 100 * edits(split(prediction), split(reference)) / max(len(split(reference)), 1)
        rates = error_rates(["source"], [prediction], [reference], symbols)
        assert rates["symbol_error_rate"] == pytest.approx(expected)
        assert rates["exact_match"] == (100 if prediction == reference else 0)
