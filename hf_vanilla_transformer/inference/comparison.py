"""Compare two systems on a test set, and score given translations with a model."""

from collections.abc import Callable, Sequence
from typing import cast

import sacrebleu
import torch
from sacrebleu.metrics.base import Metric
from sacrebleu.significance import PairedTest, Result
from torch.nn.functional import cross_entropy

from ..data.batching import Seq2SeqCollator, batches_by_length
from ..errors import UserError
from ..files import JsonObject
from ..model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from .ensemble import Ensemble
from .metrics import PaperBleu, bleu, sentence_chrf
from .translator import Translator

RESAMPLES = 1000  # bootstrap samples
BUCKETS = (10, 20, 30, 50)  # upper bounds in words of the reference; one more bucket holds the longer sentences
EXAMPLES = 5  # sentences listed per system, of those that differ most


def compare_translations(
    sources: Sequence[str],
    references: Sequence[str],
    translations: dict[str, Sequence[str]],
    bleu_tokenize: str = "13a",
    paper_bleu: bool = False,
) -> JsonObject:
    """Compare two systems, A and B, on one test set.

    The confidence intervals (95 %) and p-values come from sacreBLEU's paired bootstrap resampling (Koehn 2004) with
    its fixed seed. Its p-value is one-sided: the probability that the better system would be ahead by at least as much
    if both were of equal quality.

    Args:
        translations: maps the names of the two systems to their translations, one for each source.
        paper_bleu: whether to add the paper's BLEU for English-German.

    Returns:
        BLEU, chrF and TER with intervals and p-values, BLEU and chrF by sentence length, and the sentences whose
        translations differ most.

    Raises:
        ValueError: if the numbers of lines differ, or if there are no lines.
    """
    for name, lines in translations.items():
        if not len(lines) == len(sources) == len(references) or not lines:
            raise UserError(f"{name} has {len(lines)} translations for {len(sources)} lines.")
    metrics: dict[str, Metric] = {"bleu": bleu(bleu_tokenize), "chrf": sacrebleu.CHRF(), "ter": sacrebleu.TER()}
    if paper_bleu:
        metrics["paper_bleu"] = PaperBleu(bleu_tokenize)
    systems: list[tuple[str, Sequence[str]]] = [(name, list(lines)) for name, lines in translations.items()]
    signatures, results = PairedTest(systems, metrics, [list(references)], "bs", RESAMPLES)()
    scores: JsonObject = {}
    # sacreBLEU calls a measure by its own name, such as "chrF2"; both lists are in the same order
    for measure, name in zip(signatures, metrics, strict=True):
        first, second = cast(list[Result], results[measure])
        difference = float(second.score - first.score)
        scores[name] = {
            "a": _with_interval(first),
            "b": _with_interval(second),
            "difference": difference,
            # sacreBLEU returns 0.001 if equal
            "p": second.p_value if difference else 1.0,
            "signature": str(signatures[measure]),
        }
    lines_a, lines_b = (lines for _, lines in systems)
    return {
        "a": systems[0][0],
        "b": systems[1][0],
        "sentences": len(lines_a),
        "scores": scores,
        "by_length": _scores_by_length(references, lines_a, lines_b, metrics),
        **_most_different(sources, references, lines_a, lines_b),
    }


def _with_interval(result: Result) -> JsonObject:
    """Return a score with its bootstrap interval of 95 %."""
    # both are set for bootstrap resampling
    assert result.mean is not None
    assert result.ci is not None
    return {"score": float(result.score), "interval": [float(result.mean + sign * result.ci) for sign in (-1, 1)]}


def _scores_by_length(
    references: Sequence[str], lines_a: Sequence[str], lines_b: Sequence[str], metrics: dict[str, Metric]
) -> list[JsonObject]:
    """Return BLEU and chrF of both systems for each bucket of sentence length, in words of the reference."""
    rows = []
    low = 1
    for high in (*BUCKETS, None):
        chosen = [i for i, text in enumerate(references) if low <= max(len(text.split()), 1) <= (high or len(text))]
        if chosen:
            row: JsonObject = {"words": f"{low}-{high}" if high else f"{low}-", "sentences": len(chosen)}
            for name in ("bleu", "chrf"):
                for system, lines in (("a", lines_a), ("b", lines_b)):
                    score = metrics[name].corpus_score([lines[i] for i in chosen], [[references[i] for i in chosen]])
                    row[f"{name}_{system}"] = score.score
            rows.append(row)
        low = (high or 0) + 1
    return rows


def _most_different(
    sources: Sequence[str], references: Sequence[str], lines_a: Sequence[str], lines_b: Sequence[str]
) -> JsonObject:
    """Return the sentences where B beats A by the largest margin, and A beats B, in sentence-level chrF."""
    chrf_a, chrf_b = (sentence_chrf(lines, references) for lines in (lines_a, lines_b))
    rows: list[JsonObject] = []
    for i, (source, reference, a, b) in enumerate(zip(sources, references, lines_a, lines_b, strict=True)):
        gain = chrf_b[i] - chrf_a[i]
        row = {"line": i + 1, "chrf_difference": gain, "source": source, "reference": reference, "a": a, "b": b}
        rows.append(row)
    rows.sort(key=lambda row: row["chrf_difference"])
    return {
        "b_better": [row for row in reversed(rows[-EXAMPLES:]) if row["chrf_difference"] > 0],
        "a_better": [row for row in rows[:EXAMPLES] if row["chrf_difference"] < 0],
    }


@torch.inference_mode()
def score_translations(
    translator: Translator,
    sources: Sequence[str],
    targets: Sequence[str],
    max_tokens: int = 2048,
    progress: Callable[[int], object] | None = None,
    **languages: str | None,
) -> list[tuple[float, int]]:
    """Score given translations with a model or an ensemble.

    Args:
        translator: of models in torch, since exports only generate.
        max_tokens: maximum tokens per batch on each side, including padding; a longer pair forms a batch of its own.
        progress: called after each batch with its number of pairs.
        languages: `source_lang`, `target_lang` and `tag`, as in `translate`.

    Returns:
        For each pair, in order: log P(target | source) in nats, and the number of target tokens including `</s>`.
    """
    model = cast(VanillaTransformerForConditionalGeneration | Ensemble, translator.model)
    encoded = translator.encode(sources, **languages)
    references = translator.tokenizer(text_target=list(targets), verbose=False)["input_ids"] if targets else []
    lengths = [list(map(len, side)) for side in (encoded, references)]
    collate = Seq2SeqCollator(model.config.pad_token_id, model.config.decoder_start_token_id)
    results: list[tuple[float, int]] = [(0.0, 0)] * len(sources)
    for batch in batches_by_length(lengths[0], lengths[1], max_tokens):
        pairs = collate([{"input_ids": encoded[i], "labels": references[i]} for i in batch])
        inputs = {name: tensor.to(model.device) for name, tensor in pairs.items()}
        labels = inputs.pop("labels")
        # in float32: a sum of many log-probabilities in half precision loses digits
        logits = model(**inputs).logits.float()
        # (batch, target length), 0 at padding
        losses = cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view_as(labels)
        totals = losses.sum(1).neg().tolist()
        for i, total in zip(batch, totals, strict=True):
            results[i] = total, lengths[1][i]
        if progress is not None:
            progress(len(batch))
    return results
