"""Jobs under Slurm that are killed or queued again: the output is that of one undisturbed process."""

import random
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from clusters import find_processes, slurm, wait_until
from corpora import ROOT
from corpus_jobs import BIN, KILLS, disturb
from forked_python import forked_python
from training_runs import send_signal

pytestmark = pytest.mark.timeout(1800)  # seconds; on two idle cores, each test takes less than two minutes
SLURM_SCRIPTS = ROOT / "scripts" / "slurm"


@pytest.fixture(scope="module")
def slurm_environment():
    # Not below pytest's folder, which only its user may enter: munged runs as a user of its own.
    with tempfile.TemporaryDirectory(prefix="slurm") as folder, slurm(Path(folder)) as environment:
        program = Path(folder, "bin", "vanilla-transformer")
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec "{forked_python()}" -m hf_vanilla_transformer "$@"\n')
        program.chmod(0o755)
        yield {**environment, "PATH": f"{program.parent}:{BIN}:{environment['PATH']}"}


def test_the_elements_of_a_slurm_array_may_be_killed(jobs, expected, slurm_environment, tmp_path):
    job, folder = jobs["translate"], tmp_path / "out"
    array = ["sbatch", "--wait", "--array=0-1", "--cpus-per-task=1", str(SLURM_SCRIPTS / "translate.sbatch")]
    kills, attempts = KILLS, 0
    while not job.is_whole(folder):
        command = [*array, *job.arguments[1:], "--output_dir", str(folder)]
        with subprocess.Popen(command, env=slurm_environment, cwd=tmp_path, stdout=subprocess.DEVNULL) as process:
            kills = disturb(
                process, lambda: find_processes(str(folder), "hf_vanilla_transformer translate"), folder, kills
            )
        attempts += 1
        assert attempts <= KILLS + 1
    assert kills < KILLS
    assert job.output(folder) == expected("translate")


def test_preparing_under_slurm_takes_five_arrays(jobs, expected, slurm_environment, tmp_path):
    job, folder = jobs["prepare"], tmp_path / "out"
    environment = {**slurm_environment, "SBATCH_FLAGS": "--cpus-per-task=1"}
    command = ["bash", str(SLURM_SCRIPTS / "prepare.sh"), "2", *job.arguments[1:], "--output_dir", str(folder)]

    def queue_is_empty() -> bool:
        queue = subprocess.run(["squeue", "-h"], env=environment, capture_output=True, text=True, check=True)
        return not queue.stdout.strip()

    kills = 1
    while not job.is_whole(folder):
        subprocess.run(command, env=environment, cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
        while kills and not queue_is_empty():
            workers = find_processes(str(folder), "hf_vanilla_transformer prepare")
            if workers and (folder / "shard-00003.json").is_file():
                send_signal([random.choice(workers)], signal.SIGKILL)
                kills -= 1
            time.sleep(0.1)
        wait_until(queue_is_empty, 600)
    assert job.output(folder) == expected("prepare")


def test_training_under_slurm_is_queued_again_and_resumes(slurm_environment, text, tmp_path):
    flags = ["--preset", "tiny", "--train_file", str(text), "--source_lang", "en", "--target_lang", "de", "--use_cpu"]
    flags += ["--max_tokens", "256", "--max_steps", "150", "--save_steps", "50", "--output_dir", str(tmp_path / "run")]
    submit = ["sbatch", "--parsable", "--cpus-per-task=1", str(SLURM_SCRIPTS / "train.sbatch"), *flags]

    def slurm_command(*words: str) -> str:
        run = subprocess.run(words, env=slurm_environment, cwd=tmp_path, capture_output=True, text=True, check=True)
        return run.stdout.strip()

    job = slurm_command(*submit)
    log_file = tmp_path / f"train-{job}.log"

    def state() -> str:
        return slurm_command("scontrol", "show", "job", job)

    def log() -> str:
        return log_file.read_text() if log_file.is_file() else ""

    wait_until(lambda: list((tmp_path / "run").glob("checkpoint-[0-9]*")), 600, log)
    slurm_command("scancel", "--signal=USR1", "--batch", job)
    wait_until(lambda: "Restarts=1" in state(), 600, log)
    wait_until((tmp_path / "run" / "model.safetensors").is_file, 600, lambda: f"{state()}\n{log()}")
    assert "Resuming from" in log()
