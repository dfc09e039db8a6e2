"""Compiled layers train as the others do; when they are chosen, and that nothing else is compiled."""

import copy
from types import SimpleNamespace

import pytest
import torch
import yaml
from peft import LoraConfig, get_peft_model
from transformers import TrainerCallback
from unequal_pairs import pairs

from hf_vanilla_transformer import VanillaTransformerTrainingArguments
from hf_vanilla_transformer.training import compilation
from hf_vanilla_transformer.training.compilation import choose_compilation

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # of the compiler
SIZES = {"num_encoder_layers": 1, "num_decoder_layers": 1}
ROWS = pairs([(2 + i % 5, 2 + (7 * i) % 6) for i in range(60)])


@pytest.fixture
def calls(monkeypatch) -> list[int]:
    """Let runs on a CPU compile as on a GPU, with a compiler that only notes the calls of what it compiles."""
    noted: list[int] = []

    def compile_graph(graph, inputs):
        def run(*args):
            noted.append(len(inputs))
            return graph.forward(*args)

        return run

    monkeypatch.setattr(compilation, "_SLOWER_ON", ())
    monkeypatch.setattr(compilation, "_settings", lambda args: {"dynamic": True, "backend": compile_graph})
    return noted


def adapted(model):
    return get_peft_model(model, LoraConfig(task_type="SEQ_2_SEQ_LM", r=4, target_modules=["q_proj", "v_proj"]))


def weights(run) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in run.model.state_dict().items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "change"),
    [
        ({"gradient_accumulation_steps": 2, "ema_decay": 0.9}, None),
        ({"r_drop_alpha": 1.0}, None),
        ({"simcut_alpha": 3.0}, None),
        ({"bf16": True}, None),
        ({"gradient_checkpointing": True}, None),
        ({}, adapted),
    ],
)
@pytest.mark.filterwarnings("ignore:.*radient_checkpointing:FutureWarning")
def test_compiled_layers_change_no_kind_of_training(trainer, small_model, calls, settings, change):
    results = []
    for compiles in (False, True):
        calls.clear()
        model = small_model(dropout=0.0, **SIZES)
        torch.manual_seed(0)
        model = change(model) if change else model
        given = {"max_tokens": 32, "torch_compile": compiles, **settings}
        run = trainer(model, ROWS, **given)
        run.train()
        assert bool(calls) == compiles
        results.append(weights(run))
    tolerance = 1e-2 if settings.get("bf16") else 1e-5
    assert results[0].keys() == results[1].keys()
    for name, weight in results[0].items():
        torch.testing.assert_close(results[1][name], weight, rtol=0, atol=tolerance, msg=name)


class Evaluation(TrainerCallback):
    """Evaluate after the second update."""

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 2:
            before = len(self.calls)
            self.run.evaluate()
            assert len(self.calls) == before > 0


def test_only_training_is_compiled(trainer, small_model, calls):
    callback = Evaluation()
    callback.calls = calls
    callback.run = trainer(small_model(**SIZES), ROWS, torch_compile=True, eval_bleu=True)
    callback.run.add_callback(callback)
    callback.run.train()
    after = len(calls)
    # neither by the trainer nor by its user
    callback.run.evaluate()
    callback.run.model.train()(**callback.run.data_collator([ROWS[0], ROWS[1]]), smoothing=0.1)
    assert len(calls) == after > 0


@pytest.mark.slow
def test_a_compiled_run_resumes_to_the_same_bits(trainer, small_model, calls, tmp_path):
    def train(resume=None):
        run = trainer(
            small_model(dropout=0.3, **SIZES),
            ROWS,
            **{"torch_compile": True, "max_steps": 8, "save_strategy": "steps", "save_steps": 4, "max_tokens": 32},
        )
        run.train(resume_from_checkpoint=resume)
        return weights(run)

    undisturbed = train()
    # compiled again, beginning with another batch
    torch._dynamo.reset()
    resumed = train(str(tmp_path / "checkpoint-4"))
    assert calls
    for name, weight in undisturbed.items():
        assert torch.equal(resumed[name], weight), name


@pytest.mark.parametrize(
    ("device", "settings", "fault", "chosen"),
    [
        ("cuda", {}, "", True),
        ("cuda", {"max_steps": 4999}, "", False),
        ("cuda", {"max_steps": -1, "num_train_epochs": 90}, "", False),
        ("cuda", {}, "no C compiler", False),
        ("cuda", {"debug": ["underflow_overflow"]}, "", False),
        ("cuda", {"torch_compile": False}, "", False),
        ("cuda", {"torch_compile_mode": "default", "max_steps": 2}, "", True),
        ("cpu", {}, "", False),
        ("mps", {}, "", False),
    ],
)
def test_auto_compiles_long_runs_on_a_gpu(tmp_path, monkeypatch, device, settings, fault, chosen):
    monkeypatch.setattr(compilation, "_compiler_fault", lambda args: fault)
    args = VanillaTransformerTrainingArguments(str(tmp_path), use_cpu=True, **settings)
    monkeypatch.setattr(type(args), "device", torch.device(device))
    choose_compilation(args)
    assert args.torch_compile is chosen


def test_a_missing_compiler_is_named(tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise RuntimeError("Failed to find C compiler.\nSet $CC.\n\nSet TORCHDYNAMO_VERBOSE=1")

    monkeypatch.setattr(torch, "compile", fail)
    monkeypatch.setattr(compilation, "_SLOWER_ON", ())
    args = VanillaTransformerTrainingArguments(str(tmp_path), use_cpu=True, torch_compile=True)
    with pytest.raises(ValueError, match=r"torch cannot compile here \(Failed to find C compiler. Set \$CC.\); omit"):
        choose_compilation(args)


def test_a_cpu_ignores_the_flag_and_says_so(trainer, caplog, monkeypatch):
    monkeypatch.setattr(torch, "compile", None)
    run = trainer(torch_compile=True)
    run.train()
    assert caplog.text.count("--torch_compile is ignored on a CPU") == 1


def test_transformers_never_compiles_the_whole_model_nor_rounds_to_tf32(trainer, monkeypatch):
    monkeypatch.setattr("transformers.training_args.is_torch_tf32_available", lambda: pytest.fail("asked for TF32"))
    run = trainer(torch_compile=True, torch_compile_backend="eager")
    assert run.accelerator.state.dynamo_plugin.backend == "NO"
    # the arguments keep what was given
    assert (run.args.torch_compile, run.args.torch_compile_backend) == (True, "eager")


@pytest.mark.parametrize("recorded", [True, False])
def test_a_run_that_resumes_keeps_its_choice(train, run_flags, text_flags, tmp_path, recorded):
    output = tmp_path / "run"
    flags = run_flags(output, *text_flags, "--save_steps", "1", "--eval_strategy", "no")
    train(*flags, "--torch_compile", str(recorded).lower())
    settings = yaml.safe_load((output / "settings.yaml").read_text())
    assert settings["torch_compile"] is recorded
    longer = train(*flags, "--max_steps", "3", "--torch_compile", "auto")
    assert longer.args.torch_compile is recorded
    assert yaml.safe_load((output / "settings.yaml").read_text())["torch_compile"] is recorded
    with pytest.raises(ValueError, match=f"torch_compile was {recorded}, now {not recorded}"):
        train(*flags, "--max_steps", "4", "--torch_compile", str(not recorded).lower())


def test_a_run_from_before_there_was_a_choice_resumes(train, run_flags, text_flags, tmp_path):
    output = tmp_path / "run"
    flags = run_flags(output, *text_flags, "--save_steps", "1", "--eval_strategy", "no")
    train(*flags)
    file = output / "settings.yaml"
    settings = yaml.safe_load(file.read_text())
    del settings["torch_compile"]
    file.write_text(yaml.safe_dump(settings))
    assert train(*flags, "--max_steps", "3").state.global_step == 3


def test_copies_of_a_model_that_is_compiled_are_not(small_model):
    model = small_model()
    with compilation.compiled(model, SimpleNamespace(torch_compile_backend="eager", torch_compile_mode=None)):
        twin = copy.deepcopy(model)
        assert "loss_of_chunk" in vars(model)
    assert "loss_of_chunk" not in vars(twin)
    assert "loss_of_chunk" not in vars(model)


@pytest.mark.parametrize("name", ["ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED"])
def test_a_model_that_the_launcher_shards_is_not_compiled_unasked(name, monkeypatch):
    args = SimpleNamespace(torch_compile="auto", device=torch.device("cuda"), max_steps=10**5, fsdp="", deepspeed=None)
    args.debug = []
    monkeypatch.setattr(compilation, "_compiler_fault", lambda args: "")
    monkeypatch.setenv(name, "true")
    choose_compilation(args)
    assert args.torch_compile is False


def test_the_same_choice_is_made_in_all_processes(monkeypatch):
    args = SimpleNamespace(torch_compile="auto", device=torch.device("cuda"), max_steps=10**5, fsdp="", deepspeed=None)
    monkeypatch.setattr(compilation, "_compiler_fault", lambda args: "")
    monkeypatch.setattr(compilation, "gather_object", lambda items: [*items, False])
    args.debug = []
    choose_compilation(args)
    assert args.torch_compile is False
