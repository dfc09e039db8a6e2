import json
import math
import signal

import pytest
import sacrebleu
import torch
from datasets import Dataset
from torch import nn
from transformers import DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments, Trainer, TrainingArguments
from unequal_pairs import UNEQUAL, pairs

from hf_vanilla_transformer import (
    VanillaTransformerTrainer,
    VanillaTransformerTrainingArguments,
    noam,
    train_tokenizer,
    translate,
)
from hf_vanilla_transformer.data.batching import Seq2SeqCollator
from hf_vanilla_transformer.inference.translation import translate_ids
from hf_vanilla_transformer.model import generation_vanilla_transformer as generation
from hf_vanilla_transformer.training.loss import smoothed_cross_entropy


def parameters(trainer: VanillaTransformerTrainer) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])


def test_one_batch_of_8_equals_8_accumulated_batches_of_1(trainer, small_model):
    together = trainer(small_model(dropout=0.0).double())
    before = parameters(together)
    together.train()
    apart = trainer(small_model(dropout=0.0).double(), max_tokens=16, gradient_accumulation_steps=8)
    torch.testing.assert_close(parameters(apart), before, atol=0, rtol=0)
    assert len(apart.get_train_dataloader()) == 8
    apart.train()
    torch.testing.assert_close(parameters(apart), parameters(together), atol=1e-6, rtol=0)
    assert (parameters(together) - before).abs().max() > 1e-2


def test_training_leaves_the_generation_config_alone(trainer):
    run = trainer(eval_strategy="steps", eval_steps=1)
    before = run.model.generation_config.to_dict()
    run.train()
    assert run.model.generation_config.to_dict() == before


def test_the_learning_rate_of_every_update_is_noams(trainer):
    run = trainer(max_steps=7)
    run.train()
    rates = [entry["learning_rate"] for entry in run.state.log_history if "learning_rate" in entry]
    assert rates == pytest.approx([noam(step, 32, 4) for step in range(1, 8)])


def test_the_optimiser_is_the_papers_adam(trainer):
    run = trainer()
    run.train()
    for group in run.optimizer.param_groups:
        assert (group["betas"], group["eps"], group["weight_decay"]) == ((0.9, 0.98), 1e-9, 0.0)


def test_transformers_own_schedules_still_work(trainer):
    run = trainer(lr_scheduler_type="linear", learning_rate=1e-3, warmup_steps=0, max_steps=4)
    run.train()
    rates = [entry["learning_rate"] for entry in run.state.log_history if "learning_rate" in entry]
    assert rates == pytest.approx([1e-3, 7.5e-4, 5e-4, 2.5e-4])


def test_the_training_loss_is_smoothed_over_real_tokens(trainer):
    run = trainer(label_smoothing_factor=0.2)
    batch = Seq2SeqCollator(0, 1)([run.train_dataset[i] for i in (0, 1)])
    run.model.train()
    logits = run.model(**batch).logits
    target = torch.full_like(logits, 0.2 / 49)
    target[..., 0] = 0.0
    labels = batch["labels"]
    target.scatter_add_(2, labels.clamp(min=0)[..., None], torch.full((*labels.shape, 1), 0.8))
    expected = nn.functional.cross_entropy(logits[labels != -100], target[labels != -100])
    torch.testing.assert_close(run.compute_loss(run.model, batch), expected)


def test_r_drop_brings_two_passes_together(trainer, small_model):
    run = trainer(small_model(dropout=0.3), r_drop_alpha=5.0)
    inputs = run.data_collator([run.train_dataset[i] for i in range(4)])
    labels, tokens = inputs["labels"], inputs["labels"].ne(-100).sum()
    seen = []
    run.model.register_forward_hook(lambda module, args, output: seen.append(output.logits.detach()))
    loss = run.compute_loss(run.model.train(), inputs)
    (logits,) = seen
    first, second = logits.chunk(2)
    assert not torch.equal(first, second)
    p, q = (torch.distributions.Categorical(logits=part[labels != -100].double()) for part in (first, second))
    divergence = sum(torch.distributions.kl_divergence(*pair).sum() for pair in ((p, q), (q, p)))
    entropies = sum(smoothed_cross_entropy(part, labels, 0.1, 0) for part in (first, second))
    torch.testing.assert_close(loss.double(), (entropies + 5.0 * divergence / 2) / 2 / tokens, rtol=1e-5, atol=0.0)


def test_r_drop_rests_in_validation_and_without_dropout(trainer):
    run, plain = trainer(r_drop_alpha=5.0), trainer()
    assert run.evaluate()["eval_loss"] == plain.evaluate()["eval_loss"]
    inputs = run.data_collator([run.train_dataset[i] for i in range(4)])
    losses = [each.compute_loss(each.model.train(), dict(inputs)) for each in (run, plain)]
    torch.testing.assert_close(*losses)


def test_validation_is_unsmoothed_and_counts_every_token_once(trainer):
    run = trainer(label_smoothing_factor=0.2, max_tokens=12)
    loss, tokens = 0.0, 0
    with torch.no_grad():
        for row in run.eval_dataset:
            batch = Seq2SeqCollator(0, 1)([row])
            logits = run.model(**batch).logits[0].double()
            loss += nn.functional.cross_entropy(logits, batch["labels"][0], reduction="sum").item()
            tokens += len(row["labels"])
    metrics = run.evaluate()
    assert metrics["eval_loss"] == pytest.approx(loss / tokens, rel=1e-6)
    assert metrics["eval_perplexity"] == pytest.approx(math.exp(loss / tokens), rel=1e-6)


def test_validation_bleu_is_that_of_the_packages_own_decoding(trainer, small_model):
    tokenizer = train_tokenizer(["ein hund rennt", "zwei hunde sitzen da", "ein hund sitzt da"] * 2, 300)
    texts = ["ein hund rennt da", "zwei hunde rennen", "zwei hunde sitzen da", "da sitzt ein hund", "ein hund"]
    ids = tokenizer(texts)["input_ids"]
    copies = Dataset.from_dict({"input_ids": ids, "labels": ids})
    model = small_model(vocab_size=len(tokenizer), dropout=0.0)
    schedule = {"lr_scheduler_type": "constant", "learning_rate": 3e-3, "max_steps": 100, "logging_steps": 100}
    run = trainer(model, copies, generation_num_beams=2, bleu_tokenize="char", **schedule)
    run.eval_dataset, run.processing_class = copies, tokenizer
    run.train()
    translations = translate(model, tokenizer, texts, num_beams=2)
    expected = sacrebleu.corpus_bleu(translations, [texts], tokenize="char").score
    assert run.evaluate()["eval_bleu"] == pytest.approx(expected)
    assert expected > 5


def test_validation_bleu_without_a_tokenizer_is_a_clear_error(trainer):
    run = trainer()
    run.processing_class, translated = None, []
    run._translate_ids = lambda *args, **kwargs: translated.append(1)
    with pytest.raises(ValueError, match="give processing_class, or eval_bleu=False"):
        run.evaluate()
    assert not translated
    run.args.eval_bleu = False
    assert "eval_bleu" not in run.evaluate()


def scripted(run, bleus):
    """Makes the run's evaluations give these scores, one after the other."""
    scores = iter(bleus)
    run._bleu = lambda model, dataset: next(scores)
    run.train()
    return run


def test_the_best_checkpoint_stays_beside_the_newest(trainer, tmp_path):
    settings = {"save_strategy": "steps", "eval_strategy": "steps", "save_steps": 1, "save_total_limit": 2}
    run = scripted(trainer(max_steps=5, **settings), [1.0, 9.0, 2.0, 3.0, 4.0])
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == [f"checkpoint-{n}" for n in (2, 4, 5)]
    assert run.state.best_model_checkpoint == str(tmp_path / "checkpoint-2")
    assert run.args.save_total_limit == 2


def test_early_stopping_ends_with_the_best_model(trainer, tmp_path):
    settings = {"save_strategy": "steps", "eval_strategy": "steps", "save_steps": 1, "early_stopping_patience": 2}
    run = scripted(trainer(max_steps=50, **settings), [1.0, 5.0, 4.0, 5.0])
    assert run.state.global_step == 4
    best = type(run.model).from_pretrained(tmp_path / "checkpoint-2")
    assert torch.equal(run.model.model.shared.weight, best.model.shared.weight)


@pytest.mark.parametrize("trainer_class", [Trainer, Seq2SeqTrainer])
def test_transformers_own_trainers_train_the_model(trainer_class, small_model, tmp_path):
    tokenizer = train_tokenizer([""], 260)
    model = small_model(dropout=0.0)
    kind = TrainingArguments if trainer_class is Trainer else Seq2SeqTrainingArguments
    settings = {"max_steps": 20, "learning_rate": 5e-3, "logging_steps": 1, "use_cpu": True, "report_to": "none"}
    run = trainer_class(
        model,
        kind(str(tmp_path), save_strategy="no", disable_tqdm=True, label_smoothing_factor=0.1, **settings),
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        train_dataset=pairs(UNEQUAL),
        processing_class=tokenizer,
    )
    run.train()
    losses = [entry["loss"] for entry in run.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0] - 0.5


def test_validation_leaves_the_model_in_training(trainer):
    run = trainer()
    run.model.train()
    run.evaluate()
    assert run.model.training


def test_every_epoch_brings_every_pair_in_a_new_order(trainer):
    run = trainer(max_tokens=32, max_steps=-1, num_train_epochs=3)
    seen = []
    collate = run.data_collator

    def recording(rows):
        seen.extend(tuple(row["input_ids"]) for row in rows)
        return collate(rows)

    run.data_collator = recording
    run.train()
    epochs = [seen[start : start + 8] for start in (0, 8, 16)]
    everything = {tuple(row["input_ids"]) for row in run.train_dataset}
    assert all(set(epoch) == everything for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_the_speed_in_the_log_is_real_target_tokens_a_second(trainer, monkeypatch):
    clock = iter(range(1000))  # each look at the clock is a second later, and one lies within each step
    monkeypatch.setattr("hf_vanilla_transformer.training.callbacks.time.perf_counter", lambda: next(clock))
    run = trainer(max_tokens=16, gradient_accumulation_steps=8)
    run.train()
    speeds = [entry["tokens_per_second"] for entry in run.state.log_history if "tokens_per_second" in entry]
    assert speeds[1:] == pytest.approx([sum(target for _, target in UNEQUAL)] * 2, abs=0.1)


def test_a_runs_seconds_count_between_logs_too(trainer):
    run = trainer(logging_steps=10**6)
    run.train()
    assert run.speed.total_seconds > 0


def test_what_is_saved_holds_no_pickles(trainer, tmp_path):
    run = trainer()
    run.train()
    run.save_model()
    assert {file.suffix for file in tmp_path.iterdir() if file.is_file()} == {".json", ".py", ".safetensors"}


def test_a_resumed_run_ends_with_the_same_parameters_to_the_bit(trainer, small_model, tmp_path):
    settings = {"max_tokens": 32, "max_steps": 6, "save_strategy": "steps", "save_steps": 3}
    straight = trainer(small_model(dropout=0.3), **settings)
    straight.train()
    torch.manual_seed(99)
    resumed = trainer(small_model(dropout=0.3), **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert resumed.state.log_history[-1]["step"] == 6
    assert torch.equal(parameters(resumed), parameters(straight))


def test_nothing_to_evaluate_on_is_a_clear_error(trainer):
    run = trainer()
    run.eval_dataset = None
    with pytest.raises(ValueError, match="give an eval_dataset"):
        run.evaluate()


@pytest.fixture
def two_gpus(monkeypatch):
    """Makes transformers believe that this process sees two GPUs."""
    set_up = VanillaTransformerTrainingArguments.__post_init__

    def see_two(self):
        set_up(self)
        self._n_gpu = 2

    monkeypatch.setattr(VanillaTransformerTrainingArguments, "__post_init__", see_two)


def test_one_process_trains_on_one_of_several_visible_gpus(trainer, two_gpus, caplog):
    run = trainer()
    run.train()
    assert run.state.global_step == 3
    assert "torchrun --nproc_per_node 2" in caplog.text
    assert "CUDA_VISIBLE_DEVICES" in caplog.text


def test_the_tokens_of_an_update_may_be_counted_once_for_each_gpu(trainer):
    run = trainer()
    batch = run.data_collator([run.train_dataset[i] for i in range(3)])
    run.current_gradient_accumulation_steps = 1
    once, twice = (
        run.compute_loss(run.model.train(), dict(batch), num_items_in_batch=count)
        for count in (torch.tensor(40), torch.full((2, 1), 40))
    )
    assert twice.shape == ()
    torch.testing.assert_close(once, twice)


def test_several_validation_sets_are_reported_by_name(trainer):
    whole = trainer()
    parts = {"short": whole.eval_dataset.select([0, 3]), "long": whole.eval_dataset.select([1, 2])}
    schedule = {"eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": "loss", "eval_bleu": False}
    run = trainer(eval_dataset=parts, **schedule)
    expected = {f"eval_{name}_loss": trainer().evaluate(part)["eval_loss"] for name, part in parts.items()}
    metrics = run.evaluate()
    assert {name: metrics[name] for name in expected} == pytest.approx(expected)
    run.train()
    assert run.state.best_metric == min(
        log["eval_short_loss"] for log in run.state.log_history if "eval_short_loss" in log
    )
    assert trainer(eval_dataset=parts, **{**schedule, "metric_for_best_model": "long_loss"})
    assert run.evaluate("long")["eval_loss"] == run.evaluate(parts["long"])["eval_loss"]
    args = VanillaTransformerTrainingArguments(run.args.output_dir, use_cpu=True, **schedule)
    for dataset in (parts, whole.eval_dataset):  # the same arguments serve both
        VanillaTransformerTrainer(run.model, args, train_dataset=run.train_dataset, eval_dataset=dataset)
    with pytest.raises(ValueError, match="There are several validation sets"):
        run.score()
    with pytest.raises(ValueError, match=r"must be one of short_loss, short_perplexity, long_loss"):
        trainer(eval_dataset=parts, **{**schedule, "metric_for_best_model": "other_loss"})


def test_a_validation_pair_longer_than_a_batch_is_one_by_itself(trainer):
    assert trainer(max_tokens=16).eval_dataset[2]["input_ids"][11:] == [2]
    assert trainer(max_tokens=9, train_dataset=pairs([(4, 5)])).evaluate()["eval_loss"] == pytest.approx(
        trainer().evaluate()["eval_loss"], rel=1e-6
    )


@pytest.mark.parametrize("changes", [{"batch_eval_metrics": True}, {"include_for_metrics": ["loss"]}])
def test_what_validation_does_not_do_is_refused(trainer, changes):
    with pytest.raises(ValueError, match="would change nothing: validation reports"):
        trainer(**changes)


def test_settings_that_a_schedule_does_not_know_are_a_clear_error(trainer):
    run = trainer(lr_scheduler_type="cosine", warmup_steps=0, lr_scheduler_kwargs={"foo": 1})
    with pytest.raises(ValueError, match="lr_scheduler_kwargs do not fit the schedule"):
        run.train()


def test_batches_counted_in_pairs_are_refused(trainer):
    with pytest.raises(ValueError, match="per_device_train_batch_size would change nothing"):
        trainer(per_device_train_batch_size=3)


def test_compute_metrics_gets_the_translations_and_decides(trainer):
    seen = []

    def compute(prediction):
        seen.append(prediction)
        return {"eval_length": (prediction.predictions != -100).sum()}  # a number of NumPy's

    run = trainer(compute_metrics=compute, metric_for_best_model="length", eval_strategy="steps", eval_steps=3)
    run.train()
    labels = [row["labels"] for row in run.eval_dataset]
    assert [[token for token in row if token != -100] for row in seen[0].label_ids.tolist()] == labels
    outputs = translate_ids(run.model, run.eval_dataset["input_ids"][:])
    assert [[token for token in row if token != -100] for row in seen[0].predictions.tolist()] == outputs
    assert run.state.best_metric == sum(map(len, outputs))
    json.dumps(run.state.log_history)
    parts = {"short": run.eval_dataset.select([0, 3]), "long": run.eval_dataset.select([1, 2])}
    own = {"compute_metrics": lambda prediction: {"length": len(prediction.predictions)}}
    several = trainer(**own, eval_dataset=parts, eval_strategy="steps", eval_steps=3)
    several.train()
    assert several.args.metric_for_best_model == "short_bleu"
    assert several.evaluate()["eval_long_length"] == 2


def test_a_subclass_may_report_metrics_of_its_own(trainer):
    class WithChrF(VanillaTransformerTrainer):
        def evaluate(self, *args, **kwargs):
            metrics = super().evaluate(*args, **kwargs)
            return {**metrics, "eval_chrf": 7.0}

    plain = trainer()
    plain.args.metric_for_best_model = "chrf"
    run = WithChrF(plain.model, plain.args, train_dataset=plain.train_dataset, eval_dataset=plain.eval_dataset)
    assert run.args.metric_for_best_model == "chrf"
    with pytest.raises(ValueError, match="metric_for_best_model must be one of loss, perplexity, bleu, got 'chrf'"):
        trainer(metric_for_best_model="chrf")


def test_a_forward_of_somebodys_own_is_validated_too(trainer):
    run = trainer()
    plain = run.evaluate()
    forward = run.model.forward

    def patched(*args, **kwargs):
        outputs = forward(*args, **kwargs)
        outputs.logits[..., 7] += 1e5
        return outputs

    run.model.forward = patched
    outputs, _ = run._translate_ids(run.model, run.eval_dataset)
    assert {row[1] for row in outputs} == {7}
    assert run.evaluate()["eval_loss"] > plain["eval_loss"] + 1


def test_the_debugger_can_read_every_mask(small_model, trainer):
    run = trainer(small_model(dropout=0.0), debug="underflow_overflow")
    run.train()
    again = VanillaTransformerTrainer(
        None, run.args, run.data_collator, model_init=lambda: small_model(), train_dataset=run.train_dataset
    )
    again.train()
    assert run.state.global_step == again.state.global_step == 3


def test_training_that_fails_leaves_sigterm_as_it_was(trainer):
    before = signal.getsignal(signal.SIGTERM)
    run = trainer()
    run.data_collator = len
    with pytest.raises(TypeError):
        run.train()
    assert signal.getsignal(signal.SIGTERM) is before


def test_validation_under_mixed_precision_decodes_by_the_fast_search(trainer, monkeypatch):
    searches, search = [], generation.beam_search
    monkeypatch.setattr(generation, "beam_search", lambda *args: (searches.append(1), search(*args))[1])
    run = trainer(bf16=True)
    run.train()
    wrapper = vars(run.model)["forward"]
    run.evaluate()
    assert searches
    assert vars(run.model)["forward"] is wrapper
