"""Corpus jobs whose workers are killed: whatever runs the tasks, the output is that of one undisturbed process."""

import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from clusters import RayNodes, find_processes, slurm, wait_until
from corpora import ROOT
from small import write_moses
from training_runs import descendants, send_signal

from hf_vanilla_transformer import (
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    train_tokenizer,
)
from hf_vanilla_transformer.data.phrases import splits

LINES, LINES_PER_TASK, KILLS = 20_000, 1_250, 3
pytestmark = pytest.mark.timeout(600)  # seconds; on two idle cores, each test takes less than two minutes
SLURM_SCRIPTS = ROOT / "scripts" / "slurm"
BIN = Path(sys.executable).parent


class Job(NamedTuple):
    """A verb with the arguments of a job of 16 tasks, and the files of its output."""

    arguments: list[str]
    files: str
    manifest: str

    def command(self, folder: Path, *runner: str) -> list[str]:
        return [str(BIN / "vanilla-transformer"), *self.arguments, "--output_dir", str(folder), *runner]

    def is_whole(self, folder: Path) -> bool:
        manifest = folder / self.manifest
        return manifest.is_file() and json.loads(manifest.read_text())["whole"]

    def output(self, folder: Path) -> dict[str, bytes]:
        assert self.is_whole(folder)
        assert not list(folder.rglob("*.unfinished"))
        return {file.name: file.read_bytes() for file in sorted(folder.glob(self.files))}


@pytest.fixture(scope="module")
def jobs(tmp_path_factory) -> dict[str, Job]:
    """The jobs "translate" and "prepare" on 20,000 lines, with a small random model."""
    folder = tmp_path_factory.mktemp("jobs")
    phrases = splits()["train"][:LINES]
    english, german = ([getattr(phrase, side) for phrase in phrases] for side in ("en", "de"))
    write_moses(folder / "text", en=english, de=german)
    tokenizer = train_tokenizer(english[:2000] + german[:2000], 1000)
    sizes = {"d_model": 64, "num_heads": 4, "d_ff": 128, "num_encoder_layers": 2, "num_decoder_layers": 2}
    config = VanillaTransformerConfig(
        vocab_size=len(tokenizer), source_lang="en", target_lang="de", lm_head_bias=True, **sizes
    )
    model = VanillaTransformerForConditionalGeneration(config)
    model.lm_head.bias.data[2] = 3.0  # ends most translations before their limit
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    translate = ["translate", str(folder / "model"), "--input_files", str(folder / "text.en"), "--num_beams", "1"]
    prepare = ["prepare", str(folder / "text"), "--source_lang", "en", "--target_lang", "de", "--vocab_size", "1000"]
    return {
        "translate": Job([*translate, "--shard_lines", str(LINES_PER_TASK)], "part-*", "translation.json"),
        "prepare": Job([*prepare, "--shard_pairs", str(LINES_PER_TASK)], "*.arrow", "manifest.json"),
    }


@pytest.fixture(scope="module")
def expected(jobs, tmp_path_factory) -> Callable[[str], dict[str, bytes]]:
    """A function that returns the output of a job of one undisturbed process with one thread."""
    finished: dict[str, dict[str, bytes]] = {}

    def run(name: str) -> dict[str, bytes]:
        if name not in finished:
            folder = tmp_path_factory.mktemp("undisturbed") / name
            subprocess.run(jobs[name].command(folder, "--workers", "1"), check=True, capture_output=True)
            finished[name] = jobs[name].output(folder)
            assert len(finished[name]) == LINES // LINES_PER_TASK
        return finished[name]

    return run


@pytest.fixture
def nodes():
    cluster = RayNodes()
    yield cluster
    cluster.stop()


@pytest.fixture(scope="module")
def slurm_environment():
    # Not below pytest's folder, which only its user may enter: munged runs as a user of its own.
    with tempfile.TemporaryDirectory(prefix="slurm") as folder, slurm(Path(folder)) as environment:
        yield {**environment, "PATH": f"{BIN}:{environment['PATH']}"}


def disturb(process: subprocess.Popen, find: Callable[[], list[int]], kills: int) -> int:
    """Kill a random one of the processes that `find` returns every few seconds; return how many kills are left."""
    while process.poll() is None:
        time.sleep(random.uniform(1, 4))
        workers = find()
        if kills and workers:
            send_signal([random.choice(workers)], signal.SIGKILL)
            kills -= 1
    return kills


def pool_workers(parent: int) -> list[int]:
    return [pid for pid in descendants(parent) if pid in find_processes("spawn_main")]


@pytest.mark.parametrize("name", ["translate", "prepare"])
def test_workers_on_this_machine_may_be_killed(name, jobs, expected, tmp_path):
    kills, attempts = KILLS, 0
    while not jobs[name].is_whole(tmp_path / "out"):
        command = jobs[name].command(tmp_path / "out", "--workers", "2")
        with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
            kills = disturb(process, lambda: pool_workers(process.pid), kills)
            errors = process.stderr.read()
        if process.returncode:
            assert "A worker process was killed" in errors.splitlines()[-1]
            assert "Traceback" not in errors
        attempts += 1
        assert attempts <= KILLS + 1
    assert kills < KILLS
    assert jobs[name].output(tmp_path / "out") == expected(name)


@pytest.mark.parametrize("name", ["translate", "prepare"])
def test_ray_workers_may_be_killed_and_a_node_removed(name, jobs, expected, nodes, tmp_path):
    command = jobs[name].command(tmp_path / "out", "--ray", nodes.address)
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        wait_until(lambda: find_processes("ray::call"), 120)
        for _ in range(2):
            wait_until(lambda: find_processes("ray::call") or process.poll() is not None, 60)
            send_signal(find_processes("ray::call")[:1], signal.SIGKILL)
            time.sleep(random.uniform(2, 5))
        nodes.remove_node()
        errors = process.stderr.read()
    assert process.returncode == 0, errors[-2000:]
    assert jobs[name].output(tmp_path / "out") == expected(name)


def test_the_elements_of_a_slurm_array_may_be_killed(jobs, expected, slurm_environment, tmp_path):
    job, folder = jobs["translate"], tmp_path / "out"
    array = ["sbatch", "--wait", "--array=0-3", "--cpus-per-task=1", str(SLURM_SCRIPTS / "translate.sbatch")]
    kills, attempts = KILLS, 0
    while not job.is_whole(folder):
        command = [*array, *job.arguments[1:], "--output_dir", str(folder)]
        with subprocess.Popen(command, env=slurm_environment, cwd=tmp_path, stdout=subprocess.DEVNULL) as process:
            kills = disturb(process, lambda: find_processes(str(folder), "vanilla-transformer translate"), kills)
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
            workers = find_processes(str(folder), "vanilla-transformer prepare")
            if workers and (folder / "prepare-work" / "tokens-00003.json").is_file():
                send_signal([random.choice(workers)], signal.SIGKILL)
                kills -= 1
            time.sleep(0.1)
        wait_until(queue_is_empty, 200)
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

    wait_until(lambda: list((tmp_path / "run").glob("checkpoint-*")), 150, log)
    slurm_command("scancel", "--signal=USR1", "--batch", job)
    wait_until(lambda: "Restarts=1" in state(), 60, log)
    wait_until((tmp_path / "run" / "model.safetensors").is_file, 250, lambda: f"{state()}\n{log()}")
    assert "Resuming from" in log()


@pytest.fixture
def small_disk(tmp_path):
    """A folder on a file system of 64 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("a small file system cannot be mounted here")
    yield disk
    subprocess.run(["umount", disk], check=True)


@pytest.mark.parametrize("name", ["translate", "prepare"])
@pytest.mark.parametrize("runner", ["one", "two", "ray"])
def test_a_full_disk_is_one_line_under_every_runner(name, runner, jobs, request, small_disk):
    flags = {"one": ("--workers", "1"), "two": ("--workers", "2")}.get(runner)
    flags = flags or ("--ray", request.getfixturevalue("nodes").address)
    command = jobs[name].command(small_disk / "out", *flags)
    run = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert run.returncode == 1, run.stderr[-2000:]
    assert "Traceback" not in run.stderr
    assert "No space left on device" in run.stderr.splitlines()[-1]
