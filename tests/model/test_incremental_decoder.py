"""The decoder of the fast search, compared with the model's `forward` and with the formula of a linear layer."""

import gc

import pytest
import torch
from peft import LoraConfig, get_peft_model
from search_models import MODELS
from torch import nn

from hf_vanilla_transformer.model import fast_search_vanilla_transformer as fast_search
from hf_vanilla_transformer.model.fast_search_vanilla_transformer import IncrementalDecoder, PackedLinear


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
    linear = nn.Linear(300, 600, bias=biased, dtype=dtype)
    weight, bias = linear.weight, linear.bias
    layer = PackedLinear(linear, rows=40, relu=relu)
    for rows in (9, 1, 40):
        x = torch.randn(rows, 300, dtype=dtype)
        expected = x.double() @ weight.double().t() + (0 if bias is None else bias.double())
        expected = expected.clamp(min=0) if relu else expected
        torch.testing.assert_close(layer(x).double(), expected, atol=30 * tolerance, rtol=tolerance)


@pytest.fixture
def packings(monkeypatch) -> list:
    """A list that collects the arguments of each packing, also of small layers."""
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this build of torch has no oneDNN")
    monkeypatch.setattr(fast_search, "MIN_PACKED_ELEMENTS", 0)
    seen = []
    reorder = torch.ops.mkldnn._reorder_linear_weight
    monkeypatch.setattr(
        torch.ops.mkldnn, "_reorder_linear_weight", lambda *args: (seen.append(args), reorder(*args))[1]
    )
    return seen


def train_a_step(model):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model(input_ids=torch.tensor([[5, 6]]), labels=torch.tensor([[7, 2]])).loss.backward()
    optimizer.step()


def load_other_weights(model):
    model.load_state_dict({name: weight.roll(1, 0) for name, weight in model.state_dict().items()})


def reorder_weights_within_rows(model):
    # the sums of the rows stay the same
    model.load_state_dict({name: weight.roll(1, -1) for name, weight in model.state_dict().items()})


def merge_an_adapter(model):
    config = LoraConfig(target_modules=["k_proj", "fc2"], init_lora_weights=False)
    assert get_peft_model(model, config).merge_and_unload() is model


def change_one_weight_without_a_trace(model):
    weight = model.model.decoder.layers[1].self_attn.v_proj.weight
    version = weight._version
    weight.data[3, 4] += 1.0
    assert weight._version == version


CHANGES = {
    "nothing": lambda model: None,
    "a training step": train_a_step,
    "load_state_dict": load_other_weights,
    "load_state_dict with equal sums of rows": reorder_weights_within_rows,
    "another dtype and back": lambda model: model.to(torch.bfloat16).float(),
    "a merged adapter": merge_an_adapter,
    "one weight": change_one_weight_without_a_trace,
    "all weights of a layer": lambda model: model.model.decoder.layers[1].fc1.weight.data.neg_(),
}


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
@pytest.mark.parametrize("change", CHANGES)
def test_packed_weights_are_used_until_the_weights_change(small_model, sources, packings, change):
    model = small_model()

    def logits() -> torch.Tensor:
        encoded = model.model.encoder(**sources).last_hidden_state
        decoder = IncrementalDecoder(model, encoded, sources["attention_mask"], num_beams=1)
        return torch.cat(list(decoder.logits(decoder.step(torch.ones(11, 1, dtype=torch.long)))))

    with torch.inference_mode():
        logits()
    packings.clear()
    CHANGES[change](model)
    with torch.no_grad():
        given = logits()
        assert bool(packings) == (change != "nothing")
        expected = model(**sources, decoder_input_ids=torch.ones(11, 1, dtype=torch.long)).logits[:, 0]
    torch.testing.assert_close(given, expected, atol=1e-5, rtol=1e-5)


LAYOUTS = {
    "rows": lambda dtype: torch.randn(5, 512, dtype=dtype),
    "odd width": lambda dtype: torch.randn(5, 511, dtype=dtype),
    "columns": lambda dtype: torch.randn(512, 5, dtype=dtype).t(),
    "within a buffer": lambda dtype: torch.randn(5 * 512 + 1, dtype=dtype)[1:].view(5, 512),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_change_of_weights_is_found(dtype, layout):
    weight = LAYOUTS[layout](dtype)
    before = fast_search._row_sums(weight)
    assert torch.equal(fast_search._row_sums(weight), before)
    nine = torch.tensor(9.0, dtype=dtype)
    for row, column in ((0, 0), (2, 4), (4, weight.shape[1] - 1)):
        kept = weight[row, column].clone()
        weight[row, column] = torch.nextafter(kept, nine)
        assert (fast_search._row_sums(weight) != before).nonzero().flatten().tolist() == [row]
        weight[row, column] = kept
    # of which each adds a power of two to the bits of every number
    for factor in (2.0, 0.5, -1.0, 4.0):
        assert (fast_search._row_sums(weight * factor) != before).all()
        assert (fast_search._row_sums(weight.mul_(factor)) != before).all()
        weight.div_(factor)


@pytest.mark.parametrize(("batch", "num_beams", "is_packed"), [(1, 1, False), (1, 2, True), (2, 1, True)])
def test_weights_are_not_packed_for_a_single_row_in_float32(small_model, packings, batch, num_beams, is_packed):
    source = torch.tensor([[5, 6, 7]] * batch)
    model = small_model()
    model.generate(source, num_beams=num_beams, max_new_tokens=2)
    assert bool(packings) == is_packed
    packings.clear()
    model.bfloat16().generate(source, num_beams=num_beams, max_new_tokens=2)
    assert bool(packings) == torch.ops.mkldnn._is_mkldnn_bf16_supported()


def test_packed_weights_are_freed_with_their_model(small_model, sources, packings):
    gc.collect()
    before = len(fast_search._packed)
    model = small_model()
    model.generate(**sources, num_beams=2, max_new_tokens=2)
    assert len(fast_search._packed) > before
    del model
    gc.collect()
    assert len(fast_search._packed) == before


def test_a_single_beam_attends_in_float32_but_not_under_autocast(small_model, sources):
    model = small_model().to(torch.bfloat16)

    def cache_dtype(model, num_beams: int) -> torch.dtype:
        encoded = model.model.encoder(**sources).last_hidden_state
        decoder = IncrementalDecoder(model, encoded, sources["attention_mask"], num_beams)
        decoder.step(torch.ones(11, num_beams, dtype=torch.long))
        return decoder.layers[0].key.dtype

    assert cache_dtype(model, 1) == torch.float32
    assert cache_dtype(model, 3) == torch.bfloat16
    assert cache_dtype(small_model().double(), 1) == torch.float64
    with torch.autocast("cpu", torch.bfloat16):
        assert cache_dtype(small_model(), 1) == torch.bfloat16
