"""Whether one system is better than another, and where; and how likely a model finds given translations."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from sacrebleu.significance import PairedTest

from ..data.batching import batches_by_length, pad
from ..inference.metrics import Bleu, ChrF, Ter
from ..model.modeling_vanilla_transformer import shift_right

RESAMPLES = 1000
BUCKETS = (10, 20, 30, 50)  # the longest reference of each, in words; the last bucket has no end
EXAMPLES = 5  # a side, of the sentences that differ most


def compare_translations(
    sources: Sequence[str],
    references: Sequence[str],
    translations: dict[str, Sequence[str]],
    bleu_tokenize: str = "13a",
) -> dict[str, Any]:
    """Two systems on one test set: scores with 95 % intervals, significance, by length, and where they differ most.

    Intervals and p-values are sacreBLEU's paired bootstrap resampling (Koehn 2004), with its fixed seed; its p is the
    chance of so large a difference, either way, between systems that are equal.

    Args:
        translations: the names of the two systems, and what each made of every source.

    Raises:
        ValueError: if there are not two systems, or not as many lines everywhere, or none.
    """
    if len(translations) != 2:
        raise ValueError(f"Two systems are compared, not {len(translations)}.")
    for name, lines in translations.items():
        if not len(lines) == len(sources) == len(references) or not lines:
            raise ValueError(f"{name} has {len(lines)} translations of {len(sources)} lines.")
    metrics: dict[str, Any] = {
        "bleu": Bleu.sacre(tokenize=bleu_tokenize),
        "chrf": ChrF.sacre(),
        "ter": Ter.sacre(),
    }
    systems: list[tuple[str, Sequence[str]]] = [(name, list(lines)) for name, lines in translations.items()]
    signatures, results = PairedTest(systems, metrics, [list(references)], "bs", RESAMPLES)()
    scores: dict[str, Any] = {}
    for measure, name in zip(signatures, metrics, strict=True):
        first, second = (cast(Any, result) for result in results[measure])
        scores[name] = {
            "a": _with_interval(first),
            "b": _with_interval(second),
            "difference": float(second.score - first.score),
            "p": second.p_value if second.score != first.score else 1.0,  # sacreBLEU: 0.001 for equal systems
            "signature": str(signatures[measure]),
        }
    (_, ours), (_, theirs) = systems
    return {
        "a": systems[0][0],
        "b": systems[1][0],
        "sentences": len(ours),
        "scores": scores,
        "by_length": _by_length(references, ours, theirs, metrics),
        **_most_different(sources, references, ours, theirs),
    }


def _with_interval(result: Any) -> dict[str, Any]:
    return {"score": float(result.score), "interval": [float(result.mean + side * result.ci) for side in (-1, 1)]}


def _by_length(
    references: Sequence[str], ours: Sequence[str], theirs: Sequence[str], metrics: dict[str, Any]
) -> list[dict[str, Any]]:
    """BLEU and chrF of the sentences of each length, in words of the reference."""
    rows, low = [], 1
    for high in (*BUCKETS, None):
        chosen = [i for i, text in enumerate(references) if low <= max(len(text.split()), 1) <= (high or len(text))]
        if chosen:
            row: dict[str, Any] = {"words": f"{low}-{high}" if high else f"{low}-", "sentences": len(chosen)}
            for name in ("bleu", "chrf"):
                for side, lines in (("a", ours), ("b", theirs)):
                    score = (
                        metrics[name].corpus_score([lines[i] for i in chosen], [[references[i] for i in chosen]]).score
                    )
                    row[f"{name}_{side}"] = score
            rows.append(row)
        low = (high or 0) + 1
    return rows


def _most_different(
    sources: Sequence[str], references: Sequence[str], ours: Sequence[str], theirs: Sequence[str]
) -> dict[str, Any]:
    """The sentences that B does most better, and those that A does, by the chrF of each."""
    chrf = ChrF.sacre()
    gains = []
    for i, (reference, a, b) in enumerate(zip(references, ours, theirs, strict=True)):
        gains.append((chrf.sentence_score(b, [reference]).score - chrf.sentence_score(a, [reference]).score, i))

    def rows(chosen: list[tuple[float, int]]) -> list[dict[str, Any]]:
        return [
            {
                "line": i + 1,
                "chrf_difference": gain,
                "source": sources[i],
                "reference": references[i],
                "a": ours[i],
                "b": theirs[i],
            }
            for gain, i in chosen
        ]

    gains.sort()
    worse = [pair for pair in gains[:EXAMPLES] if pair[0] < 0]
    better = [pair for pair in reversed(gains[-EXAMPLES:]) if pair[0] > 0]
    return {"b_better": rows(better), "a_better": rows(worse)}


@torch.inference_mode()
def score_translations(
    model: Any,
    tokenizer: Any,
    sources: Sequence[str],
    targets: Sequence[str],
    max_tokens: int = 2048,
    progress: Callable[[int], Any] | None = None,
) -> list[tuple[float, int]]:
    """log P(target | source) in nats, and the target's tokens, `</s>` among them, for each pair, in their order.

    Args:
        max_tokens: tokens of a batch a side, padding included; a longer pair makes a batch of its own.
        progress: called after each batch with the number of pairs it held.
    """
    sides = [tokenizer(list(texts))["input_ids"] if texts else [] for texts in (sources, targets)]
    lengths = [[len(ids) for ids in side] for side in sides]
    pad_id, start_id = model.config.pad_token_id, model.config.decoder_start_token_id
    results: list[tuple[float, int]] = [(0.0, 0)] * len(sources)
    for batch in batches_by_length(lengths[0], lengths[1], max_tokens):
        source, labels = (pad([side[i] for i in batch], pad_id).to(model.device) for side in sides)
        mask = pad([[1] * lengths[0][i] for i in batch], 0).to(model.device)
        logits = model(
            input_ids=source, attention_mask=mask, decoder_input_ids=shift_right(labels, pad_id, start_id)
        ).logits
        log_probs = logits.float().log_softmax(-1).gather(-1, labels[..., None])[..., 0]
        for i, row in zip(batch, log_probs, strict=True):
            length = lengths[1][i]
            results[i] = row[:length].sum().item(), length
        if progress is not None:
            progress(len(batch))
    return results
