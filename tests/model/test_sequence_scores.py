"""Scores that `generate(output_sequence_scores=True)` returns, compared with those of transformers' own loops."""

import pytest
import torch
from search_models import MODELS, with_varied_lengths
from torch.overrides import TorchFunctionMode
from transformers import GenerationConfig


@pytest.mark.parametrize("normalization", ["gnmt", "length"])
@pytest.mark.parametrize("name", ["paper", "vocabulary of many blocks"])
def test_scores_of_the_fast_beam_search_equal_those_of_transformers(
    small_model, sources, searches, name, normalization
):
    model = with_varied_lengths(small_model(lm_head_bias=True, length_normalization=normalization, **MODELS[name]))
    for beams, returned in ((4, 1), (3, 3)):
        arguments = {**sources, "num_beams": beams, "num_return_sequences": returned, "length_penalty": 0.8}
        expected = model.generate(**arguments, return_dict_in_generate=True, output_scores=True)
        assert searches == []
        output = model.generate(**arguments, output_sequence_scores=True)
        assert searches.pop() == "beam_search"
        assert torch.equal(output.sequences, expected.sequences)
        torch.testing.assert_close(output.sequences_scores, expected.sequences_scores, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("normalization", ["gnmt", "length"])
def test_scores_of_other_searches_come_from_one_pass_of_the_model(small_model, sources, searches, normalization):
    model = with_varied_lengths(small_model(lm_head_bias=True, length_normalization=normalization))
    slow = {**sources, "num_beams": 3, "num_return_sequences": 2, "length_penalty": 0.8, "min_length": 2}
    expected = model.generate(**slow, return_dict_in_generate=True, output_scores=True)
    output = model.generate(**slow, output_sequence_scores=True)
    assert torch.equal(output.sequences, expected.sequences)
    torch.testing.assert_close(output.sequences_scores, expected.sequences_scores, rtol=1e-5, atol=1e-5)
    greedy = model.generate(**sources, num_beams=1, output_sequence_scores=True)
    assert searches == ["greedy_search"]
    plain = model.generate(**sources, num_beams=1, return_dict_in_generate=True, output_scores=True)
    steps = model.compute_transition_scores(plain.sequences, plain.scores, normalize_logits=True)
    is_token = plain.sequences[:, 1:].flip(1).cumsum(1).flip(1) != 0  # all but the padding at the end
    length = is_token.sum(1)
    alpha = model.generation_config.length_penalty
    penalty = ((5 + length) / 6) ** alpha if normalization == "gnmt" else length**alpha
    expected = (steps * is_token).nan_to_num().sum(1) / penalty
    torch.testing.assert_close(greedy.sequences_scores, expected, rtol=1e-5, atol=1e-5)
    model.generation_config.length_penalty = 0.0  # the log-probabilities themselves
    config = GenerationConfig(num_beams=1, length_penalty=alpha)
    by_config = model.generate(**sources, generation_config=config, output_sequence_scores=True)
    torch.testing.assert_close(by_config.sequences_scores, expected, rtol=1e-5, atol=1e-5)
    model.generation_config.length_penalty = None
    by_default = model.generate(**sources, num_beams=1, output_sequence_scores=True)
    penalty = (5 + length) / 6 if normalization == "gnmt" else length
    expected = (steps * is_token).nan_to_num().sum(1) / penalty
    torch.testing.assert_close(by_default.sequences_scores, expected, rtol=1e-5, atol=1e-5)
    sampled = model.generate(**sources, do_sample=True, num_beams=1, output_sequence_scores=True)
    assert (sampled.sequences_scores < 0).all()


class Embeddings(TorchFunctionMode):
    """Counts the embeddings of several tokens per row: of the source, and of whole translations."""

    count = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.nn.functional.embedding and args[0].shape[1:].numel() > 1:
            self.count += 1
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("settings", [{}, {"bad_words_ids": [[7], [8]], "forced_eos_token_id": 2, "max_length": 9}])
def test_scores_of_the_fast_greedy_search_take_no_further_pass(small_model, sources, searches, settings):
    model = with_varied_lengths(small_model(lm_head_bias=True))
    settings = {**sources, **settings, "num_beams": 1}
    with Embeddings() as embeddings:
        output = model.generate(**settings, output_sequence_scores=True)
    assert embeddings.count == 1
    assert searches == ["greedy_search"]
    expected = model.generate(**settings, return_dict_in_generate=True, output_logits=True)
    assert torch.equal(output.sequences, expected.sequences)
    given = {**model.generation_config.to_dict(), **settings}
    scores = model._score_sequences(expected.sequences, {k: v for k, v in given.items() if v is not None})
    torch.testing.assert_close(output.sequences_scores, scores, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("normalization", ["gnmt", "length"])
@pytest.mark.parametrize("start", [[1, 7, 8], [7, 8], [1, 2, 7]])  # with and without a start token, and with </s>
def test_scores_never_count_a_given_prefix(small_model, sources, normalization, start):
    model = with_varied_lengths(small_model(lm_head_bias=True, length_normalization=normalization))
    prefix = torch.tensor([start] * 11)
    arguments = {**sources, "decoder_input_ids": prefix, "num_beams": 3, "num_return_sequences": 2}
    expected = model.generate(**arguments, return_dict_in_generate=True, output_scores=True)
    output = model.generate(**arguments, output_sequence_scores=True)
    assert torch.equal(output.sequences, expected.sequences)
    torch.testing.assert_close(output.sequences_scores, expected.sequences_scores, rtol=1e-5, atol=1e-5)
    arguments["decoder_attention_mask"] = torch.ones_like(prefix)
    masked = model.generate(**arguments, output_sequence_scores=True)
    torch.testing.assert_close(masked.sequences_scores, expected.sequences_scores, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("settings", [{"num_beams": 1}, {"num_beams": 3, "num_return_sequences": 2, "min_length": 2}])
def test_scores_from_encoder_outputs_and_embeddings_equal_those_from_ids(small_model, sources, settings):
    model = with_varied_lengths(small_model(lm_head_bias=True))
    ids = sources["input_ids"]
    mask = {"attention_mask": sources["attention_mask"]}
    expected = model.generate(ids, **mask, **settings, output_sequence_scores=True)
    embeddings = model.get_input_embeddings()(ids)
    for source in ({"encoder_outputs": model.get_encoder()(ids, **mask)}, {"inputs_embeds": embeddings}):
        output = model.generate(**source, **mask, **settings, output_sequence_scores=True)
        assert torch.equal(output.sequences, expected.sequences)
        torch.testing.assert_close(output.sequences_scores, expected.sequences_scores, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("num_beams", [1, 3])
def test_scores_come_with_return_dict_in_generate(small_model, sources, num_beams):
    model = with_varied_lengths(small_model(lm_head_bias=True))
    settings = {"num_beams": num_beams, "output_sequence_scores": True}
    expected = model.generate(**sources, **settings)
    output = model.generate(**sources, **settings, return_dict_in_generate=True)
    assert torch.equal(output.sequences, expected.sequences)
    torch.testing.assert_close(output.sequences_scores, expected.sequences_scores, rtol=1e-5, atol=1e-5)
