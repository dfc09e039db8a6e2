import logging
import shutil
import signal
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
import transformers
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from sacrebleu import BLEU
from safetensors.torch import load_file, save_file
from torch import nn
from torch._dynamo.utils import get_compilation_metrics
from transformers import DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments, Trainer, TrainingArguments
from unequal_pairs import UNEQUAL, pairs

from hf_vanilla_transformer import (
    VanillaTransformerTrainer,
    VanillaTransformerTrainingArguments,
    noam,
    train_tokenizer,
)
from hf_vanilla_transformer.data.batching import Seq2SeqCollator
from hf_vanilla_transformer.errors import UserError
from hf_vanilla_transformer.inference import hardware
from hf_vanilla_transformer.model.loss_vanilla_transformer import smoothed_cross_entropy
from hf_vanilla_transformer.training import compilation


def parameters(trainer: VanillaTransformerTrainer) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])


def train_with_bleus(run, bleus):
    """Train with these BLEU scores as the results of successive evaluations."""
    scores = iter(bleus)
    with patch.object(BLEU, "corpus_score", lambda *texts: SimpleNamespace(score=next(scores))):
        run.train()
    return run


@pytest.fixture
def two_gpus(monkeypatch):
    """Make transformers see two GPUs in this process."""
    post_init = VanillaTransformerTrainingArguments.__post_init__

    def post_init_with_two_gpus(self):
        post_init(self)
        self._n_gpu = 2

    monkeypatch.setattr(VanillaTransformerTrainingArguments, "__post_init__", post_init_with_two_gpus)


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


def test_every_epoch_uses_every_pair_in_a_new_order(trainer):
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


def test_training_never_changes_the_generation_config(trainer):
    run = trainer(eval_strategy="steps", eval_steps=1)
    before = run.model.generation_config.to_dict()
    run.train()
    if transformers.__version__.startswith("5.17."):  # its Trainer makes the end token a list
        before["eos_token_id"] = [2]
    assert run.model.generation_config.to_dict() == before


def test_every_update_uses_the_noam_learning_rate(trainer):
    run = trainer(max_steps=7)
    run.train()
    rates = [entry["learning_rate"] for entry in run.state.log_history if "learning_rate" in entry]
    assert rates == pytest.approx([noam(step, 32, 4) for step in range(1, 8)])


def test_the_optimizer_is_the_papers_adam(trainer):
    run = trainer()
    run.train()
    for group in run.optimizer.param_groups:
        assert (group["betas"], group["eps"], group["weight_decay"]) == ((0.9, 0.98), 1e-9, 0.0)


def test_schedules_of_transformers_work(trainer):
    run = trainer(lr_scheduler_type="linear", learning_rate=1e-3, warmup_steps=0, max_steps=4)
    run.train()
    rates = [entry["learning_rate"] for entry in run.state.log_history if "learning_rate" in entry]
    assert rates == pytest.approx([1e-3, 7.5e-4, 5e-4, 2.5e-4])


def test_unknown_lr_scheduler_kwargs_are_a_clear_error(trainer):
    run = trainer(lr_scheduler_type="cosine", warmup_steps=0, lr_scheduler_kwargs={"foo": 1})
    with pytest.raises(ValueError, match="lr_scheduler_kwargs do not match the schedule"):
        run.train()


def test_the_training_loss_is_smoothed_and_averaged_over_real_tokens(trainer):
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


def test_the_r_drop_loss_combines_two_passes_and_their_divergence(trainer, small_model):
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


def test_simcut_compares_each_pair_with_one_whose_tokens_are_cut(trainer, small_model):
    """The second half of the batch sees embeddings of zeros, on both sides; the seed says where."""
    run = trainer(small_model(dropout=0.0), simcut_alpha=3.0, simcut_p=0.4)
    model = run.model.train()
    inputs = run.data_collator([run.train_dataset[i] for i in range(4)])
    labels = inputs["labels"]
    torch.manual_seed(8)
    loss = run.compute_loss(model, dict(inputs))
    torch.manual_seed(8)
    source, target = inputs["input_ids"], model.prepare_decoder_input_ids_from_labels(labels)
    kept = [(torch.rand(ids.shape) >= 0.4)[..., None] for ids in (source, target)]
    assert all(0 < each.float().mean() < 1 for each in kept)
    embedded = [model.get_input_embeddings()(ids) * each for ids, each in zip((source, target), kept, strict=True)]
    whole = model(**inputs).logits
    cut = model(
        inputs_embeds=embedded[0], decoder_inputs_embeds=embedded[1], attention_mask=inputs["attention_mask"]
    ).logits
    p, q = (torch.distributions.Categorical(logits=part[labels != -100].double()) for part in (whole, cut))
    divergence = torch.distributions.kl_divergence(p, q).sum()
    expected = (smoothed_cross_entropy(whole, labels, 0.1, 0) + 3.0 * divergence) / labels.ne(-100).sum()
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=0.0)
    # nothing stays behind
    torch.testing.assert_close(model(**inputs).logits, whole)


def test_simcut_refuses_a_batch_of_embeddings(trainer):
    run = trainer(simcut_alpha=3.0)
    inputs = run.data_collator([run.train_dataset[i] for i in range(4)])
    embedded = run.model.get_input_embeddings()(inputs.pop("input_ids"))
    with pytest.raises(UserError, match="SimCut cuts tokens, but a batch has inputs_embeds: give ids instead"):
        run.compute_loss(run.model.train(), {**inputs, "inputs_embeds": embedded})


@pytest.mark.filterwarnings("ignore:.*ensure_weight_tying:UserWarning")
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_simcut_cuts_tokens_of_separate_and_adapted_embeddings(trainer, small_model):
    """Also where PEFT has put a module of its own in the place of the embedding."""
    adapter = LoraConfig(task_type="SEQ_2_SEQ_LM", r=2, target_modules=["q_proj"], modules_to_save=["embed_tokens"])
    models = [small_model(dropout=0.0, tie_word_embeddings=False), get_peft_model(small_model(dropout=0.0), adapter)]
    for model in models:
        run = trainer(model, simcut_alpha=3.0, simcut_p=0.4)
        plain = trainer(model)
        inputs = run.data_collator([run.train_dataset[i] for i in range(4)])
        losses = [each.compute_loss(each.model.train(), dict(inputs)).item() for each in (run, plain)]
        assert losses[0] > losses[1] + 1e-4


def test_r_drop_and_simcut_exclude_each_other(trainer):
    with pytest.raises(UserError, match="r_drop_alpha and simcut_alpha exclude each other"):
        trainer(r_drop_alpha=1.0, simcut_alpha=3.0)


@pytest.mark.parametrize(("limit", "kept"), [(2, (2, 4, 5)), (1, (2, 5))])
def test_the_best_checkpoint_is_kept_besides_the_newest(trainer, tmp_path, limit, kept):
    settings = {"save_strategy": "steps", "eval_strategy": "steps", "save_steps": 1, "save_total_limit": limit}
    run = train_with_bleus(trainer(max_steps=5, **settings), [1.0, 9.0, 2.0, 3.0, 4.0])
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == [f"checkpoint-{n}" for n in kept]
    assert run.state.best_model_checkpoint == str(tmp_path / "checkpoint-2")
    assert run.args.save_total_limit == limit


def test_a_new_checkpoint_is_kept_although_a_damaged_one_has_a_higher_number(trainer, tmp_path):
    settings = {"save_strategy": "steps", "eval_strategy": "steps", "save_steps": 1, "save_total_limit": 1}
    train_with_bleus(trainer(max_steps=4, **settings), [9.0, 1.0, 2.0, 3.0])
    (tmp_path / "checkpoint-4" / "model.safetensors").unlink()
    shutil.copytree(tmp_path / "checkpoint-4", tmp_path / "checkpoint-7")
    run = trainer(max_steps=3, **settings)
    with patch.object(run, "evaluate", return_value={"eval_bleu": 1.0}):
        run.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == ["checkpoint-1", "checkpoint-3"]


def test_early_stopping_ends_with_the_best_model(trainer, tmp_path):
    settings = {"save_strategy": "steps", "eval_strategy": "steps", "save_steps": 1, "early_stopping_patience": 2}
    run = train_with_bleus(trainer(max_steps=50, **settings), [1.0, 5.0, 4.0, 5.0])
    assert run.state.global_step == 4
    best = type(run.model).from_pretrained(tmp_path / "checkpoint-2")
    assert torch.equal(run.model.model.shared.weight, best.model.shared.weight)


@pytest.mark.parametrize("trainer_class", [Trainer, Seq2SeqTrainer])
def test_the_trainers_of_transformers_train_the_model(trainer_class, small_model, tmp_path):
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


def test_saved_models_contain_no_pickles(trainer, tmp_path):
    run = trainer()
    run.train()
    run.save_model()
    assert {file.suffix for file in tmp_path.iterdir() if file.is_file()} == {".json", ".py", ".safetensors"}


def test_loading_a_checkpoint_warns_only_of_weights_that_it_lacks(trainer, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    run = trainer()
    run.save_model(tmp_path)
    run._load_from_checkpoint(str(tmp_path))
    assert "missing" not in caplog.text
    weights = load_file(tmp_path / "model.safetensors")
    lost = next(name for name in weights if "norm" in name)
    del weights[lost]
    save_file(weights, tmp_path / "model.safetensors")
    run._load_from_checkpoint(str(tmp_path))
    assert f"missing keys in the checkpoint model loaded: ['{lost}']" in caplog.text


def test_a_resumed_run_ends_with_bitwise_equal_parameters(trainer, small_model, tmp_path):
    settings = {"max_tokens": 32, "max_steps": 6, "save_strategy": "steps", "save_steps": 3}
    straight = trainer(small_model(dropout=0.3), **settings)
    straight.train()
    torch.manual_seed(99)
    resumed = trainer(small_model(dropout=0.3), **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert resumed.state.log_history[-1]["step"] == 6
    assert torch.equal(parameters(resumed), parameters(straight))


def test_a_single_process_uses_only_one_of_several_gpus(trainer, two_gpus, caplog):
    run = trainer()
    run.train()
    assert run.state.global_step == 3
    assert "torchrun --nproc_per_node 2" in caplog.text
    assert "CUDA_VISIBLE_DEVICES" in caplog.text


def test_the_arguments_default_to_those_of_the_paper(small_model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert VanillaTransformerTrainer(small_model()).args.lr_scheduler_type == "noam"


@pytest.mark.parametrize("empty", [[], Dataset.from_dict({"input_ids": [], "labels": []})], ids=["list", "dataset"])
def test_an_empty_dataset_is_named_as_such(trainer, empty):
    with pytest.raises(ValueError, match="dataset is empty"):
        trainer(eval_dataset=empty).evaluate()


def test_a_batch_size_in_pairs_is_rejected(trainer):
    with pytest.raises(ValueError, match="per_device_train_batch_size has no effect here"):
        trainer(per_device_train_batch_size=3)


def test_the_debugger_of_transformers_can_inspect_every_mask(small_model, trainer):
    run = trainer(small_model(dropout=0.0), debug="underflow_overflow")
    run.train()
    again = VanillaTransformerTrainer(
        None, run.args, run.data_collator, model_init=lambda: small_model(), train_dataset=run.train_dataset
    )
    again.train()
    assert run.state.global_step == again.state.global_step == 3


def test_a_model_that_model_init_makes_is_trained_as_a_given_one(small_model, trainer):
    run = trainer(small_model(dropout=0.0))
    run.train()
    again = VanillaTransformerTrainer(
        args=run.args, model_init=lambda: small_model(dropout=0.0), train_dataset=run.train_dataset
    )
    again.train()
    torch.testing.assert_close(parameters(again), parameters(run), atol=0, rtol=0)


def test_failed_training_restores_the_sigterm_handler(trainer):
    before = signal.getsignal(signal.SIGTERM)
    run = trainer()
    run.data_collator = len
    with pytest.raises(TypeError):
        run.train()
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(("native", "warned"), [(True, False), (False, True)])
def test_bfloat16_on_a_cpu_uses_eager_attention_and_warns_if_it_is_not_native(
    trainer, small_model, monkeypatch, caplog, native, warned
):
    monkeypatch.setattr("hf_vanilla_transformer.training.device.has_native_bfloat16", lambda device: native)
    run = trainer(small_model(), bf16=True)
    assert run.model.config._attn_implementation == "eager"
    assert ("no native bfloat16" in caplog.text) == warned
    assert trainer(small_model()).model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("ratio", [0.5, 2.0])
def test_auto_trains_as_if_its_choice_had_been_given(trainer, small_model, monkeypatch, ratio):
    monkeypatch.setattr("torch.cpu._is_avx512_bf16_supported", lambda: True)
    # A real measurement, whose result is replaced
    measure = hardware._time_ratio
    monkeypatch.setattr(hardware, "_time_ratio", lambda *steps: measure(*steps) * 0 + ratio)
    chosen, given = (trainer(small_model(dropout=0.3), bf16=bf16) for bf16 in ("auto", ratio < 1))
    assert (chosen.args.bf16, chosen.args.mixed_precision) == (given.args.bf16, given.args.mixed_precision)
    assert chosen.model.config._attn_implementation == given.model.config._attn_implementation
    for run in (chosen, given):
        torch.manual_seed(1)
        run.train()
    torch.testing.assert_close(parameters(chosen), parameters(given), atol=0, rtol=0)


def test_bfloat16_training_keeps_weights_norms_loss_and_optimizer_in_float32(trainer, small_model):
    run, dtypes = trainer(small_model(), bf16=True), {}
    decoder = run.model.model.decoder.layers[0]
    for name, module in (("norm", decoder.final_layer_norm), ("product", decoder.fc1)):
        module.register_forward_hook(lambda module, args, output, name=name: dtypes.update({name: output.dtype}))
    run.guard.record_loss = lambda loss, labels: dtypes.update(loss=loss.dtype)
    run.guard.on_pre_optimizer_step = lambda *args, **kwargs: None
    run.train()
    assert dtypes == {"norm": torch.float32, "product": torch.bfloat16, "loss": torch.float32}
    assert {parameter.dtype for parameter in run.model.parameters()} == {torch.float32}
    state = run.optimizer.state.values()
    assert {values["exp_avg_sq"].dtype for values in state} == {torch.float32}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # of torch's compiler
def test_torch_compile_compiles_once_for_batches_of_all_shapes(trainer, small_model, monkeypatch):
    monkeypatch.setattr(compilation, "_SLOWER_ON", ())
    torch._dynamo.reset()
    compiled = len(get_compilation_metrics())
    rows = pairs([(2 + i % 23, 2 + (7 * i) % 29) for i in range(2000)])
    run = trainer(small_model(), rows, torch_compile=True, torch_compile_backend="eager", max_steps=200, max_tokens=60)
    shapes = set()
    collate = run.data_collator

    def collate_and_record(rows):
        batch = collate(rows)
        shapes.add(batch["labels"].shape)
        return batch

    run.data_collator = collate_and_record
    run.train()
    assert len(shapes) > 50
    compilations = get_compilation_metrics()[compiled:]
    functions = {(item.co_name, item.co_filename, item.co_firstlineno) for item in compilations}
    reasons = [(item.co_name, item.recompile_reason) for item in compilations]
    # a try of the compiler, the layers of the encoder and of the decoder, and the loss
    assert len(compilations) == 4, reasons
    assert len(functions) == 3, reasons
