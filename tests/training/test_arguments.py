import dataclasses
import gc
import json
import sys

import pytest
from transformers.integrations import get_available_reporting_integrations
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

from hf_vanilla_transformer.errors import UserError
from hf_vanilla_transformer.flags import Decides, FlagParser
from hf_vanilla_transformer.model.configuration_vanilla_transformer import VanillaTransformerConfig
from hf_vanilla_transformer.training.arguments import (
    NO_EFFECT,
    DataArguments,
    ModelArguments,
    VanillaTransformerTrainingArguments,
    check_reporters,
    decided_by,
    meaning,
)


def arguments(tmp_path, **fields):
    return VanillaTransformerTrainingArguments(output_dir=str(tmp_path), use_cpu=True, **fields)


def parse(kind, *flags: str):
    parser = FlagParser([kind], prog="test", description="", takes_recipe=True)
    return parser.instances(parser.given(flags))[0]


def test_defaults_match_the_paper(tmp_path):
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


def test_another_schedule_has_its_own_default_learning_rate(tmp_path):
    args = arguments(tmp_path, lr_scheduler_type="linear")
    assert args.lr_scheduler_type == "linear"
    assert args.learning_rate == 5e-5


@pytest.mark.parametrize("schedule", ["noam", "linear"])
def test_a_given_learning_rate_is_kept(tmp_path, schedule):
    assert arguments(tmp_path, lr_scheduler_type=schedule, learning_rate=0.3).learning_rate == 0.3


def test_a_copy_of_arguments_has_the_direction_of_its_own_metric(tmp_path):
    bleu = arguments(tmp_path)
    loss = dataclasses.replace(bleu, metric_for_best_model="loss")
    assert (bleu.greater_is_better, loss.greater_is_better) == (True, False)
    assert dataclasses.replace(loss, metric_for_best_model="de-en_bleu").greater_is_better
    assert arguments(tmp_path, metric_for_best_model="ter", greater_is_better=False).greater_is_better is False


def test_a_learning_rate_that_is_no_number_is_refused(tmp_path):
    with pytest.raises(UserError, match="learning_rate must be at least 0, got nan"):
        arguments(tmp_path, learning_rate=float("nan"))


def test_eval_steps_defaults_to_save_steps(tmp_path):
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


def test_max_tokens_must_be_positive(tmp_path):
    with pytest.raises(ValueError, match="max_tokens"):
        arguments(tmp_path, max_tokens=0)


def test_arguments_can_be_saved_as_json(tmp_path):
    written = json.loads(arguments(tmp_path).to_json_string())
    assert (written["lr_scheduler_type"], written["max_tokens"]) == ("noam", 25_000)


def test_all_flags_but_the_output_folder_are_optional(tmp_path):
    args = parse(VanillaTransformerTrainingArguments, "--save_steps", "7", "--output_dir", str(tmp_path))
    assert (args.save_steps, args.eval_steps, args.max_steps, args.lr_scheduler_type) == (7, 7, 100_000, "noam")


def test_only_the_given_model_flags_are_overrides():
    assert parse(ModelArguments).overrides(VanillaTransformerConfig.__annotations__) == {}
    model = parse(ModelArguments, "--preset", "tiny", "--d_model", "64", "--dropout", "0")
    assert model.preset == "tiny"
    assert model.overrides(VanillaTransformerConfig.__annotations__) == {"d_model": 64, "dropout": 0.0}


def test_data_flags_name_no_text_and_enable_cleaning_by_default():
    data = parse(DataArguments)
    assert (data.train_file, data.validation_file, data.dataset_name) == (None, None, None)
    assert data.clean
    assert not parse(DataArguments, "--no_clean").clean


def test_the_best_model_has_the_highest_bleu_or_the_lowest_loss(tmp_path):
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
    with pytest.raises(ValueError, match="eval_steps and save_steps must be equal, got 500 and 1500"):
        arguments(tmp_path, early_stopping_patience=3, eval_strategy="steps", eval_steps=500)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"bleu_tokenize": "foo"}, "Unknown tokenisation 'foo' for BLEU; choose one of 13a, char"),
        ({"save_only_model": True}, "no run can resume from a checkpoint without its optimizer"),
        ({"auto_find_batch_size": True}, "auto_find_batch_size has no effect here: .*max_tokens"),
        ({"label_smoothing_factor": 2}, "label_smoothing_factor must be at least 0 and below 1, got 2"),
        ({"seed": -1}, "seed must be from 0 to 4294967295, got -1"),
        ({"early_stopping_patience": 0}, "early_stopping_patience must be at least 1, got 0"),
        ({"hub_strategy": "every_save"}, "hub_strategy must be one of end, got 'every_save'"),
        ({"generation_num_beams": 0}, "generation_num_beams must be at least 1, got 0"),
        ({"lr_scheduler_kwargs": {"num_cycles": 2}}, "lr_scheduler_kwargs has no effect"),
    ],
)
def test_invalid_and_ineffective_arguments_are_rejected_immediately(tmp_path, fields, message):
    with pytest.raises(ValueError, match=message):
        arguments(tmp_path, **fields)


def test_a_tokenisation_with_a_missing_package_is_rejected_immediately(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "MeCab", None)
    monkeypatch.delitem(sys.modules, "sacrebleu.tokenizers.tokenizer_ja_mecab", raising=False)
    with pytest.raises(ValueError, match="Cannot compute BLEU with the tokenisation 'ja-mecab'"):
        arguments(tmp_path, bleu_tokenize="ja-mecab")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"per_device_train_batch_size": 3}, "per_device_train_batch_size has no effect here: .*max_tokens"),
        ({"per_device_eval_batch_size": 3}, "per_device_eval_batch_size has no effect here: .*max_tokens"),
        ({"include_for_metrics": ["loss"]}, "include_for_metrics has no effect"),
        ({"generation_max_length": 30}, "generation_max_length has no effect"),
        ({"do_predict": True}, "do_predict has no effect here: `vanilla-transformer evaluate`"),
        ({"label_names": ["target"]}, "label_names has no effect"),
    ],
)
def test_flags_without_effect_on_training_are_rejected(tmp_path, fields, message):
    with pytest.raises(ValueError, match=message):
        arguments(tmp_path, **fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"metric_for_best_model": "chrf"}, "metric_for_best_model must be one of loss, perplexity, bleu, got 'chrf'"),
        ({"metric_for_best_model": "bleu", "eval_bleu": False}, "must be one of loss, perplexity, got 'bleu'"),
    ],
)
def test_a_metric_that_validation_does_not_report_is_refused(tmp_path, fields, message):
    with pytest.raises(ValueError, match=message):
        arguments(tmp_path, **fields).check_metric()


def test_flags_with_an_effect_are_accepted(tmp_path):
    for fields in ({}, {"eval_bleu": False}, {"metric_for_best_model": "eval_loss"}, {"do_train": True}):
        arguments(tmp_path, **fields).check_metric()


@pytest.mark.parametrize(("name", "value"), [("num_beams", 0), ("length_penalty", float("nan"))])
def test_decoding_settings_out_of_range_are_rejected(name, value):
    with pytest.raises(ValueError, match=name):
        ModelArguments(**{name: value})


def test_noise_on_the_embeddings_is_accepted(tmp_path):
    assert arguments(tmp_path, neftune_noise_alpha=5.0).neftune_noise_alpha == 5.0


@pytest.mark.filterwarnings("ignore:The .*Callback is deprecated:FutureWarning")
def test_reporters_that_are_not_installed_are_refused_in_one_line_and_nothing_else(tmp_path, trainer, monkeypatch):
    missing = INTEGRATION_TO_CALLBACK.keys() - get_available_reporting_integrations()
    assert {"neptune", "dagshub"} <= missing
    unraisable = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    for reporter in missing:
        with pytest.raises(UserError, match=rf"^--report_to {reporter}: it is unknown or not installed.*$"):
            check_reporters(arguments(tmp_path, report_to=reporter))
    with pytest.raises(UserError, match="--report_to neptune: "):
        trainer(report_to=["neptune"])
    gc.collect()
    assert unraisable == []


@pytest.mark.parametrize(("value", "on_cpu"), [("True", True), ("1", True), ("False", False)])
def test_the_launcher_may_choose_the_cpu_for_bfloat16(value, on_cpu, tmp_path, monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_CPU", value)  # as `accelerate launch --cpu` does
    monkeypatch.setattr("transformers.training_args.is_torch_bf16_gpu_available", lambda: False)
    if on_cpu:
        args = VanillaTransformerTrainingArguments(str(tmp_path), bf16=True)
        assert (args.device.type, args.bf16, args.use_cpu) == ("cpu", True, True)
    else:
        with pytest.raises(UserError, match="use_cpu"):
            VanillaTransformerTrainingArguments(str(tmp_path), bf16=True)


CHANGE_THE_TEXT = [
    "train_file",
    "streaming",
    "dataset_name",
    "dataset_config_name",
    "train_weights",
    "sampling_temperature",
    "language_pairs",
    "source_tag",
    "bpe_dropout",
    "source_lang",
    "target_lang",
    "clean",
    "filter_language",
    "max_sentence_tokens",
    "max_length_ratio",
]


@pytest.mark.parametrize("name", ["save_steps", "eval_strategy", "logging_first_step", "dataloader_num_workers"])
def test_flags_of_transformers_that_change_nothing_may_change_in_a_run(name):
    assert decided_by(name, {"lr_scheduler_type": "noam"}) is Decides.NOTHING


@pytest.mark.parametrize("name", ["fp16", "torch_compile", "full_determinism", "a_flag_of_a_newer_version"])
def test_any_other_flag_of_transformers_changes_what_is_learned(name):
    assert decided_by(name, {"lr_scheduler_type": "noam"}) is Decides.LEARNING


@pytest.mark.parametrize("name", ["max_tokens", "gradient_accumulation_steps", "seed", "data_seed", *CHANGE_THE_TEXT])
def test_flags_that_change_the_batches_change_what_is_learned(name):
    assert decided_by(name, {"lr_scheduler_type": "noam"}) is Decides.LEARNING


def test_every_flag_of_the_text_changes_what_is_learned_except_that_of_the_validation():
    assert [
        flag.name for flag in dataclasses.fields(DataArguments) if meaning(flag.name).decides is not Decides.LEARNING
    ] == ["validation_file"]


def test_flags_without_effect_are_flags_of_transformers():
    assert len(NO_EFFECT) > 15
    assert NO_EFFECT.keys() <= {flag.name for flag in dataclasses.fields(VanillaTransformerTrainingArguments)}


PRIVATE = [
    "output_dir",
    "train_file",
    "validation_file",
    "model_name_or_path",
    "tokenizer_name",
    "dataset_name",
    "hub_model_id",
    "hub_token",
    "push_to_hub",
    "run_name",
    "deepspeed",
    "trackio_space_id",
    "generation_config",
]


@pytest.mark.parametrize("name", PRIVATE)
def test_flags_that_may_name_paths_or_people_are_private(name):
    assert meaning(name).private
