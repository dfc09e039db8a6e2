"""Head masks, and attention functions that users register, compared with changed weights and eager attention."""

import pytest
import torch
from search_models import with_varied_lengths
from torch import nn
from transformers import AttentionInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from hf_vanilla_transformer import VanillaTransformerForConditionalGeneration
from hf_vanilla_transformer.inference.ensemble import Ensemble

MASKS = {
    "head_mask": ("encoder", "self_attn"),
    "decoder_head_mask": ("decoder", "self_attn"),
    "cross_attn_head_mask": ("decoder", "encoder_attn"),
}


@pytest.fixture(autouse=True)
def no_attention_function_is_left():
    yield
    ALL_ATTENTION_FUNCTIONS._global_mapping.pop("student", None)


def masks(model) -> dict[str, torch.Tensor]:
    """Return a mask (layers, h) of each kind, with heads that are removed, weakened, kept and strengthened."""
    depths = {"head_mask": model.config.num_encoder_layers}
    sizes = {name: (depths.get(name, model.config.num_decoder_layers), 4) for name in MASKS}
    factors = torch.tensor([0.0, 0.5, 1.0, 2.0])
    return {name: factors[torch.randint(0, 4, size)] for name, size in sizes.items()}


def with_scaled_outputs(model, masks):
    """Return a copy of the model whose output projections apply the masks: a head has its own columns of W^O."""
    scaled = type(model)(model.config).eval()
    scaled.load_state_dict(model.state_dict())
    scaled.generation_config = model.generation_config
    for name, mask in masks.items():
        stack, attention = MASKS[name]
        for i, layer in enumerate(getattr(scaled.model, stack).layers):
            factors = mask.expand(len(getattr(scaled.model, stack).layers), -1)[i]
            getattr(layer, attention).out_proj.weight.data *= factors.repeat_interleave(model.config.d_v)
    return scaled


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("shape", ["layers and heads", "heads"])
def test_a_head_mask_scales_the_output_of_each_head(small_model, sources, implementation, name, shape):
    model = small_model(d_v=9, attn_implementation=implementation)
    mask = masks(model)[name]
    given = {name: mask if shape == "layers and heads" else torch.tensor([1.0, 0.0, 0.5, 2.0])}
    target = torch.randint(4, 50, (11, 5))
    expected = with_scaled_outputs(model, given)(**sources, decoder_input_ids=target).logits
    logits = model(**sources, **given, decoder_input_ids=target).logits
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(logits, model(**sources, decoder_input_ids=target).logits, atol=1e-3)


@pytest.mark.parametrize("settings", [{"num_beams": 1}, {"num_beams": 3}, {"num_beams": 4, "use_cache": False}])
@pytest.mark.parametrize("names", [["head_mask"], list(MASKS)])
def test_generate_applies_head_masks(small_model, sources, names, settings):
    model = with_varied_lengths(small_model(lm_head_bias=True))
    given = {name: mask for name, mask in masks(model).items() if name in names}
    expected = with_scaled_outputs(model, given).generate(**sources, **settings, output_sequence_scores=True)
    output = model.generate(**sources, **given, **settings, output_sequence_scores=True)
    assert torch.equal(output.sequences, expected.sequences)
    torch.testing.assert_close(output.sequences_scores, expected.sequences_scores, atol=1e-5, rtol=1e-5)
    assert not torch.equal(model.generate(**sources, **settings), output.sequences)


def test_head_masks_get_gradients(small_model, sources):
    """Their size estimates how important a head is (Michel et al. 2019); also with checkpoints of activations."""
    model = small_model(dropout=0.0).train()
    labels = torch.randint(4, 50, (11, 5))
    gradients = []
    for checkpointing in (False, True):
        if checkpointing:
            getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()
        given = {name: torch.ones(len(mask), 4, requires_grad=True) for name, mask in masks(model).items()}
        model(**sources, **given, labels=labels).loss.backward()
        gradients.append(torch.cat([mask.grad for mask in given.values()]))
    assert (gradients[0] != 0).all()
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("shape", [(5,), (4, 1), (1, 4), (2, 3, 4)])
def test_a_head_mask_of_another_shape_is_rejected(small_model, sources, name, shape):
    with pytest.raises(ValueError, match=rf"{name} must have the shape \(layers, heads\) or \(heads,\)"):
        small_model()(**sources, decoder_input_ids=sources["input_ids"], **{name: torch.ones(shape)})


@pytest.mark.parametrize("name", MASKS)
def test_an_ensemble_refuses_head_masks(small_model, sources, name):
    ensemble = Ensemble([small_model(), small_model()])
    given = {name: torch.ones(4)}
    with pytest.raises(ValueError, match=name):
        ensemble(**sources, decoder_input_ids=sources["input_ids"], **given)
    with pytest.raises(ValueError, match=name):
        ensemble.generate(**sources, **given)


def student(module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs):
    """Compute attention as a student of the paper may write it, with an additive mask."""
    scores = torch.einsum("bhtd,bhsd->bhts", query, key) * scaling
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = nn.functional.dropout(scores.softmax(-1), dropout, module.training)
    return torch.einsum("bhts,bhsd->bthd", weights, value), weights


def test_an_attention_function_registered_without_a_mask_gets_that_of_eager_attention(small_model, sources):
    AttentionInterface.register("student", student)
    model = small_model(attn_implementation="eager")
    target = torch.randint(4, 50, (11, 5))
    target_mask = torch.tensor([[1] * 5] * 10 + [[1, 1, 1, 0, 0]])
    arguments = {**sources, "decoder_input_ids": target, "decoder_attention_mask": target_mask}
    expected = model(**arguments).logits
    model.set_attn_implementation("student")
    torch.testing.assert_close(model(**arguments).logits, expected, atol=1e-5, rtol=0)
    target[:, 3:] = 7
    torch.testing.assert_close(model(**arguments).logits[:, :3], expected[:, :3], atol=1e-5, rtol=0)
    assert model.config._attn_implementation == "student"


@pytest.mark.parametrize("settings", [{"num_beams": 1}, {"num_beams": 3}, {"num_beams": 3, "use_cache": False}])
def test_a_model_with_a_registered_attention_function_generates_as_with_eager(small_model, sources, settings):
    AttentionInterface.register("student", student)
    model = with_varied_lengths(small_model(lm_head_bias=True, attn_implementation="eager"))
    expected = model.generate(**sources, **settings, return_dict_in_generate=True).sequences
    model.set_attn_implementation("student")
    assert torch.equal(model.generate(**sources, **settings), expected)


def test_a_model_loads_with_a_registered_attention_function(small_model, sources, tmp_path):
    AttentionInterface.register("student", student)
    model = small_model(attn_implementation="eager")
    model.save_pretrained(tmp_path)
    loaded = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path, attn_implementation="student").eval()
    arguments = {**sources, "decoder_input_ids": sources["input_ids"]}
    torch.testing.assert_close(loaded(**arguments).logits, model(**arguments).logits, atol=1e-5, rtol=0)
