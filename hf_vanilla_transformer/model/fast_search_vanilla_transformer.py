"""Fast greedy and beam search, over the decoder of Figure 1 one position of every hypothesis at a time.

The same arithmetic as `VanillaTransformerDecoder` with its cache, arranged for search. Shapes use B sentences, K beams
of each, h heads, S source tokens, and t positions so far.

- The beams of a sentence share its encoder output, so cross-attention keeps one set of keys and values a sentence, and
  the K beams are K queries to it.
- Self-attention works the same way: every beam may look at the keys of all K beams of its sentence, and a mask hides
  those that are not its own past. When beams are reordered, only the mask moves; no key or value is copied.
- Sentences whose search is over leave the batch.
"""

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from .layers_vanilla_transformer import (
    VanillaTransformerDecoderLayer,
)

# Hiding the keys of other beams costs K^2, copying one's own costs K; up to about this many, hiding is quicker
MAX_FAST_BEAMS = 64
FIRST_CAPACITY = 16  # positions that a new cache has room for; it grows by half when they are used up


def _left_linear(linear: nn.Linear, columns: torch.Tensor) -> torch.Tensor:
    """W x + b for columns x. *Shape:* (inputs, N) to (outputs, N).

    With a large matrix on the left, a CPU is up to a third faster at a search's few columns.
    """
    output = torch.mm(linear.weight, columns)
    return output if linear.bias is None else output.add_(linear.bias[:, None])


class _Layer:
    """A decoder layer with the keys and values it has seen, each head's together."""

    def __init__(self, layer: VanillaTransformerDecoderLayer, encoder_states: torch.Tensor, num_beams: int):
        self.layer, self.num_beams, self.num_heads = layer, num_beams, layer.self_attn.num_heads
        cross = layer.encoder_attn.project_key_value(encoder_states)
        self.cross_key, self.cross_value = (states.flatten(0, 1) for states in cross)  # (B h, S, d)
        rows, capacity = len(self.cross_key), FIRST_CAPACITY * num_beams
        self.key = encoder_states.new_empty(rows, capacity, layer.self_attn.d_k)  # (B h, t K, d), with room to grow
        self.value = encoder_states.new_empty(rows, capacity, layer.self_attn.d_v)

    def _heads(self, states: torch.Tensor) -> torch.Tensor:
        """(B K, h d) to (B h, K, d)."""
        return (
            states.view(-1, self.num_beams, self.num_heads, states.shape[-1] // self.num_heads)
            .transpose(1, 2)
            .flatten(0, 1)
        )

    def _attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None):
        """Section 3.2.1 for queries (B K, h d), keys and values (B h, S, d), and a mask (B h, K, S); gives (B K, h d).

        For so few queries two batched products are quicker on a CPU than its fused attention.
        """
        query, key = self._heads(query * key.shape[-1] ** -0.5), key.transpose(1, 2)
        scores = torch.bmm(query, key) if mask is None else torch.baddbmm(mask, query, key)
        output = torch.bmm(scores.softmax(-1), value).unflatten(0, (-1, self.num_heads))  # (B, h, K, d)
        return output.transpose(1, 2).flatten(2).flatten(0, 1)

    def _store(self, name: str, states: torch.Tensor, used: int) -> torch.Tensor:
        """Puts `states` (B K, h d) behind the `used` rows of the cache; gives all of them, (B h, used + K, d)."""
        cache, end = getattr(self, name), used + self.num_beams
        if end > cache.shape[1]:
            grown = cache.new_empty(len(cache), end + cache.shape[1] // 2, cache.shape[2])
            grown[:, :used] = cache[:, :used]
            setattr(self, name, grown)
            cache = grown
        cache[:, used:end] = self._heads(states)
        return cache[:, :end]

    def step(
        self, x: torch.Tensor, used: int, mask: torch.Tensor | None, cross_mask: torch.Tensor | None
    ) -> torch.Tensor:
        """(B K, d_model) to the same, one position on."""
        layer, attention, cross = self.layer, self.layer.self_attn, self.layer.encoder_attn
        keys, values = self._store("key", attention.k_proj(x), used), self._store("value", attention.v_proj(x), used)
        output = attention.out_proj(self._attend(attention.q_proj(x), keys, values, mask))
        x = layer.self_attn_layer_norm(x + output)
        output = cross.out_proj(self._attend(cross.q_proj(x), self.cross_key, self.cross_value, cross_mask))
        x = layer.encoder_attn_layer_norm(x + output)
        inner = layer.activation_fn(_left_linear(layer.fc1, x.t()))
        return layer.final_layer_norm(x + _left_linear(layer.fc2, inner).t())

    def keep(self, rows: torch.Tensor):
        """Only the sentences `rows` stay."""
        for name in ("cross_key", "cross_value", "key", "value"):
            cache = getattr(self, name).unflatten(0, (-1, self.num_heads))
            setattr(self, name, cache[rows].flatten(0, 1))


class IncrementalDecoder:
    """The decoder of `model` over a batch of sentences.

    Args:
        encoder_states: (B, S, d_model).
        attention_mask: (B, S), 0 where the source is padding; None where there is none.
    """

    def __init__(self, model: Any, encoder_states: torch.Tensor, attention_mask: torch.Tensor | None, num_beams: int):
        self.model, self.num_beams, self.num_heads = model, num_beams, model.config.num_heads
        self.position = 0
        self.layers = [_Layer(layer, encoder_states, num_beams) for layer in model.model.decoder.layers]
        self.visible: torch.Tensor | None = None  # (B, K, t K): 0 at a beam's own past, -inf elsewhere
        self.others = encoder_states.new_full((num_beams, num_beams), float("-inf")).fill_diagonal_(0.0)
        self.cross_mask = None
        if attention_mask is not None and not attention_mask.all():
            lowest = torch.finfo(encoder_states.dtype).min  # not -inf: a row of padding alone stays finite
            mask = encoder_states.new_zeros(attention_mask.shape).masked_fill(attention_mask == 0, lowest)
            self.cross_mask = self._for_heads(mask[:, None])  # (B h, 1, S)

    def _for_heads(self, mask: torch.Tensor) -> torch.Tensor:
        """(B, K, S) to (B h, K, S)."""
        return mask.repeat_interleave(self.num_heads, dim=0)

    def step(self, tokens: torch.Tensor, parents: Any = None) -> torch.Tensor:
        """Logits (vocab_size, B K) after the newest tokens (B, K), which continue the beams `parents` (B, K)."""
        decoder, used = self.model.model.decoder, self.position * self.num_beams
        if self.num_beams > 1:
            own = self.others.expand(len(tokens), -1, -1)
            if self.visible is None:
                self.visible = own
            else:
                past = self.visible.gather(1, parents[..., None].expand(-1, -1, used))
                self.visible = torch.cat((past, own), dim=-1)
        mask = None if self.visible is None else self._for_heads(self.visible)
        x = decoder.embed_tokens(tokens.flatten()) * decoder.embed_scale
        x = x + decoder.embed_positions(self.position, 1)
        for layer in self.layers:
            x = layer.step(x, used, mask, self.cross_mask)
        self.position += 1
        return _left_linear(self.model.lm_head, x.t())

    def keep(self, rows: torch.Tensor):
        """Only the sentences `rows` (indices into the batch) stay."""
        for layer in self.layers:
            layer.keep(rows)
        if self.visible is not None:
            self.visible = self.visible[rows]
        if self.cross_mask is not None:
            self.cross_mask = self.cross_mask.unflatten(0, (-1, self.num_heads))[rows].flatten(0, 1)


def top_tokens(logits: torch.Tensor, count: int, block: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    """The `count` highest of each column of `logits` (V, N) and their places, in no order; both (N, count or V).

    They lie in the `count` blocks of rows with the highest maxima, and maxima are far quicker to find than places.
    """
    size, columns = logits.shape
    if size < 4 * block * count:
        values, places = logits.topk(min(count, size), dim=0, sorted=False)
        return values.t(), places.t()
    whole = size - size % block
    maxima = logits[:whole].view(-1, block, columns).amax(1)  # (V / block, N)
    if whole < size:
        maxima = torch.cat((maxima, logits[whole:].amax(0, keepdim=True)))
    blocks = maxima.t().topk(count, sorted=False).indices  # (N, count)
    places = (blocks[..., None] * block + torch.arange(block, device=logits.device)).flatten(1)
    values = logits.gather(0, places.clamp(max=size - 1).t()).t().masked_fill(places >= size, float("-inf"))
    values, chosen = values.topk(count, sorted=False)
    return values, places.gather(1, chosen)


class _State(SimpleNamespace):
    """What a search knows of each sentence that is still in the batch: tensors whose first dimension is B."""

    def keep(self, rows: torch.Tensor):
        """Only the sentences `rows` stay."""
        self.__dict__.update({name: tensor[rows] for name, tensor in vars(self).items()})


def _time_to_leave(done: torch.Tensor) -> bool:
    """Whether enough sentences are `done` to make up for copying what the others need when they leave."""
    return len(done) <= 8 * int(done.sum())


def greedy_search(
    model: Any, input_ids: torch.Tensor, limits: torch.Tensor, settings: Any, model_kwargs: dict
) -> torch.Tensor:
    """The likeliest token at every step. *Shape:* (B, 1) to (B, T).

    Args:
        limits: (B, 1) tokens after the start token that a sentence may have.
        settings: the generation config that `generate()` has prepared.
        model_kwargs: what `generate()` has prepared for the decoder.
    """
    decoder = IncrementalDecoder(model, model_kwargs["encoder_outputs"][0], model_kwargs.get("attention_mask"), 1)
    output = input_ids.new_full((len(input_ids), settings.max_length), int(settings._pad_token_tensor))
    output[:, :1] = input_ids
    places = torch.arange(len(input_ids), device=input_ids.device)
    state = _State(places=places, tokens=input_ids, limits=limits, done=torch.zeros_like(places, dtype=torch.bool))
    length = 0
    while not state.done.all():
        if _time_to_leave(state.done):
            rows = (~state.done).nonzero()[:, 0]
            decoder.keep(rows)
            state.keep(rows)
        length += 1
        state.tokens = decoder.step(state.tokens).argmax(0)[:, None]
        output[state.places[~state.done], length] = state.tokens[~state.done, 0]
        state.done |= (torch.isin(state.tokens, settings._eos_token_tensor) | (length >= state.limits))[:, 0]
    return output[:, : length + 1]


def beam_search(
    model: Any, input_ids: torch.Tensor, limits: torch.Tensor, settings: Any, model_kwargs: dict
) -> torch.Tensor:
    """Search as transformers' beam search does, step for step. *Shape:* (B, 1) to (B num_return_sequences, T).

    The model's own methods score finished hypotheses and bound running ones, as they do for transformers' loop.
    Arguments as in `greedy_search`.
    """
    beams, mask = settings.num_beams, model_kwargs.get("attention_mask")
    encoder_states = model_kwargs["encoder_outputs"][0][::beams]
    decoder = IncrementalDecoder(model, encoder_states, None if mask is None else mask[::beams], beams)
    state = _initial_state(input_ids, limits, settings)
    output, lengths, length = state.running.clone(), state.lengths.clone(), 0
    while True:
        if _time_to_leave(state.done):
            left, rows = state.places[state.done], (~state.done).nonzero()[:, 0]
            output[left], lengths[left] = state.finished[state.done], state.lengths[state.done]
            if len(rows) == 0:
                break
            decoder.keep(rows)
            state.keep(rows)
        logits = decoder.step(state.running[:, :, length], state.parents).float()  # (V, B K)
        length += 1
        candidates = _candidates(logits, state.running_scores, settings)
        _advance(model, state, candidates, length, settings)
    longest = 1 + int(lengths[:, : settings.num_return_sequences].max())
    return output[:, : settings.num_return_sequences, :longest].flatten(0, 1)


def _initial_state(input_ids: torch.Tensor, limits: torch.Tensor, settings: Any) -> _State:
    batch_size, beams = len(input_ids), settings.num_beams
    fill = int(settings._pad_token_tensor) or int(settings._eos_token_tensor[0])
    sequences = input_ids.new_full((batch_size, beams, settings.max_length), fill)  # (B, K, T)
    sequences[:, :, 0] = input_ids
    scores = torch.full((batch_size, beams), -1e9, device=input_ids.device)
    return _State(
        places=torch.arange(batch_size, device=input_ids.device),
        limits=limits,
        running=sequences,
        # all beams are the same at first: only one of them may be continued
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
    logits: torch.Tensor, running_scores: torch.Tensor, settings: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the best continuations of each sentence: log-probabilities, their beams and tokens, each (B, candidates).

    Args:
        logits: (V, B K), overwritten.
        running_scores: (B, K) log-probabilities of the beams.
    """
    beams = settings.num_beams
    count = max(2, 1 + len(settings._eos_token_tensor)) * beams  # enough for all beams to continue if others end
    best, tokens = top_tokens(logits, count)
    highest = best.amax(-1)
    partition = highest + logits.sub_(highest).exp_().sum(0).log()  # in place: the logits are not needed any more
    best = (best - partition[:, None]).unflatten(0, (-1, beams)) + running_scores[..., None]
    origins = torch.arange(beams, device=best.device)[:, None].expand_as(best).flatten(1)
    best, chosen = best.flatten(1).topk(count)
    return best, origins.gather(1, chosen), tokens.reshape(len(best), -1).gather(1, chosen)


def _advance(
    model: Any,
    state: _State,
    candidates: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    length: int,
    settings: Any,
) -> None:
    """Extend the beams by the best continuations, and move those that end to the finished hypotheses."""
    best, origins, tokens = candidates
    beams, early_stopping, alpha = settings.num_beams, settings.early_stopping, settings.length_penalty
    extended = model._gather_beams(state.running, origins)
    extended[:, :, length] = tokens
    ended = torch.isin(tokens, settings._eos_token_tensor) | (length >= state.limits)
    state.finished, state.scores, state.lengths, state.is_finished = model._update_finished_beams(
        sequences=state.finished,
        topk_running_sequences=extended,
        beam_scores=state.scores,
        topk_log_probs=best,
        beam_indices=state.lengths,  # transformers keeps the ancestors here, of which only the number is needed
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
