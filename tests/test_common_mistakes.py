"""Common mistakes in implementations of the Transformer, with one test per mistake.

Every test checks two things: that this package follows the paper, and that the wrong variant gives a different result.
"""

import math

import numpy as np
import pytest
import torch
from paper_in_numpy import multi_head_attention, positions
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from transformers.modeling_outputs import BaseModelOutput

from hf_vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from hf_vanilla_transformer.model.layers_vanilla_transformer import (
    VanillaTransformerAttention,
    VanillaTransformerDecoderLayer,
    VanillaTransformerEncoderLayer,
    eager_attention_forward,
    sinusoids,
)


def config(**changes) -> VanillaTransformerConfig:
    config = VanillaTransformerConfig(**{"d_model": 16, "num_heads": 4, "d_ff": 32, "dropout": 0.0, **changes})
    config._attn_implementation = "eager"
    return config


@pytest.fixture
def attention() -> VanillaTransformerAttention:
    return VanillaTransformerAttention(config(), 0).double()


@pytest.fixture
def encoder_layer() -> VanillaTransformerEncoderLayer:
    layer = VanillaTransformerEncoderLayer(config(), 0)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.3)
    return layer


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(2, 5, 16)


def heads(attention: VanillaTransformerAttention, name: str, states: torch.Tensor) -> torch.Tensor:
    """Project and split `states`. *Shape:* (B, T, d_model) to (B, h, T, d_k)."""
    return getattr(attention, f"{name}_proj")(states).unflatten(-1, (4, 4)).transpose(1, 2)


def differ(wrong, right) -> bool:
    """Return whether two tensors, which must have the same shape, differ by much more than rounding errors."""
    wrong, right = torch.as_tensor(wrong), torch.as_tensor(right)
    assert wrong.shape == right.shape
    return not torch.allclose(wrong.to(right), right, atol=1e-3)


def wrong_sinusoids(length: int, d_model: int, exponent: int, separate_frequencies: bool) -> torch.Tensor:
    """Return sinusoids with two possible mistakes.

    Args:
        exponent: 2 doubles the exponent 2i/d_model, as if i were already even; 1 is correct.
        separate_frequencies: whether odd columns have their own frequency; False is correct.
    """
    columns = torch.arange(d_model, dtype=torch.float64)
    even = columns - columns % 2
    frequency = 10000.0 ** (-exponent * (columns if separate_frequencies else even) / d_model)
    angle = torch.arange(length, dtype=torch.float64)[:, None] * frequency
    return torch.where(columns % 2 == 0, angle.sin(), angle.cos())


def test_sinusoid_pairs_share_a_frequency_with_the_papers_exponent():
    right = torch.from_numpy(positions(60, 16))
    torch.testing.assert_close(sinusoids(60, 16), right)
    torch.testing.assert_close(wrong_sinusoids(60, 16, exponent=1, separate_frequencies=False), right)
    assert differ(wrong_sinusoids(60, 16, exponent=2, separate_frequencies=False), right)
    assert differ(wrong_sinusoids(60, 16, exponent=1, separate_frequencies=True), right)


def test_a_position_shift_rotates_each_pair_of_columns():
    def fit_error(table: torch.Tensor, shift: int) -> float:
        """Return the largest error of a linear fit from PE(pos) to PE(pos + shift), over all pairs of columns."""
        worst = 0.0
        for i in range(0, 16, 2):
            before, after = table[:-shift, i : i + 2], table[shift:, i : i + 2]
            matrix = torch.linalg.lstsq(before, after).solution
            worst = max(worst, (before @ matrix - after).abs().max().item())
        return worst

    for shift in (1, 7):
        assert fit_error(sinusoids(60, 16), shift) < 1e-9
        assert fit_error(wrong_sinusoids(60, 16, exponent=1, separate_frequencies=True), shift) > 1e-2
    angle = 7 / 10000 ** (2 * 3 / 16)  # of columns 6 and 7
    rotation = torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    pair = sinusoids(60, 16)[:, 6:8]
    torch.testing.assert_close(pair[7:], pair[:-7] @ rotation.double())


def test_the_layers_are_post_norm(encoder_layer, x):
    attend, feed_forward = (lambda y: encoder_layer.self_attn(y)[0]), encoder_layer.feed_forward
    norm1, norm2 = encoder_layer.self_attn_layer_norm, encoder_layer.final_layer_norm
    middle = norm1(x + attend(x))
    right = norm2(middle + feed_forward(middle))
    middle = x + attend(norm1(x))
    pre_norm = middle + feed_forward(norm2(middle))
    torch.testing.assert_close(encoder_layer(x, None), right)
    assert differ(pre_norm, right)


def test_dropout_comes_before_the_addition_and_not_after_the_norm(encoder_layer, x):
    encoder_layer.dropout.p = 1.0  # everything except the residual is dropped
    encoder_layer.train()
    right = encoder_layer.final_layer_norm(encoder_layer.self_attn_layer_norm(x))
    torch.testing.assert_close(encoder_layer(x, None), right)
    wrong = encoder_layer.dropout(right)
    assert differ(wrong, right)


def test_the_residual_is_added_only_once(encoder_layer, x):
    states = encoder_layer.self_attn_layer_norm(x + encoder_layer.self_attn(x)[0])
    right = encoder_layer.final_layer_norm(states + encoder_layer.feed_forward(states))
    wrong = encoder_layer.final_layer_norm(states + (states + encoder_layer.feed_forward(states)))
    torch.testing.assert_close(encoder_layer(x, None), right)
    assert differ(wrong, right)


def test_layer_norm_adds_epsilon_to_the_biased_variance(x):
    norm = VanillaTransformerEncoderLayer(config(layer_norm_eps=1e-2), 0).final_layer_norm
    nn.init.normal_(norm.weight), nn.init.normal_(norm.bias)
    x = 0.1 * x
    centred, variance = x - x.mean(-1, keepdim=True), x.var(-1, keepdim=True, correction=0)
    right = centred / (variance + 1e-2).sqrt() * norm.weight + norm.bias
    torch.testing.assert_close(norm(x), right)
    assert differ(centred / (variance.sqrt() + 1e-2) * norm.weight + norm.bias, right)
    assert differ(centred / (x.var(-1, keepdim=True) + 1e-2).sqrt() * norm.weight + norm.bias, right)
    assert differ(centred / ((variance + 1e-2).sqrt() + norm.bias) * norm.weight, right)


def test_every_head_has_its_own_projection(attention):
    x = torch.randn(2, 5, 16, dtype=torch.float64)
    assert attention.q_proj.weight.shape == (16, 16)
    right = attention(x)[0]
    for projection in (attention.q_proj, attention.k_proj, attention.v_proj):
        projection.weight.data = projection.weight[:4].repeat(4, 1)  # the projection of the first head, for all heads
    assert differ(attention(x)[0], right)


def test_heads_are_split_along_the_columns(attention):
    x = torch.randn(2, 5, 16, dtype=torch.float64)
    q, k, v = (heads(attention, name, x) for name in "qkv")
    right = attention.out_proj(scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
    mixed = [getattr(attention, f"{name}_proj")(x).view(2, 4, 5, 4) for name in "qkv"]
    wrong = attention.out_proj(scaled_dot_product_attention(*mixed).transpose(1, 2).flatten(2))
    torch.testing.assert_close(attention(x)[0], right)
    assert differ(wrong, right)


def numpy_attention(attention, queries, memory, allowed=True) -> torch.Tensor:
    def matrix(name):
        return getattr(attention, f"{name}_proj").weight.detach().numpy().T

    allowed = np.broadcast_to(np.asarray(allowed), (len(queries), queries.shape[1], memory.shape[1]))
    return torch.from_numpy(multi_head_attention(matrix, 4, queries.numpy(), memory.numpy(), allowed))


def test_keys_and_values_have_the_length_of_the_source(attention):
    target, source = torch.randn(2, 5, 16, dtype=torch.float64), torch.randn(2, 7, 16, dtype=torch.float64)
    output, weights = attention(target, None, source)
    assert weights.shape == (2, 4, 5, 7)
    torch.testing.assert_close(output, numpy_attention(attention, target, source))
    truncated = source[:, : target.shape[1]]  # the wrong variant: keys and values of the query's length
    assert differ(numpy_attention(attention, target, truncated), output)


def additive(allowed: torch.Tensor) -> torch.Tensor:
    """Convert a boolean mask to one that is added to the scores. *Shape:* (B, T, S) to (B, 1, T, S)."""
    return torch.zeros(allowed.shape, dtype=torch.float64).masked_fill(~allowed, -1e30)[:, None]


def test_the_mask_is_applied_before_the_softmax(attention):
    x = torch.randn(2, 5, 16, dtype=torch.float64)
    allowed = torch.ones(5, 5, dtype=torch.bool).tril().expand(2, 5, 5)
    output, weights = attention(x, additive(allowed))
    torch.testing.assert_close(output, numpy_attention(attention, x, x, allowed.numpy()))
    assert weights.masked_select(~allowed[:, None]).abs().max() == 0
    scores = heads(attention, "q", x) @ heads(attention, "k", x).transpose(2, 3) / 2
    scores.masked_fill(~allowed[:, None], -1e30)  # the wrong variant: the result is discarded
    assert differ(scores.softmax(-1), weights)


def test_every_head_uses_the_mask_of_its_own_sentence(attention):
    x = torch.randn(2, 5, 16, dtype=torch.float64)
    allowed = torch.ones(2, 5, 5, dtype=torch.bool)
    allowed[1, :, 3:] = False
    scores = (heads(attention, "q", x) @ heads(attention, "k", x).transpose(2, 3) / 2).flatten(0, 1)  # (B h, T, S)
    weights = attention(x, additive(allowed))[1].flatten(0, 1)
    torch.testing.assert_close(scores.masked_fill(~allowed.repeat_interleave(4, 0), -1e30).softmax(-1), weights)
    # the wrong variant: the mask is head-major, but the scores are batch-major
    wrong = scores.masked_fill(~allowed.repeat(4, 1, 1), -1e30).softmax(-1)
    assert differ(wrong, weights)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_a_fully_masked_row_is_finite_in_half_precision(small_model, dtype, implementation):
    model = small_model().to(dtype)
    model.set_attn_implementation(implementation)
    ids, mask = torch.randint(4, 50, (2, 6)), torch.tensor([[1] * 6, [0] * 6])
    labels = ids.masked_fill(mask == 0, -100)
    output = model(input_ids=ids * mask, attention_mask=mask, decoder_attention_mask=mask, labels=labels)
    assert torch.isfinite(output.logits).all()
    assert torch.isfinite(output.loss)
    query = torch.randn(1, 4, 6, 8, dtype=dtype)
    hidden = torch.full((1, 1, 6, 6), -1e20).to(torch.float16)  # the wrong variant: -inf in half precision
    attended, _ = eager_attention_forward(model.model.encoder, query, query, query, hidden, scaling=1.0)
    assert attended.isnan().all()


def test_padding_is_masked_in_cross_attention_too(small_model):
    model = small_model()
    source, target = torch.randint(4, 50, (1, 5)), torch.randint(4, 50, (1, 4))
    alone = model(input_ids=source, decoder_input_ids=target).logits
    padded, mask = torch.cat((source, torch.zeros(1, 3, dtype=torch.long)), 1), torch.tensor([[1] * 5 + [0] * 3])
    together = model(input_ids=padded, attention_mask=mask, decoder_input_ids=target).logits
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=0)
    encoded = BaseModelOutput(model.model.encoder(input_ids=padded, attention_mask=mask).last_hidden_state)
    wrong = model(encoder_outputs=encoded, decoder_input_ids=target).logits  # padding masked only in the encoder
    assert differ(wrong, alone)


def test_cross_attention_takes_queries_from_the_decoder_and_keys_from_the_encoder():
    layer = VanillaTransformerDecoderLayer(config(), 0).double()
    target, source = torch.randn(2, 5, 16, dtype=torch.float64), torch.randn(2, 7, 16, dtype=torch.float64)
    seen = {}
    layer.encoder_attn.register_forward_hook(lambda module, args, output: seen.update(args=args, output=output[0]))
    layer(target, None, source, None)
    states = seen["args"][0]
    assert states.shape == target.shape
    right = numpy_attention(layer.encoder_attn, states.detach(), source)
    torch.testing.assert_close(seen["output"], right)
    swapped = numpy_attention(layer.encoder_attn, source[:, :5], states.detach())  # the correct number of queries
    own_input = numpy_attention(layer.encoder_attn, states.detach(), states.detach())
    assert differ(swapped, right)
    assert differ(own_input, right)


def test_softmax_is_applied_only_in_the_loss(small_model):
    model, source = small_model(), torch.randint(4, 50, (2, 6))
    output = model(input_ids=source, labels=source)
    assert differ(output.logits.exp().sum(-1), torch.ones(2, 6))  # no softmax applied
    logits, labels = output.logits.flatten(0, 1), source.flatten()
    torch.testing.assert_close(output.loss, -logits.log_softmax(-1).gather(1, labels[:, None]).mean())
    assert differ(cross_entropy(logits.softmax(-1), labels), output.loss)


def test_greedy_decoding_feeds_back_the_whole_prefix(small_model):
    model, source = small_model(), torch.randint(4, 50, (1, 6))
    right, wrong = torch.tensor([[1]]), torch.tensor([[1]])
    for _ in range(8):
        right = torch.cat((right, model(input_ids=source, decoder_input_ids=right).logits[:, -1:].argmax(-1)), 1)
        last = wrong[:, -1:]
        wrong = torch.cat((wrong, model(input_ids=source, decoder_input_ids=last).logits[:, -1:].argmax(-1)), 1)
    output = model.generate(source, num_beams=1, max_new_tokens=8, min_new_tokens=8, suppress_tokens=[])
    assert output.tolist()[0][: right.shape[1]] == right.tolist()[0]
    assert right.tolist() != wrong.tolist()


def test_embeddings_are_scaled_only_at_the_input(small_model):
    model, source = small_model(), torch.randint(4, 50, (1, 6))
    matrix = model.model.shared.weight
    seen = {}
    model.model.encoder.layers[0].register_forward_pre_hook(lambda module, args: seen.update(x=args[0]))
    output = model(input_ids=source, decoder_input_ids=source, output_hidden_states=True)
    right = matrix[source] * 32**0.5 + sinusoids(6, 32).float()
    torch.testing.assert_close(seen["x"], right)
    assert differ(matrix[source] + sinusoids(6, 32).float(), right)
    states = output.decoder_hidden_states[-1]
    torch.testing.assert_close(output.logits, states @ matrix.T)
    assert differ(states @ matrix.T * 32**0.5, output.logits)


def test_three_uses_share_one_parameter_after_loading(small_model, tmp_path):
    def matrices(model) -> int:
        return sum(parameter.shape == (50, 32) for parameter in model.parameters())

    small_model().save_pretrained(tmp_path)
    model = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path)
    assert matrices(model) == 1
    assert matrices(small_model(tie_word_embeddings=False)) > 1
    source = torch.randint(4, 50, (1, 6))
    before = model(input_ids=source, decoder_input_ids=source, output_hidden_states=True)
    model.model.shared.weight.data[source[0, 0]] += 1
    after = model(input_ids=source, decoder_input_ids=source, output_hidden_states=True)
    for name in ("encoder_hidden_states", "decoder_hidden_states"):
        assert differ(getattr(before, name)[0], getattr(after, name)[0])
    torch.testing.assert_close(after.logits, after.decoder_hidden_states[-1] @ model.model.shared.weight.T)
