import json
import math
import statistics

import pytest
import sacrebleu
import torch
from datasets import Dataset
from search_models import translate_ids
from torch import nn
from transformers import AutoConfig
from unequal_pairs import pairs

from hf_vanilla_transformer import (
    Translator,
    VanillaTransformerTrainer,
    VanillaTransformerTrainingArguments,
    average_checkpoints,
    train_tokenizer,
    translate,
)
from hf_vanilla_transformer.data.batching import Seq2SeqCollator
from hf_vanilla_transformer.model import generation_vanilla_transformer as generation
from hf_vanilla_transformer.sharing.convert import from_marian, to_marian


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


@pytest.mark.parametrize("settings", [{"r_drop_alpha": 5.0}, {"simcut_alpha": 3.0, "simcut_p": 0.0}], ids=str)
def test_two_passes_change_nothing_in_validation_or_without_noise(trainer, settings):
    run, plain = trainer(**settings), trainer()
    assert run.evaluate()["eval_loss"] == plain.evaluate()["eval_loss"]
    inputs = run.data_collator([run.train_dataset[i] for i in range(4)])
    losses = [each.compute_loss(each.model.train(), dict(inputs)) for each in (run, plain)]
    torch.testing.assert_close(*losses)


def test_validation_bleu_matches_translations_by_this_package(trainer, small_model):
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


def test_validation_finds_the_score_below_which_translations_are_doubtful(trainer, tmp_path):
    texts = {name: pairs([(4 + i % 9, 3 + i % 7) for i in range(start, 150)]) for name, start in (("a", 0), ("b", 10))}
    settings = {"generation_num_beams": 2, "save_strategy": "steps", "eval_strategy": "steps"}
    run = trainer(eval_dataset=texts, metric_for_best_model="loss", **settings, save_steps=3, eval_steps=3)
    assert run.model.config.doubtful_score is None
    run.train()
    translator = Translator(run.model.eval(), run.processing_class)
    sources = [row["input_ids"] for text in texts.values() for row in text]
    translator.model.config.doubtful_score = threshold = run.model.config.doubtful_score
    outputs = translator.translate_ids(sources, scores=True, num_beams=2)
    means = translator.mean_log_probs(outputs, {"num_beams": 2})
    # validation may have been in bfloat16
    assert threshold == pytest.approx(statistics.quantiles(means, n=100)[0], rel=2e-3)
    # another text says nothing about it, and copies of the model keep it
    run.evaluate(pairs([(5, 9)] * 120))
    assert run.model.config.doubtful_score == threshold
    average_checkpoints([tmp_path / "checkpoint-3"] * 2, tmp_path / "average")
    assert AutoConfig.from_pretrained(tmp_path / "average").doubtful_score == threshold
    assert from_marian(to_marian(run.model)).config.doubtful_score == threshold


def test_a_tokenizer_that_pads_on_the_left_changes_neither_training_nor_validation(trainer):
    runs = [trainer(), trainer()]
    runs[1].processing_class.padding_side = "left"
    for run in runs:
        run.train()
    right, left = (run.evaluate() for run in runs)
    for name in ("eval_loss", "eval_bleu"):
        assert left[name] == right[name]


def test_validation_bleu_without_a_tokenizer_is_a_clear_error(trainer):
    run = trainer()
    run.processing_class, translated = None, []
    run._translate_ids = lambda *args, **kwargs: translated.append(1)
    with pytest.raises(ValueError, match="give processing_class, or set eval_bleu=False"):
        run.evaluate()
    assert not translated
    run.args.eval_bleu = False
    assert "eval_bleu" not in run.evaluate()


def test_validation_leaves_the_model_in_training_mode(trainer):
    run = trainer()
    run.model.train()
    run.evaluate()
    assert run.model.training


def test_a_missing_validation_dataset_is_a_clear_error(trainer):
    run = trainer()
    run.eval_dataset = None
    with pytest.raises(ValueError, match="give an eval_dataset"):
        run.evaluate()


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
    for dataset in (parts, whole.eval_dataset):  # the same arguments can be reused
        VanillaTransformerTrainer(run.model, args, train_dataset=run.train_dataset, eval_dataset=dataset)
    scores = run.score()
    assert [(score["text"], score["sentences"]) for score in scores] == [
        ("validation text, short", len(parts["short"])),
        ("validation text, long", len(parts["long"])),
    ]
    with pytest.raises(ValueError, match=r"must be one of short_loss, short_perplexity, long_loss"):
        trainer(eval_dataset=parts, **{**schedule, "metric_for_best_model": "other_loss"})


def test_a_validation_pair_longer_than_a_batch_forms_its_own_batch(trainer):
    assert trainer(max_tokens=16).eval_dataset[2]["input_ids"][11:] == [2]
    assert trainer(max_tokens=9, train_dataset=pairs([(4, 5)])).evaluate()["eval_loss"] == pytest.approx(
        trainer().evaluate()["eval_loss"], rel=1e-6
    )


@pytest.mark.parametrize("changes", [{"batch_eval_metrics": True}, {"include_for_metrics": ["loss"]}])
def test_unsupported_evaluation_arguments_are_rejected(trainer, changes):
    with pytest.raises(ValueError, match="has no effect here: validation reports"):
        trainer(**changes)


def test_compute_metrics_gets_the_translations_and_can_select_the_best_model(trainer):
    seen = []

    def compute(prediction):
        seen.append(prediction)
        return {"eval_length": (prediction.predictions != -100).sum()}  # a NumPy scalar

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


def test_a_subclass_may_report_its_own_metrics(trainer):
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


def test_validation_uses_a_patched_forward(trainer):
    run = trainer()
    plain = run.evaluate()
    forward = run.model.forward

    def patched(*args, **kwargs):
        outputs = forward(*args, **kwargs)
        if outputs.logits is None:
            outputs.loss = 2 * outputs.loss
        else:
            outputs.logits[..., 7] += 1e5
        return outputs

    run.model.forward = patched
    outputs, _ = run._translate_ids(run.model, run.eval_dataset)
    assert {row[1] for row in outputs} == {7}
    assert run.evaluate()["eval_loss"] == pytest.approx(2 * plain["eval_loss"])


def test_validation_in_mixed_precision_uses_the_fast_search(trainer, monkeypatch):
    searches, search = [], generation.beam_search
    monkeypatch.setattr(generation, "beam_search", lambda *args: (searches.append(1), search(*args))[1])
    run = trainer(bf16=True)
    run.train()
    wrapper = vars(run.model)["forward"]
    run.evaluate()
    assert searches
    assert vars(run.model)["forward"] is wrapper


@pytest.mark.parametrize(
    ("outputs", "references", "warmup", "advice"),
    [
        ([[5, 1]] * 20, range(20), 4, "This is normal during the warm-up."),
        ([[5, 1], [6, 1]] * 10, range(20), 1, "check that the lines of both sides of the text correspond"),
        ([[]] * 20, range(20), 1, "distinct translations of 20 validation sentences: 1; the model"),
        # the source is used, or need not be
        ([[5, 1], [6, 1], [7, 1], [8, 1]] * 5, range(20), 1, None),
        ([[5, 1]] * 20, [3] * 20, 1, None),
    ],
)
def test_a_model_that_ignores_its_source_is_reported(
    outputs, references, warmup, advice, trainer, capsys, monkeypatch
):
    labels = [[number, 1] for number in references]
    monkeypatch.setattr(VanillaTransformerTrainer, "_translate_ids", lambda *args, **settings: (outputs, labels))
    run = trainer(warmup_steps=warmup, eval_strategy="steps", eval_steps=2, max_steps=2)
    run.train()
    lines = [line for line in capsys.readouterr().err.splitlines() if "ignores its source" in line]
    assert len(lines) == (advice is not None)
    assert all(line.startswith("Update 2: ") and advice in line for line in lines)


def test_sources_longer_than_the_positions_are_counted_and_have_no_translation(trainer, small_model):
    model = small_model(vocab_size=260, max_position_embeddings=8)
    run = trainer(model, eval_dataset=pairs([(5, 9), (9, 3), (12, 3), (8, 2)]))
    assert run.evaluate()["eval_untranslated"] == 2
    outputs, _ = run._translate_ids(run.model, run.eval_dataset)
    assert [bool(output) for output in outputs] == [True, False, False, True]
    fitting = trainer(model, eval_dataset=pairs([(5, 9), (8, 2)]))
    assert "eval_untranslated" not in fitting.evaluate()
