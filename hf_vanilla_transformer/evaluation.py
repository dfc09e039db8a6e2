"""BLEU, chrF and TER as `evaluate` metrics that load offline, each with sacreBLEU's signature."""

from typing import Any

import datasets
import evaluate
import sacrebleu
from sacrebleu.metrics.base import Metric as SacreMetric


class _CorpusMetric(evaluate.Metric):
    """A sacreBLEU metric over a corpus: strings in, `{name: score, "signature": ...}` out."""

    name = ""

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

    def _sacre(self, **settings: Any) -> SacreMetric:
        raise NotImplementedError

    def _compute(self, predictions: list[str], references: list[str], **settings: Any) -> dict[str, Any]:
        metric = self._sacre(**settings)
        score = metric.corpus_score(predictions, [references]).score
        return {self.name: score, "signature": str(metric.get_signature())}


class Bleu(_CorpusMetric):
    """`compute(predictions=..., references=..., tokenize="13a")`; "none" for text that is tokenised already."""

    name = "bleu"

    def _sacre(self, tokenize: str = "13a") -> SacreMetric:
        # with "none" sacreBLEU would warn that the text looks tokenised; that it is, is what "none" says
        return sacrebleu.BLEU(tokenize=tokenize, force=tokenize == "none")


class ChrF(_CorpusMetric):
    """`compute(predictions=..., references=...)`."""

    name = "chrf"

    def _sacre(self) -> SacreMetric:
        return sacrebleu.CHRF()


class Ter(_CorpusMetric):
    """`compute(predictions=..., references=...)`; an error rate, so lower is better."""

    name = "ter"

    def _sacre(self) -> SacreMetric:
        return sacrebleu.TER()


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
