"""The module that `get_input_embeddings` returns is the one that the forward pass calls."""

import copy

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.integrations.neftune import activate_neftune, deactivate_neftune

from hf_vanilla_transformer import VanillaTransformerForConditionalGeneration
from hf_vanilla_transformer.data.batching import Seq2SeqCollator

SOURCE = torch.tensor([[5, 6, 7, 2], [8, 9, 2, 0]])
TARGET = torch.tensor([[1, 7, 8], [1, 9, 4]])
TIED = ("model.shared", "model.encoder.embed_tokens", "model.decoder.embed_tokens", "lm_head")


def embeddings(model) -> list[torch.nn.Module]:
    return [model.model.shared, model.model.encoder.embed_tokens, model.model.decoder.embed_tokens]


def collect_inputs(model) -> list[torch.Tensor]:
    """Return a list that collects the token ids that the model looks up with its input embeddings."""
    seen = []
    model.get_input_embeddings().register_forward_hook(lambda module, args, output: seen.append(args[0]))
    return seen


@pytest.mark.parametrize("tie", [True, False])
def test_a_hook_on_the_input_embeddings_sees_every_lookup(small_model, tie):
    model = small_model(tie_word_embeddings=tie)
    seen = collect_inputs(model)
    model(input_ids=SOURCE, decoder_input_ids=TARGET)
    expected = [SOURCE, TARGET] if tie else [SOURCE]  # an untied decoder has a matrix of its own
    assert [ids.tolist() for ids in seen] == [ids.tolist() for ids in expected]


def change_nothing(model, folder):
    return model


def load(model, folder):
    model.save_pretrained(folder)
    return VanillaTransformerForConditionalGeneration.from_pretrained(folder).eval()


def load_in_half_precision(model, folder):
    model.save_pretrained(folder)
    return VanillaTransformerForConditionalGeneration.from_pretrained(folder, dtype=torch.bfloat16).eval()


def resize(model, folder):
    model.resize_token_embeddings(61)
    return model


def build_on_meta(model, folder):
    with torch.device("meta"):
        empty = VanillaTransformerForConditionalGeneration(model.config)
    empty.to_empty(device="cpu")
    empty.tie_weights()
    empty.load_state_dict(model.state_dict())
    return empty.eval()


WAYS = [change_nothing, load, load_in_half_precision, resize, build_on_meta]


COPIES = [*WAYS, lambda model, folder: copy.deepcopy(model), lambda model, folder: model.double()]


@pytest.mark.parametrize("way", COPIES)
def test_tied_embeddings_are_one_module_with_one_matrix_in_every_copy(small_model, tmp_path, way):
    model = way(small_model(), tmp_path)
    assert len(set(embeddings(model))) == 1
    assert model.get_input_embeddings() is model.model.shared
    assert model.lm_head.weight is model.model.shared.weight
    seen = collect_inputs(model)
    model(input_ids=SOURCE, decoder_input_ids=TARGET)
    assert len(seen) == 2


def test_names_of_weights_stay_those_of_three_modules(small_model, tmp_path):
    model = small_model()
    matrices = [name for name in model.state_dict() if name.removesuffix(".weight") in TIED]
    assert matrices == [f"{name}.weight" for name in TIED]
    assert next(name for name, _ in model.named_parameters()) == "model.shared.weight"
    model.save_pretrained(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    assert [name for name in saved if name.removesuffix(".weight") in TIED] == ["model.shared.weight"]


@pytest.mark.parametrize("present", [[], *([name] for name in TIED), TIED])
def test_tied_matrices_load_from_any_of_their_names_and_are_missed_if_absent(small_model, tmp_path, present):
    model = small_model()
    model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    matrix = weights.pop("model.shared.weight")
    weights |= {f"{name}.weight": matrix.clone() for name in present}
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    loaded, report = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path, output_loading_info=True)
    assert bool(report["missing_keys"]) == (not present)
    for module in (*embeddings(loaded), loaded.lm_head):
        assert torch.equal(module.weight, matrix) == bool(present)


def test_different_matrices_under_tied_names_stay_different(small_model, tmp_path):
    model = small_model()
    model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["model.decoder.embed_tokens.weight"] = weights["model.shared.weight"] + 1
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    loaded = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path)
    difference = loaded.model.decoder.embed_tokens.weight - loaded.model.encoder.embed_tokens.weight
    torch.testing.assert_close(difference, torch.ones_like(difference))


@pytest.mark.parametrize("tie", [True, False])
def test_neftune_adds_noise_of_the_right_size_in_training_only(small_model, tie):
    model = small_model(tie_word_embeddings=tie, dropout=0.0)
    clean = model(input_ids=SOURCE, decoder_input_ids=TARGET).logits
    states = model.get_input_embeddings()(SOURCE)
    handle = activate_neftune(model, 5.0)
    assert torch.equal(model(input_ids=SOURCE, decoder_input_ids=TARGET).logits, clean)
    model.train()
    assert not torch.allclose(model(input_ids=SOURCE, decoder_input_ids=TARGET).logits, clean)
    noise = (model.get_input_embeddings()(SOURCE) - states).abs().max().item()
    bound = 5.0 / (SOURCE.shape[1] * 32) ** 0.5  # alpha / sqrt(L d) (Jain et al. 2023)
    assert 0.8 * bound < noise <= bound
    deactivate_neftune(model, handle)
    assert torch.equal(model(input_ids=SOURCE, decoder_input_ids=TARGET).logits, clean)


def test_trainer_trains_with_neftune_and_removes_it(trainer):
    weights = []
    for alpha in (None, None, 5.0):
        run = trainer()
        run.neftune_noise_alpha = alpha
        run.train()
        weights.append(run.model.model.shared.weight.detach().clone())
        assert not run.model.get_input_embeddings()._forward_hooks
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


@pytest.mark.parametrize("num_beams", [1, 4])
def test_validation_during_training_with_neftune_uses_the_fast_search(small_model, searches, num_beams):
    model = small_model()
    expected = model.generate(SOURCE, num_beams=num_beams, max_new_tokens=9)
    activate_neftune(model, 5.0)
    assert torch.equal(model.generate(SOURCE, num_beams=num_beams, max_new_tokens=9), expected)
    assert len(searches) == 2


@pytest.mark.parametrize("tie", [True, False])
def test_input_gradients_flow_through_a_frozen_model(small_model, tie):
    model = small_model(tie_word_embeddings=tie).requires_grad_(False)
    batch = Seq2SeqCollator(0, 1)([{"input_ids": [5, 6, 2], "labels": [7, 8, 2]}])
    batch.pop("decoder_input_ids", None)
    assert not model(**batch).loss.requires_grad
    model.enable_input_require_grads()
    assert model(**batch).loss.requires_grad
    model.disable_input_require_grads()
    assert not model(**batch).loss.requires_grad


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_a_compiled_inner_model_can_be_tied_and_resized(small_model):
    model = small_model()
    model.model = torch.compile(model.model)
    model.tie_weights()
    model.resize_token_embeddings(60)
    assert model.get_input_embeddings().weight.shape == (60, 32)
    assert model.lm_head.weight is model.get_input_embeddings().weight
