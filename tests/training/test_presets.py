from dataclasses import fields

import pytest
import torch

from hf_vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from hf_vanilla_transformer.training.arguments import VanillaTransformerTrainingArguments
from hf_vanilla_transformer.training.presets import PRESETS, paper_config, preset
from hf_vanilla_transformer.training.trainer import VanillaTransformerTrainer

FIELDS = ("num_encoder_layers", "d_model", "d_ff", "num_heads", "d_k", "d_v", "dropout", "position_embedding")
# name: N, d_model, d_ff, h, d_k, d_v, dropout, positions
MODELS = {
    "base": (6, 512, 2048, 8, 64, 64, 0.1, "sinusoidal"),
    "A1": (6, 512, 2048, 1, 512, 512, 0.1, "sinusoidal"),
    "A2": (6, 512, 2048, 4, 128, 128, 0.1, "sinusoidal"),
    "A3": (6, 512, 2048, 16, 32, 32, 0.1, "sinusoidal"),
    "A4": (6, 512, 2048, 32, 16, 16, 0.1, "sinusoidal"),
    "B1": (6, 512, 2048, 8, 16, 64, 0.1, "sinusoidal"),
    "B2": (6, 512, 2048, 8, 32, 64, 0.1, "sinusoidal"),
    "C1": (2, 512, 2048, 8, 64, 64, 0.1, "sinusoidal"),
    "C2": (4, 512, 2048, 8, 64, 64, 0.1, "sinusoidal"),
    "C3": (8, 512, 2048, 8, 64, 64, 0.1, "sinusoidal"),
    "C4": (6, 256, 2048, 8, 32, 32, 0.1, "sinusoidal"),
    "C5": (6, 1024, 2048, 8, 128, 128, 0.1, "sinusoidal"),
    "C6": (6, 512, 1024, 8, 64, 64, 0.1, "sinusoidal"),
    "C7": (6, 512, 4096, 8, 64, 64, 0.1, "sinusoidal"),
    "D1": (6, 512, 2048, 8, 64, 64, 0.0, "sinusoidal"),
    "D2": (6, 512, 2048, 8, 64, 64, 0.2, "sinusoidal"),
    "D3": (6, 512, 2048, 8, 64, 64, 0.1, "sinusoidal"),
    "D4": (6, 512, 2048, 8, 64, 64, 0.1, "sinusoidal"),
    "E": (6, 512, 2048, 8, 64, 64, 0.1, "learned"),
    "big": (6, 1024, 4096, 16, 64, 64, 0.3, "sinusoidal"),
}
TINY = (4, 128, 256, 4, 32, 32, 0.3, "sinusoidal")
MILLIONS = {"base": 65, "B1": 58, "B2": 60, "C1": 36, "C2": 50, "C3": 80, "C4": 28, "C5": 168, "C6": 53, "C7": 90}
MILLIONS["big"] = 213


def parameters(c: VanillaTransformerConfig) -> int:
    """Count as the paper does: shared embeddings, attention without biases, feed-forward with biases, and norms."""
    attention = 2 * c.d_model * c.num_heads * (c.d_k + c.d_v)
    feed_forward = 2 * c.d_model * c.d_ff + c.d_ff + c.d_model
    norm = 2 * c.d_model
    encoder_layer = attention + feed_forward + 2 * norm
    decoder_layer = 2 * attention + feed_forward + 3 * norm
    return c.vocab_size * c.d_model + c.num_encoder_layers * encoder_layer + c.num_decoder_layers * decoder_layer


def test_every_row_of_table_3_and_tiny_has_a_preset():
    assert set(PRESETS) == {*MODELS, "tiny"}


def test_presets_name_only_fields_of_a_configuration_and_training_arguments():
    known = {field.name for field in fields(VanillaTransformerTrainingArguments)}
    for name in PRESETS:
        assert preset(name).training.keys() <= known
        assert preset(name).model.keys() <= {field.name for field in fields(VanillaTransformerConfig)}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*MODELS, "tiny"])
def test_every_preset_builds_trains_a_step_and_generates(name, tmp_path):
    model = VanillaTransformerForConditionalGeneration(paper_config(name, vocab_size=50))
    before = model.model.encoder.layers[-1].self_attn.k_proj.weight.detach().clone()
    rows = [{"input_ids": [4, 5, 6, 2], "labels": [7, 8, 2]}, {"input_ids": [9, 2], "labels": [10, 11, 2]}]
    args = VanillaTransformerTrainingArguments(
        tmp_path, use_cpu=True, disable_tqdm=True, save_strategy="no", **{**preset(name).training, "max_steps": 1}
    )
    result = VanillaTransformerTrainer(model, args, train_dataset=rows).train()
    assert 0.0 < result.training_loss < 50.0
    assert not torch.equal(model.model.encoder.layers[-1].self_attn.k_proj.weight, before)
    output = model.eval().generate(torch.tensor([[4, 5, 2]]), max_new_tokens=4)
    assert output.shape[0] == 1
    assert 2 <= output.shape[1] <= 5


@pytest.mark.parametrize("name", [*MODELS, "tiny"])
def test_the_models_of_presets_match_the_paper(name):
    config = paper_config(name)
    assert tuple(getattr(config, field) for field in FIELDS) == {**MODELS, "tiny": TINY}[name]
    assert config.num_decoder_layers == config.num_encoder_layers
    assert config.vocab_size == (5000 if name == "tiny" else 37_000)
    assert (config.attention_dropout, config.activation_dropout, config.activation_function) == (0, 0, "relu")
    assert config.tie_word_embeddings
    assert not config.attention_bias


@pytest.mark.parametrize("name", MODELS)
def test_the_training_settings_of_presets_match_the_paper(name, tmp_path):
    args = VanillaTransformerTrainingArguments(output_dir=tmp_path, use_cpu=True, **preset(name).training)
    assert args.label_smoothing_factor == {"D3": 0.0, "D4": 0.2}.get(name, 0.1)
    assert args.max_steps == (300_000 if name == "big" else 100_000)
    assert args.save_total_limit == (20 if name == "big" else 5)
    assert (args.warmup_steps, args.max_tokens, args.lr_scheduler_type) == (4000, 25_000, "noam")


@pytest.mark.parametrize("name", MILLIONS)
def test_parameter_counts_are_within_7_percent_of_table_3(name):
    assert parameters(paper_config(name)) == pytest.approx(MILLIONS[name] * 1e6, rel=0.07)


@pytest.mark.parametrize("name", ["base", "B1"])
def test_the_number_of_parameters_matches_the_formula(name):
    with torch.device("meta"):
        model = VanillaTransformerForConditionalGeneration(paper_config(name))
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters(paper_config(name))


@pytest.mark.parametrize("function", [preset, paper_config])
def test_the_error_of_an_unknown_name_lists_the_presets(function):
    with pytest.raises(ValueError, match="'huge'") as error:
        function("huge")
    assert all(name in str(error.value) for name in [*MODELS, "tiny"])


def test_overrides_take_precedence_over_the_preset():
    config = paper_config("big", dropout=0.1, vocab_size=32_000)
    assert (config.dropout, config.vocab_size, config.d_model) == (0.1, 32_000, 1024)
    assert paper_config("big").dropout == 0.3


def test_unknown_overrides_are_an_error_and_known_ones_replace_those_of_the_preset():
    with pytest.raises(
        ValueError, match="A configuration has no field 'num_layers'; its fields are vocab_size, d_model"
    ):
        paper_config("base", num_layers=3)
    config = paper_config("tiny", num_hidden_layers=2, hidden_size=64, attn_implementation="eager")
    assert (config.num_encoder_layers, config.num_decoder_layers, config.d_model) == (2, 2, 64)
    assert config._attn_implementation == "eager"
