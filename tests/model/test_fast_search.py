"""Compare the fast searches with transformers' own loops, which call the model's `forward`."""

from functools import partial

import pytest
import torch
from accelerate import cpu_offload
from host_waits import count_host_waits
from search_models import MODELS, with_varied_lengths
from torch import nn
from transformers import LogitsProcessorList, MinNewTokensLengthLogitsProcessor
from transformers.generation import GenerationMixin
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from hf_vanilla_transformer import VanillaTransformerForConditionalGeneration
from hf_vanilla_transformer.model import fast_search_vanilla_transformer as fast_search
from hf_vanilla_transformer.model.fast_search_vanilla_transformer import IncrementalDecoder, top_tokens
from hf_vanilla_transformer.model.layers_vanilla_transformer import (
    VanillaTransformerAttention,
    VanillaTransformerDecoderLayer,
    eager_attention_forward,
)
from hf_vanilla_transformer.model.modeling_vanilla_transformer import VanillaTransformerDecoder


def reference(model, **kwargs) -> torch.Tensor:
    """Generate with transformers' own loop, which runs if more than the tokens is requested."""
    return model.generate(**kwargs, return_dict_in_generate=True).sequences


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "settings", [{}, {"early_stopping": True}, {"early_stopping": "never", "length_penalty": 1.5}]
)
@pytest.mark.parametrize("normalization", ["gnmt", "length"])
def test_beam_search_equals_the_one_of_transformers(small_model, sources, searches, name, settings, normalization):
    model = with_varied_lengths(small_model(lm_head_bias=True, length_normalization=normalization, **MODELS[name]))
    for beams, returned in ((4, 1), (3, 3)):
        arguments = {**sources, **settings, "num_beams": beams, "num_return_sequences": returned}
        expected = reference(model, **arguments)
        assert searches == []
        assert torch.equal(model.generate(**arguments), expected)
        assert searches.pop() == "beam_search"


@pytest.mark.parametrize("name", MODELS)
def test_greedy_search_equals_the_one_of_transformers(small_model, sources, searches, name):
    model = with_varied_lengths(small_model(lm_head_bias=True, **MODELS[name]))
    for limit in ({}, {"max_new_tokens": 7}):
        expected = reference(model, **sources, num_beams=1, **limit)
        assert searches == []
        assert torch.equal(model.generate(**sources, num_beams=1, **limit), expected)
        assert searches.pop() == "greedy_search"


RULES = {
    "OPUS-MT's": {"bad_words_ids": [[0]], "forced_eos_token_id": 2, "renormalize_logits": True},
    "without normalisation": {"bad_words_ids": [[9], [11]], "forced_eos_token_id": 2},
    "a forced end alone": {"forced_eos_token_id": 2},
    "normalisation alone": {"renormalize_logits": True},
}


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("num_beams", [1, 4, 6])
def test_search_with_rules_for_tokens_equals_the_one_of_transformers(small_model, sources, searches, name, num_beams):
    model = with_varied_lengths(small_model(lm_head_bias=True, length_normalization="length"))
    # likely, and therefore generated if nothing forbids it
    model.lm_head.bias.data[[0, 9, 11]] += 3.0
    arguments = {**sources, **RULES[name], "num_beams": num_beams, "max_length": 12}
    expected = reference(model, **arguments)
    assert searches == []
    output = model.generate(**arguments)
    assert torch.equal(output, expected)
    assert len(searches) == 1
    banned = [token for (token,) in RULES[name].get("bad_words_ids", ())]
    assert set(banned) - {0} <= set(range(50)) - set(output[:, 1:].flatten().tolist())
    assert not torch.equal(output, model.generate(**sources, num_beams=num_beams, max_length=12)) or not banned


@pytest.mark.parametrize(("num_beams", "search"), [(1, "greedy_search"), (4, "beam_search")])
def test_search_takes_memory_for_its_output_and_not_for_its_limit(small_model, sources, searches, num_beams, search):
    model = small_model(lm_head_bias=True)
    model.lm_head.bias.data[2] += 100.0  # every sentence ends at once
    output = model.generate(**sources, num_beams=num_beams, max_length=10**9)
    assert searches.pop() == search
    assert output[:, 1:].tolist() == [[2]] * len(output)


@pytest.mark.parametrize("num_beams", [1, 4])
def test_search_stops_at_any_of_several_end_tokens(small_model, sources, num_beams):
    model = with_varied_lengths(small_model(lm_head_bias=True))
    arguments = {**sources, "num_beams": num_beams, "eos_token_id": [2, 7, 8]}
    assert torch.equal(model.generate(**arguments), reference(model, **arguments))


@pytest.mark.parametrize("num_beams", [1, 4])
def test_finished_sentences_are_removed_from_the_batch(small_model, sources, num_beams, monkeypatch):
    model = with_varied_lengths(small_model(lm_head_bias=True))
    sizes, step = [], IncrementalDecoder.step
    monkeypatch.setattr(
        IncrementalDecoder,
        "step",
        lambda self, tokens, *rest: (sizes.append(len(tokens)), step(self, tokens, *rest))[1],
    )
    model.generate(**sources, num_beams=num_beams)
    assert sizes[0] == 11
    assert sizes[-1] < 4
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize("num_beams", [1, 4])
def test_search_with_packed_weights_equals_the_one_of_transformers(small_model, sources, num_beams, monkeypatch):
    monkeypatch.setattr(fast_search, "MIN_PACKED_ELEMENTS", 0)
    packed = []
    reorder = torch.ops.mkldnn._reorder_linear_weight
    monkeypatch.setattr(
        torch.ops.mkldnn, "_reorder_linear_weight", lambda *args: (packed.append(args), reorder(*args))[1]
    )
    model = with_varied_lengths(small_model(lm_head_bias=True))
    expected = reference(model, **sources, num_beams=num_beams)
    assert torch.equal(model.generate(**sources, num_beams=num_beams), expected)
    layers = model.config.num_decoder_layers
    assert len(packed) == (1 + 6 * layers if torch.backends.mkldnn.is_available() else 0)


@pytest.mark.parametrize("num_beams", [1, 4])
def test_search_under_autocast_equals_the_one_of_transformers(small_model, sources, searches, num_beams, monkeypatch):
    monkeypatch.setattr(fast_search, "MIN_PACKED_ELEMENTS", 0)
    model = with_varied_lengths(small_model(lm_head_bias=True))
    with torch.autocast("cpu", torch.bfloat16):
        output = model.generate(**sources, num_beams=num_beams)
        expected = reference(model, **sources, num_beams=num_beams)
    assert len(searches) == 1
    width = min(output.shape[1], expected.shape[1])
    assert (output[:, :width] == expected[:, :width]).float().mean() > 0.8  # rounding may change some tokens


@pytest.mark.parametrize("size", [10, 255, 256, 700, 5000])
def test_max_finds_the_token_that_argmax_finds_also_with_ties(size):
    """The search takes `max`, which torch computes faster, where transformers takes `argmax`."""
    random = torch.randn(50, size)
    for logits in (random, random.bfloat16(), torch.randint(0, 4, (50, size)).float(), torch.zeros(3, size)):
        assert torch.equal(logits.max(1).indices, logits.argmax(1))


@pytest.mark.parametrize("size", [10, 512, 4096, 4100, 5000])
def test_top_tokens_equal_topk(size):
    logits = torch.randn(9, size)
    logits[3, -1] = 99.0  # in the last block, which is incomplete for some sizes
    for count in (1, 5, 8):
        values, places = top_tokens(logits, count)
        expected = logits.topk(count)
        torch.testing.assert_close(values.sort(descending=True).values, expected.values)
        assert torch.equal(places.sort().values, expected.indices.sort().values)


def test_unsupported_searches_run_in_transformers(small_model, sources, searches):
    def generate(model, **settings):
        model.generate(**sources, num_beams=2, **settings)

    processors = LogitsProcessorList([MinNewTokensLengthLogitsProcessor(1, 3, 2)])
    for settings in (
        {"logits_processor": processors},
        {"no_repeat_ngram_size": 2},
        {"bad_words_ids": [[4, 5]]},
        {"renormalize_logits": True, "logits_processor": processors},
        {"do_sample": True},
        {"use_cache": False},
        {"return_dict_in_generate": True},
        {"max_time": 100.0},
        {"decoder_input_ids": torch.tensor([[1, 5]] * 11)},
        {"cache_implementation": "static"},
    ):
        generate(small_model(), **settings)
        assert searches == [], settings

    class Adapter(nn.Linear):
        def forward(self, x):
            return super().forward(x) + 1

    adapted, hooked, training = small_model(), small_model(), small_model().train()
    adapted.model.decoder.layers[1].encoder_attn.q_proj = Adapter(32, 32, bias=False)
    seen = []
    hooked.model.decoder.layers[0].register_forward_hook(lambda *args: seen.append(args))
    for model in (adapted, hooked, training):
        generate(model)
        assert searches == []
    assert seen
    generate(small_model())
    assert searches == ["beam_search"]


@pytest.mark.parametrize("num_beams", [1, 4])
def test_a_source_of_only_padding_never_changes_other_sentences(small_model, sources, num_beams):
    sources["attention_mask"][4] = 0
    model = with_varied_lengths(small_model(lm_head_bias=True))
    others = [row for row in range(11) if row != 4]
    outputs = [search(**sources, num_beams=num_beams) for search in (model.generate, partial(reference, model))]
    expected, given = ([[t for t in row if t not in (0, 2)] for row in output[others].tolist()] for output in outputs)
    assert given == expected


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("num_beams", [1, 4])
def test_search_works_in_other_precisions(small_model, sources, searches, num_beams, dtype):
    model = with_varied_lengths(small_model(lm_head_bias=True)).to(dtype)
    output = model.generate(**sources, num_beams=num_beams)
    assert len(searches) == 1
    if dtype == torch.float64:
        assert torch.equal(output, reference(model, **sources, num_beams=num_beams))
    else:
        wide = model.float().generate(**sources, num_beams=num_beams)
        width = min(output.shape[1], wide.shape[1])
        assert (output[:, :2] == wide[:, :2]).float().mean() > 0.8  # rounding may change some tokens
        assert width > 2


class PreferringToken7(VanillaTransformerForConditionalGeneration):
    """Raise the logit of token 7."""

    def forward(self, *args, **kwargs):
        outputs = super().forward(*args, **kwargs)
        outputs.logits[..., 7] += 5.0
        return outputs


def quantize(model):
    torch.ao.quantization.quantize_dynamic(model.model, {nn.Linear}, inplace=True)


def quantize_with_torchao(model):
    torchao = pytest.importorskip("torchao.quantization")
    torchao.quantize_(model, torchao.Int8WeightOnlyConfig())


def subclass_a_weight(model):
    """Replace a weight by an instance of a subclass, as torchao and GPTQ do to keep the layer's own class."""

    class Weight(nn.Parameter):
        pass

    layer = model.model.decoder.layers[0].fc1
    layer.weight = Weight(layer.weight.detach() * 2)


def use_custom_attention(model):
    def scaled_keys(module, query, key, value, mask, **kwargs):
        return eager_attention_forward(module, query, key * 0.1, value, mask, module.scaling)

    ALL_ATTENTION_FUNCTIONS.register("scaled_keys", scaled_keys)
    ALL_MASK_ATTENTION_FUNCTIONS.register("scaled_keys", ALL_MASK_ATTENTION_FUNCTIONS["eager"])
    model.set_attn_implementation("scaled_keys")


def replace_forward(model):
    forward = model.model.decoder.forward

    def doubling(*args, **kwargs):
        outputs = forward(*args, **kwargs)
        double_states(model, args, outputs)
        return outputs

    model.model.decoder.forward = doubling


def set_method(target, name):
    """Return a change that replaces a method of the model by one that changes its result, for one test."""

    def change(model, monkeypatch):
        owner = model if target is None else target
        original = getattr(owner, name)

        def changed(*args, **kwargs):
            result = original(*args, **kwargs)
            if name == "prepare_inputs_for_generation":
                result["decoder_input_ids"] = result["decoder_input_ids"].clamp(max=30)
            return result

        monkeypatch.setattr(owner, name, changed, raising=False)

    return change


METHODS = ("prepare_inputs_for_generation", "_update_model_kwargs_for_generation", "_update_finished_beams")
OWNERS = {"object": None, "class": VanillaTransformerForConditionalGeneration, "mixin": GenerationMixin}
REPLACED = {f"{name} of the {owner}": set_method(OWNERS[owner], name) for name in METHODS for owner in OWNERS}
REPLACED |= {
    "forward of the class": set_method(VanillaTransformerForConditionalGeneration, "forward"),
    "forward of the decoder's class": set_method(VanillaTransformerDecoder, "forward"),
    "embeddings of the decoder's class": set_method(VanillaTransformerDecoder, "token_embeddings"),
    "a part of the layers' class": set_method(VanillaTransformerDecoderLayer, "feed_forward"),
}


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("change", REPLACED)
def test_replaced_methods_are_called(small_model, sources, searches, num_beams, change, monkeypatch):
    model = with_varied_lengths(small_model(lm_head_bias=True))
    before = model.generate(**sources, num_beams=num_beams)
    REPLACED[change](model, monkeypatch)
    output = model.generate(**sources, num_beams=num_beams)
    assert len(searches) == 1
    assert torch.equal(output, before) == ("prepare_inputs" not in change)


def test_a_method_of_the_class_set_on_the_model_leaves_the_search_fast(small_model, sources, searches):
    """PEFT does so, and leaves it there."""
    model = small_model()
    model.prepare_inputs_for_generation = model.prepare_inputs_for_generation
    model.generate = partial(model.generate, num_beams=2)
    model.generate(**sources)
    assert searches == ["beam_search"]


@pytest.mark.parametrize("num_beams", [1, 3])
def test_a_function_before_each_step_leaves_the_search_fast(small_model, sources, searches, num_beams):
    model = small_model()
    before = model.generate(**sources, num_beams=num_beams)
    steps = []
    model.before_step = lambda: steps.append(1)
    assert torch.equal(model.generate(**sources, num_beams=num_beams), before)
    assert len(searches) == 2
    assert len(steps) > 1


def prefer_token_7(module, args, output):
    output.logits[..., 7] += 5.0


def double_states(module, args, output):
    output.last_hidden_state *= 2.0


CHANGES = {
    "a subclass with its own forward": lambda model: setattr(model, "__class__", PreferringToken7),
    "dynamically quantised layers": quantize,
    "torchao weights": quantize_with_torchao,
    "weights of a subclass of Parameter": subclass_a_weight,
    "offloaded weights": cpu_offload,
    "a custom attention function": use_custom_attention,
    "a forward replaced on the decoder": replace_forward,
    "a hook on the model": lambda model: model.register_forward_hook(prefer_token_7),
    "a hook on model.model": lambda model: model.model.register_forward_hook(double_states),
    "an activation that is not element-wise": lambda model: setattr(
        model.model.decoder.layers[0], "activation_fn", nn.Softmax(-1)
    ),
    "a decoder in training mode": lambda model: model.model.decoder.train(),
    "a global hook": lambda model: None,
    "a forward replaced on a class": lambda model: None,
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.filterwarnings("ignore")
def test_unsupported_models_run_in_transformers(
    small_model, sources, searches, num_beams, change, request, monkeypatch
):
    model = with_varied_lengths(small_model(lm_head_bias=True))
    CHANGES[change](model)
    if change == "a global hook":
        hook = nn.modules.module.register_module_forward_hook(lambda *args: None)
        request.addfinalizer(hook.remove)
    if change == "a forward replaced on a class":
        forward = VanillaTransformerAttention.forward
        monkeypatch.setattr(VanillaTransformerAttention, "forward", lambda *args, **kwargs: forward(*args, **kwargs))
    expected = reference(model, **sources, num_beams=num_beams)
    output = model.generate(**sources, num_beams=num_beams)
    assert change == "a decoder in training mode" or torch.equal(output, expected)
    assert searches == []


def test_a_model_that_has_returned_attentions_still_uses_the_fast_search(small_model, sources, searches):
    model = small_model(attn_implementation="eager")
    model(**sources, decoder_input_ids=torch.ones(11, 1, dtype=torch.long), output_attentions=True)
    model.generate(**sources, num_beams=2)
    assert searches == ["beam_search"]


@pytest.mark.parametrize("num_beams", [1, 4])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_a_source_of_only_padding_decodes_as_in_transformers(small_model, sources, num_beams, implementation):
    sources["attention_mask"][4] = 0
    model = with_varied_lengths(small_model(lm_head_bias=True))
    model.set_attn_implementation(implementation)
    expected = reference(model, **sources, num_beams=num_beams)
    assert torch.equal(model.generate(**sources, num_beams=num_beams), expected)


@pytest.mark.parametrize("num_beams", [1, 4])
def test_a_search_waits_for_the_device_once_per_position(small_model, sources, num_beams):
    model = small_model(lm_head_bias=True)
    model.lm_head.bias.data[2] = -1e4  # no sentence ends before its limit

    def waits(positions: int) -> int:
        settings = {"num_beams": num_beams, "max_new_tokens": positions}
        return count_host_waits(lambda: model.generate(**sources, **settings))

    assert waits(30) - waits(10) == 20
