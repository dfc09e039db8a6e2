"""BLEU, chrF, chrF++ and TER by sacreBLEU, the paper's BLEU, error rates, and BLEU as a metric of `evaluate`."""

import math
import re
import statistics
from collections import defaultdict
from collections.abc import Sequence

import datasets
import evaluate
import sacrebleu
from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEUScore

from ..errors import UserError
from ..files import JsonObject, import_extra

# The hyphen of a compound and its two neighbours; `@-@` is a hyphen that Moses' aggressive mode has split off already
_COMPOUND = re.compile(r"(?!(?<!\S)@-@(?!\S))(\S)-(\S)")

# Fewer translations say too little about the worst hundredth of them
_ENOUGH = 100


class Bleu(evaluate.Metric):
    """BLEU: `compute(predictions=..., references=..., tokenize="13a")`; use "none" for tokenised text.

    Suits a Trainer's `compute_metrics`, `add_batch` and `evaluate.combine`, and returns `{"bleu": ..., "signature":
    ...}`. `evaluate.load("sacrebleu")` would download code.
    """

    name = "bleu"

    def __init__(self, **kwargs: object):
        # Otherwise each process writes the texts to Arrow files in the cache folder, which all runs share
        super().__init__(keep_in_memory=True, **kwargs)

    def _info(self) -> evaluate.MetricInfo:
        features = datasets.Features(dict.fromkeys(("predictions", "references"), datasets.Value("string")))
        return evaluate.MetricInfo(description="BLEU by sacreBLEU (Post 2018)", citation="", features=features)

    def _compute(self, predictions: list[str], references: list[str], tokenize: str | None = None) -> JsonObject:
        metric = bleu(tokenize)
        score = metric.corpus_score(predictions, [references]).score
        return {"bleu": score, "signature": str(metric.get_signature())}


def bleu(tokenize: str | None = None) -> sacrebleu.BLEU:
    """Return sacreBLEU's BLEU; None chooses its default tokenisation, "13a"."""
    # force: do not warn that the text looks tokenised, which with the tokenisation "none" it should be
    return sacrebleu.BLEU(tokenize=tokenize, force=True)


class PaperBleu(sacrebleu.BLEU):
    """The paper's BLEU for English-German: cased, without smoothing, of Moses' tokens with compounds split at hyphens.

    It is what tensor2tensor's get_ende_bleu.sh and fairseq's compound_split_bleu.sh compute.

    Args:
        tokenize: "none" for text that is already tokenised; anything else stands for Moses' tokenisation.

    Raises:
        ImportError: if the text needs Moses' tokenisation, and sacremoses is not installed.
    """

    def __init__(self, tokenize: str | None = None):
        super().__init__(tokenize="none", smooth_method="none", force=True)
        self._moses = None
        if tokenize != "none":
            self._moses = import_extra("sacremoses", "paper").MosesTokenizer("de")
        self.tokenizer_signature = f"{'moses.de' if self._moses else 'none'}-compounds"

    def _preprocess_segment(self, sent: str) -> str:
        tokens = self._moses.tokenize(sent, return_str=True) if self._moses else sent
        return super()._preprocess_segment(_COMPOUND.sub(r"\1 ##AT##-##AT## \2", tokens))

    def _compute_score_from_stats(self, stats: list[int]) -> BLEUScore:
        score = super()._compute_score_from_stats(stats)
        # sacreBLEU's paired test would confuse it with another measure that is called BLEU
        score.name = "PaperBLEU"
        return score


def check_tokenization(name: str) -> None:
    """Check that BLEU can be computed with sacreBLEU's tokenisation `name`.

    Raises:
        ValueError: if sacreBLEU has no such tokenisation, or if a package that it needs is not installed.
    """
    names = sorted(name for name in sacrebleu.BLEU.TOKENIZERS if name)
    if name not in names:
        raise UserError(f"Unknown tokenisation {name!r} for BLEU; choose one of {', '.join(names)}.")
    # Some tokenisations load a dictionary or download a model, only when they are first used
    try:
        bleu(name).corpus_score(["a"], [["a"]])
    except (RuntimeError, ImportError, OSError) as error:
        raise UserError(f"Cannot compute BLEU with the tokenisation {name!r}: {error}") from error


def evaluate_translations(
    predictions: list[str], references: list[str], bleu_tokenize: str = "13a", paper_bleu: bool = False
) -> dict[str, float | dict[str, str]]:
    """Return `{"bleu": ..., "chrf": ..., "chrf++": ..., "ter": ..., "signatures": {...}}`, with scores in percent.

    Args:
        bleu_tokenize: sacreBLEU's tokenisation for BLEU, such as "13a" or "none".
        paper_bleu: whether to add "paper_bleu", the paper's BLEU for English-German.

    Raises:
        ImportError: as `PaperBleu`.
        ValueError: if there are no predictions, or their number differs from the number of references.
    """
    if len(predictions) != len(references) or not predictions:
        raise ValueError(f"Cannot score {len(predictions)} translations against {len(references)} references.")

    metrics: dict[str, Metric] = {
        "bleu": bleu(bleu_tokenize),
        "chrf": sacrebleu.CHRF(),
        "chrf++": sacrebleu.CHRF(word_order=2),  # also counts words and pairs of words
        "ter": sacrebleu.TER(),  # an error rate: lower is better
    }
    if paper_bleu:
        metrics["paper_bleu"] = PaperBleu(bleu_tokenize)
    scores = {name: metric.corpus_score(predictions, [references]).score for name, metric in metrics.items()}
    # Signatures name the number of references, which is known only after scoring
    signatures = {name: str(metric.get_signature()) for name, metric in metrics.items()}
    return {**scores, "signatures": signatures}


def error_rates(
    sources: Sequence[str], predictions: Sequence[str], references: Sequence[str], symbols: str
) -> dict[str, float]:
    """Return `{"exact_match": ..., "symbol_error_rate": ..., "word_error_rate": ...}` of words, in percent.

    A line is a word, such as one to pronounce. References of equal sources are alternatives: a word is correct if it
    equals any of them, and its errors are the insertions, deletions and substitutions that lead to the closest.

    Args:
        symbols: what a line consists of: "word", symbols separated by spaces, or "char", characters.
    """
    split = str.split if symbols == "word" else list
    alternatives = defaultdict(list)
    for source, reference in zip(sources, references, strict=True):
        alternatives[source].append(split(reference))

    wrong = errors = length = 0
    for source, prediction in dict(zip(sources, predictions, strict=True)).items():
        symbols_of = split(prediction)
        distances = [(_edit_distance(symbols_of, right), len(right)) for right in alternatives[source]]
        fewest, length_of_closest = min(distances)
        wrong += fewest > 0
        errors += fewest
        length += length_of_closest
    rate = 100 * wrong / len(alternatives)
    return {
        "exact_match": 100 - rate,
        "symbol_error_rate": 100 * errors / max(length, 1),
        "word_error_rate": rate,
    }


def _edit_distance(first: Sequence[str], second: Sequence[str]) -> int:
    """Return the smallest number of insertions, deletions and substitutions (Levenshtein 1966)."""
    # the distances of the symbols of `first` so far to each beginning of `second`
    distances = list(range(len(second) + 1))
    for symbol in first:
        previous = distances
        distances = [previous[0] + 1]
        for j, other in enumerate(second):
            distances.append(min(previous[j] + (symbol != other), previous[j + 1] + 1, distances[j] + 1))
    return distances[-1]


def sentence_chrf(translations: Sequence[str], references: Sequence[str]) -> list[float]:
    """Return the chrF of each translation, in percent. BLEU says little about a single sentence."""
    chrf = sacrebleu.CHRF()
    pairs = zip(translations, references, strict=True)
    return [chrf.sentence_score(translation, [reference]).score for translation, reference in pairs]


def doubtful_score(means: Sequence[float]) -> float | None:
    """Return the mean log-probability per token that all but 1 % of the translations of a validation text exceed.

    Args:
        means: the log-probability per token of each translation; of fewer than 100, nothing is known (None).
    """
    # those of a model that has diverged may be no numbers
    known = list(filter(math.isfinite, means))
    return statistics.quantiles(known, n=100)[0] if len(known) >= _ENOUGH else None


def perplexity(nats: float) -> float:
    """Return the perplexity for a cross-entropy in nats per token, capped so that it does not overflow."""
    # exp() of more than 709 overflows, and the loss of a model that diverges may be anything
    return math.exp(min(nats, 700.0))
