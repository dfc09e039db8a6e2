"""Ensembles, compared with the mean of the probabilities of their models."""

import math

import pytest
import torch

from hf_vanilla_transformer import Translator, train_tokenizer
from hf_vanilla_transformer.inference.ensemble import Ensemble

SOURCE = torch.tensor([[5, 9, 13, 2, 0, 0], [7, 8, 9, 10, 11, 2], [21, 2, 0, 0, 0, 0]])
MASK = SOURCE.ne(0).long()


@pytest.fixture
def models(small_model):
    """Two models that differ in weights, depth and width, with a bias that makes them generate several tokens."""
    built = (
        small_model(lm_head_bias=True),
        small_model(lm_head_bias=True, d_model=64, num_decoder_layers=1, num_encoder_layers=3),
    )
    for model in built:
        for name, weight in model.named_parameters():
            if weight.dim() == 2 and "shared" not in name:
                weight.data.mul_(2)
        model.lm_head.bias.data[:2], model.lm_head.bias.data[2] = -20.0, -2.0
        model.lm_head.weight.data.mul_(0.7)
    return built


@torch.no_grad()
def mean_log_probs(models, source, mask, target):
    probabilities = [
        model(input_ids=source, attention_mask=mask, decoder_input_ids=target).logits.double().softmax(-1)
        for model in models
    ]
    return (sum(probabilities) / len(probabilities)).log()


def test_probabilities_are_the_mean_of_the_models(models):
    target = torch.tensor([[1, 5, 6], [1, 7, 8], [1, 9, 9]])
    with torch.no_grad():
        logits = Ensemble(models)(input_ids=SOURCE, attention_mask=MASK, decoder_input_ids=target).logits
    torch.testing.assert_close(logits.double(), mean_log_probs(models, SOURCE, MASK, target), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtypes", [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.float16)])
def test_models_of_different_number_formats_are_combined_as_they_are(models, dtypes):
    for model, dtype in zip(models, dtypes, strict=True):
        model.to(dtype)
    ensemble = Ensemble(models)
    target = torch.tensor([[1, 5, 6], [1, 7, 8], [1, 9, 9]])
    with torch.no_grad():
        logits = ensemble(input_ids=SOURCE, attention_mask=MASK, decoder_input_ids=target).logits
    torch.testing.assert_close(logits.double(), mean_log_probs(models, SOURCE, MASK, target), rtol=1e-4, atol=1e-5)
    for num_beams in (1, 4):
        assert len(ensemble.generate(SOURCE, attention_mask=MASK, num_beams=num_beams)) == len(SOURCE)


def test_models_on_different_devices_are_rejected(small_model):
    with pytest.raises(ValueError, match=r"must be on one device, but are on cpu, meta\.$"):
        Ensemble([small_model(), small_model().to("meta")])


def test_ensemble_of_a_model_with_itself_generates_like_the_model(models):
    first, _ = models
    for settings in ({"num_beams": 1}, {"num_beams": 4}, {"num_beams": 3, "num_return_sequences": 2}):
        expected = first.generate(SOURCE, attention_mask=MASK, **settings)
        assert torch.equal(Ensemble([first, first]).generate(SOURCE, attention_mask=MASK, **settings), expected)


def test_cached_greedy_search_follows_the_mean_computed_without_a_cache(models):
    output = Ensemble(models).generate(SOURCE, attention_mask=MASK, num_beams=1)
    separate = [model.generate(SOURCE, attention_mask=MASK, num_beams=1) for model in models]
    assert not any(torch.equal(output, other) for other in separate)
    for row, source, mask in zip(output, SOURCE, MASK, strict=True):
        tokens = [1]
        while tokens[-1] != 2 and len(tokens) <= mask.sum() + 50:
            log_probs = mean_log_probs(models, source[None], mask[None], torch.tensor([tokens]))
            tokens.append(log_probs[0, -1].argmax().item())
        assert row[: len(tokens)].tolist() == tokens
        assert not row[len(tokens) :].any()


def test_beam_scores_are_computed_from_the_mean(models):
    """Recompute the score of the best beam, log P / lp(Y), from the models."""
    ensemble = Ensemble(models)
    out = ensemble.generate(SOURCE, attention_mask=MASK, num_beams=4, return_dict_in_generate=True, output_scores=True)
    for i, row in enumerate(out.sequences):
        end = row.tolist().index(2) + 1 if 2 in row.tolist() else len(row)
        length = min(end, 1 + int(MASK[i].sum()) + 50)
        tokens = row[None, :length]
        log_probs = mean_log_probs(models, SOURCE[i : i + 1], MASK[i : i + 1], tokens[:, :-1])
        total = log_probs[0].gather(-1, tokens[0, 1:, None]).sum().item()
        alpha = ensemble.generation_config.length_penalty
        assert out.sequences_scores[i].item() == pytest.approx(total / math.pow((5 + length - 1) / 6, alpha), rel=1e-4)


@pytest.mark.parametrize("changes", [{"vocab_size": 60}, {"eos_token_id": 3}])
def test_models_with_different_vocabularies_are_rejected(small_model, changes):
    with pytest.raises(ValueError, match=f"must share one vocabulary: {next(iter(changes))} is"):
        Ensemble([small_model(), small_model(**changes)])


def test_output_limit_is_that_of_the_shortest_position_table(small_model):
    learned = small_model(position_embedding="learned", max_position_embeddings=9)
    assert Ensemble([small_model(), learned])._max_output_tokens() == 9
    assert Ensemble([small_model()])._max_output_tokens() > 10**9


def test_a_source_must_suit_every_model(small_model):
    tokenizer = train_tokenizer(["a dog runs"] * 3, 270)
    size = {"vocab_size": len(tokenizer)}
    learned = small_model(position_embedding="learned", max_position_embeddings=9, **size)
    for models in ([small_model(**size), learned], [learned, small_model(**size)]):
        long, short = Translator(Ensemble(models), tokenizer).translate(["a dog runs " * 9, "a dog"], num_beams=1)
        assert "more than 9" in long.problem
        assert short.problem is None
