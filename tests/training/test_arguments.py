import json
import sys

import pytest
from transformers import HfArgumentParser

from hf_vanilla_transformer.training.arguments import (
    DataArguments,
    ModelArguments,
    VanillaTransformerTrainingArguments,
    check_flags,
)


def arguments(tmp_path, **fields):
    return VanillaTransformerTrainingArguments(output_dir=str(tmp_path), use_cpu=True, **fields)


def parse(kind, *flags: str):
    return HfArgumentParser(kind).parse_args_into_dataclasses(list(flags))[0]


def test_defaults_are_the_papers(tmp_path):
    args = arguments(tmp_path)
    expected = {
        "max_tokens": 25_000,
        "max_steps": 100_000,
        "adam_beta1": 0.9,
        "adam_beta2": 0.98,
        "adam_epsilon": 1e-9,
        "weight_decay": 0.0,
        "lr_scheduler_type": "noam",
        "learning_rate": 1.0,
        "warmup_steps": 4000,
        "label_smoothing_factor": 0.1,
        "max_grad_norm": 0.0,
        "save_total_limit": 5,
        "report_to": [],
        "gradient_accumulation_steps": 1,
    }
    assert {name: getattr(args, name) for name in expected} == expected


def test_another_schedule_has_its_own_learning_rate(tmp_path):
    args = arguments(tmp_path, lr_scheduler_type="linear")
    assert args.lr_scheduler_type == "linear"
    assert args.learning_rate == 5e-5


@pytest.mark.parametrize("schedule", ["noam", "linear"])
def test_a_given_learning_rate_is_kept(tmp_path, schedule):
    assert arguments(tmp_path, lr_scheduler_type=schedule, learning_rate=0.3).learning_rate == 0.3


def test_evaluation_follows_saving_unless_told(tmp_path):
    assert arguments(tmp_path, save_steps=7, eval_strategy="steps").eval_steps == 7
    assert arguments(tmp_path, save_steps=7, eval_strategy="steps", eval_steps=3).eval_steps == 3


@pytest.mark.parametrize("warmup_steps", [0, 0.5])
def test_noam_needs_a_warmup(tmp_path, warmup_steps):
    with pytest.raises(ValueError, match=r"noam.*warm-up"):
        arguments(tmp_path, warmup_steps=warmup_steps)


def test_other_schedules_need_no_warmup(tmp_path):
    assert arguments(tmp_path, lr_scheduler_type="linear", warmup_steps=0).warmup_steps == 0


def test_an_unknown_schedule_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="nomad"):
        arguments(tmp_path, lr_scheduler_type="nomad")


def test_a_batch_holds_at_least_one_token(tmp_path):
    with pytest.raises(ValueError, match="max_tokens"):
        arguments(tmp_path, max_tokens=0)


def test_arguments_can_be_written_down(tmp_path):
    written = json.loads(arguments(tmp_path).to_json_string())
    assert (written["lr_scheduler_type"], written["max_tokens"]) == ("noam", 25_000)


def test_one_flag_alone_is_enough(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    args = parse(VanillaTransformerTrainingArguments, "--save_steps", "7")
    assert (args.save_steps, args.eval_steps, args.max_steps, args.lr_scheduler_type) == (7, 7, 100_000, "noam")


def test_only_given_model_flags_are_overrides():
    assert parse(ModelArguments).config_overrides() == {}
    model = parse(ModelArguments, "--preset", "tiny", "--d_model", "64", "--dropout", "0")
    assert model.preset == "tiny"
    assert model.config_overrides() == {"d_model": 64, "dropout": 0.0}


def test_no_text_is_named_by_default_and_training_text_is_cleaned():
    data = parse(DataArguments)
    assert (data.train_file, data.validation_file, data.dataset_name) == (None, None, None)
    assert data.clean
    assert not parse(DataArguments, "--no_clean").clean


def test_the_best_model_is_that_of_the_highest_bleu_or_lowest_loss(tmp_path):
    for fields, metric, greater in (
        ({}, "bleu", True),
        ({"eval_bleu": False}, "loss", False),
        ({"metric_for_best_model": "perplexity"}, "perplexity", False),
    ):
        args = arguments(tmp_path, **fields)
        assert (args.metric_for_best_model, args.greater_is_better) == (metric, greater)


def test_early_stopping_keeps_the_best_model_and_needs_validation(tmp_path):
    assert arguments(tmp_path, early_stopping_patience=3, eval_strategy="steps").load_best_model_at_end
    with pytest.raises(ValueError, match="needs validation text"):
        arguments(tmp_path, early_stopping_patience=3)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"bleu_tokenize": "foo"}, "There is no tokenisation 'foo' for BLEU; choose one of 13a, char"),
        ({"save_only_model": True}, "no run resumes from a checkpoint without its optimizer"),
        ({"neftune_noise_alpha": 5.0}, "neftune_noise_alpha would change nothing"),
        ({"auto_find_batch_size": True}, "auto_find_batch_size would change nothing: .*max_tokens"),
        ({"label_smoothing_factor": 2}, "label_smoothing_factor must be at least 0 and below 1, got 2"),
        ({"generation_num_beams": 0}, "generation_num_beams must be at least 1, got 0"),
        ({"lr_scheduler_kwargs": {"num_cycles": 2}}, "lr_scheduler_kwargs would change nothing"),
    ],
)
def test_what_would_fail_or_change_nothing_later_is_refused_at_once(tmp_path, fields, message):
    with pytest.raises(ValueError, match=message):
        arguments(tmp_path, **fields)


def test_a_tokenisation_whose_package_is_missing_is_refused_at_once(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "MeCab", None)
    monkeypatch.delitem(sys.modules, "sacrebleu.tokenizers.tokenizer_ja_mecab", raising=False)
    with pytest.raises(ValueError, match="BLEU cannot be computed with the tokenisation 'ja-mecab'"):
        arguments(tmp_path, bleu_tokenize="ja-mecab")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"metric_for_best_model": "chrf"}, "metric_for_best_model must be one of loss, perplexity, bleu, got 'chrf'"),
        ({"metric_for_best_model": "news_bleu"}, "must be one of loss, perplexity, bleu, got 'news_bleu'"),
        ({"metric_for_best_model": "bleu", "eval_bleu": False}, "must be one of loss, perplexity, got 'bleu'"),
        ({"per_device_train_batch_size": 3}, "per_device_train_batch_size would change nothing: .*max_tokens"),
        ({"per_device_eval_batch_size": 3}, "per_device_eval_batch_size would change nothing: .*max_tokens"),
        ({"include_for_metrics": ["loss"]}, "include_for_metrics would change nothing"),
        ({"generation_max_length": 30}, "generation_max_length would change nothing"),
        ({"do_predict": True}, "do_predict would change nothing: `vanilla-transformer evaluate`"),
        ({"label_names": ["labels"]}, "label_names would change nothing"),
    ],
)
def test_a_flag_that_changes_nothing_in_training_is_refused(tmp_path, fields, message):
    args = arguments(tmp_path, **fields)
    with pytest.raises(ValueError, match=message):
        check_flags(args)


def test_the_defaults_and_what_they_imply_are_accepted(tmp_path):
    for fields in ({}, {"eval_bleu": False}, {"metric_for_best_model": "eval_loss"}, {"do_train": True}):
        check_flags(arguments(tmp_path, **fields))


@pytest.mark.parametrize(("name", "value"), [("num_beams", 0), ("length_penalty", float("nan"))])
def test_decoding_settings_out_of_range_are_refused(name, value):
    with pytest.raises(ValueError, match=name):
        ModelArguments(**{name: value})
