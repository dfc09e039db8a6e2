"""BLEU, chrF and TER as `evaluate` metrics that load offline, each with sacreBLEU's signature."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import datasets
import evaluate
import sacrebleu
from sacrebleu.metrics.base import Metric as SacreMetric


class _CorpusMetric(evaluate.Metric):
    """A sacreBLEU metric over a corpus: strings in, `{name: score, "signature": ...}` out."""

    name: str
    sacre: Callable[..., SacreMetric]

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
        metric = type(self).sacre(**settings)
        score = metric.corpus_score(predictions, [references]).score
        return {self.name: score, "signature": str(metric.get_signature())}


class Bleu(_CorpusMetric):
    """`compute(predictions=..., references=..., tokenize="13a")`; "none" for text that is tokenised already."""

    name = "bleu"
    sacre = partial(sacrebleu.BLEU, force=True)  # that text looks tokenised is no news with "none"


class ChrF(_CorpusMetric):
    """`compute(predictions=..., references=...)`."""

    name = "chrf"
    sacre = sacrebleu.CHRF


class Ter(_CorpusMetric):
    """`compute(predictions=..., references=...)`; an error rate, so lower is better."""

    name = "ter"
    sacre = sacrebleu.TER


def check_tokenization(name: str) -> None:
    """See that BLEU can be computed with sacreBLEU's tokenisation `name`.

    Raises:
        ValueError: if there is no such tokenisation, or what it needs is not installed.
    """
    names = sorted(name for name in sacrebleu.BLEU.TOKENIZERS if name)
    if name not in names:
        raise ValueError(f"There is no tokenisation {name!r} for BLEU; choose one of {', '.join(names)}.")
    try:
        Bleu.sacre(tokenize=name).corpus_score(["a"], [["a"]])
    except (RuntimeError, ImportError, OSError) as error:
        raise ValueError(f"BLEU cannot be computed with the tokenisation {name!r}: {error}") from error


def evaluate_translations(predictions: list[str], references: list[str], bleu_tokenize: str = "13a") -> dict[str, Any]:
    """`{"bleu": ..., "chrf": ..., "ter": ..., "signatures": {...}}`, all out of 100.

    Raises:
        ValueError: if there are not as many predictions as references, or none.
    """
    if len(predictions) != len(references) or not predictions:
        raise ValueError(f"Cannot score {len(predictions)} translations against {len(references)} references.")
    settings: dict[type[_CorpusMetric], dict[str, str]] = {Bleu: {"tokenize": bleu_tokenize}, ChrF: {}, Ter: {}}
    scores: dict[str, Any] = {"signatures": {}}
    for metric, options in settings.items():
        result = metric().compute(predictions=predictions, references=references, **options)
        scores[metric.name] = result[metric.name]
        scores["signatures"][metric.name] = result["signature"]
    return {**{name: scores[name] for name in ("bleu", "chrf", "ter")}, "signatures": scores["signatures"]}


def perplexity(nats: float) -> float:
    """Return the exponential of a cross-entropy in nats per token, capped where a float would overflow."""
    return math.exp(min(nats, 700.0))
