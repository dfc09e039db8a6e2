"""Compare training with lower precision, gradient checkpointing or compilation to plain training."""

import pytest
import torch

from hf_vanilla_transformer import VanillaTransformerTrainer, VanillaTransformerTrainingArguments
from hf_vanilla_transformer.training import compilation

ROWS = [{"input_ids": [5 + i, 6, 7 + i, 2], "labels": [8, 9 + i, 2]} for i in range(12)] + [
    {"input_ids": [6, 5 + i, 2], "labels": [9, 8, 7 + i, 2]} for i in range(12)
]


@pytest.fixture
def train(small_model, tmp_path):
    """Return a function that trains for 12 updates with extra arguments and returns the trainer and its losses.

    `sizes` change the model.
    """

    def run(sizes=None, **settings):
        args = VanillaTransformerTrainingArguments(
            str(tmp_path),
            **{"max_tokens": 32, "max_steps": 12, "warmup_steps": 4, "use_cpu": True, "logging_steps": 1},
            **{"disable_tqdm": True, "save_strategy": "no", **settings},
        )
        torch.manual_seed(0)
        trainer = VanillaTransformerTrainer(small_model(dropout=0.0, **(sizes or {})), args, train_dataset=ROWS)
        trainer.train()
        return trainer, [log["loss"] for log in trainer.state.log_history if "loss" in log]

    return run


@pytest.fixture
def plain(train):
    return train()[1]


def test_bf16_autocast_trains_similarly_and_keeps_float32_weights(train, plain):
    trainer, losses = train(bf16=True)
    assert {weight.dtype for weight in trainer.model.parameters()} == {torch.float32}
    assert losses == pytest.approx(plain, abs=0.08)
    assert losses != plain
    assert losses[-1] < losses[0] - 0.1


def test_gradient_checkpointing_never_changes_the_losses(train, plain):
    name = "activation_checkpointing"  # called gradient_checkpointing before transformers 5.20
    known = hasattr(VanillaTransformerTrainingArguments, name)
    trainer, losses = train(**{name if known else "gradient_checkpointing": True})
    assert trainer.model.model.encoder.gradient_checkpointing
    assert losses == pytest.approx(plain, abs=1e-6)


@pytest.fixture
def compiling_on_a_cpu(monkeypatch):
    """Let runs on a CPU compile as on a GPU."""
    monkeypatch.setattr(compilation, "_SLOWER_ON", ())
    monkeypatch.setattr(compilation, "_compiler_fault", lambda args: "")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_compiled_model_trains_similarly_and_saves_the_original_weight_names(train, compiling_on_a_cpu, tmp_path):
    # each layer takes the compiler many seconds
    sizes = {"num_encoder_layers": 1, "num_decoder_layers": 1}
    # plain code that is not optimised, from a single process, is compiled soonest
    soon = {"aot_inductor.debug_compile": True, "cpp.simdlen": 1, "cpp_cache_precompile_headers": False}
    with torch._inductor.config.patch({**soon, "compile_threads": 1}):
        trainer, losses = train(sizes, torch_compile=True)
    assert losses == pytest.approx(train(sizes)[1], abs=1e-4)
    trainer.save_model(str(tmp_path / "saved"))
    again = type(trainer.model).from_pretrained(tmp_path / "saved")
    assert torch.equal(again.model.shared.weight, trainer.model.model.shared.weight)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="fp16 needs a GPU")
def test_fp16_trains_similarly_on_a_gpu(train, plain):
    _, losses = train(fp16=True, use_cpu=False)
    assert losses == pytest.approx(plain, abs=0.02)
