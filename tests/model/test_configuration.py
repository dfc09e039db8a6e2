import copy
import inspect
import pickle
import re

import pytest
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig

from hf_vanilla_transformer import VanillaTransformerConfig, paper_config

CHANGED = {
    "vocab_size": 999,
    "d_model": 48,
    "num_encoder_layers": 3,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "d_ff": 96,
    "d_k": 7,
    "d_v": 5,
    "dropout": 0.25,
    "attention_dropout": 0.05,
    "activation_dropout": 0.15,
    "activation_function": "gelu",
    "position_embedding": "learned",
    "max_position_embeddings": 77,
    "attention_bias": True,
    "lm_head_bias": True,
    "layer_norm_eps": 1e-5,
    "length_normalization": "length",
    "source_lang": "en",
    "target_lang": "de",
    "pad_token_id": 4,
    "bos_token_id": 5,
    "eos_token_id": 6,
    "decoder_start_token_id": 7,
    "tie_word_embeddings": False,
}
INVALID = [
    {"dropout": 1.0},
    {"dropout": -0.1},
    {"attention_dropout": 1.5},
    {"activation_dropout": 1.0},
    {"position_embedding": "rotary"},
    {"length_normalization": "none"},
    {"d_model": 511, "d_k": 64, "d_v": 64},
    {"num_heads": 0},
    {"num_heads": -8},
    {"d_model": 0},
    {"d_ff": 0},
    {"d_k": 0},
    {"d_v": 0},
    {"vocab_size": 0},
    {"num_encoder_layers": 0},
    {"num_decoder_layers": 0},
    {"max_position_embeddings": 0},
]


def changed_fields(config: VanillaTransformerConfig) -> dict:
    return {name: getattr(config, name) for name in CHANGED}


@pytest.mark.parametrize(
    ("alias", "field"),
    [
        ("hidden_size", "d_model"),
        ("num_hidden_layers", "num_decoder_layers"),
        ("num_attention_heads", "num_heads"),
        ("encoder_layers", "num_encoder_layers"),
        ("decoder_layers", "num_decoder_layers"),
        ("encoder_attention_heads", "num_heads"),
        ("decoder_attention_heads", "num_heads"),
        ("encoder_ffn_dim", "d_ff"),
        ("decoder_ffn_dim", "d_ff"),
    ],
)
def test_standard_names_of_transformers_are_aliases(alias, field):
    config = VanillaTransformerConfig(**CHANGED)
    assert getattr(config, alias) == CHANGED[field]
    setattr(config, alias, 24)
    assert getattr(config, field) == 24


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, (64, 64)),
        ({"d_model": 256}, (32, 32)),
        ({"num_heads": 16}, (32, 32)),
        ({"d_k": 16}, (16, 64)),
        ({"d_v": 16}, (64, 16)),
    ],
)
def test_head_widths_default_to_d_model_over_num_heads(given, expected):
    config = VanillaTransformerConfig(**given)
    assert (config.d_k, config.d_v) == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"d_model": 64, "num_attention_heads": 4}, {"d_k": 16, "d_v": 16}),
        ({"hidden_size": 64}, {"d_model": 64, "d_k": 8, "d_v": 8}),
        ({"hidden_size": 64, "encoder_attention_heads": 2, "decoder_attention_heads": 2}, {"num_heads": 2, "d_k": 32}),
        ({"head_dim": 16}, {"d_k": 16, "d_v": 16}),
        ({"head_dim": 16, "d_v": 24}, {"d_k": 16, "d_v": 24}),
        ({"num_hidden_layers": 2}, {"num_encoder_layers": 2, "num_decoder_layers": 2}),
        ({"num_hidden_layers": 2, "encoder_layers": 3}, {"num_encoder_layers": 3, "num_decoder_layers": 2}),
        ({"intermediate_size": 96, "d_ff": 96}, {"d_ff": 96}),
    ],
)
def test_aliases_are_applied_before_other_fields_are_derived(given, expected):
    class Subclass(VanillaTransformerConfig):
        model_type = "subclass"

    built = [VanillaTransformerConfig(**given), AutoConfig.for_model("vanilla_transformer", **given)]
    built += [VanillaTransformerConfig.from_dict(given), Subclass(**given), paper_config("base", **given)]
    for config in built:
        assert {field: getattr(config, field) for field in expected} == expected
        assert config.to_dict().keys().isdisjoint(config.attribute_map)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_heads": 8, "num_attention_heads": 4}, "num_attention_heads=4 contradicts num_heads=8"),
        ({"d_model": 512, "hidden_size": 256}, "hidden_size=256 contradicts d_model=512"),
        ({"encoder_ffn_dim": 64, "decoder_ffn_dim": 32}, "decoder_ffn_dim=32 contradicts encoder_ffn_dim=64"),
        ({"num_hidden_layers": 4, "decoder_layers": 2}, "decoder_layers=2 contradicts num_hidden_layers=4"),
        ({"head_dim": 16, "d_k": 8}, "head_dim=16 contradicts d_k=8"),
    ],
)
def test_different_values_of_one_field_are_an_error_even_if_one_is_its_default(given, message):
    for names in (given, dict(reversed(given.items()))):
        with pytest.raises(ValueError, match=message):
            VanillaTransformerConfig(**names)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"num_hidden_layers": 2}, {"num_encoder_layers": 2, "num_decoder_layers": 2}),
        ({"head_dim": 5}, {"d_k": 5, "d_v": 5}),
        ({"hidden_size": 128}, {"d_model": 128, "d_k": 32, "d_v": 5}),
        ({"num_heads": 2}, {"num_heads": 2, "d_k": 32, "d_v": 5}),
        ({"d_model": 128, "d_k": 8}, {"d_model": 128, "d_k": 8, "d_v": 5}),
        ({"num_hidden_layers": 2, "encoder_layers": 3}, {"num_encoder_layers": 3, "num_decoder_layers": 2}),
        ({"encoder_ffn_dim": 24}, {"d_ff": 24, "num_encoder_layers": 6}),
    ],
)
def test_changes_of_a_configuration_apply_to_what_follows_from_them(changes, expected, tmp_path):
    # its d_k is the default, and its d_v is not
    saved = VanillaTransformerConfig(d_model=64, num_heads=4, d_v=5)
    saved.save_pretrained(tmp_path)
    updated, assigned = copy.deepcopy(saved), copy.copy(saved)
    updated.update(changes)
    for name, value in changes.items():
        setattr(assigned, name, value)
    loaded = [cls.from_pretrained(tmp_path, **changes) for cls in (VanillaTransformerConfig, AutoConfig)]
    for config in (*loaded, VanillaTransformerConfig.from_dict(saved.to_dict(), **changes), updated, assigned):
        assert {field: getattr(config, field) for field in expected} == expected
        config.validate()


def test_a_copy_is_the_same_configuration(tmp_path):
    config = VanillaTransformerConfig(**CHANGED)
    for other in (copy.copy(config), copy.deepcopy(config), pickle.loads(pickle.dumps(config))):
        assert vars(other) == vars(config)
        assert other.to_json_string() == config.to_json_string()


def test_type_checkers_know_the_aliases():
    source = inspect.getsource(VanillaTransformerConfig)
    declared = source.partition("if TYPE_CHECKING:")[2].partition("\n\n")[0]
    assert re.findall(r"(\w+): ", declared) == list(VanillaTransformerConfig.attribute_map)


def test_to_dict_keeps_every_field():
    assert changed_fields(VanillaTransformerConfig.from_dict(VanillaTransformerConfig(**CHANGED).to_dict())) == CHANGED


def test_a_saved_config_loads_unchanged(tmp_path):
    VanillaTransformerConfig(**CHANGED).save_pretrained(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path)
    assert type(config) is VanillaTransformerConfig
    assert changed_fields(config) == CHANGED


def test_special_tokens_default_to_those_of_the_tokenizer():
    config = VanillaTransformerConfig()
    ids = config.pad_token_id, config.bos_token_id, config.eos_token_id, config.decoder_start_token_id
    assert ids == (0, 1, 2, 1)


@pytest.mark.parametrize("fields", INVALID, ids=str)
def test_the_error_names_the_invalid_field(fields):
    with pytest.raises((ValueError, StrictDataclassError), match=rf"\b{next(iter(fields))}\b"):
        VanillaTransformerConfig(**fields)


def test_a_field_out_of_range_raises_a_value_error():
    with pytest.raises(ValueError, match="dropout"):
        VanillaTransformerConfig(dropout=1.0)


def test_learned_positions_allow_an_odd_d_model():
    assert VanillaTransformerConfig(d_model=511, position_embedding="learned").d_model == 511


def test_auto_config_builds_the_registered_class():
    config = AutoConfig.for_model("vanilla_transformer", d_model=64)
    assert type(config) is VanillaTransformerConfig
    assert config.d_model == 64
