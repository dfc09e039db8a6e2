"""Test the safeguards of long runs one by one; tests/system/ kills real processes."""

import errno
import re
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import Pipe
from multiprocessing.connection import Client, Listener

import pytest
import torch
from transformers import TrainerCallback, TrainerControl, TrainerState

from hf_vanilla_transformer import VanillaTransformerTrainer, VanillaTransformerTrainingArguments
from hf_vanilla_transformer.cli import main
from hf_vanilla_transformer.training.checkpoints import find_fault, newest_checkpoint
from hf_vanilla_transformer.training.failures import UpdateGuard, reason_for
from hf_vanilla_transformer.training.run import one_run

ROWS = [{"input_ids": [5, 6, 7, 2], "labels": [8, 9, 2]}, {"input_ids": [6, 5, 2], "labels": [9, 8, 7, 2]}] * 4


class WithBadLosses(VanillaTransformerTrainer):
    """A trainer whose loss is NaN at the updates in `bad`."""

    bad: tuple[int, ...] = ()

    def compute_loss(self, *args, **kwargs):
        loss = super().compute_loss(*args, **kwargs)
        if self.state.global_step + 1 in self.bad:
            loss = loss * float("nan")
            self.guard.record_loss(loss.detach(), args[1]["labels"])
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


def test_an_update_with_a_bad_loss_is_skipped_and_training_continues(trainer, capsys):
    run = trainer((3, 4, 6))
    run.train()
    assert run.state.global_step == 8
    assert all(torch.isfinite(weight).all() for weight in run.model.state_dict().values())
    lines = [line for line in capsys.readouterr().err.splitlines() if "was skipped" in line]
    assert [line.split("Update ")[1].split()[0] for line in lines] == ["3", "4", "6"]
    assert "loss nan on a batch of" in lines[0]


class Snapshots(TrainerCallback):
    """Keep the weights and Adam's moments after each update."""

    def __init__(self):
        self.updates = []

    def on_step_end(self, args, state, control, model=None, optimizer=None, **kwargs):
        moments = [value for state in optimizer.state.values() for value in state.values()]
        self.updates.append([value.detach().clone() for value in (*model.parameters(), *moments)])


@pytest.mark.parametrize("optim", ["adamw_torch_fused", "adamw_torch"])
def test_an_update_with_a_bad_loss_changes_neither_weights_nor_optimizer(trainer, optim):
    run, snapshots = trainer((3,), optim=optim), Snapshots()
    run.add_callback(snapshots)
    run.train()

    def changed(update: int) -> bool:
        before, after = snapshots.updates[update - 2 : update]
        return not all(map(torch.equal, before, after))

    assert [changed(update) for update in (2, 3, 4)] == [True, False, True]


def test_the_logged_loss_leaves_out_bad_losses(trainer):
    run = trainer((2,), logging_steps=1)
    run.train()
    losses = [log["loss"] for log in run.state.log_history if "loss" in log]
    assert len(losses) == 8
    assert losses[1] == losses[0]


def test_three_bad_losses_in_a_row_stop_training_before_they_reach_a_checkpoint(trainer, tmp_path):
    run = trainer((4, 5, 6), save_steps=1, save_strategy="steps")
    # The run in this folder may change neither of them, and does not train in half precision
    with pytest.raises(
        FloatingPointError, match=r"Update 6 .* 3 in a row.*another --output_dir.*more --warmup_steps\.$"
    ):
        run.train()
    newest = newest_checkpoint(tmp_path)
    assert newest is not None
    weights = type(run.model).from_pretrained(newest).state_dict()
    assert all(torch.isfinite(weight).all() for weight in weights.values())


def test_a_checkpoint_that_cannot_be_written_leaves_no_folder_and_the_others_intact(trainer, tmp_path, monkeypatch):
    run = trainer((), save_steps=2, save_strategy="steps")
    save_to_json = type(run.state).save_to_json

    def fail_at_update_4(self, path):
        if self.global_step == 4:
            raise OSError(28, "No space left on device")
        save_to_json(self, path)

    monkeypatch.setattr(type(run.state), "save_to_json", fail_at_update_4)
    with pytest.raises(
        OSError, match=r"Cannot write .*checkpoint-4: .*No space left.* Earlier checkpoints are intact"
    ):
        run.train()
    assert [path.name for path in tmp_path.glob("checkpoint*")] == ["checkpoint-2"]
    assert find_fault(tmp_path / "checkpoint-2") is None


@pytest.mark.parametrize(
    "lost",
    [
        RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed."),
        RuntimeError("[gloo/transport] Connection closed by peer [127.0.0.1]"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_a_process_lost_while_a_checkpoint_is_written_is_no_failure_to_write(lost, trainer, tmp_path, monkeypatch):
    def lose(folder):
        raise lost

    run = trainer((), save_steps=2, save_strategy="steps")
    monkeypatch.setattr("hf_vanilla_transformer.training.trainer.write_checksums", lose)
    with pytest.raises(type(lost)) as error:
        run.train()
    assert error.value is lost
    assert not list(tmp_path.glob("checkpoint*"))


def test_a_folder_is_locked_for_one_run_and_unlocked_without_traces(tmp_path):
    with one_run(tmp_path / "run"):
        with pytest.raises(ValueError, match="Another run is using"), one_run(tmp_path / "run"):
            pass
        (tmp_path / "run" / "kept").touch()
    assert [file.name for file in (tmp_path / "run").iterdir()] == ["kept"]
    with one_run(tmp_path / "empty"):
        pass
    assert not (tmp_path / "empty").exists()


@pytest.fixture
def fail(monkeypatch, capsys):
    """A function that returns the line which the command line prints about an error."""

    def run(error: Exception) -> str:
        def raise_error(argv):
            raise error

        monkeypatch.setattr("hf_vanilla_transformer.commands.train.run", raise_error)
        assert main(["train"]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        return line

    return run


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed."), "data-loading process died"),
        (
            RuntimeError("[gloo/transport] Connection closed by peer [127.0.0.1]"),
            "Another process of this run was lost",
        ),
        (
            RuntimeError("ncclRemoteError: A call failed possibly due to a network"),
            "Another process of this run",
        ),
        (
            BrokenProcessPool("A process in the process pool was terminated abruptly"),
            "data-loading process died",
        ),
        (RuntimeError("One of the subprocesses has abruptly died during map operation."), "data-loading process"),
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
            r"Out of memory on the GPU: use smaller .* N with an N-th of --max_tokens, in another --output_dir\)",
        ),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "Out of memory on this machine: use small"),
        (MemoryError(), "Out of memory on this machine"),
    ],
)
def test_lost_processes_and_exhausted_memory_are_explained(error, message, fail):
    assert re.search(message, fail(error))


def test_a_broken_pipe_between_processes_is_told_from_a_lost_connection(fail):
    receiver, sender = Pipe(duplex=False)
    sender.close()
    with pytest.raises(EOFError) as error:
        receiver.recv()
    assert "A data-loading process died" in fail(error.value)
    line = fail(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))
    assert line == "vanilla-transformer: Connection reset by peer"


def test_a_pipe_to_a_process_that_died_is_told_from_that_of_the_output(fail):
    receiver, sender = Pipe(duplex=False)
    receiver.close()
    with pytest.raises(BrokenPipeError) as lost:
        sender.send("request")
    assert "A data-loading process died" in fail(lost.value)


@pytest.mark.parametrize("error", [ConnectionRefusedError, FileNotFoundError])
def test_a_worker_that_died_before_its_tensor_was_fetched_is_told_from_other_errors(error, fail, tmp_path):
    address = str(tmp_path / "socket")
    listener = Listener(address, "AF_UNIX")
    if error is ConnectionRefusedError:
        # its name stays, as that of a killed process does
        (tmp_path / "other").hardlink_to(address)
        address = str(tmp_path / "other")
    listener.close()
    with pytest.raises(error) as lost:
        Client(address)
    assert "A data-loading process died" in fail(lost.value)
    assert fail(error(errno.ENOENT, "Nothing there")) == "vanilla-transformer: Nothing there"


@pytest.mark.parametrize(
    "message", ["mat1 and mat2 shapes cannot be multiplied", "NCCL error: invalid usage. Duplicate GPU detected"]
)
def test_other_errors_keep_their_own_message(message):
    assert reason_for(RuntimeError(message)) is None


class TwoProcesses:
    """Accelerate's view of two processes that both do what this one does."""

    num_processes, device, scaler = 2, torch.device("cpu"), None

    def reduce(self, tensor, reduction):
        return 2 * tensor


@pytest.mark.parametrize("logging", [True, False])
def test_with_several_processes_sigterm_stops_one_update_later_even_if_each_is_logged(logging, small_model):
    guard, state, control = UpdateGuard(TwoProcesses(), None), TrainerState(), TrainerControl()
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    stopped = []
    for update in range(4):
        guard.signalled = update >= 1
        guard.on_pre_optimizer_step(None, state, control, model=model, optimizer=optimizer)  # without a recorded loss
        if logging:
            guard.report()
        stopped.append(guard.stopped)
    assert stopped == [False, False, True, True]
