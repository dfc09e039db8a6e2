import numpy as np
import pytest
import torch
from paper_in_numpy import multi_head_attention, positions

from hf_vanilla_transformer import VanillaTransformerConfig
from hf_vanilla_transformer.model.layers_vanilla_transformer import (
    Dropout,
    LearnedPositions,
    SinusoidalPositions,
    VanillaTransformerAttention,
    VanillaTransformerDecoderLayer,
    VanillaTransformerEncoderLayer,
    sinusoids,
)


def config(**changes) -> VanillaTransformerConfig:
    fields = {"d_model": 16, "num_heads": 4, "d_ff": 32, "dropout": 0.0, "max_position_embeddings": 8}
    config = VanillaTransformerConfig(**{**fields, **changes})
    config._attn_implementation = "eager"
    return config


def test_sinusoids_equal_the_papers_formula():
    np.testing.assert_allclose(sinusoids(50, 10).numpy(), positions(50, 10), atol=1e-12)


def test_the_table_grows_on_demand_and_keeps_its_entries():
    positions = SinusoidalPositions(config())
    before = positions(0, 8).clone()
    torch.testing.assert_close(positions(100, 3), sinusoids(103, 16)[100:].float())
    assert torch.equal(positions(0, 8), before)


def test_a_cast_to_a_wider_dtype_restores_the_exact_table():
    positions = SinusoidalPositions(config()).half().double()
    assert torch.equal(positions(0, 8), sinusoids(8, 16))


def test_learned_positions_reject_a_text_that_is_too_long():
    positions = LearnedPositions(config(position_embedding="learned"))
    assert torch.equal(positions(2, 6), positions.weight[2:8])
    with pytest.raises(ValueError, match="learned positions for 8 tokens, but the text needs 9"):
        positions(8, 1)


@pytest.mark.parametrize(("d_k", "d_v"), [(None, None), (3, 5)])
def test_attention_equals_the_papers_equations_in_numpy(d_k, d_v):
    module = VanillaTransformerAttention(config(d_k=d_k, d_v=d_v), 0).double()
    target, source = torch.randn(2, 5, 16, dtype=torch.float64), torch.randn(2, 7, 16, dtype=torch.float64)
    mask = np.ones((2, 5, 7), dtype=bool)
    mask[1, :, 4:] = False
    additive = torch.from_numpy(np.where(mask, 0.0, -1e30))[:, None]
    output, weights = module(target, additive, source)

    def matrix(name):
        return getattr(module, f"{name}_proj").weight.detach().numpy().T

    expected = multi_head_attention(matrix, module.num_heads, target.numpy(), source.numpy(), mask)
    np.testing.assert_allclose(output.detach().numpy(), expected, atol=1e-12)
    assert weights.shape == (2, 4, 5, 7)
    assert weights[1, :, :, 4:].abs().max() == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_a_fully_padded_row_stays_finite_in_half_precision(dtype, implementation):
    settings = config()
    settings._attn_implementation = implementation
    module = VanillaTransformerAttention(settings, 0).to(dtype).eval()
    states = 30 * torch.randn(1, 5, 16, dtype=dtype)
    mask = torch.full((1, 1, 5, 5), torch.finfo(dtype).min, dtype=dtype)
    assert torch.isfinite(module(states, mask)[0]).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_layers_equal_the_post_norm_layers_of_torch(dtype):
    settings = config(attention_bias=True)
    encoder, decoder = VanillaTransformerEncoderLayer(settings, 0), VanillaTransformerDecoderLayer(settings, 0)
    shared = {"d_model": 16, "nhead": 4, "dim_feedforward": 32, "dropout": 0.0, "layer_norm_eps": 1e-6}
    torch_encoder = torch.nn.TransformerEncoderLayer(**shared, batch_first=True, norm_first=False)
    torch_decoder = torch.nn.TransformerDecoderLayer(**shared, batch_first=True, norm_first=False)
    for ours, theirs in ((encoder, torch_encoder), (decoder, torch_decoder)):
        for parameter in ours.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
        ours.to(dtype), theirs.to(dtype)
        attentions = [(ours.self_attn, theirs.self_attn, ours.self_attn_layer_norm, theirs.norm1)]
        if ours is decoder:
            attentions.append((ours.encoder_attn, theirs.multihead_attn, ours.encoder_attn_layer_norm, theirs.norm2))
        for attention, torch_attention, norm, torch_norm in attentions:
            for part in ("weight", "bias"):
                qkv = [getattr(getattr(attention, f"{name}_proj"), part) for name in "qkv"]
                getattr(torch_attention, f"in_proj_{part}").data = torch.cat(qkv).detach()
            torch_attention.out_proj.load_state_dict(attention.out_proj.state_dict())
            torch_norm.load_state_dict(norm.state_dict())
        theirs.linear1.load_state_dict(ours.fc1.state_dict())
        theirs.linear2.load_state_dict(ours.fc2.state_dict())
        last = theirs.norm3 if ours is decoder else theirs.norm2
        last.load_state_dict(ours.final_layer_norm.state_dict())
        ours.eval(), theirs.eval()
    settings._attn_implementation = "sdpa"
    source, target = torch.randn(2, 6, 16, dtype=dtype), torch.randn(2, 4, 16, dtype=dtype)
    padding = torch.tensor([[False] * 6, [False] * 4 + [True] * 2])
    allowed = ~padding[:, None, None, :]
    memory = torch_encoder(source, src_key_padding_mask=padding)
    tolerance = {"atol": 1e-5 if dtype == torch.float32 else 1e-10, "rtol": 0}
    torch.testing.assert_close(encoder(source, allowed.expand(2, 1, 6, 6)), memory, **tolerance)
    causal = torch.ones(4, 4, dtype=torch.bool).triu(1)
    expected = torch_decoder(target, memory, tgt_mask=causal, memory_key_padding_mask=padding)
    output = decoder(target, ~causal.expand(2, 1, 4, 4), memory, allowed.expand(2, 1, 4, 6))
    torch.testing.assert_close(output, expected, **tolerance)


def test_dropout_applies_to_the_sublayer_output_before_the_addition():
    layer = VanillaTransformerEncoderLayer(config(dropout=0.5), 0).train()
    residual, output = torch.full((1, 400, 16), 3.0), torch.ones(1, 400, 16)
    summed = layer.add_and_norm(residual, output, torch.nn.Identity())
    assert set(summed.unique().tolist()) == {3.0, 5.0}  # dropped, or kept and doubled; the residual is never dropped


@pytest.mark.parametrize("p", [0.1, 0.3, 0.9])
def test_dropout_keeps_the_expected_share_and_scales_it(p):
    dropout, x = Dropout(p).train(), torch.full((501, 401), 2.0, requires_grad=True)
    output = dropout(x)
    assert output.unique().tolist() == pytest.approx([0.0, 2 / (1 - p)], rel=1e-6)
    share = (output != 0).double()
    error = 5 * (p * (1 - p) / x.numel()) ** 0.5  # five standard deviations
    assert share.mean().item() == pytest.approx(1 - p, abs=error)
    for neighbour in (share[:, 1:] * share[:, :-1], share[1:] * share[:-1]):  # neighbours are dropped independently
        assert neighbour.mean().item() == pytest.approx((1 - p) ** 2, abs=4 * error)
    output.sum().backward()
    assert torch.equal(x.grad * 2, output.detach())


def test_dropout_is_reproducible_and_disabled_in_evaluation():
    dropout, x = Dropout(0.5).train(), torch.randn(7, 13)
    outputs = []
    for _ in range(2):
        torch.manual_seed(3)
        outputs.append((dropout(x), dropout(x)))
    assert torch.equal(outputs[0][0], outputs[1][0])
    assert torch.equal(outputs[0][1], outputs[1][1])
    assert not torch.equal(outputs[0][0], outputs[0][1])
    assert torch.equal(dropout.eval()(x), x)
    assert torch.equal(Dropout(0.0).train()(x), x)
    assert torch.equal(Dropout(1.0).train()(x), torch.zeros_like(x))
    assert Dropout(0.5).train()(torch.randn(3, dtype=torch.bfloat16)).dtype == torch.bfloat16
