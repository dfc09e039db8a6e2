"""Fast greedy and beam search, with the results of transformers' own loops.

`IncrementalDecoder` is the decoder arranged for search: it computes one position of every hypothesis per step, by the
arithmetic of `VanillaTransformerDecoder` with a cache.

- The beams of a sentence share its encoder output, so cross-attention stores one set of keys and values per sentence,
  which the K beams query together.
- Self-attention works the same way: the K beams of a sentence query the keys of all K beams, and a mask hides the keys
  outside a beam's own past. When beams are reordered, only the mask changes; no key or value is copied.
- The cache grows by several positions at a time, and the mask also hides those that are still unused. So attention
  always reads whole tensors, which libraries for matrix products do not have to copy first.
- On a CPU, the weights are first copied into the order in which oneDNN reads them, once for all searches. A single
  beam attends in float32 there, because products of one query with its keys in bfloat16 take twice as long.

`greedy_search` and `beam_search` run it, and remove sentences whose search has finished from the batch. Shapes use B
sentences, K beams per sentence, h heads, S source tokens, t positions decoded so far, and a vocabulary of V tokens.
"""

from collections.abc import Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.weak import WeakTensorKeyDictionary
from transformers.generation import ForcedEOSTokenLogitsProcessor, LogitNormalization, NoBadWordsLogitsProcessor

from .layers_vanilla_transformer import VanillaTransformerDecoderLayer

# Logits computed at once, unless a single row has more: few enough to save memory, but reading the weights for more
# rows at once is faster
LOGITS_PER_BLOCK = 2**23
LOGITS_PER_GPU_BLOCK = 2**28
CACHE_BLOCK = 8  # positions added to a cache whenever it is full
MIN_PACKED_ELEMENTS = 2**17
PACKED_FOR_ROWS = 32  # oneDNN's order for one row is slow for more, but not the other way round

# Masking the keys of other beams costs O(K^2), copying each beam's own keys O(K); masking is faster up to about this
# number of beams
MAX_FAST_BEAMS = 64

# transformers' score of beams and hypotheses that do not exist: below any log-probability, and finite
ABSENT = -1e9

# packed weights, and the state of those that they were packed from, for as long as the first parameter lives
_packed: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def _side_by_side(parameters: Sequence[torch.Tensor], heads: int) -> torch.Tensor:
    """Return the parameters of several projections as one, whose outputs are grouped by head."""
    if len(parameters) == 1:
        return parameters[0]
    # each (h d, d_model) -> (h, d, d_model); joined (h, d + ... + d, d_model), then one row per output again
    return torch.cat([parameter.unflatten(0, (heads, -1)) for parameter in parameters], dim=1).flatten(0, 1)


def _pack(weights: Sequence[torch.Tensor], heads: int) -> torch.Tensor:
    """Return the weights in oneDNN's own order, which are computed only when the weights have changed.

    Their versions tell, and the sums of their rows: changes through `.data`, as when PEFT merges an adapter, leave no
    other trace.
    """
    # those of inference mode have no version
    versions = [None if weight.is_inference() else weight._version for weight in weights]
    sums = torch.cat([weight.detach().sum(1, dtype=torch.float32) for weight in weights])
    if (known := _packed.get(weights[0])) is not None:
        packed, earlier_versions, earlier_sums = known
        if packed.dtype == weights[0].dtype and versions == earlier_versions and torch.equal(sums, earlier_sums):
            return packed
    packed = torch.ops.mkldnn._reorder_linear_weight(_side_by_side(weights, heads).detach(), PACKED_FOR_ROWS)
    _packed[weights[0]] = (packed, versions, sums)
    return packed


class PackedLinear:
    """Compute act(x W^T + b) for a few rows x, with act the identity or ReLU.

    On a CPU, weights in oneDNN's own order save a copy at every call: with 32 rows, the output layer of `base` takes a
    third of the time in float32 and half of it in bfloat16. They take as much memory as the weights, until the model
    is freed.

    Args:
        linears: one layer, or several with the same input, whose outputs are placed side by side for each head.
        heads: h.
        relu: whether act is ReLU.
    """

    def __init__(self, *linears: nn.Linear, heads: int = 1, relu: bool = False):
        weights = [linear.weight for linear in linears]
        biases = [linear.bias for linear in linears]
        self.bias = None if biases[0] is None else _side_by_side(biases, heads)
        self.relu = relu
        weight = weights[0]
        on_cpu = weight.device.type == "cpu" and torch.backends.mkldnn.is_available()
        # which would change the inputs' dtype
        self.is_packed = on_cpu and not torch.is_autocast_enabled("cpu")
        if weight.dtype == torch.bfloat16:
            self.is_packed = self.is_packed and torch.ops.mkldnn._is_mkldnn_bf16_supported()
        else:
            # torch multiplies small matrices in float32 faster itself
            is_large = sum(weight.numel() for weight in weights) >= MIN_PACKED_ELEMENTS
            self.is_packed = self.is_packed and weight.dtype == torch.float32 and is_large
        self.weight = _pack(weights, heads) if self.is_packed else _side_by_side(weights, heads)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the outputs for `x`. *Shape:* (N, inputs) to (N, outputs)."""
        if self.is_packed:
            activation = "relu" if self.relu else "none"
            return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, activation, [], "")
        output = nn.functional.linear(x, self.weight, self.bias)
        return output.relu_() if self.relu else output


def _by_head(key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return views of keys and values as batches of heads, for batched matrix products.

    *Shape:* two (B, h, S, d) to (B h, d, S) and (B h, S, d).
    """
    # `view`, which never copies: later steps write the keys and values that these views show
    keys = key.view(-1, *key.shape[2:]).transpose(1, 2)
    values = value.view(-1, *value.shape[2:])
    return keys, values


class _CachedLayer:
    """A decoder layer with its cached keys and values, stored head by head.

    Args:
        dtype: of the cache, in which the layer attends; None for that of the layer's keys.
    """

    def __init__(
        self,
        layer: VanillaTransformerDecoderLayer,
        encoder_states: torch.Tensor,
        num_beams: int,
        dtype: torch.dtype | None,
    ):
        attention = layer.self_attn
        cross = layer.encoder_attn
        self.layer = layer
        self.num_beams = num_beams
        self.num_heads = attention.num_heads
        self.d_k = attention.d_k
        self.scaling = attention.scaling
        self.query_key_value = PackedLinear(
            attention.q_proj, attention.k_proj, attention.v_proj, heads=attention.num_heads
        )
        self.out = PackedLinear(attention.out_proj)
        self.cross_query = PackedLinear(cross.q_proj)
        self.cross_out = PackedLinear(cross.out_proj)
        # oneDNN computes ReLU in the same pass as the product
        relu = type(layer.activation_fn) is nn.ReLU
        self.fc1 = PackedLinear(layer.fc1, relu=relu)
        self.fc2 = PackedLinear(layer.fc2)
        self.activation_fn = nn.Identity() if relu else layer.activation_fn
        key, value = cross.project_key_value(encoder_states)
        # (B, h, S, d)
        self.cross_key = key.contiguous().to(dtype=dtype)
        self.cross_value = value.contiguous().to(dtype=dtype)
        self.cross_attention = _by_head(self.cross_key, self.cross_value)
        # (B, h, capacity, d), of which t K rows are in use; `grow` adds the first ones
        self.key = self.cross_key[:, :, :0]
        self.value = self.cross_value[:, :, :0]

    def _split_heads(self, states: torch.Tensor) -> torch.Tensor:
        """Split the heads and group the beams by sentence. *Shape:* (B K, h d) to (B, h, K, d)."""
        return states.view(-1, self.num_beams, self.num_heads, states.shape[-1] // self.num_heads).transpose(1, 2)

    def _attend(self, query: torch.Tensor, keys_values: tuple[torch.Tensor, torch.Tensor], mask: torch.Tensor | None):
        """Compute scaled dot-product attention (section 3.2.1).

        For so few queries, two batched matrix products are faster on a CPU than torch's fused attention.

        *Shape:* query (B, h, K, d), keys (B h, d, S), values (B h, S, d), mask (B h, K, S) to (B K, h d).
        """
        keys, values = keys_values
        dtype = query.dtype
        query = query.flatten(0, 1).to(keys.dtype)
        # mask + Q K^T / sqrt(d_k) in one pass (B h, K, S); with a beta of 0, what is added is not even read
        if mask is None:
            scores = torch.baddbmm(query.new_empty(()), query, keys, beta=0.0, alpha=self.scaling)
        else:
            scores = torch.baddbmm(mask, query, keys, alpha=self.scaling)
        # (B h, K, d)
        output = torch.bmm(scores.softmax(-1), values)
        if self.num_beams > 1:
            # (B, h, K, d) -> (B, K, h, d)
            output = output.unflatten(0, (-1, self.num_heads)).transpose(1, 2)
        # (B K, h d)
        return output.reshape(-1, self.num_heads * values.shape[2]).to(dtype)

    def grow(self, rows: int):
        """Append `rows` unused rows to the cached keys and values."""
        # of zeros, because 0 times the NaN of uninitialised memory would be NaN
        self.key = nn.functional.pad(self.key, (0, 0, 0, rows))
        self.value = nn.functional.pad(self.value, (0, 0, 0, rows))
        self.self_attention = _by_head(self.key, self.value)

    def step(self, x: torch.Tensor, used: int, mask: torch.Tensor, cross_mask: torch.Tensor | None) -> torch.Tensor:
        """Run the layer on the next position, after `used` cached rows. *Shape:* (B K, d_model) to (B K, d_model)."""
        layer = self.layer
        # self-attention: each (B, h, K, d)
        states = self._split_heads(self.query_key_value(x))
        query, key, value = states.split([self.d_k, self.d_k, self.value.shape[3]], -1)
        self.key[:, :, used : used + self.num_beams] = key
        self.value[:, :, used : used + self.num_beams] = value
        output = self.out(self._attend(query, self.self_attention, mask))
        x = layer.self_attn_layer_norm(x + output)

        # cross-attention, whose keys and values never change
        query = self._split_heads(self.cross_query(x))
        output = self.cross_out(self._attend(query, self.cross_attention, cross_mask))
        x = layer.encoder_attn_layer_norm(x + output)

        # feed-forward
        output = self.fc2(self.activation_fn(self.fc1(x)))
        return layer.final_layer_norm(x + output)

    def keep(self, rows: torch.Tensor):
        """Keep only the sentences `rows` (indices into the batch)."""
        for name in ("cross_key", "cross_value", "key", "value"):
            setattr(self, name, getattr(self, name).index_select(0, rows))
        self.self_attention = _by_head(self.key, self.value)
        self.cross_attention = _by_head(self.cross_key, self.cross_value)


class IncrementalDecoder:
    """Run the decoder of `model` step by step on a batch of sentences.

    Args:
        encoder_states: (B, S, d_model).
        attention_mask: (B, S), 0 where the source is padding; None if there is no padding.
        num_beams: K, the number of beams per sentence.
    """

    def __init__(self, model: Any, encoder_states: torch.Tensor, attention_mask: torch.Tensor | None, num_beams: int):
        self.decoder = model.model.decoder
        self.before_step = model.before_step
        self.num_beams = num_beams
        self.num_heads = model.config.num_heads
        self.position = 0
        on_cpu = encoder_states.device.type == "cpu"
        dtype = None
        # autocast would convert the caches back at each step
        if on_cpu and num_beams == 1 and not torch.is_autocast_enabled("cpu"):
            dtype = torch.promote_types(encoder_states.dtype, torch.float32)
        self.layers = [_CachedLayer(layer, encoder_states, num_beams, dtype) for layer in self.decoder.layers]
        rows = len(encoder_states) * num_beams
        logits_per_block = LOGITS_PER_BLOCK if on_cpu else LOGITS_PER_GPU_BLOCK
        # at least one row, even of a vocabulary that is larger than a block
        self.block_rows = min(rows, max(1, logits_per_block // len(model.lm_head.weight)))
        self.lm_head = PackedLinear(model.lm_head)
        # (B, K, capacity): 0 at a beam's own past, -inf elsewhere
        self.self_mask = encoder_states.new_empty(len(encoder_states), num_beams, 0, dtype=dtype)
        # (K, K): at its own position, a beam sees only itself
        self.step_mask = self.self_mask.new_full((num_beams, num_beams), float("-inf")).fill_diagonal_(0.0)
        self.cross_mask = None
        if attention_mask is not None and not attention_mask.all():
            # not -inf, so that a row of only padding stays finite
            lowest = torch.finfo(self.self_mask.dtype).min
            mask = self.self_mask.new_zeros(attention_mask.shape).masked_fill(attention_mask == 0, lowest)
            # (B, S) -> (B h, 1, S)
            self.cross_mask = mask[:, None].repeat_interleave(self.num_heads, dim=0)

    def step(self, tokens: torch.Tensor, parents: torch.Tensor | None = None) -> torch.Tensor:
        """Return the decoder's output (B K, d_model) for the next position.

        Args:
            tokens: (B, K) latest token of each beam.
            parents: (B, K) beam of the previous step that each beam continues; None if each continues itself.
        """
        self.before_step()
        decoder = self.decoder
        beams = self.num_beams
        used = self.position * self.num_beams
        if self.position % CACHE_BLOCK == 0:
            self.self_mask = nn.functional.pad(self.self_mask, (0, CACHE_BLOCK * beams), value=float("-inf"))
            for layer in self.layers:
                layer.grow(CACHE_BLOCK * beams)
        if parents is not None:
            # a beam inherits the past of its parent
            self.self_mask = self.self_mask.gather(1, parents[..., None].expand_as(self.self_mask))
        self.self_mask[:, :, used : used + beams] = self.step_mask
        # (B, K, capacity) -> (B h, K, capacity)
        mask = self.self_mask.repeat_interleave(self.num_heads, dim=0)
        # (B K, d_model)
        x = decoder.embed_tokens(tokens.flatten()) * decoder.embed_scale
        x = x + decoder.embed_positions(self.position, 1).to(x)
        for layer in self.layers:
            x = layer.step(x, used, mask, self.cross_mask)
        self.position += 1
        return x

    def logits(self, states: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yield the logits (N, V) of the states (B K, d_model), a block at a time."""
        yield from map(self.lm_head, states.split(self.block_rows))

    def keep(self, rows: torch.Tensor):
        """Keep only the sentences `rows` (indices into the batch)."""
        for layer in self.layers:
            layer.keep(rows)
        self.self_mask = self.self_mask.index_select(0, rows)
        if self.cross_mask is not None:
            self.cross_mask = self.cross_mask.unflatten(0, (-1, self.num_heads)).index_select(0, rows).flatten(0, 1)


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
    model: Any,
    input_ids: torch.Tensor,
    limits: torch.Tensor,
    rules: OutputRules,
    settings: Any,
    model_kwargs: dict,
    has_scores: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Decode with the most likely token at every step. *Shape:* (B, 1) to (B, T), and the scores (B,) if requested.

    Args:
        input_ids: (B, 1) start tokens.
        limits: (B, 1) maximum number of tokens after the start token, per sentence.
        rules: which tokens may be chosen.
        settings: the generation config as prepared by `generate()`.
        model_kwargs: the decoder's keyword arguments as prepared by `generate()`.
        has_scores: whether to sum up log-probabilities, for which each step reads its logits once more.
    """
    decoder = IncrementalDecoder(model, model_kwargs["encoder_outputs"][0], model_kwargs.get("attention_mask"), 1)
    padding = int(settings._pad_token_tensor)
    # (B, columns)
    output = input_ids
    rows = torch.arange(len(input_ids), device=input_ids.device)
    state = _SearchState(rows=rows, tokens=input_ids, limits=limits, done=torch.zeros_like(rows, dtype=torch.bool))
    # of each sentence in the whole batch, its log-probability and its number of tokens
    sums = torch.zeros(len(rows), device=rows.device)
    lengths = torch.zeros_like(rows)
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
        tokens, log_probs = zip(*(_next_tokens(block, rules, length, has_scores) for block in logits), strict=True)
        # (B, 1)
        state.tokens = torch.cat(tokens)
        # sentences that are done may stay in the batch for some steps
        output[state.rows, length] = state.tokens[:, 0].masked_fill(state.done, padding)
        if has_scores:
            sums.index_add_(0, state.rows, torch.cat(log_probs).masked_fill(state.done, 0.0))
            lengths.index_add_(0, state.rows, (~state.done).long())
        state.done |= (torch.isin(state.tokens, settings._eos_token_tensor) | (length >= state.limits))[:, 0]
    scores = sums / model._length_penalty(lengths, settings.length_penalty) if has_scores else None
    return output[:, : length + 1], scores


def _next_tokens(
    logits: torch.Tensor, rules: OutputRules, length: int, has_scores: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the most likely tokens (N, 1) at position `length`, and their log-probabilities (N,) if requested."""
    # before the rules, which may change the logits; one fused operation, rounded no more than the logits are
    log_probs = logits.log_softmax(1) if has_scores else None
    # much faster on a CPU than `argmax`, and also the first of several equal ones
    tokens = rules.apply(logits, length).max(1, keepdim=True).indices
    return tokens, None if log_probs is None else log_probs.gather(1, tokens)[:, 0].float()


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
