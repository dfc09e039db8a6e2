"""What `Seq2SeqTrainer` does with its arguments and rows, the trainer of this package does too; MarianMT shows it."""

import copy
import dataclasses

import numpy as np
import pytest
import torch
from datasets import Dataset, DatasetDict
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.utils.data import IterableDataset
from transformers import (
    DataCollatorForSeq2Seq,
    MarianConfig,
    MarianMTModel,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainerCallback,
    default_data_collator,
)
from unequal_pairs import UNEQUAL, pairs

from hf_vanilla_transformer import (
    VanillaTransformerModel,
    VanillaTransformerTrainer,
    VanillaTransformerTrainingArguments,
)
from hf_vanilla_transformer.errors import UserError
from hf_vanilla_transformer.sharing.convert import to_marian

LENGTHS = [(5, 9), (7, 3), (12, 12), (4, 4)]


def right_padded(row):
    source, target = row["input_ids"], row["labels"]
    return {
        "input_ids": source + [0] * (16 - len(source)),
        "attention_mask": [1] * len(source) + [0] * (16 - len(source)),
        "labels": target + [-100] * (16 - len(target)),
    }


def left_padded(row):
    return {name: ids[::-1] for name, ids in right_padded({name: ids[::-1] for name, ids in row.items()}).items()}


def partly_ignored(row):
    return {**row, "labels": [-100 if i % 3 == 1 else token for i, token in enumerate(row["labels"])]}


def with_masked_words(row):
    return {**row, "attention_mask": [int(i % 3 != 1) for i in range(len(row["input_ids"]))]}


def with_decoder_inputs(row):
    return {**right_padded(row), "decoder_input_ids": [1, *[9] * 15]}


def with_other_columns(row):
    return {**row, "source_length": 99, "text": "ein Hund", "translation": {"en": "a dog", "de": "ein Hund"}}


ROWS = [right_padded, left_padded, partly_ignored, with_masked_words, with_decoder_inputs, with_other_columns]


def control(model, tmp_path, tokenizer, **arguments):
    """Return the trainer of transformers for a MarianMT model of the same function, with all pairs in one batch."""
    settings = {"use_cpu": True, "report_to": "none", "disable_tqdm": True, "save_strategy": "no"}
    training = {name: arguments.pop(name) for name in ("predict_with_generate", "max_steps") if name in arguments}
    marian = to_marian(model)
    arguments.setdefault("data_collator", DataCollatorForSeq2Seq(tokenizer, model=marian))
    return Seq2SeqTrainer(
        marian,
        Seq2SeqTrainingArguments(str(tmp_path), **settings, **training),
        processing_class=tokenizer,
        **arguments,
    )


@pytest.mark.parametrize("collator", ["ours", "of transformers"])
def test_rows_have_the_loss_that_transformers_gives_marian(collator, trainer, tmp_path):
    of_transformers = DataCollatorForSeq2Seq(trainer().processing_class)
    run = trainer(data_collator=None if collator == "ours" else of_transformers, eval_bleu=False)
    marian = control(run.model, tmp_path, run.processing_class, data_collator=of_transformers)
    for change in ROWS:
        rows = Dataset.from_list([change(row) for row in pairs(LENGTHS)])
        expected = marian.evaluate(rows)["eval_loss"]
        assert run.evaluate(rows)["eval_loss"] == pytest.approx(expected, rel=1e-5), change.__name__


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (right_padded, "torch"),
        pytest.param(right_padded, "list", marks=pytest.mark.slow),
        pytest.param(with_other_columns, "numpy", marks=pytest.mark.slow),
    ],
)
def test_rows_in_any_form_train_and_translate_as_plain_ones(change, kind, trainer):
    def rows(plain):
        changed = Dataset.from_list([change(row) for row in plain])
        return list(changed) if kind == "list" else changed.with_format(kind)

    results = []
    for train, validation in ((pairs(UNEQUAL), pairs(LENGTHS)), (rows(pairs(UNEQUAL)), rows(pairs(LENGTHS)))):
        # all pairs in one batch
        run = trainer(train_dataset=train, eval_dataset=validation, max_tokens=400)
        run.train()
        outputs, labels = run._translate_ids(run.model, validation)
        assert labels == [row["labels"] for row in pairs(LENGTHS)]
        results.append((run.evaluate()["eval_loss"], outputs))
    assert results[1][0] == pytest.approx(results[0][0], rel=1e-4)
    assert results[1][1] == results[0][1]


@pytest.mark.slow
def test_rows_of_equal_length_train_with_the_collator_that_only_stacks(trainer):
    padded = Dataset.from_list([right_padded(row) for row in pairs(LENGTHS)])
    run = trainer(train_dataset=padded, data_collator=default_data_collator, max_steps=2)
    run.train()
    ours = trainer(train_dataset=padded, max_steps=2)
    ours.train()
    assert run.evaluate(padded)["eval_loss"] == pytest.approx(ours.evaluate(padded)["eval_loss"], rel=1e-5)


def test_a_row_whose_labels_are_all_ignored_counts_for_nothing(trainer):
    rows = pairs(LENGTHS).to_list()
    expected = trainer(max_tokens=12).evaluate(rows)
    ignored = [*rows, {"input_ids": [5, 6, 2], "labels": [-100] * 12}]
    run = trainer(max_tokens=12)
    assert run.evaluate(ignored)["eval_loss"] == pytest.approx(expected["eval_loss"], rel=1e-5)


def squared(outputs, labels, num_items_in_batch=None):
    """A loss of a user's own, the mean squared error of the probabilities of the labels."""
    real = labels != -100
    probabilities = outputs.logits.softmax(-1).gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    return ((1 - probabilities) ** 2)[real].sum() / num_items_in_batch


def test_compute_loss_func_replaces_the_loss_but_not_the_perplexity(trainer, tmp_path):
    plain = trainer().evaluate()
    run = trainer(compute_loss_func=squared, train_dataset=pairs(LENGTHS))
    expected = control(run.model, tmp_path, run.processing_class, compute_loss_func=squared)
    metrics = run.evaluate()
    assert metrics["eval_loss"] == pytest.approx(expected.evaluate(pairs(LENGTHS))["eval_loss"], rel=1e-4)
    assert metrics["eval_perplexity"] == pytest.approx(plain["eval_perplexity"], rel=1e-5)
    run.train()
    assert run.state.log_history[0]["loss"] == pytest.approx(metrics["eval_loss"], rel=1e-4)
    assert run.evaluate()["eval_loss"] < metrics["eval_loss"]


def test_a_loss_of_the_users_own_is_accumulated_exactly(trainer):
    losses = []
    for settings in ({}, {"max_tokens": 16, "gradient_accumulation_steps": 8}):
        run = trainer(compute_loss_func=squared, max_steps=2, **settings)
        run.train()
        losses.append(run.state.log_history[1]["loss"])
    assert losses[0] < 1
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


@pytest.mark.parametrize("name", ["r_drop_alpha", "simcut_alpha"])
def test_two_passes_are_refused_with_a_loss_of_the_users_own(trainer, name):
    with pytest.raises(UserError, match=f"{name} has no effect with compute_loss_func"):
        trainer(compute_loss_func=squared, **{name: 1.0})


class Evaluate(TrainerCallback):
    """Evaluate after the last update, before the moving average replaces the weights."""

    def __init__(self, run):
        self.run = run

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == state.max_steps:
            self.run.evaluate()


def best_tokens(logits, labels):
    logits = logits[0] if isinstance(logits, tuple) else logits
    return logits.argmax(-1)


def accuracy(prediction):
    real = prediction.label_ids != -100
    return {"accuracy": (prediction.predictions == prediction.label_ids)[real].mean()}


def test_preprocess_logits_for_metrics_sees_the_logits_as_with_marian(trainer, tmp_path):
    functions = {"preprocess_logits_for_metrics": best_tokens, "compute_metrics": accuracy}
    run = trainer(max_steps=12, train_dataset=pairs(LENGTHS), **functions)
    run.train()
    expected = control(run.model, tmp_path, run.processing_class, **functions).evaluate(pairs(LENGTHS))
    metrics = run.evaluate()
    assert metrics["eval_accuracy"] == expected["eval_accuracy"] > 0.1
    assert metrics["eval_loss"] == pytest.approx(expected["eval_loss"], rel=1e-4)


def test_preprocess_logits_for_metrics_sees_the_translations_if_these_are_asked_for(trainer):
    shapes = []

    def longest(predictions, labels):
        shapes.append((predictions.shape, labels.shape))
        return predictions[:, :1]

    run = trainer(
        predict_with_generate=True,
        preprocess_logits_for_metrics=longest,
        compute_metrics=lambda prediction: {"width": prediction.predictions.shape[1]},
    )
    assert run.evaluate()["eval_width"] == 1
    outputs, labels = run._translate_ids(run.model, run.eval_dataset)
    assert shapes == [((4, max(map(len, outputs))), (4, max(map(len, labels))))]


@pytest.mark.parametrize(
    ("settings", "longest"),
    [({"max_length": 5}, 5), ({"max_new_tokens": 6}, 7), ({"max_length": 4, "num_beams": 2}, 4)],
)
def test_evaluate_and_predict_take_the_arguments_of_generate_as_with_marian(settings, longest, trainer, tmp_path):
    seen = []

    def lengths(prediction):
        seen.append((prediction.predictions != -100).sum(1).max())
        return {}

    arguments = {"compute_metrics": lengths, "predict_with_generate": True}
    run = trainer(**arguments, generation_num_beams=1)
    beams = []
    generate = run.model.generate
    run.model.generate = lambda *args, **kwargs: (beams.append(kwargs["num_beams"]), generate(*args, **kwargs))[1]
    run.evaluate(**settings)
    run.evaluate({"one": run.eval_dataset}, **settings)
    assert {*beams} == {settings.get("num_beams", 1)}
    del run.model.generate
    # a translation has no start token here
    assert all(length <= longest for length in seen)
    unlimited = trainer(**arguments)
    unlimited.evaluate()
    assert seen[-1] > longest
    expected = control(run.model, tmp_path, run.processing_class, predict_with_generate=True)
    settings = {"num_beams": 1, **settings}
    ours, theirs = (part.predict(pairs(LENGTHS), **settings).predictions for part in (run, expected))
    np.testing.assert_array_equal(ours[:, :longest], theirs[:, :longest])
    assert not ours[:, longest:].any()


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_predictions_leave_the_settings_of_decoding_as_they_were(trainer, tmp_path):
    run = trainer(predict_with_generate=True, max_steps=1)
    before = copy.deepcopy(run.model.generation_config)
    run.predict(pairs(LENGTHS))
    run.evaluate()
    assert vars(run.model.generation_config) == vars(before)
    adapted = trainer(
        get_peft_model(run.model, LoraConfig(target_modules=["q_proj"], task_type="SEQ_2_SEQ_LM")),
        predict_with_generate=True,
    )
    adapted.predict(pairs(LENGTHS))
    assert vars(run.model.generation_config) == vars(before)


@pytest.mark.parametrize("settings", [{}, {"predict_with_generate": True}])
def test_predict_works_with_a_collator_that_does_not_know_the_model(settings, trainer):
    run = trainer(data_collator=DataCollatorForSeq2Seq(trainer().processing_class), **settings)
    result = run.predict(pairs(LENGTHS))
    assert result.metrics["test_loss"] == pytest.approx(run.evaluate()["eval_loss"], rel=1e-5)
    assert len(result.predictions if settings else result.predictions[0]) == 4


def test_rows_without_labels_are_translated_by_predict(trainer, tmp_path):
    run = trainer(predict_with_generate=True)
    result = run.predict(pairs(LENGTHS).remove_columns("labels"))
    assert result.label_ids is None
    np.testing.assert_array_equal(result.predictions, run.predict(pairs(LENGTHS)).predictions)


@pytest.mark.parametrize("name", ["r_drop_alpha", "simcut_alpha"])
def test_two_passes_train_with_a_collator_that_does_not_know_the_model(trainer, name):
    losses = []
    for collator in (DataCollatorForSeq2Seq(trainer().processing_class), None):
        run = trainer(**{name: 1.0}, data_collator=collator, max_steps=1)
        run.train()
        losses.append([log["loss"] for log in run.state.log_history if "loss" in log])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_arguments_may_be_given_by_position(trainer, tmp_path):
    given = trainer()
    run = VanillaTransformerTrainer(
        given.model, given.args, None, given.train_dataset, given.eval_dataset, given.processing_class
    )
    assert run.evaluate()["eval_bleu"] == given.evaluate()["eval_bleu"]


class Wrapped(nn.Module):
    """A module of a user's own around a model."""

    def __init__(self, model):
        super().__init__()
        self.model = model


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_a_model_of_another_class_is_refused_in_one_line(small_model, trainer):
    marian = MarianMTModel(
        MarianConfig(
            vocab_size=50,
            d_model=16,
            encoder_layers=1,
            decoder_layers=1,
            encoder_ffn_dim=16,
            decoder_ffn_dim=16,
            pad_token_id=0,
        )
    )
    base = VanillaTransformerModel(small_model().config)
    adapted = get_peft_model(marian, LoraConfig(target_modules=["q_proj"], task_type="SEQ_2_SEQ_LM"))
    for model, name in (
        (marian, "MarianMTModel"),
        (adapted, "MarianMTModel"),
        (base, "VanillaTransformerModel"),
        (Wrapped(small_model()), "Wrapped"),
        ("a/name", "str"),
    ):
        with pytest.raises(UserError, match=rf"^VanillaTransformerTrainer cannot train a {name}: .*$"):
            trainer(model)
    args = trainer().args
    with pytest.raises(UserError, match="cannot train a MarianMTModel"):
        VanillaTransformerTrainer(args=args, model_init=lambda: marian)

    # but neither a subclass nor an adapter
    class Subclass(type(small_model())):
        def forward(self, *args, **kwargs):
            return super().forward(*args, **kwargs)

    plain = trainer()
    expected = plain.evaluate()["eval_loss"]
    subclass = Subclass(plain.model.config)
    subclass.load_state_dict(plain.model.state_dict())
    adapted = get_peft_model(plain.model, LoraConfig(target_modules=["q_proj"], task_type="SEQ_2_SEQ_LM"))
    for model in (subclass, adapted):
        assert trainer(model).evaluate()["eval_loss"] == pytest.approx(expected, rel=1e-6)


def test_arguments_of_another_class_are_refused_in_one_line(small_model, tmp_path):
    args = Seq2SeqTrainingArguments(str(tmp_path), use_cpu=True, report_to="none")
    with pytest.raises(UserError, match="args must be VanillaTransformerTrainingArguments, got Seq2Seq"):
        VanillaTransformerTrainer(small_model(), args, train_dataset=pairs(UNEQUAL))


@pytest.mark.parametrize("name", ["generation_max_length", "per_device_train_batch_size"])
def test_arguments_that_are_set_later_say_that_they_have_no_effect(name, trainer):
    args = trainer().args
    default = getattr(args, name)
    setattr(args, name, default)
    with pytest.raises(UserError, match=f"{name} has no effect here"):
        setattr(args, name, 30)
    assert getattr(args, name) == default
    with pytest.raises(UserError, match="do_predict has no effect here"):
        args.set_testing()


def test_a_text_without_labels_that_count_has_no_loss(trainer, tmp_path):
    ignored = [{"input_ids": [5, 2], "labels": [-100, -100]}]
    run = trainer(eval_bleu=False)
    marian = control(run.model, tmp_path, run.processing_class)
    assert np.isnan(marian.evaluate(Dataset.from_list(ignored))["eval_loss"])
    assert np.isnan(run.evaluate(ignored)["eval_loss"])


def test_defaults_of_a_subclass_say_that_they_have_no_effect(tmp_path):
    @dataclasses.dataclass
    class ScriptArguments(VanillaTransformerTrainingArguments):
        per_device_train_batch_size: int = 4

    with pytest.raises(UserError, match="per_device_train_batch_size has no effect here"):
        ScriptArguments(str(tmp_path), use_cpu=True)


def test_the_name_of_the_labels_may_be_given_if_it_is_right(tmp_path):
    # as scripts with adapters do
    assert VanillaTransformerTrainingArguments(str(tmp_path), use_cpu=True, label_names=["labels"])
    with pytest.raises(UserError, match='label_names has no effect here: the labels are in the column "labels"'):
        VanillaTransformerTrainingArguments(str(tmp_path), use_cpu=True, label_names=["target"])


def test_a_learning_rate_for_another_schedule_is_named(trainer, caplog):
    run = trainer(learning_rate=2e-5)
    run.create_optimizer_and_scheduler(1)
    assert "learning_rate=2e-05 is a factor on the noam schedule, so the model hardly changes" in caplog.text
    copied = dataclasses.replace(trainer().args, lr_scheduler_type="cosine")
    VanillaTransformerTrainer(run.model, copied).create_optimizer_and_scheduler(1)
    assert "learning_rate=1, the default factor on the noam schedule, is the peak of this one" in caplog.text


class SizedStream(IterableDataset):
    """A stream that says how many pairs it has."""

    def __len__(self):
        return len(LENGTHS)

    def __iter__(self):
        return iter(pairs(LENGTHS))


@pytest.mark.parametrize("kind", ["stream", "sized stream", "text"])
def test_a_validation_set_that_cannot_be_used_is_refused_before_training(kind, trainer):
    unusable = {
        "stream": (
            pairs(LENGTHS).to_iterable_dataset(),
            r"must have a length, .*\(IterableDataset\) has not: read it",
        ),
        # torch passes its length, if it has one, to the progress bar
        "sized stream": (SizedStream(), r"\(SizedStream\) has not: read it"),
        "text": (Dataset.from_dict({"translation": ["a dog"]}), "this one has only translation"),
    }
    dataset, message = unusable[kind]
    sets = {"good": pairs(LENGTHS), "bad": dataset}
    run = trainer(eval_dataset=sets, eval_strategy="steps", eval_steps=2, metric_for_best_model="loss")
    with pytest.raises(UserError, match=message):
        run.train()
    assert run.state.global_step == 0
    for unusable_set in (dataset, sets, "bad"):
        with pytest.raises(UserError, match=message):
            run.evaluate(unusable_set)
    with pytest.raises(UserError, match="There is no dataset 'other' in eval_dataset"):
        run.evaluate("other")


def test_a_training_stream_may_have_a_length(trainer):
    run = trainer(train_dataset=SizedStream(), max_steps=2)
    run.train()
    assert run.state.log_history[0]["loss"] > 0


def test_all_splits_as_the_training_set_are_refused(trainer):
    splits = DatasetDict(train=pairs(LENGTHS), validation=pairs(LENGTHS))
    with pytest.raises(UserError, match="Give one dataset, not all of train, validation"):
        trainer(train_dataset=splits).train()


def test_a_training_stream_says_how_it_is_batched_and_that_it_needs_labels(trainer, caplog):
    run = trainer(train_dataset=pairs(LENGTHS).to_iterable_dataset(), max_steps=2)
    run.train()
    assert run.state.log_history[0]["loss"] > 0
    assert "a batch has 8 pairs of any length" in caplog.text
    unlabelled = trainer(train_dataset=pairs(LENGTHS).remove_columns("labels").to_iterable_dataset(), max_steps=2)
    with pytest.raises(UserError, match='needs "labels" in each batch, which has only input_ids, attention_mask'):
        unlabelled.train()


def test_the_logits_are_those_of_the_moving_average(trainer):
    seen = []

    def logits(outputs, labels):
        seen.append(outputs[0])
        return outputs[0]

    functions = {"preprocess_logits_for_metrics": logits, "compute_metrics": lambda prediction: {}}
    run = trainer(ema_decay=0.9, **functions)
    run.add_callback(Evaluate(run))
    run.train()
    batch = run.data_collator([run.eval_dataset[i] for i in range(4)])
    with torch.no_grad():
        # training ends with the average
        torch.testing.assert_close(run.model(**batch).logits, seen[-1])


def test_evaluation_reports_its_speed_as_the_trainer_does(trainer):
    metrics = trainer().evaluate(metric_key_prefix="test")
    assert {"test_runtime", "test_samples_per_second"} < metrics.keys()
