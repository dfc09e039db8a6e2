"""The decoder of the fast search, compared with the model's `forward` and with the formula of a linear layer."""

import pytest
import torch
from search_models import MODELS

from hf_vanilla_transformer.model.incremental_decoder_vanilla_transformer import IncrementalDecoder, PackedLinear


@pytest.mark.parametrize("name", MODELS)
def test_logits_of_each_step_equal_those_of_the_full_forward(small_model, sources, name):
    """Also after beams have been reordered and sentences have been removed."""
    model = small_model(lm_head_bias=True, **MODELS[name]).double()
    encoded = model.model.encoder(**sources).last_hidden_state
    decoder = IncrementalDecoder(model, encoded, sources["attention_mask"], num_beams=3)
    history, rows, parents = torch.ones(11, 3, 1, dtype=torch.long), torch.arange(11), None
    for position in range(40):
        logits = torch.cat(list(decoder.logits(decoder.step(history[:, :, -1], parents))))  # (B K, V)
        if position % 7 == 0:
            flat = {key: value[rows].repeat_interleave(3, 0) for key, value in sources.items()}
            expected = model(**flat, decoder_input_ids=history.flatten(0, 1)).logits[:, -1]
            torch.testing.assert_close(logits, expected, atol=1e-10, rtol=0)
        parents = torch.randint(0, 3, history.shape[:2])
        history = history.gather(1, parents[..., None].expand_as(history))
        history = torch.cat((history, torch.randint(4, 50, (*parents.shape, 1))), -1)
        if position in (10, 20):
            stay = torch.randperm(len(rows))[: len(rows) // 2].sort().values
            decoder.keep(stay)
            history, rows, parents = history[stay], rows[stay], parents[stay]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.04)])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_packed_linear_layers_equal_the_formula(dtype, tolerance, relu, biased):
    weight, bias = torch.randn(600, 300, dtype=dtype), torch.randn(600, dtype=dtype) if biased else None
    layer = PackedLinear(weight, bias, rows=9, relu=relu)
    for rows in (9, 1, 40):
        x = torch.randn(rows, 300, dtype=dtype)
        expected = x.double() @ weight.double().t() + (0 if bias is None else bias.double())
        expected = expected.clamp(min=0) if relu else expected
        torch.testing.assert_close(layer(x).double(), expected, atol=30 * tolerance, rtol=tolerance)
