"""Compute BLEU, chrF, chrF++ and TER with sacreBLEU, as metrics of `evaluate` that need no network access."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import datasets
import evaluate
import sacrebleu
from sacrebleu.metrics.base import Metric as SacreBleuMetric


class _CorpusMetric(evaluate.Metric):
    """A corpus-level sacreBLEU metric; `compute` returns `{name: score, "signature": ...}`."""

    name: str
    sacrebleu_metric: Callable[..., SacreBleuMetric]

    def __init__(self, **kwargs: Any):
        super().__init__(keep_in_memory=True, **kwargs)

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=f"{self.name} by sacreBLEU (Post 2018)",
            citation="",
            features=datasets.Features(
                {"predictions": datasets.Value("string"), "references": datasets.Value("string")}
            ),
        )

    def _compute(self, predictions: list[str], references: list[str], **settings: Any) -> dict[str, Any]:
        metric = type(self).sacrebleu_metric(**settings)
        score = metric.corpus_score(predictions, [references]).score
        return {self.name: score, "signature": str(metric.get_signature())}


class Bleu(_CorpusMetric):
    """BLEU: `compute(predictions=..., references=..., tokenize="13a")`; use "none" for tokenised text."""

    name = "bleu"
    sacrebleu_metric = partial(sacrebleu.BLEU, force=True)  # force: do not warn that the text looks tokenised


class ChrF(_CorpusMetric):
    """chrF: `compute(predictions=..., references=...)`."""

    name = "chrf"
    sacrebleu_metric = sacrebleu.CHRF


class ChrFPlusPlus(_CorpusMetric):
    """chrF++, which also counts words and pairs of words: `compute(predictions=..., references=...)`."""

    name = "chrf++"
    sacrebleu_metric = partial(sacrebleu.CHRF, word_order=2)


class Ter(_CorpusMetric):
    """TER, an error rate (lower is better): `compute(predictions=..., references=...)`."""

    name = "ter"
    sacrebleu_metric = sacrebleu.TER


def check_tokenization(name: str) -> None:
    """Check that BLEU can be computed with sacreBLEU's tokenisation `name`.

    Raises:
        ValueError: if sacreBLEU has no such tokenisation, or if a package that it needs is not installed.
    """
    names = sorted(name for name in sacrebleu.BLEU.TOKENIZERS if name)
    if name not in names:
        raise ValueError(f"Unknown tokenisation {name!r} for BLEU; choose one of {', '.join(names)}.")
    try:
        Bleu.sacrebleu_metric(tokenize=name).corpus_score(["a"], [["a"]])
    except (RuntimeError, ImportError, OSError) as error:
        raise ValueError(f"Cannot compute BLEU with the tokenisation {name!r}: {error}") from error


def evaluate_translations(predictions: list[str], references: list[str], bleu_tokenize: str = "13a") -> dict[str, Any]:
    """Return `{"bleu": ..., "chrf": ..., "chrf++": ..., "ter": ..., "signatures": {...}}`, with scores in percent.

    Args:
        bleu_tokenize: sacreBLEU's tokenisation for BLEU, such as "13a" or "none".

    Raises:
        ValueError: if there are no predictions, or their number differs from the number of references.
    """
    if len(predictions) != len(references) or not predictions:
        raise ValueError(f"Cannot score {len(predictions)} translations against {len(references)} references.")
    settings: dict[type[_CorpusMetric], dict[str, str]] = {Bleu: {"tokenize": bleu_tokenize}}
    settings |= {ChrF: {}, ChrFPlusPlus: {}, Ter: {}}
    scores: dict[str, Any] = {}
    signatures: dict[str, str] = {}
    for metric, options in settings.items():
        result = metric().compute(predictions=predictions, references=references, **options)
        scores[metric.name], signatures[metric.name] = result[metric.name], result["signature"]
    return {**scores, "signatures": signatures}


def perplexity(nats: float) -> float:
    """Return the perplexity for a cross-entropy in nats per token, capped so that it does not overflow."""
    return math.exp(min(nats, 700.0))
