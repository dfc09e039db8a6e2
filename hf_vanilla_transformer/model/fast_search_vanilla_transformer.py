"""Fast greedy and beam search, with the results of transformers' own loops.

`IncrementalDecoder` is the decoder arranged for search: it computes one position of every hypothesis per step, by the
arithmetic of `VanillaTransformerDecoder` with a cache.

- The beams of a sentence share its encoder output, so cross-attention stores one set of keys and values per sentence,
  which the K beams query together.
- Self-attention works the same way: the K beams of a sentence query the keys of all K beams, and a mask hides the keys
  outside a beam's own past. When beams are reordered, only the mask changes; no key or value is copied.
- The cache grows by several positions at a time, and the mask also hides those that are still unused. So attention
  always reads whole tensors, which libraries for matrix products do not have to copy first.
- On a CPU, the weights are first copied into the order in which oneDNN reads them, once for all searches, but not for
  the greedy search of one sentence in float32. A single beam attends in float32 there, because products of one query
  with its keys in bfloat16 take twice as long.

`GreedySearch` and `BeamSearch` run it, and remove sentences whose search has finished from the batch. Each is written
once for two kinds of memory. Usually it grows with the output, and the host decides what a step may leave out. With a
`capacity`, all tensors keep their shapes, the position is a tensor too, and no step waits for the device, so that
`graphs_vanilla_transformer.py` can capture a step as a CUDA graph.

Shapes use B sentences, K beams per sentence, h heads, S source tokens, t positions decoded so far, and a vocabulary of
V tokens.
"""

import copy
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.weak import WeakTensorKeyDictionary
from transformers.generation import ForcedEOSTokenLogitsProcessor, LogitNormalization, NoBadWordsLogitsProcessor

from .graphs_vanilla_transformer import MIN_CAPACITY, bucket, lend_graphs, power_of_two
from .layers_vanilla_transformer import LearnedPositions, VanillaTransformerDecoderLayer

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


def _row_sums(weight: torch.Tensor) -> torch.Tensor:
    """Return a sum of each row, which differs whenever one of its numbers does.

    The bits are added up as 64-bit integers: nothing is rounded, and in bfloat16 this takes a tenth of the time of
    adding up the numbers themselves.
    """
    weight = weight.detach()
    is_aligned = (weight.shape[1] * weight.itemsize) % 8 == 0 and (weight.storage_offset() * weight.itemsize) % 8 == 0
    if is_aligned and weight.is_contiguous():
        return weight.view(torch.int64).sum(1)
    return weight.sum(1, dtype=torch.float64)


def _pack(weights: Sequence[torch.Tensor], heads: int) -> torch.Tensor:
    """Return the weights in oneDNN's own order, which are computed only when the weights have changed.

    Their versions tell, and the sums of their rows: changes through `.data`, as when PEFT merges an adapter, leave no
    other trace.
    """
    # those of inference mode have no version
    versions = [None if weight.is_inference() else weight._version for weight in weights]
    sums = list(map(_row_sums, weights))
    if (known := _packed.get(weights[0])) is not None:
        packed, earlier_versions, earlier_sums = known
        is_same = packed.dtype == weights[0].dtype and versions == earlier_versions
        if is_same and all(map(torch.equal, sums, earlier_sums)):
            return packed
    packed = torch.ops.mkldnn._reorder_linear_weight(_side_by_side(weights, heads).detach(), PACKED_FOR_ROWS)
    _packed[weights[0]] = (packed, versions, sums)
    return packed


def _write(tensor: torch.Tensor, dim: int, start: int | torch.Tensor, values: torch.Tensor) -> None:
    """Write `values` into `tensor` from index `start` of `dim` on, or at the indices in `start` if it is a tensor."""
    if isinstance(start, int):
        tensor.narrow(dim, start, values.shape[dim]).copy_(values)
    else:
        tensor.index_copy_(dim, start, values.to(tensor.dtype))


class PackedLinear:
    """Compute act(x W^T + b) for a few rows x, with act the identity or ReLU.

    On a CPU, weights in oneDNN's own order save a copy at every call: with 32 rows, the output layer of `base` takes a
    third of the time in float32 and half of it in bfloat16. They take as much memory as the weights, until the model
    is freed.

    Args:
        linears: one layer, or several with the same input, whose outputs are placed side by side for each head.
        rows: the maximum number of rows of x.
        heads: h.
        relu: whether act is ReLU.
    """

    def __init__(self, *linears: nn.Linear, rows: int, heads: int = 1, relu: bool = False):
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
            # torch multiplies small matrices in float32 faster itself, and on an Intel Xeon also a single row
            # (1.4 to 1.7 times as fast)
            is_large = rows > 1 and sum(weight.numel() for weight in weights) >= MIN_PACKED_ELEMENTS
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
        rows = len(encoder_states) * num_beams
        self.query_key_value = PackedLinear(
            attention.q_proj, attention.k_proj, attention.v_proj, rows=rows, heads=attention.num_heads
        )
        self.out = PackedLinear(attention.out_proj, rows=rows)
        self.cross_query = PackedLinear(cross.q_proj, rows=rows)
        self.cross_out = PackedLinear(cross.out_proj, rows=rows)
        # oneDNN computes ReLU in the same pass as the product
        relu = type(layer.activation_fn) is nn.ReLU
        self.fc1 = PackedLinear(layer.fc1, rows=rows, relu=relu)
        self.fc2 = PackedLinear(layer.fc2, rows=rows)
        self.activation_fn = nn.Identity() if relu else layer.activation_fn
        key, value = cross.project_key_value(encoder_states)
        # (B, h, S, d)
        self.cross_key = key.contiguous().to(dtype=dtype)
        self.cross_value = value.contiguous().to(dtype=dtype)
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

    def view_by_head(self):
        """Show the cached tensors as `_attend` expects them, after any of them has been replaced."""
        self.self_attention = _by_head(self.key, self.value)
        self.cross_attention = _by_head(self.cross_key, self.cross_value)

    def grow(self, rows: int):
        """Append `rows` unused rows to the cached keys and values."""
        # of zeros, because 0 times the NaN of uninitialised memory would be NaN
        self.key = nn.functional.pad(self.key, (0, 0, 0, rows))
        self.value = nn.functional.pad(self.value, (0, 0, 0, rows))
        self.view_by_head()

    def step(
        self, x: torch.Tensor, rows: int | torch.Tensor, mask: torch.Tensor, cross_mask: torch.Tensor | None
    ) -> torch.Tensor:
        """Run the layer on the next position. *Shape:* (B K, d_model) to (B K, d_model).

        Args:
            rows: where its keys and values are cached: the first of K rows, or all of them as a tensor.
        """
        layer = self.layer
        # self-attention: each (B, h, K, d)
        states = self._split_heads(self.query_key_value(x))
        query, key, value = states.split([self.d_k, self.d_k, self.value.shape[3]], -1)
        _write(self.key, 2, rows, key)
        _write(self.value, 2, rows, value)
        output = self.out(self._attend(query, self.self_attention, mask))
        x = layer.self_attn_layer_norm(x + output)

        # cross-attention, whose keys and values never change
        query = self._split_heads(self.cross_query(x))
        output = self.cross_out(self._attend(query, self.cross_attention, cross_mask))
        x = layer.encoder_attn_layer_norm(x + output)

        # feed-forward
        output = self.fc2(self.activation_fn(self.fc1(x)))
        return layer.final_layer_norm(x + output)


class Slot(NamedTuple):
    """The place of a tensor that a search reads or replaces: an attribute of an object."""

    owner: Any
    name: str

    @property
    def tensor(self) -> torch.Tensor:
        return getattr(self.owner, self.name)

    def put(self, tensor: torch.Tensor) -> None:
        setattr(self.owner, self.name, tensor)


class IncrementalDecoder:
    """Run the decoder of `model` step by step on a batch of sentences.

    Args:
        encoder_states: (B, S, d_model).
        attention_mask: (B, S), 0 where the source is padding; None if there is no padding.
        num_beams: K, the number of beams per sentence.
        capacity: number of positions for which to reserve memory that stays in its place; 0 to let it grow.
    """

    def __init__(
        self,
        model: Any,
        encoder_states: torch.Tensor,
        attention_mask: torch.Tensor | None,
        num_beams: int,
        capacity: int = 0,
    ):
        self.decoder = model.model.decoder
        self.num_beams = num_beams
        self.num_heads = model.config.num_heads
        # t; with a capacity a tensor (1,), which the device counts up
        self.position: int | torch.Tensor = 0
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
        self.lm_head = PackedLinear(model.lm_head, rows=rows)
        # (B, K, capacity): 0 at a beam's own past, -inf elsewhere
        self.self_mask = encoder_states.new_empty(len(encoder_states), num_beams, 0, dtype=dtype)
        # (K, K): at its own position, a beam sees only itself
        self.step_mask = self.self_mask.new_full((num_beams, num_beams), float("-inf")).fill_diagonal_(0.0)
        self.cross_mask = None
        # with a capacity always, so that batches without padding are not another kind
        if attention_mask is not None and (capacity or not attention_mask.all()):
            # not -inf, so that a row of only padding stays finite
            lowest = torch.finfo(self.self_mask.dtype).min
            mask = self.self_mask.new_zeros(attention_mask.shape).masked_fill(attention_mask == 0, lowest)
            # (B, S) -> (B, h, 1, S)
            self.cross_mask = mask[:, None, None].repeat_interleave(self.num_heads, dim=1)
        if capacity:
            self.position = torch.zeros(1, dtype=torch.long, device=encoder_states.device)
            self.beam_rows = torch.arange(num_beams, device=encoder_states.device)
            self.grow(capacity)

    def grow(self, positions: int):
        """Reserve memory for as many more positions.

        Raises:
            UserError: If the model has learned fewer positions than a decoder with a capacity then has room for.
        """
        rows = positions * self.num_beams
        self.self_mask = nn.functional.pad(self.self_mask, (0, rows), value=float("-inf"))
        for layer in self.layers:
            layer.grow(rows)
        if isinstance(self.position, torch.Tensor):
            self.position_table = self.decoder.embed_positions(0, self.self_mask.shape[2] // self.num_beams)

    def _enter_position(self) -> tuple[int | torch.Tensor, torch.Tensor]:
        """Return where the next position's keys and values are cached, and its encoding (1, d_model)."""
        if isinstance(self.position, torch.Tensor):
            rows = self.position * self.num_beams + self.beam_rows
            return rows, self.position_table.index_select(0, self.position)
        if self.position % CACHE_BLOCK == 0:
            self.grow(CACHE_BLOCK)
        return self.position * self.num_beams, self.decoder.embed_positions(self.position, 1)

    def step(self, tokens: torch.Tensor, parents: torch.Tensor | None = None) -> torch.Tensor:
        """Return the decoder's output (B K, d_model) for the next position.

        Args:
            tokens: (B, K) latest token of each beam.
            parents: (B, K) beam of the previous step that each beam continues; None if each continues itself.
        """
        decoder = self.decoder
        rows, encoding = self._enter_position()
        if parents is not None:
            # a beam inherits the past of its parent
            self.self_mask = self.self_mask.gather(1, parents[..., None].expand_as(self.self_mask))
        _write(self.self_mask, 2, rows, self.step_mask.expand(len(self.self_mask), -1, -1))
        # (B, K, capacity) -> (B h, K, capacity)
        mask = self.self_mask.repeat_interleave(self.num_heads, dim=0)
        # (B, h, 1, S) -> (B h, 1, S)
        cross_mask = None if self.cross_mask is None else self.cross_mask.flatten(0, 1)
        # (B K, d_model)
        x = decoder.embed_tokens(tokens.flatten()) * decoder.embed_scale
        x = x + encoding.to(x)
        for layer in self.layers:
            x = layer.step(x, rows, mask, cross_mask)
        self.position += 1
        return x

    def logits(self, states: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yield the logits (N, V) of the states (B K, d_model), a block at a time."""
        yield from map(self.lm_head, states.split(self.block_rows))

    def slots(self) -> list[Slot]:
        """Return the places of all tensors whose first dimension is B."""
        names = ("cross_key", "cross_value", "key", "value")
        cached = [Slot(layer, name) for layer in self.layers for name in names]
        return [Slot(self, "self_mask"), *([] if self.cross_mask is None else [Slot(self, "cross_mask")]), *cached]

    def keep(self, rows: torch.Tensor):
        """Keep only the sentences `rows` (indices into the batch)."""
        self.replace(lambda tensor: tensor.index_select(0, rows))

    def replace(self, function: Callable[[torch.Tensor], torch.Tensor]):
        """Replace each tensor whose first dimension is B by a function of it."""
        for slot in self.slots():
            slot.put(function(slot.tensor))
        for layer in self.layers:
            layer.view_by_head()

    def copy(self) -> "IncrementalDecoder":
        """Return a decoder with the same tensors, in which they can be replaced."""
        twin = copy.copy(self)
        twin.layers = [copy.copy(layer) for layer in self.layers]
        for layer in twin.layers:
            layer.query_key_value = copy.copy(layer.query_key_value)
        return twin


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

    def apply(self, scores: torch.Tensor, is_final: bool | torch.Tensor) -> torch.Tensor:
        """Return the scores (N, V) of the tokens at a position, -inf for those that are not allowed there.

        `scores` may change.

        Args:
            is_final: whether the position is that of `final`, known to the host or only to the device (1,).
        """
        if isinstance(is_final, bool):
            return self._force(scores) if is_final else self._ban(scores)
        return torch.where(is_final, self._force(scores), self._ban(scores))

    def _force(self, scores: torch.Tensor) -> torch.Tensor:
        assert self.final is not None
        return torch.full_like(scores, float("-inf")).index_fill_(1, self.final[1], 0.0)

    def _ban(self, scores: torch.Tensor) -> torch.Tensor:
        for token in self.banned:
            scores[:, token] = float("-inf")
        return scores

    def log_probs(self, logits: torch.Tensor, is_final: bool | torch.Tensor) -> torch.Tensor:
        """Return the log-probabilities (N, V) of the tokens at a position (see `apply`); `logits` may change."""
        if self.renormalize:
            return self.apply(logits.float(), is_final).log_softmax(-1)
        return self.apply(logits.float().log_softmax(-1), is_final)


class SearchBatch(NamedTuple):
    """The sentences to decode.

    Args:
        start: (B, 1) start tokens.
        limits: (B, 1) maximum number of tokens after the start token, per sentence.
        encoder_states: (B, S, d_model).
        attention_mask: (B, S), 0 where the source is padding; None if there is no padding.
        real: how many sentences have a result; the others only fill the batch up.
    """

    start: torch.Tensor
    limits: torch.Tensor
    encoder_states: torch.Tensor
    attention_mask: torch.Tensor | None
    real: int

    def padded(self, size: int, length: int) -> "SearchBatch":
        """Return the batch with `size` sentences, filled up by copies of the last one, and `length` source tokens."""
        device = self.start.device
        rows = torch.arange(size, device=device).clamp(max=self.real - 1)
        mask = self.attention_mask
        if mask is None:
            mask = torch.ones(self.encoder_states.shape[:2], dtype=torch.long, device=device)
        missing = length - mask.shape[1]
        return SearchBatch(
            start=self.start[rows],
            limits=self.limits[rows],
            encoder_states=nn.functional.pad(self.encoder_states[rows], (0, 0, 0, missing)),
            attention_mask=nn.functional.pad(mask[rows], (0, missing)),
            real=self.real,
        )


class Search:
    """A search over a batch of sentences, which `step` continues by one position.

    Args:
        rules: which tokens may be chosen.
        settings: the generation config as prepared by `generate()`.
        capacity: number of positions for which to reserve memory that stays in its place; 0 to let it grow.
    """

    # names of the tensors in `state` that make up the results, and of those with a column per token
    results: tuple[str, ...]
    sequences: tuple[str, ...]
    # whether any sentence may be done
    has_finished = True

    def __init__(self, model: Any, batch: SearchBatch, rules: OutputRules, settings: Any, capacity: int = 0):
        # a captured search is kept until its model is freed, so it must not keep the model
        self.model = weakref.proxy(model)
        self.limits = batch.limits
        self.real = batch.real
        self.rules = rules
        self.settings = settings
        self.fill = self._unused_token()
        self.capacity = capacity
        beams = settings.num_beams
        self.decoder = IncrementalDecoder(model, batch.encoder_states, batch.attention_mask, beams, capacity)
        rows = torch.arange(len(batch.start), device=batch.start.device)
        # tensors whose first dimension is B; `rows` are indices into the results
        self.state = SimpleNamespace(
            rows=rows, limits=batch.limits, done=rows >= batch.real, **self._first_state(batch.start)
        )
        if capacity:
            self.final_length = rows.new_full((1,), -1 if rules.final is None else rules.final[0])
            self._widen(capacity)

    def _unused_token(self) -> int:
        """Return the token after the end of a result."""
        return int(self.settings._pad_token_tensor)

    def _first_state(self, start: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return what the kind of search adds to the state, for start tokens (B, 1)."""
        raise NotImplementedError

    def _advance(self, logits: Iterator[torch.Tensor], length: int | torch.Tensor) -> None:
        """Choose the tokens after which hypotheses have `length`, given the logits (N, V) of all rows in blocks."""
        raise NotImplementedError

    def finish(self, results: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the output of `generate()` and its scores, given the results of all sentences."""
        raise NotImplementedError

    def step(self) -> None:
        """Decode one more position."""
        state = self.state
        logits = self.decoder.logits(self.decoder.step(state.tokens, vars(state).get("parents")))
        length = self.decoder.position
        if isinstance(length, int) and length == self._columns():
            # the limit may be far beyond all outputs; doubled, so that all copies cost no more than the last one
            self._widen(length)
        self._advance(logits, length)

    def _columns(self) -> int:
        return getattr(self.state, self.sequences[0]).shape[-1]

    def _widen(self, columns: int) -> None:
        """Append unused columns to the sequences."""
        for name in self.sequences:
            sequences = getattr(self.state, name)
            setattr(self.state, name, nn.functional.pad(sequences, (0, columns), value=self.fill))

    def _is_final(self, length: int | torch.Tensor) -> bool | torch.Tensor:
        """Return whether only the final tokens may be chosen, which only the device knows of a tensor."""
        if self.rules.final is None:
            return False
        return length == (self.rules.final[0] if isinstance(length, int) else self.final_length)

    def keep(self, rows: torch.Tensor) -> None:
        """Keep only the sentences `rows` (indices into the batch)."""
        self.replace(lambda tensor: tensor.index_select(0, rows))

    def replace(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Replace each tensor whose first dimension is B by a function of it."""
        vars(self.state).update({name: function(tensor) for name, tensor in vars(self.state).items()})
        self.decoder.replace(function)

    # What follows serves graphs, for a search with a capacity.

    @property
    def shape(self) -> tuple[int, int, int]:
        """B, S and the capacity."""
        return len(self.state.done), self.decoder.layers[0].cross_key.shape[2], self.capacity

    @property
    def memory(self) -> int:
        """The number of bytes of the tensors whose first dimension is B."""
        return sum(slot.tensor.nbytes for slot in self._batch_slots())

    def signature(self) -> tuple:
        """Return all that a step depends on, apart from shapes and tensors that `slots` names."""
        rules = self.rules
        return (
            type(self),
            self.settings.num_beams,
            self.fill,
            tuple(self.settings._eos_token_tensor.tolist()),
            *(tuple(rules.banned), rules.renormalize),
            None if rules.final is None else tuple(rules.final[1].tolist()),
            self.decoder.self_mask.dtype,
            # not `get_float32_matmul_precision`, which refuses settings of torch's newer functions
            *(torch.backends.cuda.matmul.fp32_precision, torch.are_deterministic_algorithms_enabled()),
        )

    def _batch_slots(self) -> list[Slot]:
        return [*(Slot(self.state, name) for name in vars(self.state)), *self.decoder.slots()]

    def _other_slots(self) -> list[Slot]:
        linears = [layer.query_key_value for layer in self.decoder.layers]
        # joined from several of the model's weights, which may have changed
        weights = [Slot(linear, "weight") for linear in linears if not linear.is_packed]
        weights += [Slot(linear, "bias") for linear in linears if linear.bias is not None]
        return [Slot(self.decoder, "position"), Slot(self, "final_length"), *weights]

    def slots(self) -> list[Slot]:
        """Return the places of all tensors that differ from search to search."""
        return [*self._other_slots(), *self._batch_slots()]

    def copy(self) -> "Search":
        """Return a search with the same tensors, in which they can be replaced."""
        twin = copy.copy(self)
        twin.state = SimpleNamespace(**vars(self.state))
        twin.decoder = self.decoder.copy()
        return twin

    def clone(self) -> "Search":
        """Return a search with its own tensors, apart from the model's weights."""
        twin = self.copy()
        twin.replace(torch.clone)
        for slot in twin._other_slots():
            slot.put(slot.tensor.clone())
        return twin

    def reserve(self, capacity: int) -> None:
        """Reserve memory for `capacity` positions, which are more than before."""
        longest = _learned_positions(self.model)
        if longest is not None and capacity > longest:
            # one more than there are raises the error that says so
            capacity = max(longest, self.capacity + 1)
        self.decoder.grow(capacity - self.capacity)
        self._widen(capacity - self.capacity)
        self.capacity = capacity


class GreedySearch(Search):
    """Decode with the most likely token at every step."""

    results: tuple[str, ...] = ("sequences",)
    sequences = ("sequences",)
    has_scores = False

    def _first_state(self, start: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"tokens": start, "sequences": start}

    def _advance(self, logits: Iterator[torch.Tensor], length: int | torch.Tensor) -> None:
        state = self.state
        is_final = self._is_final(length)
        choices = [self._choose(block, is_final) for block in logits]
        # (B, 1)
        state.tokens = torch.cat([tokens for tokens, _ in choices])
        # sentences that are done may stay in the batch for some steps
        if self.has_scores:
            log_probs = torch.cat([values for _, values in choices if values is not None])
            state.sums = state.sums + log_probs.masked_fill(state.done, 0.0)
        _write(state.sequences, 1, length, state.tokens.masked_fill(state.done[:, None], self.fill))
        state.done |= (torch.isin(state.tokens, self.settings._eos_token_tensor) | (length >= state.limits))[:, 0]

    def _choose(self, logits: torch.Tensor, is_final: bool | torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the most likely tokens (N, 1), and their log-probabilities (N,) if there are scores."""
        # before the rules, which may change the logits; one fused operation, rounded no more than the logits are
        log_probs = logits.log_softmax(1) if self.has_scores else None
        # much faster on a CPU than `argmax`, and also the first of several equal ones
        tokens = self.rules.apply(logits, is_final).max(1, keepdim=True).indices
        return tokens, None if log_probs is None else log_probs.gather(1, tokens)[:, 0].float()

    def finish(self, results: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the sequences (B, T), and their scores (B,) if there are any."""
        sequences = results["sequences"][: self.real]
        # up to the first end, itself included, or the limit
        is_end = torch.isin(sequences[:, 1:], self.settings._eos_token_tensor)
        limits = self.limits[: self.real, 0]
        lengths = limits.minimum(torch.where(is_end.any(1), is_end.int().argmax(1) + 1, limits))
        scores = None
        if self.has_scores:
            penalty = self.model._length_penalty(lengths, self.settings.length_penalty)
            scores = results["sums"][: self.real] / penalty
        return sequences[:, : 1 + int(lengths.max())], scores


class ScoredGreedySearch(GreedySearch):
    """Sum up the log-probabilities of the tokens as well, for which each step reads its logits once more."""

    results = ("sequences", "sums")
    has_scores = True

    def _first_state(self, start: torch.Tensor) -> dict[str, torch.Tensor]:
        return {**super()._first_state(start), "sums": start.new_zeros(len(start), dtype=torch.float32)}


class BeamSearch(Search):
    """Run the same beam search as transformers, step by step."""

    results = ("finished", "lengths", "scores")
    sequences = ("running", "finished")

    def _unused_token(self) -> int:
        # as transformers fills its sequences
        return super()._unused_token() or int(self.settings._eos_token_tensor[0])

    def _first_state(self, start: torch.Tensor) -> dict[str, torch.Tensor]:
        # with a capacity, the device is not asked
        self.has_finished = self.capacity > 0
        shape = (len(start), self.settings.num_beams)
        # (B, K, 1)
        sequences = start[:, None].expand(*shape, 1)
        scores = torch.full(shape, ABSENT, device=start.device)
        if self.capacity:
            self._fill_penalties()
        return {
            "tokens": sequences[..., 0],
            "running": sequences,
            # all beams are identical at first, so only one of them may be continued
            "running_scores": scores.index_fill(1, start.new_zeros(1), 0.0),
            "parents": start.new_zeros(shape),
            # hypotheses, best first
            "finished": sequences,
            "scores": scores,
            "lengths": start.new_zeros(shape),
        }

    def _fill_penalties(self) -> None:
        """Compute the penalty of each length (capacity + 1,), with which a step need not know the length."""
        lengths = torch.arange(self.capacity + 1, dtype=torch.float64, device=self.limits.device)
        self.penalties = self.model._length_penalty(lengths, self.settings.length_penalty).float()

    def reserve(self, capacity: int) -> None:
        super().reserve(capacity)
        self._fill_penalties()

    def signature(self) -> tuple:
        settings = self.settings
        normalization = self.model.config.length_normalization
        return (*super().signature(), normalization, settings.length_penalty, settings.early_stopping)

    def _penalty(self, length: int | torch.Tensor) -> float | torch.Tensor:
        if isinstance(length, int):
            return self.model._length_penalty(length, self.settings.length_penalty)
        return self.penalties.index_select(0, length)

    def _candidates(self, log_probs: Iterable[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Return the log-probabilities, beams and tokens of each sentence's best continuations, each (B, candidates).

        Args:
            log_probs: of all B K beams, in blocks (N, V).
        """
        beams = self.settings.num_beams
        # enough candidates to continue all beams even if others end
        count = max(2, 1 + len(self.settings._eos_token_tensor)) * beams
        blocks = [top_tokens(block, count) for block in log_probs]
        tokens = torch.cat([tokens for _, tokens in blocks])
        # (B K, count) -> (B, K, count)
        scores = torch.cat([values for values, _ in blocks]).unflatten(0, (-1, beams))
        scores = scores + self.state.running_scores[..., None]
        best, chosen = scores.flatten(1).topk(count)
        # each beam has the same number of candidates
        origins = chosen.div(tokens.shape[1], rounding_mode="floor")
        return best, origins, tokens.view(len(best), -1).gather(1, chosen)

    def _extend(self, beams: torch.Tensor, tokens: torch.Tensor, length: int | torch.Tensor) -> torch.Tensor:
        """Return the sequences of some beams (B, N) with new tokens (B, N) at `length`. *Shape:* (B, N, T)."""
        running = self.state.running
        extended = running.gather(1, beams[..., None].expand(-1, -1, running.shape[2]))
        _write(extended, 2, length, tokens[..., None])
        return extended

    def _advance(self, logits: Iterator[torch.Tensor], length: int | torch.Tensor) -> None:
        state = self.state
        beams = self.settings.num_beams
        is_final = self._is_final(length)
        best, origins, tokens = self._candidates(self.rules.log_probs(block, is_final) for block in logits)
        ended = torch.isin(tokens, self.settings._eos_token_tensor) | (length >= state.limits)
        # waits for the device, as otherwise only the number of sentences that are done
        if self.capacity or bool(ended.any()):
            # only the best candidates may end
            extended = self._extend(origins[:, :beams], tokens[:, :beams], length)
            scores = best[:, :beams] / self._penalty(length)
            # never chosen where nothing has ended
            scores = scores.masked_fill(~ended[:, :beams] | state.done[:, None], float("-inf"))
            self._add_finished(extended, scores, length)
            state.done |= ended.all(-1)
            self.has_finished = True
        # the best candidates that have not ended; with equal scores, those that transformers chooses
        state.running_scores, chosen = (best + ABSENT * ended).topk(beams)
        state.parents = origins.gather(1, chosen)
        state.tokens = tokens.gather(1, chosen)
        state.running = self._extend(state.parents, state.tokens, length)
        if self.has_finished:
            state.done |= self._is_complete(length)

    def _add_finished(self, sequences: torch.Tensor, scores: torch.Tensor, length: int | torch.Tensor) -> None:
        """Keep the best of the finished hypotheses and of `sequences` (B, K, T), which have `scores` (B, K)."""
        state = self.state
        state.scores, chosen = torch.cat((state.scores, scores), dim=1).topk(scores.shape[1])
        lengths = torch.zeros_like(state.lengths).add_(length)
        state.lengths = torch.cat((state.lengths, lengths), dim=1).gather(1, chosen)
        merged = torch.cat((state.finished, sequences), dim=1)
        state.finished = merged.gather(1, chosen[..., None].expand_as(sequences))

    def _is_complete(self, length: int | torch.Tensor) -> torch.Tensor:
        """Return which sentences have K finished hypotheses that transformers does not expect to be beaten (B,)."""
        state = self.state
        settings = self.settings
        worst = state.scores[:, -1]
        if settings.early_stopping is True:
            return worst > ABSENT
        alpha = settings.length_penalty
        reachable = best_reachable_length(length, state.limits[:, 0], settings.early_stopping, alpha)
        is_present = reachable is length
        penalty = self._penalty(length) if is_present else self.model._length_penalty(reachable, alpha)
        return state.running_scores[:, 0] / penalty <= worst

    def finish(self, results: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the num_return_sequences best hypotheses of each sentence, best first, and their scores.

        *Shape:* (B num_return_sequences, T) and (B num_return_sequences,).
        """
        returned = self.settings.num_return_sequences
        finished, lengths, scores = (results[name][: self.real, :returned] for name in self.results)
        longest = 1 + int(lengths.max())
        return finished[..., :longest].flatten(0, 1), scores.flatten()


def best_reachable_length(
    length: int | torch.Tensor, longest: int | torch.Tensor, early_stopping: bool | str, alpha: float
) -> int | torch.Tensor:
    """Return the length at which a running hypothesis has the best score that it can reach.

    A log-probability only falls, so that score is the one of its longest continuation or, with transformers'
    heuristic, of its present length.
    """
    return longest if early_stopping == "never" and alpha > 0.0 else length


class Results(dict[str, torch.Tensor]):
    """The results of all sentences of a batch, by name, collected whenever sentences are removed from it."""

    def __init__(self, search: Search):
        super().__init__({name: getattr(search.state, name).clone() for name in search.results})

    def collect(self, search: Search) -> None:
        """Take over the results of the sentences that are still in the batch, done or not."""
        for name, whole in self.items():
            part = getattr(search.state, name)
            if part.shape[-1] > whole.shape[-1]:
                whole = nn.functional.pad(whole, (0, part.shape[-1] - whole.shape[-1]), value=search.fill)
            whole[search.state.rows] = part
            self[name] = whole


def _rows_to_keep(done: torch.Tensor) -> torch.Tensor | None:
    """Return the rows that are not `done` if enough are to justify copying the others' caches."""
    # waits for the device
    count = int(done.sum())
    # decoding an eighth of the batch for nothing costs less than copying the caches of the others
    if len(done) > 8 * count:
        return None
    # stable: the sentences keep their order, so that results do not depend on when others end
    return done.int().argsort(descending=True, stable=True)[count:]


def _run(search: Search, results: Results, before_step: Callable[[], None]) -> None:
    """Run a search without a capacity to its end."""
    while True:
        before_step()
        search.step()
        if search.has_finished and (rows := _rows_to_keep(search.state.done)) is not None:
            results.collect(search)
            if len(rows) == 0:
                break
            search.keep(rows)


def _learned_positions(model: Any) -> int | None:
    """Return how many positions the decoder has learned, or None if it can compute any."""
    positions = model.model.decoder.embed_positions
    return positions.num_embeddings if isinstance(positions, LearnedPositions) else None


def _first_capacity(model: Any, batch: SearchBatch, settings: Any) -> int:
    """Return the number of positions for which a search first reserves memory, as many as the source has tokens."""
    limit = settings.max_length - 1
    capacity = power_of_two(max(MIN_CAPACITY, min(batch.encoder_states.shape[1], limit)))
    return min(capacity, _learned_positions(model) or capacity)


def _memory_of_steps(model: Any, size: int, length: int, beams: int, capacity: int) -> int:
    """Return about how many bytes a search with a capacity takes, for `size` sentences of `length` tokens."""
    config = model.config
    cached = config.num_decoder_layers * config.num_heads * (config.d_k + config.d_v)
    keys_and_values = (length + beams * capacity) * cached * model.lm_head.weight.element_size()
    # logits, their float32, and the log-probabilities
    logits = 3 * 4 * beams * len(model.lm_head.weight)
    return size * (keys_and_values + logits)


def _search(
    kind: type[Search],
    model: Any,
    input_ids: torch.Tensor,
    limits: torch.Tensor,
    rules: OutputRules,
    settings: Any,
    model_kwargs: dict,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    beams = settings.num_beams
    mask = model_kwargs.get("attention_mask")
    # generate() repeats the encoder's output for every beam; one copy for all beams of a sentence is enough here
    encoder_states = model_kwargs["encoder_outputs"][0][::beams]
    batch = SearchBatch(input_ids, limits, encoder_states, None if mask is None else mask[::beams], len(input_ids))
    size = bucket(batch.real)
    length = bucket(encoder_states.shape[1])
    capacity = _first_capacity(model, batch, settings)
    with lend_graphs(model, _memory_of_steps(model, size, length, beams, capacity)) as graphs:
        if graphs is None:
            search = kind(model, batch, rules, settings)
            results = Results(search)
            _run(search, results, model.before_step)
        else:
            search = kind(model, batch.padded(size, length), rules, settings, capacity)
            results = Results(search)
            graphs.run(search, results, model.before_step)
    return search.finish(results)


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
        has_scores: whether to compute scores.
    """
    kind = ScoredGreedySearch if has_scores else GreedySearch
    return _search(kind, model, input_ids, limits, rules, settings, model_kwargs)


def beam_search(
    model: Any, input_ids: torch.Tensor, limits: torch.Tensor, rules: OutputRules, settings: Any, model_kwargs: dict
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Run the same beam search as transformers, step by step.

    The arguments are those of `greedy_search`.

    Returns:
        The num_return_sequences best hypotheses of each sentence, best first (B num_return_sequences, T), and their
        scores (B num_return_sequences,).
    """
    return _search(BeamSearch, model, input_ids, limits, rules, settings, model_kwargs)
