"""Fine-tuning with transformers' own Seq2SeqTrainer, which writes its defaults into the model's decoding settings."""

import copy
import json

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import (
    AutoModelForSeq2SeqLM,
    GenerationConfig,
    MarianConfig,
    MarianMTModel,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)
from transformers.utils import logging

from hf_vanilla_transformer import VanillaTransformerForConditionalGeneration
from hf_vanilla_transformer.data.batching import Seq2SeqCollator
from hf_vanilla_transformer.loading import load_model
from hf_vanilla_transformer.sharing.convert import to_marian

pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")

SOURCE = torch.tensor([[5, 6, 7, 2]])
PAPERS_LIMIT = 1 + SOURCE.shape[1] + 50  # with the start token
TOKENS = {"decoder_start_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
LORA = LoraConfig(task_type="SEQ_2_SEQ_LM", r=2, target_modules=["q_proj"])


def endless(model):
    """Return a model that generates neither padding nor `</s>`, so that every output is as long as its limit."""
    bias = model.final_logits_bias[0] if hasattr(model, "final_logits_bias") else model.lm_head.bias.data
    bias[[0, 2]] = -1e4
    return model.eval()


@pytest.fixture
def model(small_model):
    return endless(small_model(lm_head_bias=True))


def marian() -> MarianMTModel:
    layers = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    config = MarianConfig(
        vocab_size=50, d_model=16, max_position_embeddings=64, forced_eos_token_id=None, **layers, **TOKENS
    )
    model = endless(MarianMTModel(config))
    # as published models do
    model.generation_config.max_length = 55
    return model


@pytest.fixture
def trainer_of(tmp_path):
    """Return a function that builds a Seq2SeqTrainer which generates in evaluations, with changes to its arguments."""

    def build(model, **changes) -> Seq2SeqTrainer:
        settings = {"predict_with_generate": True, "use_cpu": True, "report_to": "none", "disable_tqdm": True}
        settings |= {"max_steps": 1, "eval_strategy": "steps", "save_strategy": "no", "learning_rate": 0.0}
        args = Seq2SeqTrainingArguments(str(tmp_path / "run"), **{**settings, **changes})
        rows = [{"input_ids": [5, 6, 7, 2], "labels": [8, 9, 2]}, {"input_ids": [6, 2], "labels": [9, 8, 7, 2]}]
        data = {"train_dataset": rows, "eval_dataset": rows, "data_collator": Seq2SeqCollator(0, 1)}
        # without metrics, evaluations only compute the loss
        return Seq2SeqTrainer(model, args, compute_metrics=lambda outputs: {}, **data)

    return build


def lengths(model) -> list[int]:
    """Return the lengths of translations by beam search, greedy search, and with settings that are all unset."""
    settings: list[dict] = [{"num_beams": 2}, {"num_beams": 1}, {"generation_config": GenerationConfig()}]
    return [model.generate(input_ids=SOURCE, **setting).shape[1] for setting in settings]


@pytest.mark.parametrize("stage", ["train", "evaluate", "predict"])
def test_evaluations_of_seq2seq_trainer_leave_the_limit_of_translations(model, trainer_of, tmp_path, stage):
    for each in (marian(), model):
        trainer = trainer_of(each)
        if stage == "predict":
            predictions = trainer.predict(trainer.eval_dataset).predictions
            # padded with tokens, which tokenizers can decode
            assert (predictions >= 0).all()
        else:
            getattr(trainer, stage)()
        # what the trainer writes
        assert each.generation_config.num_assistant_tokens == 20
        trainer.save_model(tmp_path / type(each).__name__)
        again = type(each).from_pretrained(tmp_path / type(each).__name__)
        assert lengths(again.eval()) == lengths(each.eval()) == [PAPERS_LIMIT] * 3


def test_an_adapter_on_an_evaluated_model_keeps_the_limit(model, trainer_of, tmp_path):
    model.save_pretrained(tmp_path / "base")
    adapted = get_peft_model(AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "base"), LORA)
    trainer_of(adapted).train()
    assert lengths(adapted.eval()) == [PAPERS_LIMIT] * 3
    adapted.save_pretrained(tmp_path / "adapter")
    adapted.merge_and_unload().save_pretrained(tmp_path / "base")
    again = [load_model(str(tmp_path / folder)) for folder in ("base", "adapter")]
    again.append(
        PeftModel.from_pretrained(AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "base"), tmp_path / "adapter")
    )
    for each in again:
        assert lengths(each.eval()) == [PAPERS_LIMIT] * 3


@pytest.mark.parametrize("replaced", [GenerationConfig(num_beams=2, **TOKENS), GenerationConfig(**TOKENS)])
def test_settings_without_a_limit_may_replace_those_of_the_model(model, trainer_of, tmp_path, replaced):
    trainer = trainer_of(model, generation_config=replaced)
    trainer.train()
    trainer.save_model(tmp_path / "saved")
    again = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "saved")
    assert lengths(again) == lengths(model.eval()) == [PAPERS_LIMIT] * 3


@pytest.mark.parametrize("limit", [{"max_length": 20}, {"max_new_tokens": 19}, {"max_length": 20, "num_beams": 1}])
def test_a_limit_that_a_user_sets_holds_even_if_it_is_transformers_default(model, trainer_of, tmp_path, limit):
    for each in (marian(), model):
        # no other limit beside it, as models may be published
        each.generation_config.max_length = None
        each.generation_config.update(**limit)
        trainer = trainer_of(each)
        trainer.evaluate()
        trainer.save_model(tmp_path / type(each).__name__)
        again = type(each).from_pretrained(tmp_path / type(each).__name__)
        assert lengths(again.eval()) == lengths(each.eval()) == [20] * 3


@pytest.mark.parametrize("limit", [{"max_length": 20}, {"max_new_tokens": 19}])
def test_limits_of_a_call_or_of_the_trainer_hold_on_an_evaluated_model(model, trainer_of, limit, caplog):
    trainer = trainer_of(model, per_device_eval_batch_size=1, generation_max_length=9)
    assert (trainer.predict(trainer.eval_dataset).predictions[:, 9:] == 0).all()
    assert (trainer.predict(trainer.eval_dataset, **limit).predictions != 0).sum(1).tolist() == [20, 20]
    for settings in (limit, {"generation_config": GenerationConfig(**limit)}):
        assert model.generate(SOURCE, **settings).shape == (1, 20)
    assert not any("seem to have been set" in message for message in caplog.messages)


def test_a_limit_that_is_removed_is_the_papers_again(model, tmp_path):
    model.generation_config.max_length = 9
    assert lengths(model) == [9] * 3
    model.generation_config.max_length = None
    model.save_pretrained(tmp_path)
    for each in (model, VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path)):
        assert lengths(each) == [PAPERS_LIMIT] * 3


@pytest.mark.parametrize("limit", [{"max_length": 9}, {"max_new_tokens": 8}])
def test_a_limit_that_a_call_removes_is_the_papers_in_this_call(model, limit):
    model.generation_config.update(**limit)
    removed = dict.fromkeys(limit)
    for settings in (removed, {"generation_config": GenerationConfig(num_beams=2), **removed}):
        assert model.generate(SOURCE, **settings).shape == (1, PAPERS_LIMIT)
    assert lengths(model) == [9] * 3


def test_the_stored_limit_is_none_wherever_a_tool_takes_it(model, tmp_path):
    settings = copy.deepcopy(model.generation_config)
    settings.num_beams = 3
    for arguments in ({"generation_config": settings}, {"max_length": settings.max_length}):
        assert model.generate(SOURCE, **arguments).shape == (1, PAPERS_LIMIT)
    model.save_pretrained(tmp_path)
    longer = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path, max_position_embeddings=256)
    assert lengths(longer) == [PAPERS_LIMIT] * 3
    # any source that the model translates has room within it
    saved = json.loads((tmp_path / "generation_config.json").read_text())
    assert saved["max_length"] == 1 + 64 + 50
    # Marian's own rule has another limit
    assert to_marian(model).generation_config.to_diff_dict().keys().isdisjoint({"longest_output"})
    assert to_marian(model).generation_config.max_length == 64


def test_settings_given_to_generate_cause_no_warning(model, caplog):
    # transformers logs some warnings only once
    logging.warning_once.cache_clear()
    model.generate(SOURCE, generation_config=GenerationConfig(num_beams=2))
    model.generate(SOURCE, max_new_tokens=3)
    assert caplog.messages == []
