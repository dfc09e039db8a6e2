"""Translations that score far below those of the validation text."""

import pytest
from export_models import PHRASES
from search_models import with_varied_lengths

from hf_vanilla_transformer import Translator
from hf_vanilla_transformer.inference.metrics import doubtful_score


@pytest.fixture
def translator(small_model, phrase_tokenizer):
    """A translator of a random model, and what its threshold is if a third of the phrases are doubtful."""
    model = with_varied_lengths(small_model(vocab_size=len(phrase_tokenizer), lm_head_bias=True))
    return Translator(model, phrase_tokenizer)


def log_probs(translator, sentences, **settings) -> list[float]:
    """Return the log-probability per token of each translation, by transformers' own searches."""
    model, tokenizer = translator.model, translator.tokenizer
    means = []
    for sentence in sentences:
        inputs = {"input_ids": tokenizer([sentence], return_tensors="pt")["input_ids"]}
        output = model.generate(**inputs, **settings, return_dict_in_generate=True, output_scores=True)
        beams = {} if settings["num_beams"] == 1 else {"beam_indices": output.beam_indices}
        steps = model.compute_transition_scores(output.sequences, output.scores, normalize_logits=not beams, **beams)
        means.append(steps[0].sum().item() / (output.sequences.shape[1] - 1))
    return means


@pytest.mark.parametrize("num_beams", [1, 4])
@pytest.mark.parametrize("normalization", ["gnmt", "length"])
def test_translations_below_the_threshold_are_doubtful_whatever_their_length(translator, num_beams, normalization):
    translator.model.config.length_normalization = normalization
    settings = {"num_beams": num_beams, "length_penalty": 0.8, "max_new_tokens": 20}
    means = log_probs(translator, PHRASES, **settings)
    in_order = sorted(set(means))
    # in the middle between two, which rounding does not reach
    threshold = (in_order[len(in_order) // 3] + in_order[len(in_order) // 3 - 1]) / 2
    plain = translator.translate(PHRASES, scores=True, **settings)
    assert not any(translation.doubtful for translation in plain)

    translator.model.config.doubtful_score = threshold
    marked = translator.translate(PHRASES, scores=True, **settings)
    assert [bool(translation.doubtful) for translation in marked] == [mean < threshold for mean in means]
    assert [translation.hypotheses for translation in marked] == [translation.hypotheses for translation in plain]
    assert all(translation.doubtful in ((), (translation.text,)) for translation in marked)
    # nothing is known without scores, and sampled tokens are always less probable
    assert not any(translation.doubtful for translation in translator.translate(PHRASES, **settings))
    sampled = translator.translate(PHRASES, scores=True, **{**settings, "num_beams": 1}, do_sample=True)
    assert not any(translation.doubtful for translation in sampled)


@pytest.mark.parametrize("num_beams", [1, 2])
def test_the_score_per_token_of_a_sentence_is_the_same_alone_and_in_a_batch(translator, num_beams):
    settings = {"num_beams": num_beams, "max_new_tokens": 20, "length_penalty": 0.8}
    sources = translator.tokenizer(list(PHRASES))["input_ids"]
    together = translator.translate_ids(sources, scores=True, **settings)
    # the batch is filled up to its longest output
    padding = {output.hypotheses[0][-1] for output in together}
    assert len(padding) > 1
    alone = [translator.translate_ids([source], scores=True, **settings)[0] for source in sources]
    expected = translator.mean_log_probs(alone, settings)
    assert translator.mean_log_probs(together, settings) == pytest.approx(expected, rel=1e-4)


def test_a_text_has_the_doubtful_translations_of_its_sentences(translator):
    sentences = [f"{phrase.capitalize()}." for phrase in PHRASES[:8]]
    settings = {"num_beams": 2, "max_new_tokens": 20}
    means = sorted(log_probs(translator, sentences, **settings))
    translator.model.config.doubtful_score = (means[3] + means[4]) / 2
    expected = tuple(
        translation.text
        for translation in translator.translate(sentences, scores=True, **settings)
        if translation.doubtful
    )
    assert len(expected) == 4
    (text,) = translator.translate([" ".join(sentences)], split_sentences=True, scores=True, **settings)
    assert text.doubtful == expected
    (blank,) = translator.translate([" "], scores=True, **settings)
    assert blank.doubtful == ()


def test_a_sentence_beyond_the_limit_is_a_problem_and_not_doubtful(translator):
    translator.model.config.doubtful_score = 0.0
    too_long, short = translator.translate([PHRASES[0] * 50, PHRASES[0]], scores=True)
    assert (bool(too_long.problem), too_long.doubtful) == (True, ())
    assert (short.problem, short.doubtful) == (None, (short.text,))


def test_one_percent_of_enough_validation_translations_are_below_the_threshold():
    means = [-number / 1000 for number in range(1000)]
    threshold = doubtful_score(means)
    assert sum(mean < threshold for mean in means) == 10
    assert doubtful_score(means[:99]) is None
    # of a model that has diverged
    assert doubtful_score([float("nan")] * 1000) is None
    assert doubtful_score([]) is None
