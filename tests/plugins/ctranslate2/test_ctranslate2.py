"""CTranslate2 exports, compared with `generate` of the model in torch."""

import statistics

import pytest
import torch
from export_models import PHRASES, SETTINGS, VARIANTS, count_equal, save_padded, without_special_tokens
from search_models import nbest_lists, translate_ids

from hf_vanilla_transformer import Translator, translate
from hf_vanilla_transformer.inference.exports import export_model, load_export
from hf_vanilla_transformer.inference.metrics import evaluate_translations
from hf_vanilla_transformer.loading import load_model, load_tokenizer
from hf_vanilla_transformer.plugins.ctranslate2.ctranslate2_runtime import CTranslate2Model


@pytest.mark.parametrize("num_beams", [1, 4])
@pytest.mark.parametrize("name", VARIANTS)
def test_export_translates_like_generate(save_model, phrase_tokenizer, tmp_path, name, num_beams):
    model, folder = save_model(length_normalization="length", **VARIANTS[name])
    export_model(folder, tmp_path / "export", "ctranslate2")
    exported = CTranslate2Model(tmp_path / "export", device="cpu")
    sources = phrase_tokenizer(PHRASES)["input_ids"]
    settings = {"num_beams": num_beams, "max_new_tokens": 15}
    beam_settings = {"early_stopping": True, "length_penalty": 0.8} if num_beams > 1 else {}
    expected = translate_ids(model, sources, **settings, **beam_settings)
    assert len(set(map(tuple, without_special_tokens(expected)))) > 10
    outputs = translate_ids(exported, sources, length_penalty=0.8, **settings)
    assert count_equal(outputs, expected) >= 0.99 * len(expected)


def test_hypotheses_of_a_gnmt_model_are_rescored_with_the_gnmt_penalty(save_model, phrase_tokenizer):
    model, folder = save_model()
    exported = load_export(folder, "ctranslate2")
    sources = phrase_tokenizer(PHRASES)["input_ids"]
    for alpha in (0.0, 0.6, 2.0):
        settings = {"num_beams": 4, "length_penalty": alpha, "max_new_tokens": 15}
        outputs = translate_ids(exported, sources, **settings)
        expected = translate_ids(model, sources, early_stopping=True, **settings)
        # CTranslate2 searches by log P and generate by the GNMT score, so their n-best lists may differ
        assert count_equal(outputs, expected) >= 0.9 * len(expected)


@pytest.mark.parametrize("normalization", ["gnmt", "length"])
def test_an_export_finds_the_same_translations_doubtful(save_model, phrase_tokenizer, normalization):
    model, folder = save_model(length_normalization=normalization, doubtful_score=-1.5)
    exported = load_export(folder, "ctranslate2")
    assert exported.config.doubtful_score == -1.5
    settings = {"scores": True, "num_beams": 1, "max_new_tokens": 15}
    translator = Translator(model, phrase_tokenizer)
    outputs = translator.translate_ids(translator.encode(PHRASES), **settings)
    half = statistics.median(translator.mean_log_probs(outputs, settings))
    model.config.doubtful_score = exported.config.doubtful_score = half
    expected = translator.translate(PHRASES, **settings)
    translations = Translator(exported, phrase_tokenizer).translate(PHRASES, **settings)
    same = sum(a.doubtful == b.doubtful for a, b in zip(translations, expected, strict=True))
    assert same >= 0.95 * len(PHRASES)
    assert sum(bool(translation.doubtful) for translation in expected) > len(PHRASES) // 4


@pytest.mark.parametrize("normalization", ["gnmt", "length"])
def test_n_best_lists_have_the_scores_of_the_model(save_model, phrase_tokenizer, normalization):
    model, folder = save_model(length_normalization=normalization)
    exported = load_export(folder, "ctranslate2")
    settings = {"num_beams": 4, "length_penalty": 0.8, "max_new_tokens": 15}
    lists = nbest_lists(exported, phrase_tokenizer, PHRASES[:20], 3, **settings)
    expected = nbest_lists(model, phrase_tokenizer, PHRASES[:20], 4, early_stopping=True, **settings)
    common = 0
    for hypotheses, others in zip(lists, expected, strict=True):
        scores = [hypothesis.score for hypothesis in hypotheses]
        assert scores == sorted(scores, reverse=True)
        known = dict(others)
        for text, score in hypotheses:
            if text in known and len(known) == 4:
                common += 1
                assert score == pytest.approx(known[text], abs=1e-3)
    assert common > 20  # the searches differ a little, the scores of one hypothesis do not
    with pytest.raises(ValueError, match="exceeds the beam size"):
        exported.generate(torch.full((1, 3), 5), num_beams=2, num_return_sequences=3)


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_saved_with_a_model_are_followed(save_model, phrase_tokenizer, tmp_path, name):
    model, folder = save_model()
    model.generation_config.update(**SETTINGS[name])
    model.save_pretrained(folder)
    export_model(folder, tmp_path / "export", "ctranslate2")
    sources = phrase_tokenizer(PHRASES)["input_ids"]
    settings = {"num_beams": 1, "max_new_tokens": 15}
    expected = translate_ids(model, sources, **settings)
    outputs = translate_ids(load_export(str(tmp_path / "export"), "ctranslate2"), sources, **settings)
    assert [row[0] for row in outputs] == [row[0] for row in expected]
    assert count_equal(outputs, expected) >= 0.99 * len(expected)
    # else they would not show
    model.generation_config = load_model(str(save_model()[1])).generation_config
    if name not in ("sampling from one token", "defaults of transformers") and "forced last token" not in name:
        assert count_equal(translate_ids(model, sources, **settings), expected) < 0.9 * len(expected)


@pytest.mark.parametrize(
    "settings",
    [{"begin_suppress_tokens": [5]}, {"encoder_no_repeat_ngram_size": 3}, {"do_sample": True, "typical_p": 0.5}],
)
def test_settings_without_an_equivalent_are_refused_when_a_model_is_exported(save_model, tmp_path, settings):
    model, folder = save_model()
    export_model(folder, tmp_path / "before", "ctranslate2")
    model.generation_config.update(**settings)
    model.save_pretrained(folder)
    message = f"CTranslate2 does not support {[*settings][-1]}: remove it from generation_config.json"
    with pytest.raises(ValueError, match=message):
        export_model(folder, tmp_path / "export", "ctranslate2")
    assert not (tmp_path / "export").exists()
    # in an export from elsewhere
    model.generation_config.save_pretrained(tmp_path / "before" / "vanilla_transformer")
    with pytest.raises(OSError, match=message):
        load_export(str(tmp_path / "before"), "ctranslate2")


def test_sampling_is_followed_and_has_no_beam(save_model, phrase_tokenizer):
    model, folder = save_model()
    model.generation_config.update(do_sample=True, num_beams=1, temperature=2.0, top_k=0)
    model.save_pretrained(folder)
    exported = load_export(folder, "ctranslate2")
    sources = phrase_tokenizer(PHRASES)["input_ids"]
    first, second = (translate_ids(exported, sources, max_new_tokens=15) for _ in range(2))
    assert first != second
    with pytest.raises(ValueError, match="samples only without a beam; set num_beams to 1"):
        translate_ids(exported, sources, num_beams=2, max_new_tokens=15)


@pytest.mark.parametrize("gaps", [0, 7])
def test_ids_without_tokens_change_nothing(save_model, phrase_tokenizer, tmp_path, gaps):
    model, folder = save_padded(save_model, phrase_tokenizer, gaps)
    export_model(folder, tmp_path / "export", "ctranslate2")
    exported = load_export(str(tmp_path / "export"), "ctranslate2")
    sources = load_tokenizer(folder)(PHRASES)["input_ids"]
    settings = {"num_beams": 1, "max_new_tokens": 15}
    outputs = translate_ids(exported, sources, **settings)
    assert outputs == translate_ids(model, sources, **settings)
    assert max(map(max, outputs)) == model.config.vocab_size - 1


def test_length_limit_is_source_length_plus_50_in_any_batch(save_model, phrase_tokenizer):
    model, folder = save_model()
    model.lm_head.bias.data[2] = -1e4  # the model never predicts </s>
    model.save_pretrained(folder)
    exported = load_export(folder, "ctranslate2")
    sources = phrase_tokenizer(PHRASES[:12])["input_ids"]
    outputs = translate_ids(exported, sources, num_beams=2)
    for source, output in zip(sources, outputs, strict=True):
        assert len([token for token in output if token != 0]) == 1 + len(source) + 50
        assert translate_ids(exported, [source], num_beams=2)[0] == [token for token in output if token != 0]


def test_source_longer_than_the_position_table_is_a_clear_error(save_model):
    _, folder = save_model()
    exported = load_export(folder, "ctranslate2")  # the model has 64 positions, the export twice as many
    assert exported.generate(torch.full((1, 100), 5), max_new_tokens=3).shape[1] <= 4
    with pytest.raises(ValueError, match=r"CTranslate2 failed: .*position"):
        exported.generate(torch.full((1, 200), 5), max_new_tokens=3)


@pytest.mark.slow
def test_export_of_a_trained_model_translates_the_same_and_int8_costs_little_bleu(
    trained_on_multi30k, tmp_path, monkeypatch
):
    model, tokenizer, folder, sentences, references = trained_on_multi30k
    sources = tokenizer(sentences)["input_ids"]
    bleu = {}
    for quantization in ("float32", "int8"):
        export_model(folder, tmp_path / quantization, "ctranslate2", quantization)
        exported = CTranslate2Model(tmp_path / quantization, device="cpu")
        texts = translate(exported, tokenizer, sentences)
        bleu[quantization] = evaluate_translations(texts, references, "none")["bleu"]
        if quantization == "float32":
            for config in (exported.config, model.config):
                monkeypatch.setattr(config, "length_normalization", "length")
            settings = {"num_beams": 4, "length_penalty": 0.8}
            outputs = translate_ids(exported, sources, **settings)
            expected = translate_ids(model, sources, early_stopping=True, **settings)
            assert count_equal(outputs, expected) >= 0.99 * len(sources)
    assert bleu["float32"] > 3
    assert abs(bleu["float32"] - bleu["int8"]) < 0.3
