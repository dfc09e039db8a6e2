"""The module that `get_input_embeddings` returns is the one that the forward pass calls."""

import copy

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.func import functional_call, grad, vmap
from transformers import MarianConfig, MarianMTModel
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


def test_the_shared_embedding_is_registered_once(small_model, tmp_path):
    model = small_model()
    matrices = [name for name in model.state_dict() if name.removesuffix(".weight") in TIED]
    assert matrices == ["model.shared.weight", "lm_head.weight"]
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


def marian(model) -> MarianMTModel:
    """Return a MarianMT model of the same size."""
    size = {"vocab_size": 50, "d_model": 32, "max_position_embeddings": 64, "encoder_layers": 2, "decoder_layers": 3}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
    return MarianMTModel(MarianConfig(**size, **heads, pad_token_id=0, decoder_start_token_id=1)).eval()


ARGUMENTS = {"input_ids": SOURCE, "decoder_input_ids": TARGET, "labels": torch.tensor([[7, 8, 2], [9, 4, 2]])}
NAMINGS = {
    "parameters": lambda model: dict(model.named_parameters()),
    "every name": lambda model: dict(model.named_parameters(remove_duplicate=False)),
    "state": lambda model: model.state_dict(),
}


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("naming", NAMINGS)
def test_a_functional_call_differentiates_the_weights_given_and_leaves_the_model_alone(small_model, naming, wrapped):
    for model in (marian(small_model()), small_model()):
        caller = torch.nn.ModuleDict({"model": model}) if wrapped else model
        caller.forward = model.forward
        before = {
            name: (id(weight), weight.clone()) for name, weight in model.named_parameters(remove_duplicate=False)
        }
        given: dict = {}
        # one new tensor for each matrix, whatever its names
        doubled = {tensor.data_ptr(): 2 * tensor.detach() for tensor in NAMINGS[naming](caller).values()}
        for name, tensor in NAMINGS[naming](caller).items():
            given[name] = doubled[tensor.data_ptr()].requires_grad_(tensor.is_floating_point())
        prefix = "model." if wrapped else ""
        embedding = given[f"{prefix}model.shared.weight"]
        loss = functional_call(caller, given, kwargs=ARGUMENTS).loss
        [gradient] = torch.autograd.grad(loss, [embedding])

        after = dict(model.named_parameters(remove_duplicate=False))
        assert {name: id(weight) for name, weight in after.items()} == {name: key for name, (key, _) in before.items()}
        assert all(torch.equal(after[name], weight) for name, (_, weight) in before.items())
        # as a model that really has these weights
        del caller.forward
        model.load_state_dict({name.removeprefix(prefix): weight for name, weight in given.items()}, strict=False)
        expected = model(**ARGUMENTS).loss
        expected.backward()
        torch.testing.assert_close(loss, expected)
        torch.testing.assert_close(gradient, model.get_input_embeddings().weight.grad)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_gradients_of_each_sentence_are_those_of_one_sentence_alone(small_model):
    model = small_model()
    weights = {name: weight.detach() for name, weight in model.named_parameters()}

    def loss(weights, source, labels):
        return functional_call(model, weights, kwargs={"input_ids": source[None], "labels": labels[None]}).loss

    sources = SOURCE[:, :3]
    gradients = vmap(grad(loss), in_dims=(None, 0, 0))(weights, sources, ARGUMENTS["labels"])
    for row in range(2):
        model.zero_grad()
        model(input_ids=sources[row : row + 1], labels=ARGUMENTS["labels"][row : row + 1]).loss.backward()
        for name, weight in model.named_parameters():
            torch.testing.assert_close(gradients[name][row], weight.grad, atol=1e-5, rtol=1e-4)


def test_weights_under_all_names_load_into_a_model_and_stay_tied(small_model):
    model, other = small_model(), small_model()
    weights = {name: 2 * weight for name, weight in other.state_dict().items()}
    for name in TIED:
        weights[f"{name}.weight"] = weights["model.shared.weight"]
    model.load_state_dict(weights)
    assert torch.equal(model.lm_head.weight, 2 * other.lm_head.weight)
    assert len({id(module.weight) for module in (*embeddings(model), model.lm_head)}) == 1


def test_a_stack_alone_has_the_shared_matrix(small_model, tmp_path):
    for model in (marian(small_model()), small_model()):
        encoder = model.get_encoder()
        expected = encoder(SOURCE).last_hidden_state
        encoder.save_pretrained(tmp_path / type(encoder).__name__)
        loaded = type(encoder).from_pretrained(tmp_path / type(encoder).__name__).eval()
        assert torch.equal(loaded(SOURCE).last_hidden_state, expected)
        doubled = {name: 2 * weight for name, weight in encoder.state_dict().items()}
        encoder.load_state_dict(doubled)
        assert torch.equal(model.lm_head.weight, doubled["embed_tokens.weight"])
        given = {name: weight / 2 for name, weight in encoder.named_parameters()}
        assert torch.equal(functional_call(encoder, given, (SOURCE,)).last_hidden_state, expected)
        assert torch.equal(model.lm_head.weight, doubled["embed_tokens.weight"])
        copied = copy.deepcopy(encoder).double()
        assert copied(SOURCE).last_hidden_state.dtype == torch.float64
        encoder.requires_grad_(False)
        assert not model.lm_head.weight.requires_grad
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    assert [name for name in names if name.removesuffix(".weight") in TIED] == [
        "model.shared.weight",
        "lm_head.weight",
    ]
    assert [name for name in model.state_dict() if "embed_tokens" in name] == []


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
