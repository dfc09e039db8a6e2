"""The course's conversion of `torch.nn.Transformer` to the model of this package."""

import runpy
import warnings

import pytest
import torch
from corpora import ROOT
from torch import nn

from hf_vanilla_transformer.model.layers_vanilla_transformer import sinusoids


@pytest.fixture
def from_torch():
    return runpy.run_path(str(ROOT / "scripts" / "study" / "course" / "from_torch.py"))["from_torch"]


def torch_transformer(**changes) -> nn.Transformer:
    fields = {"d_model": 32, "nhead": 4, "num_encoder_layers": 2, "num_decoder_layers": 3, "dim_feedforward": 64}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "enable_nested_tensor")  # a performance hint of torch
        model = nn.Transformer(**{**fields, "batch_first": True, **changes})
    model.encoder.norm = model.decoder.norm = None
    # so that no parameter keeps its initial zeros or ones
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    return model.eval()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("changes", [{}, {"activation": "gelu", "layer_norm_eps": 1e-3}, {"bias": False}])
def test_conversion_from_torch_keeps_the_logits(from_torch, changes):
    transformer, embedding = torch_transformer(dtype=torch.float64, **changes), nn.Embedding(50, 32).double()
    model = from_torch(transformer, embedding)
    source, target = torch.randint(4, 50, (3, 9)), torch.randint(4, 50, (3, 6))
    mask = torch.ones_like(source)
    mask[1, 5:] = 0

    def embed(ids):
        return embedding(ids) * 32**0.5 + sinusoids(ids.shape[1], 32)

    with torch.no_grad():
        states = transformer(
            embed(source),
            embed(target),
            tgt_mask=torch.ones(6, 6, dtype=torch.bool).triu(1),
            src_key_padding_mask=mask == 0,
            memory_key_padding_mask=mask == 0,
        )
        ours = model(input_ids=source, attention_mask=mask, decoder_input_ids=target).logits
    torch.testing.assert_close(ours, states @ embedding.weight.T, atol=1e-10, rtol=0)


def test_torch_transformer_without_equivalent_is_rejected(from_torch):
    embedding = nn.Embedding(50, 32)
    with pytest.raises(ValueError, match="norm after each stack"):
        from_torch(nn.Transformer(32, 4, 1, 1, 64, batch_first=True), embedding)
    for changes, reason in (({"norm_first": True}, "pre-norm"), ({"activation": nn.functional.silu}, "neither relu")):
        with pytest.raises(ValueError, match=reason):
            from_torch(torch_transformer(**changes), embedding)
    with pytest.raises(ValueError, match="d_model differs"):
        from_torch(torch_transformer(), nn.Embedding(50, 16))
    unknown_layer = torch_transformer()
    unknown_layer.encoder.layers[1] = nn.Identity()
    with pytest.raises(ValueError, match="Identity"):
        from_torch(unknown_layer, embedding)
    mixed_dropout = torch_transformer()
    mixed_dropout.decoder.layers[0].dropout2.p = 0.5
    with pytest.raises(ValueError, match="dropout differs"):
        from_torch(mixed_dropout, embedding)
