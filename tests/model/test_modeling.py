from itertools import combinations

import numpy as np
import pytest
import torch
from paper_in_numpy import transformer
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM
from transformers.utils import logging

from hf_vanilla_transformer import (
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerModel,
)
from hf_vanilla_transformer.model.cache_vanilla_transformer import CACHE
from hf_vanilla_transformer.model.layers_vanilla_transformer import shift_right, sinusoids

ARRAYS = ("input_ids", "attention_mask", "decoder_input_ids")


def batch(pad_from: int = 5) -> dict[str, torch.Tensor]:
    input_ids, decoder_input_ids = torch.randint(4, 50, (2, 8)), torch.randint(4, 50, (2, 6))
    attention_mask = torch.ones_like(input_ids)
    attention_mask[1, pad_from:] = 0
    decoder_input_ids[:, 0] = 1
    return {
        "input_ids": input_ids.masked_fill(attention_mask == 0, 0),
        "attention_mask": attention_mask,
        "decoder_input_ids": decoder_input_ids,
    }


def torch_stacks(model: VanillaTransformerForConditionalGeneration) -> tuple[nn.ModuleList, nn.ModuleList]:
    """Return the model's encoder and decoder layers as post-norm layers of `torch.nn` with the same weights."""
    config = model.config
    shape = {
        "d_model": config.d_model,
        "nhead": config.num_heads,
        "dim_feedforward": config.d_ff,
        "dropout": 0.0,
        "layer_norm_eps": config.layer_norm_eps,
        "batch_first": True,
        "norm_first": False,
        "dtype": model.dtype,
    }

    def copy(theirs, ours, attentions, norms):
        for torch_attention, attention in attentions:
            torch_attention.in_proj_weight.data = torch.cat(
                [attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]
            ).detach()
            nn.init.zeros_(torch_attention.in_proj_bias)
            torch_attention.out_proj.weight.data = attention.out_proj.weight.detach()
            nn.init.zeros_(torch_attention.out_proj.bias)
        for torch_norm, norm in norms:
            torch_norm.load_state_dict(norm.state_dict())
        theirs.linear1.load_state_dict(ours.fc1.state_dict())
        theirs.linear2.load_state_dict(ours.fc2.state_dict())
        return theirs.eval()

    encoder = nn.ModuleList()
    for ours in model.model.encoder.layers:
        theirs = nn.TransformerEncoderLayer(**shape)
        norms = [(theirs.norm1, ours.self_attn_layer_norm), (theirs.norm2, ours.final_layer_norm)]
        encoder.append(copy(theirs, ours, [(theirs.self_attn, ours.self_attn)], norms))
    decoder = nn.ModuleList()
    for ours in model.model.decoder.layers:
        theirs = nn.TransformerDecoderLayer(**shape)
        norms = [
            (theirs.norm1, ours.self_attn_layer_norm),
            (theirs.norm2, ours.encoder_attn_layer_norm),
            (theirs.norm3, ours.final_layer_norm),
        ]
        attentions = [(theirs.self_attn, ours.self_attn), (theirs.multihead_attn, ours.encoder_attn)]
        decoder.append(copy(theirs, ours, attentions, norms))
    return encoder, decoder


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_logits_equal_those_of_torch_layers(small_model, dtype, tolerance):
    model = small_model().to(dtype)
    for parameter in model.parameters():  # no initial zeros and ones, so that every parameter affects the result
        parameter.data += 0.05 * torch.randn_like(parameter)
    inputs = batch()
    encoder, decoder = torch_stacks(model)
    matrix, width = model.model.shared.weight, model.config.d_model

    def embed(ids):
        return matrix[ids] * width**0.5 + sinusoids(ids.shape[1], width).to(dtype)

    padding, states = inputs["attention_mask"] == 0, embed(inputs["input_ids"])
    for layer in encoder:
        states = layer(states, src_key_padding_mask=padding)
    memory, states = states, embed(inputs["decoder_input_ids"])
    causal = torch.ones(6, 6, dtype=torch.bool).triu(1)
    for layer in decoder:
        states = layer(states, memory, tgt_mask=causal, memory_key_padding_mask=padding)
    with torch.no_grad():
        logits = model(**inputs).logits
    torch.testing.assert_close(logits, states @ matrix.T, atol=tolerance, rtol=0)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("heads", [{}, {"d_k": 5, "d_v": 9}])
def test_logits_equal_the_papers_equations_in_numpy(small_model, heads, implementation):
    model, inputs = small_model(**heads).double(), batch()
    model.set_attn_implementation(implementation)
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    expected = transformer(model.config, weights, *(inputs[name].numpy() for name in ARRAYS))
    with torch.no_grad():
        logits = model(**inputs).logits.numpy()
    np.testing.assert_allclose(logits, expected, atol=1e-10, rtol=0)


def test_padding_never_changes_other_positions(small_model):
    model, inputs = small_model(), batch(pad_from=5)
    together = model(**inputs).logits
    alone = model(input_ids=inputs["input_ids"][1:, :5], decoder_input_ids=inputs["decoder_input_ids"][1:]).logits
    torch.testing.assert_close(together[1:], alone, atol=1e-5, rtol=0)
    inputs["input_ids"][1, 5:] = 49
    torch.testing.assert_close(model(**inputs).logits, together, atol=0, rtol=0)


def test_target_padding_never_changes_other_positions(small_model):
    model, inputs = small_model(), batch()
    full = model(**inputs).logits
    mask = torch.tensor([[1] * 6, [1] * 4 + [0] * 2])
    masked = model(**inputs, decoder_attention_mask=mask).logits
    torch.testing.assert_close(masked[0], full[0], atol=1e-6, rtol=0)
    torch.testing.assert_close(masked[1, :4], full[1, :4], atol=1e-6, rtol=0)


def test_a_target_position_never_depends_on_later_ones(small_model):
    model, inputs = small_model(), batch()
    before = model(**inputs).logits
    inputs["decoder_input_ids"][:, 4:] = 7
    after = model(**inputs).logits
    torch.testing.assert_close(after[:, :4], before[:, :4], atol=0, rtol=0)
    assert not torch.allclose(after[:, 4:], before[:, 4:])


@pytest.mark.parametrize("name", ["cache", "past_key_values"])  # since transformers 5.24, and before
@pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated:FutureWarning")
def test_logits_with_a_cache_equal_logits_without(small_model, name):
    model, inputs = small_model(), batch()
    expected = model(**inputs, use_cache=False).logits
    target = inputs.pop("decoder_input_ids")
    cache, steps = None, []
    for start, end in ((0, 1), (1, 2), (2, 5), (5, 6)):
        output = model(**inputs, decoder_input_ids=target[:, start:end], use_cache=True, **{name: cache})
        cache = output[CACHE]
        steps.append(output.logits)
    torch.testing.assert_close(torch.cat(steps, 1), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("heads", [{}, {"d_k": 5, "d_v": 9}])
def test_sdpa_attention_equals_eager_attention(small_model, heads):
    model, inputs = small_model(**heads), batch()
    assert model.config._attn_implementation == "sdpa"
    expected = model(**inputs).logits
    model.set_attn_implementation("eager")
    torch.testing.assert_close(model(**inputs).logits, expected, atol=1e-5, rtol=0)


def test_d_k_and_d_v_set_the_projection_sizes_and_the_scaling(small_model):
    attention = small_model(d_k=5, d_v=9).model.encoder.layers[0].self_attn
    shapes = [tuple(getattr(attention, f"{name}_proj").weight.shape) for name in ("q", "k", "v", "out")]
    assert shapes == [(20, 32), (20, 32), (36, 32), (32, 36)]
    assert attention.scaling == pytest.approx(5**-0.5)
    assert attention.q_proj.bias is None


def test_embeddings_are_scaled_only_at_the_input(small_model):
    model = small_model()
    ids = torch.tensor([[5, 6]])
    expected = 32**0.5 * model.model.shared.weight[ids]
    torch.testing.assert_close(model.model.encoder.token_embeddings(ids, None), expected)
    states = model.model(**batch()).last_hidden_state
    torch.testing.assert_close(model.lm_head(states), states @ model.model.shared.weight.T)


def tied(model) -> bool:
    base = model.model
    matrices = (base.shared, base.encoder.embed_tokens, base.decoder.embed_tokens, model.lm_head)
    return len({matrix.weight.data_ptr() for matrix in matrices}) == 1


def test_three_uses_share_one_matrix_after_resizing_casting_and_loading(small_model, tmp_path):
    model = small_model()
    assert tied(model)
    model.resize_token_embeddings(60)
    assert tied(model)
    assert model.lm_head.weight.shape == (60, 32)
    model.to(torch.float64)
    assert tied(model)
    model.save_pretrained(tmp_path)
    loaded = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path)
    assert tied(loaded)
    matrices = [name for name, value in loaded.named_parameters() if value.shape == (60, 32)]
    assert len(matrices) == 1


def test_untied_matrices_are_saved_separately(small_model, tmp_path):
    model = small_model(tie_word_embeddings=False)
    model.lm_head.weight.data.normal_()
    model.save_pretrained(tmp_path)
    loaded = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path)
    assert torch.equal(loaded.lm_head.weight, model.lm_head.weight)
    tables = [loaded.model.encoder.embed_tokens.weight, loaded.model.decoder.embed_tokens.weight]
    for one, other in combinations([loaded.lm_head.weight, *tables], 2):
        assert not torch.equal(one, other)


@pytest.mark.parametrize("position_embedding", ["sinusoidal", "learned"])
def test_logits_are_bit_identical_after_saving_and_loading(small_model, tmp_path, position_embedding):
    model, inputs = small_model(position_embedding=position_embedding, lm_head_bias=True), batch()
    model.save_pretrained(tmp_path)
    assert {file.suffix for file in tmp_path.iterdir()} == {".json", ".py", ".safetensors"}
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert type(loaded) is VanillaTransformerForConditionalGeneration
    assert torch.equal(loaded(**inputs).logits, model(**inputs).logits)


def test_auto_classes_load_the_model(tmp_path, small_model):
    small_model().save_pretrained(tmp_path)
    assert type(AutoConfig.from_pretrained(tmp_path)) is VanillaTransformerConfig
    assert type(AutoModel.from_pretrained(tmp_path)) is VanillaTransformerModel


def test_gradient_checkpointing_never_changes_the_gradients(small_model):
    model, inputs = small_model(), batch()
    labels, gradients = torch.randint(4, 50, (2, 6)), []
    for checkpointing in (False, True):
        if checkpointing:
            # transformers before 5.20 calls it gradient checkpointing
            getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()
            assert all(layer.gradient_checkpointing for layer in model.model.decoder.layers)
        model.train()
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        model.zero_grad()
        model(**inputs, labels=labels).loss.backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    for plain, checkpointed in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, checkpointed)


def test_the_loss_is_divided_by_num_items_in_batch(small_model):
    model, inputs = small_model(), batch()
    labels = torch.randint(4, 50, (2, 6))
    labels[1, 3:] = -100
    output = model(**inputs, labels=labels)
    expected = nn.functional.cross_entropy(output.logits.flatten(0, 1), labels.flatten(), reduction="none").sum()
    torch.testing.assert_close(output.loss, expected / 9)
    torch.testing.assert_close(model(**inputs, labels=labels, num_items_in_batch=36).loss, expected / 36)


def test_decoder_input_defaults_to_shifted_labels(small_model):
    labels = torch.tensor([[7, 8, 2], [9, 2, -100]])
    expected = torch.tensor([[1, 7, 8], [1, 9, 2]])
    assert torch.equal(shift_right(labels, 0, 1), expected)
    model, source = small_model(), torch.randint(4, 50, (2, 4))
    given = model(input_ids=source, decoder_input_ids=expected).logits
    assert torch.equal(model(input_ids=source, labels=labels).logits, given)
    assert torch.equal(model.prepare_decoder_input_ids_from_labels(labels), expected)


def test_attentions_and_hidden_states_are_recorded(small_model):
    model, inputs = small_model(), batch()
    model.set_attn_implementation("eager")
    output = model(**inputs, output_attentions=True, output_hidden_states=True)
    assert [len(output.encoder_attentions), len(output.decoder_attentions), len(output.cross_attentions)] == [2, 3, 3]
    assert output.cross_attentions[0].shape == (2, 4, 6, 8)
    for weights in (*output.encoder_attentions, *output.decoder_attentions, *output.cross_attentions):
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights.sum(-1)))
    assert output.cross_attentions[0][1, :, :, 5:].abs().max() == 0
    assert [len(output.encoder_hidden_states), len(output.decoder_hidden_states)] == [3, 4]


def test_source_embeddings_can_replace_token_ids(small_model):
    model, inputs = small_model(), batch()
    expected = model(**inputs).logits
    rows = model.get_input_embeddings()(inputs.pop("input_ids"))
    assert torch.equal(model(inputs_embeds=rows, **inputs).logits, expected)
    with pytest.raises(ValueError, match=r"exactly one of \[decoder_\]input_ids"):
        model.model.encoder(input_ids=torch.ones(1, 2, dtype=torch.long), inputs_embeds=rows)


def test_initializer_range_replaces_the_initialisation_of_tensor2tensor(small_model):
    model = small_model(vocab_size=2000, d_model=64, initializer_range=0.02)
    for weight in (model.model.shared.weight, model.model.decoder.layers[0].encoder_attn.k_proj.weight):
        assert weight.std().item() == pytest.approx(0.02, rel=0.05)


def test_initial_weights_follow_tensor2tensor(small_model):
    model = small_model(vocab_size=2000, d_model=64, attention_bias=True)
    assert model.model.shared.weight.std().item() == pytest.approx(64**-0.5, rel=0.05)
    projection = model.model.encoder.layers[0].fc1.weight
    assert projection.abs().max().item() <= (6 / (64 + 64)) ** 0.5
    assert projection.std().item() == pytest.approx((2 / (64 + 64)) ** 0.5, rel=0.05)
    norm = model.model.decoder.layers[0].final_layer_norm
    assert norm.eps == 1e-6
    assert torch.equal(norm.weight, torch.ones(64))
    assert model.model.decoder.layers[0].self_attn.q_proj.bias.abs().max() == 0


@pytest.mark.parametrize("name", ["dropout", "attention_dropout", "activation_dropout"])
def test_each_dropout_acts_alone_and_only_in_training(small_model, name):
    rates = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
    inputs = {"input_ids": torch.tensor([[5, 6, 7, 2]]), "decoder_input_ids": torch.tensor([[1, 8, 9]])}
    plain = small_model(**rates).train()
    assert torch.equal(plain(**inputs).logits, plain(**inputs).logits)
    model = small_model(**{**rates, name: 0.5}).train()
    assert not torch.equal(model(**inputs).logits, model(**inputs).logits)
    model.eval()
    assert torch.equal(model(**inputs).logits, model(**inputs).logits)


@pytest.mark.parametrize("position_embedding", ["sinusoidal", "learned"])
def test_positions_take_the_dtype_of_weights_that_were_cast_alone(small_model, position_embedding):
    """DeepSpeed casts parameters and leaves the sinusoids, which are buffers, in float32."""
    model = small_model(position_embedding=position_embedding)
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16()
    ids = torch.tensor([[5, 6, 7, 2]])
    assert model(input_ids=ids, labels=ids).logits.dtype == torch.bfloat16
    assert model.generate(ids, max_new_tokens=3, num_beams=2).shape[0] == 1


def test_bars_of_saving_and_loading_are_for_several_files_and_long_work(small_model, tmp_path):
    drawn = []

    def record(factory, args, kwargs):
        drawn.append((kwargs.pop("desc"), kwargs))
        return factory(*args, disable=True)

    before = logging.set_tqdm_hook(record)
    try:
        model = small_model()
        model.save_pretrained(tmp_path / "one")
        model.save_pretrained(tmp_path / "several", max_shard_size="20KB")
        AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "one")
        with pytest.raises(OSError, match="missing"):
            VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path / "missing")
        # What was there before is there again
        assert logging.set_tqdm_hook(record) is record
    finally:
        logging.set_tqdm_hook(before)
    # None: only in a terminal
    assert drawn == [
        ("Writing model shards", {"delay": 1, "disable": True}),
        ("Writing model shards", {"delay": 1, "disable": None}),
        ("Loading weights", {"delay": 1, "disable": None}),
    ]
