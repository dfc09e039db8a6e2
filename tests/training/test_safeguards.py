"""What keeps long runs from losing work, piece by piece; tests/system/ kills real processes."""

from concurrent.futures.process import BrokenProcessPool

import pytest
import torch

from hf_vanilla_transformer import VanillaTransformerTrainer, VanillaTransformerTrainingArguments
from hf_vanilla_transformer.training.checkpoints import fault_of, newest_checkpoint, write_checksums
from hf_vanilla_transformer.training.safeguards import explain_failures as explained
from hf_vanilla_transformer.training.safeguards import one_run

ROWS = [{"input_ids": [5, 6, 7, 2], "labels": [8, 9, 2]}, {"input_ids": [6, 5, 2], "labels": [9, 8, 7, 2]}] * 4


class WithBadLosses(VanillaTransformerTrainer):
    """Its loss is not a number at the updates `bad`."""

    bad: tuple[int, ...] = ()

    def compute_loss(self, *args, **kwargs):
        loss = super().compute_loss(*args, **kwargs)
        if self.state.global_step + 1 in self.bad:
            loss = loss * float("nan")
            self.safeguards.check_loss(loss.detach(), args[1]["labels"])
        return loss


@pytest.fixture
def trainer(small_model, tmp_path):
    def build(bad, **settings):
        args = VanillaTransformerTrainingArguments(
            str(tmp_path), **{"max_tokens": 16, "max_steps": 8, "warmup_steps": 4, "use_cpu": True, **settings}
        )
        args.eval_bleu = False
        run = WithBadLosses(small_model(), args, train_dataset=ROWS)
        run.bad = bad
        return run

    return build


def test_an_update_with_a_bad_loss_is_left_out_and_training_goes_on(trainer, capsys):
    run = trainer((3, 4, 6))
    run.train()
    assert run.state.global_step == 8
    assert all(torch.isfinite(weight).all() for weight in run.model.state_dict().values())
    lines = [line for line in capsys.readouterr().err.splitlines() if "is left out" in line]
    assert [line.split("Update ")[1].split()[0] for line in lines] == ["3", "4", "6"]
    assert "loss nan on a batch of" in lines[0]


def test_three_bad_losses_in_a_row_end_training_before_they_reach_a_checkpoint(trainer, tmp_path):
    run = trainer((4, 5, 6), save_steps=1, save_strategy="steps")
    with pytest.raises(FloatingPointError, match=r"Update 6 .* 3 in a row"):
        run.train()
    newest = newest_checkpoint(tmp_path)
    assert newest is not None
    weights = type(run.model).from_pretrained(newest).state_dict()
    assert all(torch.isfinite(weight).all() for weight in weights.values())


def test_what_bears_a_checkpoints_name_is_whole_and_what_failed_leaves_nothing(trainer, tmp_path, monkeypatch):
    run = trainer((), save_steps=2, save_strategy="steps")

    def full(self, path):
        if self.global_step == 4:
            raise OSError(28, "No space left on device")
        saved(self, path)

    saved = type(run.state).save_to_json
    monkeypatch.setattr(type(run.state), "save_to_json", full)
    with pytest.raises(OSError, match=r"Cannot write .*checkpoint-4: .*No space left.* before it are whole"):
        run.train()
    assert [path.name for path in tmp_path.glob("checkpoint*")] == ["checkpoint-2"]
    assert fault_of(tmp_path / "checkpoint-2") is None


def test_every_change_in_a_checkpoint_is_found(tmp_path):
    (tmp_path / "a").write_bytes(b"weights"), (tmp_path / "optimizer.pt").write_bytes(b"")
    write_checksums(tmp_path)
    assert fault_of(tmp_path) is None
    (tmp_path / "a").write_bytes(b"weighty")
    assert fault_of(tmp_path) == "a is corrupt"
    (tmp_path / "a").unlink()
    assert fault_of(tmp_path) == "a is missing"
    for content in ("[", "3", "[3]", "null"):
        (tmp_path / "checksums.json").write_text(content)
        assert "cannot be read" in fault_of(tmp_path)


def test_a_folder_takes_one_run_at_a_time_and_is_left_as_it_was(tmp_path):
    with one_run(tmp_path / "run"):
        with pytest.raises(ValueError, match="Another run is under way in"), one_run(tmp_path / "run"):
            pass
        (tmp_path / "run" / "kept").touch()
    assert [file.name for file in (tmp_path / "run").iterdir()] == ["kept"]
    with one_run(tmp_path / "empty"):
        pass
    assert not (tmp_path / "empty").exists()


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed."), "process that reads data was lost"),
        (
            RuntimeError("[gloo/transport] Connection closed by peer [127.0.0.1]"),
            "Another process of this run was lost",
        ),
        (EOFError(), "process that reads data was lost"),
        (
            BrokenProcessPool("A process in the process pool was terminated abruptly"),
            "process that reads data was lost",
        ),
        (RuntimeError("One of the subprocesses has abruptly died during map operation."), "process that reads data"),
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
            "Out of memory on the GPU: use smaller",
        ),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "Out of memory on this machine: use small"),
        (MemoryError(), "Out of memory on this machine"),
    ],
)
def test_lost_processes_are_explained(error, message):
    with pytest.raises(OSError, match=message), explained():
        raise error


def test_other_errors_keep_their_own_words():
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), explained():
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")
