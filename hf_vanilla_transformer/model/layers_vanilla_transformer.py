"""The parts of the Transformer (Vaswani et al. 2017, section 3): positions, attention, and the two kinds of layer.

The order is that of the paper's Figure 1, from bottom to top. Shapes use B sentences, S source tokens, T target tokens
and h heads.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache, EncoderDecoderCache
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, create_bidirectional_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .cache_vanilla_transformer import accept_past_key_values
from .configuration_vanilla_transformer import IGNORED_LABEL, VanillaTransformerConfig
from .errors_vanilla_transformer import UserError


def shift_right(labels: torch.Tensor, pad_token_id: int, decoder_start_token_id: int) -> torch.Tensor:
    """Return the decoder's input for `labels`: the start token, then all labels except the last.

    Ignored labels become padding. *Shape:* (B, T) to (B, T).
    """
    shifted = labels.roll(1, dims=-1)
    # roll() has brought the last label here
    shifted[:, 0] = decoder_start_token_id
    # -100 is no row of the embedding matrix
    return shifted.masked_fill(shifted == IGNORED_LABEL, pad_token_id)


def sinusoids(num_positions: int, d_model: int) -> torch.Tensor:
    """Return PE(pos, 2i) = sin(pos / 10000^(2i/d_model)), PE(pos, 2i+1) = cos of the same angle (section 3.5).

    *Shape:* (num_positions, d_model), float64.
    """
    # in float64, because the angles of late positions lose their fraction in float32
    position = torch.arange(num_positions, dtype=torch.float64)[:, None]
    # columns 2i and 2i+1 share the frequency 10000^(-2i/d_model); arange() counts in steps of 2i
    frequency = 10000.0 ** (-torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)
    # (num_positions, d_model / 2)
    angle = position * frequency
    # sine and cosine interleaved
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)


class SinusoidalPositions(nn.Module):
    """Sinusoidal positions (section 3.5) from a precomputed table, which grows when a sentence is longer."""

    table: torch.Tensor

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__()
        # not persistent: a constant need not be in the file of a model
        self.register_buffer("table", torch.empty(config.max_position_embeddings, config.d_model), persistent=False)
        self.fill()

    @torch.no_grad()
    def fill(self):
        """Recompute the table in float64 and round it to its dtype once."""
        # from_pretrained() builds a model without memory; `_init_weights` fills the table once it has some
        if self.table.device.type != "meta":
            self._compute_table(len(self.table))

    def _compute_table(self, num_positions: int) -> torch.Tensor:
        # in inference mode the table would become an inference tensor, which cannot be modified later
        with torch.inference_mode(False):
            table = sinusoids(num_positions, self.table.shape[1]).to(self.table.dtype).to(self.table.device)
        self.table = table
        return table

    def _apply(self, fn, recurse=True):
        super()._apply(fn, recurse)
        # otherwise a cast to a wider dtype would keep the rounding errors of the narrower one
        self.fill()
        return self

    def forward(self, start: int, length: int) -> torch.Tensor:
        """Return the encodings of `length` positions from `start` on (length, d_model)."""
        table = self.table
        if start + length > table.shape[0]:
            # at least doubled, so that token by token decoding seldom computes it again
            table = self._compute_table(max(start + length, 2 * table.shape[0]))
        # not self.table, which another thread may have replaced by a smaller one
        return table[start : start + length]


class LearnedPositions(nn.Embedding):
    """Learned positions (Table 3, row E)."""

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__(config.max_position_embeddings, config.d_model)

    def forward(self, start: int, length: int) -> torch.Tensor:  # type: ignore[override]
        """Return the embeddings of `length` positions from `start` on (length, d_model).

        Raises:
            ValueError: If there are not enough positions.
        """
        if start + length > self.num_embeddings:
            raise UserError(
                f"This model has learned positions for {self.num_embeddings} tokens, but the text needs "
                f"{start + length}. Shorten it, or train with a larger max_position_embeddings."
            )
        return self.weight[start : start + length]


def next_positions(embed_positions: nn.Module, cache: Cache | None, length: int) -> torch.Tensor:
    """Return the encodings of the `length` positions after those in `cache` (length, d_model).

    A static cache counts its tokens on the device. Reading the count would wait for a GPU and break a compiled graph.
    """
    start: int | torch.Tensor = cache.get_seq_length() if cache is not None else 0
    if cache is not None and isinstance(start, torch.Tensor):
        limit = cache.get_max_length()
        if isinstance(embed_positions, LearnedPositions):
            limit = min(limit, embed_positions.num_embeddings)
        # all positions that the cache has room for: their number does not change from step to step
        table = embed_positions(0, limit)
        return table[start + torch.arange(length, device=table.device)]
    return embed_positions(start, length)


class Dropout(nn.Dropout):
    """Dropout (section 5.4) with a faster random mask on the CPU.

    On the CPU, torch draws 32 random bits per element, which takes longer than a small matrix product. This class
    draws 16 bits per element, so the dropout probability is exact to within 2^-17. The remaining values are scaled by
    exactly 1 / (1 - p).
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training or self.p in (0.0, 1.0) or x.device.type != "cpu" or torch.compiler.is_compiling():
            return super().forward(x)
        # four draws of 16 bits from each number of 64 bits; the number of elements is rounded up
        bits = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None).view(torch.int16)
        # of the 2^16 values from -2^15 on, the lowest p * 2^16 drop an element
        kept = bits[: x.numel()].view(x.shape) >= round(self.p * 2**16) - 2**15
        return x * kept.to(x.dtype).mul_(1 / (1 - self.p))


def mask_config(config: VanillaTransformerConfig) -> VanillaTransformerConfig:
    """Return the configuration to create masks with.

    For an attention function that was registered without a mask, transformers creates none, and the decoder would see
    the future. Such a function gets the mask of eager attention, which is added to the scores.
    """
    if config._attn_implementation in ALL_MASK_ATTENTION_FUNCTIONS:
        return config
    # a copy, since the configuration of the model must keep the name of its function
    eager = copy.copy(config)
    eager._attn_implementation = "eager"
    return eager


def split_head_mask(
    mask: torch.Tensor | None, name: str, num_layers: int, num_heads: int
) -> Sequence[torch.Tensor | None]:
    """Return the factors (h,) for the heads of each layer, or None for each if there is no mask.

    Args:
        mask: (layers, h), or (h,) for all layers alike.
        name: the name of the argument, for the error.

    Raises:
        ValueError: If the mask has a different shape.
    """
    if mask is None:
        return [None] * num_layers
    if mask.shape not in ((num_heads,), (num_layers, num_heads)):
        raise ValueError(
            f"{name} must have the shape (layers, heads) or (heads,), here ({num_layers}, {num_heads}) or "
            f"({num_heads},), but has {tuple(mask.shape)}."
        )
    return mask.expand(num_layers, num_heads).unbind()


def padding_mask(
    config: VanillaTransformerConfig,
    queries: torch.Tensor,
    attention_mask: torch.Tensor | None,
    keys: torch.Tensor | None = None,
) -> Any:
    """Return the mask of the padding in the form that the attention implementation requires, or None.

    There is none without `attention_mask`. Given one, the mask is built even if there is no padding, because testing
    that would wait for a GPU.

    Args:
        queries: (B, T, d_model).
        attention_mask: (B, S), 0 at padding.
        keys: (B, S, d_model); the queries themselves in self-attention.
    """
    return create_bidirectional_mask(
        config=mask_config(config),
        inputs_embeds=queries,
        attention_mask=attention_mask,
        encoder_hidden_states=keys,
        allow_is_bidirectional_skip=attention_mask is None,
    )


def eager_attention_forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return softmax(Q K^T / sqrt(d_k)) V (equation 1, section 3.2.1) and the attention weights.

    *Shape:* query (B, h, T, d_k), key (B, h, S, d_k), value (B, h, S, d_v) to output (B, T, h, d_v) and weights
    (B, h, T, S).
    """
    # at least float32: in half precision, scores plus the mask's lowest finite value can be -inf, and the softmax NaN
    dtype = torch.promote_types(query.dtype, torch.float32)
    # (B, h, T, d_k) x (B, h, d_k, S) -> (B, h, T, S)
    scores = torch.matmul(query, key.transpose(2, 3)).to(dtype) * scaling
    if attention_mask is not None:
        # 0, or the lowest finite number: with -inf, a row whose keys are all masked would be NaN
        scores = scores + attention_mask
    weights = nn.functional.softmax(scores, dim=-1).to(query.dtype)
    weights = nn.functional.dropout(weights, p=dropout, training=module.training)
    # (B, h, T, S) x (B, h, S, d_v) -> (B, h, T, d_v) -> (B, T, h, d_v)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


def cast_once(states: torch.Tensor) -> torch.Tensor:
    """Return `states` in the dtype of autocast, if it is enabled: it would cast them for each product they enter."""
    device = states.device.type
    if states.dtype == torch.float32 and device != "meta" and torch.is_autocast_enabled(device):
        return states.to(torch.get_autocast_dtype(device))
    return states


class VanillaTransformerAttention(nn.Module):
    """Multi-head attention (section 3.2.2): MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W^O."""

    def __init__(self, config: VanillaTransformerConfig, layer_idx: int, is_causal: bool = False):
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.is_causal = is_causal
        # set by the config's __post_init__
        assert config.d_k is not None
        assert config.d_v is not None
        self.num_heads = config.num_heads
        self.d_k = config.d_k
        self.d_v = config.d_v
        # q . k of random vectors has the variance d_k (section 3.2.1, footnote 4)
        self.scaling = self.d_k**-0.5
        self.dropout = config.attention_dropout
        # W_i^Q of all heads i side by side: every head has its own columns
        self.q_proj = nn.Linear(config.d_model, self.num_heads * self.d_k, bias=config.attention_bias)
        self.k_proj = nn.Linear(config.d_model, self.num_heads * self.d_k, bias=config.attention_bias)
        self.v_proj = nn.Linear(config.d_model, self.num_heads * self.d_v, bias=config.attention_bias)
        self.out_proj = nn.Linear(self.num_heads * self.d_v, config.d_model, bias=config.attention_bias)

    def project_key_value(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the keys and values of `states`. *Shape:* (B, S, d_model) to (B, h, S, d_k) and (B, h, S, d_v)."""
        # view() splits the columns into heads, and only transpose() may move them in front of the length
        heads = (*states.shape[:-1], self.num_heads)
        key = self.k_proj(states).view(*heads, self.d_k).transpose(1, 2)
        value = self.v_proj(states).view(*heads, self.d_v).transpose(1, 2)
        return key, value

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        cache: EncoderDecoderCache | None = None,
        head_mask: torch.Tensor | None = None,
        **kwargs,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Compute self-attention, or cross-attention if `encoder_hidden_states` is given.

        Args:
            hidden_states: (B, T, d_model), projected to the queries.
            attention_mask: as required by the attention implementation: boolean, or added to the scores.
            encoder_hidden_states: (B, S, d_model), projected to the keys and values.
            cache: keys and values of earlier tokens, which are read and updated.
            head_mask: (h,) factors by which the output of each head is multiplied; 0 removes a head.

        Returns:
            Output (B, T, d_model), and attention weights (B, h, T, S) or None.
        """
        batch_and_length = hidden_states.shape[:-1]
        hidden_states = cast_once(hidden_states)
        # (B, T, d_model) -> (B, T, h, d_k) -> (B, h, T, d_k)
        query = self.q_proj(hidden_states).view(*batch_and_length, self.num_heads, self.d_k).transpose(1, 2)

        if encoder_hidden_states is None:
            key, value = self.project_key_value(hidden_states)
            if cache is not None:
                # a decoder that is used alone may have a plain cache
                key, value = getattr(cache, "self_attention_cache", cache).update(key, value, self.layer_idx)
        elif cache is not None and cache.is_updated.get(self.layer_idx):
            # the source does not change between steps, so its keys and values are computed only once
            layer: Any = cache.cross_attention_cache.layers[self.layer_idx]
            key = layer.keys
            value = layer.values
        else:
            key, value = self.project_key_value(encoder_hidden_states)
            if cache is not None:
                key, value = cache.cross_attention_cache.update(key, value, self.layer_idx)
                cache.is_updated[self.layer_idx] = True

        attend: Callable = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward
        )
        output, weights = attend(
            self,
            query,
            key,
            value,
            attention_mask,
            scaling=self.scaling,
            dropout=self.dropout if self.training else 0.0,
            **kwargs,
        )  # (B, T, h, d_v), and (B, h, T, S) or None
        if head_mask is not None:
            # on the output, because only eager attention has weights to multiply
            output = output * head_mask.to(output)[:, None]
        # Concat(head_1, ..., head_h): (B, T, h, d_v) -> (B, T, h * d_v) -> (B, T, d_model)
        return self.out_proj(output.reshape(*batch_and_length, -1)), weights


class VanillaTransformerLayer(GradientCheckpointingLayer):
    """Base of both layers: self-attention, feed-forward (3.3), and post-norm residual connections (3.1, 5.4)."""

    is_causal = False

    def __init__(self, config: VanillaTransformerConfig, layer_idx: int):
        super().__init__()
        # without parameters, so one module serves all sub-layers of the layer
        self.dropout = Dropout(config.dropout)
        self.fc1 = nn.Linear(config.d_model, config.d_ff)
        self.activation_fn = ACT2FN[config.activation_function]
        self.activation_dropout = Dropout(config.activation_dropout)
        self.fc2 = nn.Linear(config.d_ff, config.d_model)
        self.final_layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)
        # after the feed-forward sub-layer, since the saved state of an optimizer counts parameters in this order
        self.self_attn = VanillaTransformerAttention(config, layer_idx, self.is_causal)
        self.self_attn_layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)

    def add_and_norm(self, residual: torch.Tensor, sublayer_output: torch.Tensor, norm: nn.LayerNorm) -> torch.Tensor:
        """Return LayerNorm(x + Dropout(Sublayer(x))) (sections 3.1 and 5.4). *Shape:* (B, T, d_model)."""
        # post-norm as published: most later models normalise the input of the sub-layer instead
        return norm(residual + self.dropout(sublayer_output))

    def feed_forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Return max(0, x W1 + b1) W2 + b2 (section 3.3). *Shape:* (B, T, d_model) to (B, T, d_model)."""
        return self.fc2(self.activation_dropout(self.activation_fn(self.fc1(hidden_states))))


class VanillaTransformerEncoderLayer(VanillaTransformerLayer):
    """Encoder layer (section 3.1): self-attention and feed-forward. *Shape:* (B, S, d_model) to (B, S, d_model)."""

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None,
        head_mask: torch.Tensor | None = None,
        **kwargs,
    ) -> torch.Tensor:
        attended, _ = self.self_attn(hidden_states, attention_mask, head_mask=head_mask, **kwargs)
        hidden_states = self.add_and_norm(hidden_states, attended, self.self_attn_layer_norm)
        return self.add_and_norm(hidden_states, self.feed_forward(hidden_states), self.final_layer_norm)


class VanillaTransformerDecoderLayer(VanillaTransformerLayer):
    """Decoder layer (section 3.1): causal self-attention, attention to the encoder's output, and feed-forward.

    *Shape:* (B, T, d_model), and encoder states (B, S, d_model), to (B, T, d_model).
    """

    is_causal = True

    def __init__(self, config: VanillaTransformerConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        self.encoder_attn = VanillaTransformerAttention(config, layer_idx)
        self.encoder_attn_layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)

    @accept_past_key_values
    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None,
        encoder_hidden_states: torch.Tensor,
        encoder_attention_mask: torch.Tensor | None,
        head_mask: torch.Tensor | None = None,
        cross_attn_head_mask: torch.Tensor | None = None,
        cache: EncoderDecoderCache | None = None,
        **kwargs,
    ) -> torch.Tensor:
        attended, _ = self.self_attn(hidden_states, attention_mask, cache=cache, head_mask=head_mask, **kwargs)
        hidden_states = self.add_and_norm(hidden_states, attended, self.self_attn_layer_norm)
        attended, _ = self.encoder_attn(
            hidden_states,
            encoder_attention_mask,
            encoder_hidden_states,
            cache=cache,
            head_mask=cross_attn_head_mask,
            **kwargs,
        )
        hidden_states = self.add_and_norm(hidden_states, attended, self.encoder_attn_layer_norm)
        return self.add_and_norm(hidden_states, self.feed_forward(hidden_states), self.final_layer_norm)
