"""The decoder arranged for search: one position of every hypothesis per step.

The arithmetic is that of `VanillaTransformerDecoder` with a cache. Shapes use B sentences, K beams per sentence, h
heads, S source tokens, and t positions decoded so far.

- The beams of a sentence share its encoder output, so cross-attention stores one set of keys and values per sentence,
  which the K beams query together.
- Self-attention works the same way: the K beams of a sentence query the keys of all K beams, and a mask hides the keys
  outside a beam's own past. When beams are reordered, only the mask changes; no key or value is copied.
- The cache grows by several positions at a time, and the mask also hides those that are still unused. So attention
  always reads whole tensors, which libraries for matrix products do not have to copy first.
- On a CPU, the weights are first copied into the order in which oneDNN reads them, once for all searches. A single
  beam attends in float32 there, because products of one query with its keys in bfloat16 take twice as long.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.weak import WeakTensorKeyDictionary

from .layers_vanilla_transformer import VanillaTransformerDecoderLayer

# Logits computed at once, unless a single row has more: few enough to save memory, but reading the weights for more
# rows at once is faster
LOGITS_PER_BLOCK = 2**23
LOGITS_PER_GPU_BLOCK = 2**28
CACHE_BLOCK = 8  # positions added to a cache whenever it is full
MIN_PACKED_ELEMENTS = 2**17
PACKED_FOR_ROWS = 32  # oneDNN's order for one row is slow for more, but not the other way round


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
