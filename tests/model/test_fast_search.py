"""The fast searches against transformers' own loops over the model's plain forward."""

from functools import partial

import pytest
import torch
from accelerate import cpu_offload
from torch import nn
from transformers import LogitsProcessorList, MinNewTokensLengthLogitsProcessor
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from hf_vanilla_transformer import VanillaTransformerForConditionalGeneration
from hf_vanilla_transformer.model import generation_vanilla_transformer as generation
from hf_vanilla_transformer.model.fast_search_vanilla_transformer import IncrementalDecoder, top_tokens
from hf_vanilla_transformer.model.layers_vanilla_transformer import (
    VanillaTransformerAttention,
    eager_attention_forward,
)

MODELS = {
    "the paper's": {},
    "heads of their own width": {"d_k": 5, "d_v": 9},
    "biases": {"attention_bias": True, "activation_function": "gelu"},
    "learned positions": {"position_embedding": "learned", "max_position_embeddings": 70},
    "a vocabulary of many blocks": {"vocab_size": 3333},
}


def talkative(model):
    """A random model that ends its sentences at many lengths and whose choices are far apart."""
    model.lm_head.weight.data *= 3
    model.lm_head.bias.data[2] += 3.0
    return model


@pytest.fixture
def sources() -> dict[str, torch.Tensor]:
    lengths = torch.tensor([9, 3, 6, 1, 8, 9, 5, 4, 2, 7, 9])
    attention_mask = (torch.arange(9) < lengths[:, None]).long()
    return {"input_ids": torch.randint(4, 50, (11, 9)) * attention_mask, "attention_mask": attention_mask}


@pytest.fixture
def searches(monkeypatch) -> list[str]:
    """The names of the fast searches that have run."""
    seen = []
    for name in ("greedy_search", "beam_search"):
        search = getattr(generation, name)
        monkeypatch.setattr(generation, name, lambda *args, s=search, n=name: (seen.append(n), s(*args))[1])
    return seen


def reference(model, **kwargs) -> torch.Tensor:
    """By transformers' own loop, which is taken when more than the tokens is wanted."""
    return model.generate(**kwargs, return_dict_in_generate=True).sequences


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "settings", [{}, {"early_stopping": True}, {"early_stopping": "never", "length_penalty": 1.5}]
)
@pytest.mark.parametrize("normalization", ["gnmt", "length"])
def test_beam_search_equals_transformers_own(small_model, sources, searches, name, settings, normalization):
    model = talkative(small_model(lm_head_bias=True, length_normalization=normalization, **MODELS[name]))
    for beams, returned in ((4, 1), (3, 3)):
        arguments = {**sources, **settings, "num_beams": beams, "num_return_sequences": returned}
        expected = reference(model, **arguments)
        assert searches == []
        assert torch.equal(model.generate(**arguments), expected)
        assert searches.pop() == "beam_search"


@pytest.mark.parametrize("name", MODELS)
def test_greedy_search_equals_transformers_own(small_model, sources, searches, name):
    model = talkative(small_model(lm_head_bias=True, **MODELS[name]))
    for limit in ({}, {"max_new_tokens": 7}):
        expected = reference(model, **sources, num_beams=1, **limit)
        assert searches == []
        assert torch.equal(model.generate(**sources, num_beams=1, **limit), expected)
        assert searches.pop() == "greedy_search"


@pytest.mark.parametrize("num_beams", [1, 4])
def test_several_end_tokens(small_model, sources, num_beams):
    model = talkative(small_model(lm_head_bias=True))
    arguments = {**sources, "num_beams": num_beams, "eos_token_id": [2, 7, 8]}
    assert torch.equal(model.generate(**arguments), reference(model, **arguments))


@pytest.mark.parametrize("num_beams", [1, 4])
def test_sentences_that_are_done_leave_the_batch(small_model, sources, num_beams, monkeypatch):
    model = talkative(small_model(lm_head_bias=True))
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


@pytest.mark.parametrize("name", MODELS)
def test_every_position_gives_the_logits_of_the_whole_forward(small_model, sources, name):
    """Also after beams have changed places, and sentences and their padding have left."""
    model = small_model(lm_head_bias=True, **MODELS[name]).double()
    encoded = model.model.encoder(**sources).last_hidden_state
    decoder = IncrementalDecoder(model, encoded, sources["attention_mask"], num_beams=3)
    history, rows, parents = torch.ones(11, 3, 1, dtype=torch.long), torch.arange(11), None
    for position in range(40):
        logits = decoder.step(history[:, :, -1], parents)  # (V, B K)
        if position % 7 == 0:
            flat = {key: value[rows].repeat_interleave(3, 0) for key, value in sources.items()}
            expected = model(**flat, decoder_input_ids=history.flatten(0, 1)).logits[:, -1]
            torch.testing.assert_close(logits.t(), expected, atol=1e-10, rtol=0)
        parents = torch.randint(0, 3, history.shape[:2])
        history = history.gather(1, parents[..., None].expand_as(history))
        history = torch.cat((history, torch.randint(4, 50, (*parents.shape, 1))), -1)
        if position in (10, 20):
            stay = torch.randperm(len(rows))[: len(rows) // 2].sort().values
            decoder.keep(stay)
            history, rows, parents = history[stay], rows[stay], parents[stay]


@pytest.mark.parametrize("size", [10, 512, 4096, 4100, 5000])
def test_the_top_tokens_are_those_of_topk(size):
    logits = torch.randn(size, 7)
    logits[-1, 3] = 99.0  # in the last block, which is not whole for every size
    for count in (1, 5, 8):
        values, places = top_tokens(logits, count)
        expected = logits.topk(count, dim=0)
        torch.testing.assert_close(values.sort(descending=True).values, expected.values.t())
        assert torch.equal(places.sort().values, expected.indices.t().sort().values)


def test_what_the_fast_search_would_miss_goes_to_transformers(small_model, sources, searches):
    def generate(model, **settings):
        model.generate(**sources, num_beams=2, **settings)

    processors = LogitsProcessorList([MinNewTokensLengthLogitsProcessor(1, 3, 2)])
    for settings in (
        {"logits_processor": processors},
        {"no_repeat_ngram_size": 2},
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
def test_a_source_of_padding_alone_changes_no_other(small_model, sources, num_beams):
    sources["attention_mask"][4] = 0
    model = talkative(small_model(lm_head_bias=True))
    others = [row for row in range(11) if row != 4]
    outputs = [search(**sources, num_beams=num_beams) for search in (model.generate, partial(reference, model))]
    expected, given = ([[t for t in row if t not in (0, 2)] for row in output[others].tolist()] for output in outputs)
    assert given == expected


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("num_beams", [1, 4])
def test_other_precisions_decode(small_model, sources, searches, num_beams, dtype):
    model = talkative(small_model(lm_head_bias=True)).to(dtype)
    output = model.generate(**sources, num_beams=num_beams)
    assert len(searches) == 1
    if dtype == torch.float64:
        assert torch.equal(output, reference(model, **sources, num_beams=num_beams))
    else:
        wide = model.float().generate(**sources, num_beams=num_beams)
        width = min(output.shape[1], wide.shape[1])
        assert (output[:, :2] == wide[:, :2]).float().mean() > 0.8  # rounding may change a choice
        assert width > 2


class Louder(VanillaTransformerForConditionalGeneration):
    """Wants the token 7 more than its weights do."""

    def forward(self, *args, **kwargs):
        outputs = super().forward(*args, **kwargs)
        outputs.logits[..., 7] += 5.0
        return outputs


def quantized(model):
    torch.ao.quantization.quantize_dynamic(model.model, {nn.Linear}, inplace=True)


def torchao_weights(model):
    torchao = pytest.importorskip("torchao.quantization")
    torchao.quantize_(model, torchao.Int8WeightOnlyConfig())


def wrapped_weights(model):
    """Weights of a class of their own, which is how torchao and GPTQ keep a linear layer's class."""

    class Weight(nn.Parameter):
        pass

    layer = model.model.decoder.layers[0].fc1
    layer.weight = Weight(layer.weight.detach() * 2)


def own_attention(model):
    def shy(module, query, key, value, mask, **kwargs):
        return eager_attention_forward(module, query, key * 0.1, value, mask, module.scaling)

    ALL_ATTENTION_FUNCTIONS.register("shy", shy)
    ALL_MASK_ATTENTION_FUNCTIONS.register("shy", ALL_MASK_ATTENTION_FUNCTIONS["eager"])
    model.set_attn_implementation("shy")


def patched_forward(model):
    forward = model.model.decoder.forward

    def with_more(*args, **kwargs):
        outputs = forward(*args, **kwargs)
        doubled(model, args, outputs)
        return outputs

    model.model.decoder.forward = with_more


def louder(module, args, output):
    output.logits[..., 7] += 5.0


def doubled(module, args, output):
    output.last_hidden_state *= 2.0


CHANGES = {
    "a subclass with a forward of its own": lambda model: setattr(model, "__class__", Louder),
    "dynamically quantised layers": quantized,
    "torchao's weights": torchao_weights,
    "weights of another class": wrapped_weights,
    "offloaded weights": cpu_offload,
    "an attention function of somebody's own": own_attention,
    "a forward put on the decoder": patched_forward,
    "a hook on the model": lambda model: model.register_forward_hook(louder),
    "a hook on model.model": lambda model: model.model.register_forward_hook(doubled),
    "an activation that is not element by element": lambda model: setattr(
        model.model.decoder.layers[0], "activation_fn", nn.Softmax(-1)
    ),
    "a decoder in training": lambda model: model.model.decoder.train(),
    "a hook on everything": lambda model: None,
    "another forward of a class": lambda model: None,
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.filterwarnings("ignore")
def test_a_model_that_the_fast_search_does_not_know_goes_to_transformers(
    small_model, sources, searches, num_beams, change, request, monkeypatch
):
    model = talkative(small_model(lm_head_bias=True))
    CHANGES[change](model)
    if change == "a hook on everything":
        hook = nn.modules.module.register_module_forward_hook(lambda *args: None)
        request.addfinalizer(hook.remove)
    if change == "another forward of a class":
        forward = VanillaTransformerAttention.forward
        monkeypatch.setattr(VanillaTransformerAttention, "forward", lambda *args, **kwargs: forward(*args, **kwargs))
    expected = reference(model, **sources, num_beams=num_beams)
    output = model.generate(**sources, num_beams=num_beams)
    assert change == "a decoder in training" or torch.equal(output, expected)
    assert searches == []


def test_a_model_that_was_once_asked_for_attentions_stays_fast(small_model, sources, searches):
    model = small_model(attn_implementation="eager")
    model(**sources, decoder_input_ids=torch.ones(11, 1, dtype=torch.long), output_attentions=True)
    model.generate(**sources, num_beams=2)
    assert searches == ["beam_search"]


@pytest.mark.parametrize("num_beams", [1, 4])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_a_source_of_padding_alone_decodes_as_in_transformers(small_model, sources, num_beams, implementation):
    sources["attention_mask"][4] = 0
    model = talkative(small_model(lm_head_bias=True))
    model.set_attn_implementation(implementation)
    expected = reference(model, **sources, num_beams=num_beams)
    assert torch.equal(model.generate(**sources, num_beams=num_beams), expected)
