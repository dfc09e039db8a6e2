"""A run that was killed, told to end, or finds its checkpoint damaged goes on as if nothing had happened."""

import re
import signal

import pytest
import torch
from conftest import descendants, kill


def same(first: dict, second: dict) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


KINDS = {
    "one process": ((), 1),
    "accumulation": (("--gradient_accumulation_steps", "3"), 1),
    "two processes": ((), 2),
    "streamed": (("--streaming",), 1),
    "streamed, two processes": (("--streaming",), 2),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_run_goes_on_and_ends_with_the_same_bits(run, undisturbed, prepared, kind):
    extra, processes = KINDS[kind]
    if "--streaming" in extra:
        extra = (*extra, "--train_file", str(prepared))
    disturbed = run("run", *extra, processes=processes)
    disturbed.kill_after("checkpoint-14")
    disturbed.kill_after("checkpoint-35")
    output = disturbed.finish()
    step = int(re.search(r"Resuming from .*checkpoint-(\d+)", output)[1])
    assert step >= 35  # it did not start over
    assert f"'step': {step}" not in output
    assert same(disturbed.weights(), undisturbed(*extra, processes=processes))


def test_sigterm_to_two_processes_saves_once_and_all_end_well(run, undisturbed):
    told = run(processes=2)
    told.start()
    told.wait_for("checkpoint-14")
    kill(descendants(told.process.pid), signal.SIGTERM)  # torchrun itself would end its processes sooner
    output = told.end()
    assert told.process.returncode == 0, output
    assert output.count("Stopped by SIGTERM after") == 1
    told.finish()
    assert same(told.weights(), undisturbed(processes=2))


def test_sigterm_saves_and_ends_well_and_the_run_goes_on_from_there(run, undisturbed):
    told = run()
    told.start()
    told.wait_for("checkpoint-14")
    output = told.end(signal.SIGTERM)
    assert told.process.returncode == 0, output
    step = int(re.search(r"Stopped by SIGTERM after (\d+) updates; the same command goes on", output)[1])
    assert step < 60
    assert (told.folder / f"checkpoint-{step}").is_dir()
    assert not (told.folder / "model.safetensors").exists()
    assert f"Resuming from {told.folder / f'checkpoint-{step}'}" in told.finish()
    assert same(told.weights(), undisturbed())


@pytest.mark.parametrize("damage", ["flipped byte", "torn weights", "missing optimizer"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(run, undisturbed, damage):
    damaged = run()
    damaged.kill_after("checkpoint-21")
    newest, before = sorted(damaged.folder.glob("checkpoint-[0-9]*"), key=lambda p: -int(p.name[11:]))[:2]
    name = "optimizer.pt" if damage == "missing optimizer" else "model.safetensors"
    content = bytearray((newest / name).read_bytes())
    if damage == "flipped byte":
        content[len(content) // 2] ^= 1
        (newest / name).write_bytes(content)
    elif damage == "torn weights":
        (newest / name).write_bytes(content[: len(content) // 2])
    else:
        (newest / name).unlink()
    output = damaged.finish()
    assert f"{newest} is of no use: {name} is {'missing' if damage == 'missing optimizer' else 'corrupt'}" in output
    assert f"Resuming from {before}" in output
    assert same(damaged.weights(), undisturbed())
