"""Fast greedy and beam search over `IncrementalDecoder`, with the results of transformers' own loops.

Sentences whose search has finished are removed from the batch. Shapes use B sentences, K beams per sentence, and a
vocabulary of V tokens.
"""

from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from transformers.generation import ForcedEOSTokenLogitsProcessor, LogitNormalization, NoBadWordsLogitsProcessor

from .incremental_decoder_vanilla_transformer import IncrementalDecoder

# Masking the keys of other beams costs O(K^2), copying each beam's own keys O(K); masking is faster up to about this
# number of beams
MAX_FAST_BEAMS = 64

# transformers' score of beams and hypotheses that do not exist: below any log-probability, and finite
ABSENT = -1e9


def top_tokens(logits: torch.Tensor, count: int, block: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the `count` highest logits of each row and their tokens, in no particular order.

    They lie in the `count` blocks of tokens with the highest maxima, which are much faster to find than a top-k.

    *Shape:* (N, V) to two tensors (N, min(count, V)).
    """
    size = logits.shape[1]
    # a few rows take less time than the further operations
    if size < 4 * block * count or logits.numel() < 2**15:
        return logits.topk(min(count, size), sorted=False)
    # tokens in whole blocks; the others are always candidates
    whole = size - size % block
    # (N, V / block, block)
    blocks = logits[:, :whole].unflatten(1, (-1, block))
    # (N, count)
    best = blocks.amax(2).topk(count, sorted=False).indices
    # (N, count block)
    candidates = blocks.gather(1, best[..., None].expand(-1, -1, block)).flatten(1)
    tokens = (best[..., None] * block + torch.arange(block, device=logits.device)).flatten(1)
    if whole < size:
        candidates = torch.cat((candidates, logits[:, whole:]), dim=1)
        rest = torch.arange(whole, size, device=logits.device).expand(len(logits), -1)
        tokens = torch.cat((tokens, rest), dim=1)
    values, chosen = candidates.topk(count, sorted=False)
    return values, tokens.gather(1, chosen)


def most_likely_token(logits: torch.Tensor, block: int = 64) -> torch.Tensor:
    """Return the token with the highest logit of each row, the first of several equal ones. *Shape:* (N, V) to (N,).

    It is `logits.argmax(1)`, but finds the block of tokens with the highest maximum first, which is much faster.
    """
    size = logits.shape[1]
    # few logits take less time than the further operations
    if size < 4 * block or logits.numel() < 2**13:
        return logits.argmax(1)
    # tokens in whole blocks
    whole = size - size % block
    if logits.device.type == "cpu":
        # where the maximum of rows in bfloat16 takes four times as long; float32 is exact, too
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    # (N, V / block, block)
    blocks = logits[:, :whole].unflatten(1, (-1, block))
    # (N, 1)
    best = blocks.amax(2).argmax(1, keepdim=True)
    # within the best block (N, 1)
    highest, token = blocks.gather(1, best[..., None].expand(-1, -1, block)).max(2)
    token += best * block
    if whole < size:
        # only if strictly higher, because the first of several equal tokens wins
        other, last = logits[:, whole:].max(1, keepdim=True)
        token = torch.where(other > highest, last + whole, token)
    return token[:, 0]


# the processors that `OutputRules` stands for, in the order in which transformers applies them
_KNOWN_PROCESSORS = (NoBadWordsLogitsProcessor, ForcedEOSTokenLogitsProcessor, LogitNormalization)


class OutputRules(NamedTuple):
    """Which tokens a search may choose, as set by models such as OPUS-MT.

    Args:
        banned: tokens that are never generated (`bad_words_ids`).
        final: (limit, tokens): one of these is generated at that position (`forced_eos_token_id`); None for any.
        renormalize: whether the probabilities of the other tokens then sum up to 1 (`renormalize_logits`).
    """

    banned: list[int]
    final: tuple[int, torch.Tensor] | None
    renormalize: bool

    @classmethod
    def read(cls, processors: Sequence[Any]) -> "OutputRules | None":
        """Return the rules that transformers' processors follow, or None if there are others among them."""
        by_kind = {type(processor): processor for processor in processors}
        if [*map(type, processors)] != [kind for kind in _KNOWN_PROCESSORS if kind in by_kind]:
            return None
        bad_words = by_kind.get(NoBadWordsLogitsProcessor)
        banned = [] if bad_words is None else list(bad_words.sequence_bias)
        if any(len(word) > 1 for word in banned):
            return None
        last = by_kind.get(ForcedEOSTokenLogitsProcessor)
        final = None if last is None else (last.max_length - 1, last.eos_token_id)
        return cls([token for (token,) in banned], final, LogitNormalization in by_kind)

    def apply(self, scores: torch.Tensor, length: int) -> torch.Tensor:
        """Return the scores (N, V) of the tokens at position `length`, -inf for those that are not allowed there.

        `scores` may change.
        """
        if self.final is not None and length == self.final[0]:
            return torch.full_like(scores, float("-inf")).index_fill_(1, self.final[1], 0.0)
        for token in self.banned:
            scores[:, token] = float("-inf")
        return scores

    def log_probs(self, logits: torch.Tensor, length: int) -> torch.Tensor:
        """Return the log-probabilities (N, V) of the tokens at position `length`; `logits` may change."""
        if self.renormalize:
            return self.apply(logits.float(), length).log_softmax(-1)
        return self.apply(logits.float().log_softmax(-1), length)


class _SearchState(SimpleNamespace):
    """State of a search for each sentence still in the batch: tensors whose first dimension is B."""

    def keep(self, rows: torch.Tensor):
        """Keep only the sentences `rows` (indices into the batch)."""
        self.__dict__.update({name: tensor.index_select(0, rows) for name, tensor in vars(self).items()})


def _split_when_worthwhile(done: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return the rows that are `done` and the others if enough are done to justify copying the others' caches."""
    # waits for the device
    count = int(done.sum())
    # decoding an eighth of the batch for nothing costs less than copying the caches of the others
    if len(done) > 8 * count:
        return None
    # stable: the sentences keep their order, so that results do not depend on when others end
    rows = done.int().argsort(descending=True, stable=True)
    return rows[:count], rows[count:]


def _widen(sequences: torch.Tensor, fill: int) -> torch.Tensor:
    """Return sequences (..., T) with twice the columns, because the limit on length may be far beyond all outputs.

    Doubled so that all copies together cost no more than the last one.
    """
    return torch.nn.functional.pad(sequences, (0, sequences.shape[-1]), value=fill)


def greedy_search(
    model: Any, input_ids: torch.Tensor, limits: torch.Tensor, rules: OutputRules, settings: Any, model_kwargs: dict
) -> tuple[torch.Tensor, None]:
    """Decode with the most likely token at every step. *Shape:* (B, 1) to (B, T), and no scores.

    Args:
        input_ids: (B, 1) start tokens.
        limits: (B, 1) maximum number of tokens after the start token, per sentence.
        rules: which tokens may be chosen.
        settings: the generation config as prepared by `generate()`.
        model_kwargs: the decoder's keyword arguments as prepared by `generate()`.
    """
    decoder = IncrementalDecoder(model, model_kwargs["encoder_outputs"][0], model_kwargs.get("attention_mask"), 1)
    padding = int(settings._pad_token_tensor)
    # (B, columns)
    output = input_ids
    rows = torch.arange(len(input_ids), device=input_ids.device)
    state = _SearchState(rows=rows, tokens=input_ids, limits=limits, done=torch.zeros_like(rows, dtype=torch.bool))
    length = 0
    while True:
        if (split := _split_when_worthwhile(state.done)) is not None:
            kept = split[1]
            if len(kept) == 0:
                break
            decoder.keep(kept)
            state.keep(kept)
        length += 1
        if length == output.shape[1]:
            output = _widen(output, padding)
        logits = decoder.logits(decoder.step(state.tokens))
        # (B, 1)
        state.tokens = torch.cat([most_likely_token(rules.apply(block, length)) for block in logits])[:, None]
        # sentences that are done may stay in the batch for some steps
        output[state.rows, length] = state.tokens[:, 0].masked_fill(state.done, padding)
        state.done |= (torch.isin(state.tokens, settings._eos_token_tensor) | (length >= state.limits))[:, 0]
    return output[:, : length + 1], None


def beam_search(
    model: Any, input_ids: torch.Tensor, limits: torch.Tensor, rules: OutputRules, settings: Any, model_kwargs: dict
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run the same beam search as transformers, step by step.

    The arguments are those of `greedy_search`.

    Returns:
        The num_return_sequences best hypotheses of each sentence, best first (B num_return_sequences, T), and their
        scores (B num_return_sequences,).
    """
    beams = settings.num_beams
    mask = model_kwargs.get("attention_mask")
    # generate() has repeated them for every beam; here the beams of a sentence share them
    encoder_states = model_kwargs["encoder_outputs"][0][::beams]
    decoder = IncrementalDecoder(model, encoder_states, None if mask is None else mask[::beams], beams)
    state = _initial_state(input_ids, limits, beams)
    # as transformers fills its sequences
    fill = int(settings._pad_token_tensor) or int(settings._eos_token_tensor[0])
    # (B, K, columns)
    output = state.running
    lengths = state.lengths.clone()
    scores = state.scores.clone()
    length = 0
    has_finished = False
    while True:
        logits = decoder.logits(decoder.step(state.running[:, :, length], state.parents))
        length += 1
        if length == output.shape[2]:
            output = _widen(output, fill)
            state.running = _widen(state.running, fill)
            state.finished = _widen(state.finished, fill)
        log_probs = (rules.log_probs(block, length) for block in logits)
        has_finished |= _advance(model, state, log_probs, length, settings)
        if not has_finished:
            continue
        state.done |= _is_complete(model, state, length, settings)
        if (split := _split_when_worthwhile(state.done)) is not None:
            removed, kept = split
            # their results go to their places in the whole batch
            rows = state.rows[removed]
            for whole, part in ((output, state.finished), (lengths, state.lengths), (scores, state.scores)):
                whole[rows] = part[removed]
            if len(kept) == 0:
                break
            decoder.keep(kept)
            state.keep(kept)
    returned = settings.num_return_sequences
    longest = 1 + int(lengths[:, :returned].max())
    return output[:, :returned, :longest].flatten(0, 1), scores[:, :returned].flatten()


def _initial_state(input_ids: torch.Tensor, limits: torch.Tensor, beams: int) -> _SearchState:
    """Return the state before the first step, for start tokens (B, 1) and limits (B, 1)."""
    shape = (len(input_ids), beams)
    # (B, K, 1)
    sequences = input_ids[:, None].expand(*shape, 1)
    scores = torch.full(shape, ABSENT, device=input_ids.device)
    return _SearchState(
        # indices into the output
        rows=torch.arange(len(input_ids), device=input_ids.device),
        limits=limits,
        running=sequences,
        # all beams are identical at first, so only one of them may be continued
        running_scores=scores.index_fill(1, limits.new_zeros(1), 0.0),
        parents=input_ids.new_zeros(shape),
        # hypotheses, best first
        finished=sequences,
        scores=scores,
        lengths=input_ids.new_zeros(shape),
        done=torch.zeros_like(limits[:, 0], dtype=torch.bool),
    )


def _candidates(log_probs: Iterable[torch.Tensor], state: _SearchState, settings: Any) -> tuple[torch.Tensor, ...]:
    """Return the log-probabilities, beams and tokens of each sentence's best continuations, each (B, candidates).

    Args:
        log_probs: of all B K beams, in blocks (N, V).
        state: with `running_scores`, the log-probabilities (B, K) of the beams.
    """
    beams = settings.num_beams
    # enough candidates to continue all beams even if others end
    count = max(2, 1 + len(settings._eos_token_tensor)) * beams
    blocks = [top_tokens(block, count) for block in log_probs]
    tokens = torch.cat([tokens for _, tokens in blocks])
    # (B K, count) -> (B, K, count)
    scores = torch.cat([values for values, _ in blocks]).unflatten(0, (-1, beams)) + state.running_scores[..., None]
    best, chosen = scores.flatten(1).topk(count)
    # each beam has the same number of candidates
    origins = chosen.div(tokens.shape[1], rounding_mode="floor")
    return best, origins, tokens.view(len(best), -1).gather(1, chosen)


def _extend(sequences: torch.Tensor, beams: torch.Tensor, tokens: torch.Tensor, length: int) -> torch.Tensor:
    """Return the sequences of some beams with new tokens at `length`. *Shape:* (B, K, T), two (B, N) to (B, N, T)."""
    extended = sequences.gather(1, beams[..., None].expand(-1, -1, sequences.shape[2]))
    extended[:, :, length] = tokens
    return extended


def _advance(model: Any, state: _SearchState, log_probs: Iterable[torch.Tensor], length: int, settings: Any) -> bool:
    """Extend the beams with the best continuations, and return whether any of these ends a hypothesis."""
    beams = settings.num_beams
    best, origins, tokens = _candidates(log_probs, state, settings)
    ended = torch.isin(tokens, settings._eos_token_tensor) | (length >= state.limits)
    # waits for the device, as otherwise only the number of sentences that are done
    has_ended = bool(ended.any())
    if has_ended:
        # only the best candidates may end
        extended = _extend(state.running, origins[:, :beams], tokens[:, :beams], length)
        scores = best[:, :beams] / model._length_penalty(length, settings.length_penalty)
        _finish(state, extended, scores.masked_fill(~ended[:, :beams] | state.done[:, None], ABSENT), length)
        state.done |= ended.all(-1)
    # the best candidates that have not ended; with equal scores, those that transformers chooses
    state.running_scores, chosen = (best + ABSENT * ended).topk(beams)
    state.parents = origins.gather(1, chosen)
    state.running = _extend(state.running, state.parents, tokens.gather(1, chosen), length)
    return has_ended


def _finish(state: _SearchState, sequences: torch.Tensor, scores: torch.Tensor, length: int) -> None:
    """Keep the best of the finished hypotheses and of `sequences` (B, K, T), given the `scores` (B, K) of these."""
    state.scores, chosen = torch.cat((state.scores, scores), dim=1).topk(scores.shape[1])
    state.lengths = torch.cat((state.lengths, torch.full_like(state.lengths, length)), dim=1).gather(1, chosen)
    merged = torch.cat((state.finished, sequences), dim=1)
    state.finished = merged.gather(1, chosen[..., None].expand_as(sequences))


def _is_complete(model: Any, state: _SearchState, length: int, settings: Any) -> torch.Tensor:
    """Return which sentences have K finished hypotheses that transformers does not expect to be beaten (B,)."""
    worst = state.scores[:, -1]
    if settings.early_stopping is True:
        return worst > ABSENT
    alpha = settings.length_penalty
    reachable = best_reachable_length(length, state.limits[:, 0], settings.early_stopping, alpha)
    return state.running_scores[:, 0] / model._length_penalty(reachable, alpha) <= worst


def best_reachable_length(
    length: int, longest: int | torch.Tensor, early_stopping: bool | str, alpha: float
) -> int | torch.Tensor:
    """Return the length at which a running hypothesis has the best score that it can reach.

    A log-probability only falls, so that score is the one of its longest continuation or, with transformers'
    heuristic, of its present length.
    """
    return longest if early_stopping == "never" and alpha > 0.0 else length
