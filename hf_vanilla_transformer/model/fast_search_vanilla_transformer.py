"""Fast greedy and beam search, decoding one position of every hypothesis per step.

The arithmetic is that of `VanillaTransformerDecoder` with a cache, arranged for search. Shapes use B sentences, K
beams per sentence, h heads, S source tokens, and t positions decoded so far.

- The beams of a sentence share its encoder output, so cross-attention stores one set of keys and values per sentence,
  which the K beams query together.
- Self-attention works the same way: the K beams of a sentence query the keys of all K beams, and a mask hides the keys
  outside a beam's own past. When beams are reordered, only the mask changes; no key or value is copied.
- Sentences whose search has finished are removed from the batch.
"""

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from .layers_vanilla_transformer import VanillaTransformerDecoderLayer

# Masking the keys of other beams costs O(K^2), copying each beam's own keys O(K); masking is faster up to about this
# number of beams
MAX_FAST_BEAMS = 64
INITIAL_CAPACITY = 16  # positions allocated in a new cache, which grows by half of its size when it is full


def _linear_on_columns(linear: nn.Linear, columns: torch.Tensor) -> torch.Tensor:
    """Return W x + b for each column x. *Shape:* (inputs, N) to (outputs, N).

    With the large matrix on the left, a CPU is up to a third faster for the few columns of a search.
    """
    output = torch.mm(linear.weight, columns)
    return output if linear.bias is None else output.add_(linear.bias[:, None])


class _CachedLayer:
    """A decoder layer with its cached keys and values, stored head by head."""

    def __init__(self, layer: VanillaTransformerDecoderLayer, encoder_states: torch.Tensor, num_beams: int):
        self.layer, self.num_beams, self.num_heads = layer, num_beams, layer.self_attn.num_heads
        cross = layer.encoder_attn.project_key_value(encoder_states)
        self.cross_key, self.cross_value = (states.flatten(0, 1) for states in cross)  # (B h, S, d)
        rows, capacity = len(self.cross_key), INITIAL_CAPACITY * num_beams
        self.key = encoder_states.new_empty(rows, capacity, layer.self_attn.d_k)  # (B h, capacity, d), t K rows in use
        self.value = encoder_states.new_empty(rows, capacity, layer.self_attn.d_v)

    def _split_heads(self, states: torch.Tensor) -> torch.Tensor:
        """Split the heads and group the beams by sentence. *Shape:* (B K, h d) to (B, h, K, d)."""
        heads = (self.num_heads, states.shape[-1] // self.num_heads)
        return states.view(-1, self.num_beams, *heads).transpose(1, 2)

    def _attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None):
        """Compute scaled dot-product attention (section 3.2.1).

        For so few queries, two batched matrix products are faster on a CPU than torch's fused attention.

        *Shape:* query (B K, h d), key and value (B h, S, d), mask (B h, K, S) to (B K, h d).
        """
        query, scaling = self._split_heads(query).flatten(0, 1), key.shape[-1] ** -0.5
        mask, beta = (query.new_empty(()), 0.0) if mask is None else (mask, 1.0)
        scores = torch.baddbmm(mask, query, key.transpose(1, 2), beta=beta, alpha=scaling)
        output = torch.bmm(scores.softmax(-1), value).unflatten(0, (-1, self.num_heads))  # (B, h, K, d)
        return output.transpose(1, 2).flatten(2).flatten(0, 1)

    def _append(self, name: str, states: torch.Tensor, used: int) -> torch.Tensor:
        """Append `states` (B K, h d) to the `used` rows of the cache `name`; return all rows (B h, used + K, d)."""
        cache, end = getattr(self, name), used + self.num_beams
        if end > cache.shape[1]:
            grown = cache.new_empty(len(cache), end + cache.shape[1] // 2, cache.shape[2])
            grown[:, :used] = cache[:, :used]
            setattr(self, name, grown)
            cache = grown
        cache.unflatten(0, (-1, self.num_heads))[:, :, used:end] = self._split_heads(states)
        return cache[:, :end]

    def step(
        self, x: torch.Tensor, used: int, mask: torch.Tensor | None, cross_mask: torch.Tensor | None
    ) -> torch.Tensor:
        """Run the layer on the next position, after `used` cached rows. *Shape:* (B K, d_model) to (B K, d_model)."""
        layer, attention, cross = self.layer, self.layer.self_attn, self.layer.encoder_attn
        keys, values = self._append("key", attention.k_proj(x), used), self._append("value", attention.v_proj(x), used)
        output = attention.out_proj(self._attend(attention.q_proj(x), keys, values, mask))
        x = layer.self_attn_layer_norm(x + output)
        output = cross.out_proj(self._attend(cross.q_proj(x), self.cross_key, self.cross_value, cross_mask))
        x = layer.encoder_attn_layer_norm(x + output)
        inner = layer.activation_fn(_linear_on_columns(layer.fc1, x.t()))
        return layer.final_layer_norm(x + _linear_on_columns(layer.fc2, inner).t())

    def keep(self, rows: torch.Tensor):
        """Keep only the sentences `rows` (indices into the batch)."""
        for name in ("cross_key", "cross_value", "key", "value"):
            cache = getattr(self, name).unflatten(0, (-1, self.num_heads))
            setattr(self, name, cache[rows].flatten(0, 1))


class IncrementalDecoder:
    """Run the decoder of `model` step by step on a batch of sentences.

    Args:
        encoder_states: (B, S, d_model).
        attention_mask: (B, S), 0 where the source is padding; None if there is no padding.
        num_beams: K, the number of beams per sentence.
    """

    def __init__(self, model: Any, encoder_states: torch.Tensor, attention_mask: torch.Tensor | None, num_beams: int):
        self.model, self.num_beams, self.num_heads = model, num_beams, model.config.num_heads
        self.position = 0
        self.layers = [_CachedLayer(layer, encoder_states, num_beams) for layer in model.model.decoder.layers]
        self.self_mask: torch.Tensor | None = None  # (B, K, t K): 0 at a beam's own past, -inf elsewhere
        self.step_mask = encoder_states.new_full((num_beams, num_beams), float("-inf")).fill_diagonal_(0.0)
        self.cross_mask = None
        if attention_mask is not None and not attention_mask.all():
            lowest = torch.finfo(encoder_states.dtype).min  # not -inf, so that a row of only padding stays finite
            mask = encoder_states.new_zeros(attention_mask.shape).masked_fill(attention_mask == 0, lowest)
            self.cross_mask = self._repeat_for_heads(mask[:, None])  # (B h, 1, S)

    def _repeat_for_heads(self, mask: torch.Tensor) -> torch.Tensor:
        """Repeat a mask for every head. *Shape:* (B, K, S) to (B h, K, S)."""
        return mask.repeat_interleave(self.num_heads, dim=0)

    def step(self, tokens: torch.Tensor, parents: torch.Tensor | None = None) -> torch.Tensor:
        """Return the logits (vocab_size, B K) of the next position.

        Args:
            tokens: (B, K) latest token of each beam.
            parents: (B, K) beam of the previous step that each beam continues. Ignored at the first step, and with
                one beam.
        """
        decoder, used = self.model.model.decoder, self.position * self.num_beams
        if self.num_beams > 1:
            present = self.step_mask.expand(len(tokens), -1, -1)
            if self.self_mask is None:
                self.self_mask = present
            else:
                assert parents is not None
                past = self.self_mask.gather(1, parents[..., None].expand(-1, -1, used))
                self.self_mask = torch.cat((past, present), dim=-1)
        mask = None if self.self_mask is None else self._repeat_for_heads(self.self_mask)
        x = decoder.embed_tokens(tokens.flatten()) * decoder.embed_scale
        x = x + decoder.embed_positions(self.position, 1)
        for layer in self.layers:
            x = layer.step(x, used, mask, self.cross_mask)
        self.position += 1
        return _linear_on_columns(self.model.lm_head, x.t())

    def keep(self, rows: torch.Tensor):
        """Keep only the sentences `rows` (indices into the batch)."""
        for layer in self.layers:
            layer.keep(rows)
        if self.self_mask is not None:
            self.self_mask = self.self_mask[rows]
        if self.cross_mask is not None:
            self.cross_mask = self.cross_mask.unflatten(0, (-1, self.num_heads))[rows].flatten(0, 1)


def top_tokens(logits: torch.Tensor, count: int, block: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the `count` highest logits of each column and their tokens, in no particular order.

    They lie in the `count` blocks of rows with the highest maxima, and a maximum is much faster to find than a top-k.

    *Shape:* (V, N) to two tensors (N, min(count, V)).
    """
    size, columns = logits.shape
    if size < 4 * block * count:
        values, tokens = logits.topk(min(count, size), dim=0, sorted=False)
        return values.t(), tokens.t()
    whole = size - size % block  # rows in whole blocks
    maxima = logits[:whole].view(-1, block, columns).amax(1)  # (V / block, N)
    if whole < size:
        maxima = torch.cat((maxima, logits[whole:].amax(0, keepdim=True)))
    blocks = maxima.t().topk(count, sorted=False).indices  # (N, count)
    tokens = (blocks[..., None] * block + torch.arange(block, device=logits.device)).flatten(1)  # (N, count block)
    values = logits.gather(0, tokens.clamp(max=size - 1).t()).t().masked_fill(tokens >= size, float("-inf"))
    values, chosen = values.topk(count, sorted=False)
    return values, tokens.gather(1, chosen)


class _SearchState(SimpleNamespace):
    """State of a search for each sentence still in the batch: tensors whose first dimension is B."""

    def keep(self, rows: torch.Tensor):
        """Keep only the sentences `rows` (indices into the batch)."""
        self.__dict__.update({name: tensor[rows] for name, tensor in vars(self).items()})


def _split_when_worthwhile(done: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return the rows that are `done` and the others if enough are done to justify copying the others' caches."""
    count = int(done.sum())  # the only value for which a search waits at each position
    if len(done) > 8 * count:
        return None
    rows = done.int().argsort(descending=True, stable=True)
    return rows[:count], rows[count:]


def greedy_search(
    model: Any, input_ids: torch.Tensor, limits: torch.Tensor, generation_config: Any, model_kwargs: dict
) -> torch.Tensor:
    """Decode with the most likely token at every step. *Shape:* (B, 1) to (B, T).

    Args:
        input_ids: (B, 1) start tokens.
        limits: (B, 1) maximum number of tokens after the start token, per sentence.
        generation_config: the generation config as prepared by `generate()`.
        model_kwargs: the decoder's keyword arguments as prepared by `generate()`.
    """
    decoder = IncrementalDecoder(model, model_kwargs["encoder_outputs"][0], model_kwargs.get("attention_mask"), 1)
    padding = int(generation_config._pad_token_tensor)
    output = input_ids.new_full((len(input_ids), generation_config.max_length), padding)
    output[:, :1] = input_ids
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
        state.tokens = decoder.step(state.tokens).argmax(0)[:, None]
        output[state.rows, length] = state.tokens[:, 0].masked_fill(state.done, padding)
        state.done |= (torch.isin(state.tokens, generation_config._eos_token_tensor) | (length >= state.limits))[:, 0]
    return output[:, : length + 1]


def beam_search(
    model: Any, input_ids: torch.Tensor, limits: torch.Tensor, generation_config: Any, model_kwargs: dict
) -> torch.Tensor:
    """Run the same beam search as transformers, step by step. *Shape:* (B, 1) to (B num_return_sequences, T).

    As in transformers' loop, methods of the model score the finished hypotheses and bound the running ones. The
    arguments are those of `greedy_search`.
    """
    beams, mask = generation_config.num_beams, model_kwargs.get("attention_mask")
    encoder_states = model_kwargs["encoder_outputs"][0][::beams]
    decoder = IncrementalDecoder(model, encoder_states, None if mask is None else mask[::beams], beams)
    state = _initial_state(input_ids, limits, generation_config)
    output, lengths, length = state.running.clone(), state.lengths.clone(), 0
    while True:
        if (split := _split_when_worthwhile(state.done)) is not None:
            removed, kept = split
            rows = state.rows[removed]
            output[rows], lengths[rows] = state.finished[removed], state.lengths[removed]
            if len(kept) == 0:
                break
            decoder.keep(kept)
            state.keep(kept)
        logits = decoder.step(state.running[:, :, length], state.parents).float()  # (V, B K)
        length += 1
        candidates = _candidates(logits, state.running_scores, generation_config)
        _advance(model, state, candidates, length, generation_config)
    longest = 1 + int(lengths[:, : generation_config.num_return_sequences].max())
    return output[:, : generation_config.num_return_sequences, :longest].flatten(0, 1)


def _initial_state(input_ids: torch.Tensor, limits: torch.Tensor, generation_config: Any) -> _SearchState:
    """Return the state before the first step, for start tokens (B, 1) and limits (B, 1)."""
    batch_size, beams = len(input_ids), generation_config.num_beams
    fill = int(generation_config._pad_token_tensor) or int(generation_config._eos_token_tensor[0])
    sequences = input_ids.new_full((batch_size, beams, generation_config.max_length), fill)  # (B, K, T)
    sequences[:, :, 0] = input_ids
    scores = torch.full((batch_size, beams), -1e9, device=input_ids.device)
    return _SearchState(
        rows=torch.arange(batch_size, device=input_ids.device),  # indices into the output
        limits=limits,
        running=sequences,
        # all beams are identical at first, so only one of them may be continued
        running_scores=scores.index_fill(1, limits.new_zeros(1), 0.0),
        parents=input_ids.new_zeros(batch_size, beams),
        finished=sequences,
        scores=scores,
        is_finished=torch.zeros_like(scores, dtype=torch.bool),
        lengths=input_ids.new_zeros(batch_size, beams, 1),
        can_improve=torch.ones_like(limits, dtype=torch.bool),
        done=torch.zeros_like(limits[:, 0], dtype=torch.bool),
    )


def _candidates(
    logits: torch.Tensor, running_scores: torch.Tensor, generation_config: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the log-probabilities, beams and tokens of each sentence's best continuations, each (B, candidates).

    Args:
        logits: (V, B K); overwritten.
        running_scores: (B, K) log-probabilities of the beams.
    """
    beams = generation_config.num_beams
    # enough candidates to continue all beams even if others end
    count = max(2, 1 + len(generation_config._eos_token_tensor)) * beams
    best, tokens = top_tokens(logits, count)
    highest = best.amax(-1)
    partition = highest + logits.sub_(highest).exp_().sum(0).log()  # in place to save memory
    best = (best - partition[:, None]).unflatten(0, (-1, beams)) + running_scores[..., None]
    origins = torch.arange(beams, device=best.device)[:, None].expand_as(best).flatten(1)
    best, chosen = best.flatten(1).topk(count)
    return best, origins.gather(1, chosen), tokens.reshape(len(best), -1).gather(1, chosen)


def _advance(
    model: Any,
    state: _SearchState,
    candidates: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    length: int,
    generation_config: Any,
) -> None:
    """Extend the beams with the best continuations and move those that end to the finished hypotheses."""
    best, origins, tokens = candidates
    beams, alpha = generation_config.num_beams, generation_config.length_penalty
    early_stopping = generation_config.early_stopping
    extended = model._gather_beams(state.running, origins)
    extended[:, :, length] = tokens
    ended = torch.isin(tokens, generation_config._eos_token_tensor) | (length >= state.limits)
    state.finished, state.scores, state.lengths, state.is_finished = model._update_finished_beams(
        sequences=state.finished,
        topk_running_sequences=extended,
        beam_scores=state.scores,
        topk_log_probs=best,
        beam_indices=state.lengths,  # transformers stores the beam of each token here; only their number is needed
        topk_running_beam_indices=torch.full_like(tokens, length)[..., None],
        is_early_stop_heuristic_unsatisfied=state.can_improve,
        is_sent_finished=state.is_finished,
        next_token_hits_stopping_criteria=ended,
        top_num_beam_mask=torch.arange(tokens.shape[1], device=tokens.device) < beams,
        num_beams=beams,
        cur_len=length,
        decoder_prompt_len=1,
        length_penalty=alpha,
        early_stopping=early_stopping,
    )
    state.running_scores, chosen = (best - 1e9 * ended).topk(beams)
    state.running, state.parents = model._gather_beams(extended, chosen), origins.gather(1, chosen)
    state.can_improve = model._check_early_stop_heuristic(
        is_early_stop_heuristic_unsatisfied=state.can_improve,
        running_beam_scores=state.running_scores,
        beam_scores=state.scores,
        is_sent_finished=state.is_finished,
        cur_len=length + 1,
        max_length=state.limits + 1,
        decoder_prompt_len=1,
        early_stopping=early_stopping,
        length_penalty=alpha,
    )
    state.done |= ~state.can_improve[:, 0] | ended.all(-1)
    if early_stopping is True:
        state.done |= state.is_finished.all(-1)
