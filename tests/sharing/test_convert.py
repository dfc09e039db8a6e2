"""Converted models, compared with MarianMT."""

import pytest
import torch
from torch import nn
from transformers import MarianConfig, MarianMTModel

import hf_vanilla_transformer
from hf_vanilla_transformer import convert
from hf_vanilla_transformer.model import generation_vanilla_transformer as generation


def scatter(model: nn.Module) -> nn.Module:
    """Add noise to every parameter, so that none keeps its initial zeros or ones and each affects the output."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data += 0.05 * torch.randn_like(parameter)
    return model.eval()


def marian(**changes) -> MarianMTModel:
    fields = {
        "vocab_size": 50,
        "d_model": 32,
        "encoder_layers": 2,
        "decoder_layers": 3,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 64,
        "decoder_ffn_dim": 64,
        "max_position_embeddings": 64,
        "scale_embedding": True,
        "pad_token_id": 49,
        "eos_token_id": 2,
        "decoder_start_token_id": 49,
        "forced_eos_token_id": None,
    }
    model = scatter(MarianMTModel(MarianConfig(**{**fields, **changes})))
    model.final_logits_bias.normal_()
    return model


@torch.no_grad()
def logits(model) -> torch.Tensor:
    torch.manual_seed(1)
    source, target = torch.randint(4, 45, (3, 9)), torch.randint(4, 45, (3, 6))
    mask = torch.ones_like(source)
    mask[1, 5:] = 0
    return model(input_ids=source, attention_mask=mask, decoder_input_ids=target).logits


VARIANTS = {
    "paper": {},
    "biases everywhere": {"attention_bias": True, "lm_head_bias": True},
    "different activation": {"activation_function": "silu"},
    "different epsilon": {"layer_norm_eps": 1e-3},
    "untied": {"tie_word_embeddings": False},
    "double precision": {"dtype": torch.float64},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_conversion_to_marian_and_back_keeps_the_logits(small_model, name):
    changes = dict(VARIANTS[name])
    dtype = changes.pop("dtype", torch.float32)
    model = scatter(small_model(**changes).to(dtype))
    converted = convert.to_marian(model)
    torch.testing.assert_close(logits(converted), logits(model), atol=1e-5, rtol=0)
    restored = convert.from_marian(converted)
    assert torch.equal(logits(restored), logits(model))
    ignored = {"length_normalization", "initializer_range", "architectures"}
    configs = [{k: v for k, v in m.config.to_dict().items() if k not in ignored} for m in (model, restored)]
    assert configs[1] == configs[0]


@pytest.mark.parametrize("changes", [{}, {"activation_function": "swish", "tie_word_embeddings": False}])
def test_conversion_from_marian_keeps_the_logits(changes):
    model = marian(**changes)
    converted = convert.from_marian(model)
    assert converted.config.layer_norm_eps == 1e-5
    assert converted.config.attention_bias
    assert converted.config.lm_head_bias
    torch.testing.assert_close(logits(converted), logits(model), atol=1e-5, rtol=0)


@pytest.mark.parametrize("num_beams", [1, 4])
def test_model_converted_from_marian_generates_the_same(num_beams):
    model = marian()
    model.generation_config.update(num_beams=num_beams, length_penalty=0.8, max_length=20, bad_words_ids=[[49]])
    converted = convert.from_marian(model)
    sources = torch.randint(4, 45, (20, 9))
    assert torch.equal(converted.generate(sources), model.generate(sources))


def test_tokens_that_are_never_generated_keep_their_ids_when_converted_to_marian(small_model):
    model = small_model()
    sources = torch.tensor([[5, 6, 7, 2], [9, 8, 7, 2]])
    start, *usual = model.generate(sources, num_beams=1, max_new_tokens=4)[0].tolist()
    assert usual[1] not in (0, 1, 2)
    model.generation_config.update(suppress_tokens=[usual[1]], begin_suppress_tokens=[usual[0]])
    expected = model.generate(sources, num_beams=1, max_new_tokens=4)
    assert expected[0].tolist() != [start, *usual]
    converted = convert.from_marian(convert.to_marian(model))
    assert torch.equal(converted.generate(sources, num_beams=1, max_new_tokens=4), expected)


@pytest.mark.parametrize("num_beams", [1, 2])
def test_translations_of_a_model_converted_to_marian_do_not_end_after_20_tokens(small_model, tmp_path, num_beams):
    model = small_model(lm_head_bias=True, max_position_embeddings=40)
    model.lm_head.bias.data[2] = -1e4  # never generates </s>
    convert.to_marian(model).save_pretrained(tmp_path)
    source = torch.tensor([[5, 6, 2]])
    for marian_model in (convert.to_marian(model), MarianMTModel.from_pretrained(tmp_path)):
        assert marian_model.generate(source, num_beams=num_beams).shape == (1, 40)
    for limit in ({"max_length": 9}, {"max_new_tokens": 8}):  # of the model itself
        limited = small_model(lm_head_bias=True)
        limited.lm_head.bias.data[2] = -1e4
        limited.generation_config.update(**limit)
        assert convert.to_marian(limited).generate(source, num_beams=num_beams).shape == (1, 9)


def test_reloaded_marian_model_has_marians_layer_norm_epsilon(small_model, tmp_path):
    model = scatter(small_model(layer_norm_eps=1e-2))
    converted = convert.to_marian(model)
    converted.save_pretrained(tmp_path)
    reloaded = MarianMTModel.from_pretrained(tmp_path)
    assert {m.eps for m in reloaded.modules() if isinstance(m, nn.LayerNorm)} == {1e-5}
    assert not torch.allclose(logits(reloaded), logits(model), atol=1e-3)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"d_k": 5}, r"d_model / num_heads wide.*d_k 5"),
        ({"d_v": 16}, r"d_v 16"),
        ({"position_embedding": "learned"}, "learned"),
    ],
)
def test_model_without_marian_equivalent_is_rejected(small_model, changes, reason):
    with pytest.raises(ValueError, match=reason):
        convert.to_marian(small_model(**changes))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"share_encoder_decoder_embeddings": False}, "separate source and target vocabularies"),
        ({"scale_embedding": False}, "sqrt"),
        ({"decoder_attention_heads": 8}, "number of heads"),
        ({"decoder_ffn_dim": 128}, "d_ff"),
    ],
)
def test_marian_model_without_equivalent_is_rejected(changes, reason):
    with pytest.raises(ValueError, match=reason):
        convert.from_marian(marian(**changes))


@pytest.fixture
def trained(trained_on_multi30k):
    """A trained model and a batch of 200 sentences."""
    model, tokenizer, _, sentences, _ = trained_on_multi30k
    return model, tokenizer(sentences[:200], return_tensors="pt", padding=True)


def check_equal_decoding(model, other, sources, num_beams: int):
    """Check that at least 199 of 200 translations are equal, and that any other differs in score by at most 1e-5."""
    settings = {"num_beams": num_beams, "length_penalty": 0.8, "max_new_tokens": 40, "early_stopping": True}
    outputs = [
        m.generate(**sources, **settings, return_dict_in_generate=True, output_scores=True) for m in (model, other)
    ]
    ours, theirs = (output.sequences for output in outputs)
    assert len(set(map(tuple, ours.tolist()))) > 20  # the model does not always predict the same sentence
    unequal = (ours != theirs).any(-1).nonzero()[:, 0].tolist() if ours.shape == theirs.shape else range(200)
    assert len(unequal) <= 1
    for row in unequal:
        if num_beams > 1:
            scores = [output.sequences_scores[row].item() for output in outputs]
        else:
            step = int((ours[row] != theirs[row]).nonzero()[0])
            scores = [outputs[0].scores[step - 1][row, tokens[row, step]].item() for tokens in (ours, theirs)]
        assert scores[0] == pytest.approx(scores[1], abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("num_beams", [1, 4])
def test_200_sentences_are_translated_the_same_after_conversion_to_marian(trained, num_beams, monkeypatch):
    model, sources = trained
    monkeypatch.setattr(model.config, "length_normalization", "length")
    check_equal_decoding(model, convert.to_marian(model), sources, num_beams)


@pytest.mark.slow
@pytest.mark.parametrize("num_beams", [1, 4])
def test_200_sentences_are_translated_the_same_after_conversion_from_marian(trained, num_beams):
    model, sources = trained
    other = convert.to_marian(model)
    for name, parameter in other.named_parameters():
        if name.endswith("_proj.bias"):
            parameter.data.normal_(std=0.02)
    other.final_logits_bias.normal_(std=0.1)
    check_equal_decoding(convert.from_marian(other), other, sources, num_beams)


def test_convert_is_a_public_name():
    assert hf_vanilla_transformer.convert is convert


@pytest.mark.slow
@pytest.mark.parametrize("num_beams", [1, 4, 6])
def test_1000_sentences_are_translated_by_the_fast_search_as_by_marian_with_the_settings_of_opus_mt(
    trained_on_multi30k, num_beams, monkeypatch
):
    model, tokenizer, _, sentences, _ = trained_on_multi30k
    padding = model.config.pad_token_id
    marian = convert.to_marian(model)
    # so likely that it would often be generated
    marian.final_logits_bias[0, padding] += 5.0
    marian.generation_config.update(
        bad_words_ids=[[padding]], forced_eos_token_id=2, renormalize_logits=True, max_length=16, length_penalty=1.0
    )
    converted = convert.from_marian(marian)
    name = "greedy_search" if num_beams == 1 else "beam_search"
    searches = []
    search = getattr(generation, name)
    monkeypatch.setattr(generation, name, lambda *args: (searches.append(name), search(*args))[1])
    longest = 0
    for start in range(0, 1000, 100):
        batch = tokenizer(sentences[start : start + 100], return_tensors="pt", padding=True)
        expected = marian.generate(**batch, num_beams=num_beams)
        assert torch.equal(converted.generate(**batch, num_beams=num_beams), expected)
        longest += int((expected[:, -1] == 2).sum())
    assert len(searches) == 10
    # some outputs end at the limit
    assert longest > 10
