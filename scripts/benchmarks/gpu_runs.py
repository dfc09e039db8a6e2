"""The tests, the recipe's training and accelerate's configurations, each in processes of their own."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_results import MissingError, OutOfTimeError, Results
from measuring import log
from safetensors.torch import load_file

if TYPE_CHECKING:
    from gpu import Setup

ROOT = Path(__file__).parents[2]
PACKAGE = [sys.executable, "-m", "hf_vanilla_transformer"]
RECIPE = "scripts/recipes/multi30k_en_de_tiny.yaml"
SMALL = ["--d_model", "32", "--d_ff", "64", "--num_encoder_layers", "1", "--num_decoder_layers", "1"]
SMALL += ["--vocab_size", "1000", "--max_tokens", "256"]


def _run(command: list[str], log_file: Path, seconds: float, until: Callable[[], bool] | None = None) -> int | None:
    """Run a command with its output appended to `log_file`, and return its exit status.

    None means that it was killed, with all processes that it had started: after `seconds`, or once `until` was true.
    """
    log_file.parent.mkdir(parents=True, exist_ok=True)
    with log_file.open("a") as output:
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        end = time.monotonic() + seconds
        while process.poll() is None and time.monotonic() < end and not (until and until()):
            time.sleep(0.1)
        if process.poll() is not None:
            return process.returncode
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return None


def _check(status: int | None, log_file: Path) -> None:
    """Raise an exception if a command failed, or was killed because the time was over."""
    if status is None:
        raise OutOfTimeError
    if status:
        raise RuntimeError(f"status {status}; the output is in {log_file.name}")


def _on_cpu(setup: "Setup") -> list[str]:
    return ["--use_cpu"] if setup.device.type == "cpu" else []


def run_tests(setup: "Setup", results: Results) -> None:
    """Add one row for each part of the tests, of which the first two put every model on the GPU."""
    parts = {
        "devices": ["tests/test_devices.py"],
        "conformance": ["tests/test_conformance.py"],
        "fast tests": ["-m", "not slow"],
        "system tests": ["tests/system/test_resume.py", "tests/system/test_many_processes.py"],
    }
    if setup.small:
        parts = {"devices": ["tests/test_devices.py", "-k", "logits"]}

    def run(name: str, selection: list[str]) -> dict[str, Any]:
        start, log_file = time.monotonic(), setup.output / f"{name.replace(' ', '_')}.log"
        log_file.unlink(missing_ok=True)
        parallel = ["-n", str(os.cpu_count())] if name == "fast tests" and find_spec("xdist") else []
        status = _run([sys.executable, "-m", "pytest", *selection, *parallel], log_file, results.seconds_left())
        if status is None:
            raise OutOfTimeError
        summary = log_file.read_text(errors="replace").splitlines()[-1].strip("= ")
        return {"result": summary, "seconds": time.monotonic() - start, "exit status": status}

    for name, selection in parts.items():
        results.measure("tests", name, partial(run, name, selection))


def measure_recipe(setup: "Setup", results: Results) -> None:
    """Add a row with the time and the BLEU of the recipe for Multi30k in bfloat16."""
    folder, text = setup.output / "multi30k", setup.text / "multi30k"
    flags = [*SMALL, "--max_steps", "4", "--save_steps", "2", "--eval_steps", "2"] if setup.small else []

    def run() -> dict[str, Any]:
        log_file = setup.output / "multi30k.log"
        train = [*PACKAGE, "train", RECIPE, "--bf16", "--eval_strategy", "no", "--output_dir", str(folder), *flags]
        train += ["--train_file", str(text / "train"), "--validation_file", str(text / "val"), *_on_cpu(setup)]
        average = f"{folder}-average"
        commands = [train] if not (folder / "model.safetensors").is_file() else []
        if not Path(average).is_dir():
            commands.append(
                [*PACKAGE, "average", str(folder), "--last", "2" if setup.small else "10", "--output_dir", average]
            )
        for command in commands:
            _check(_run(command, log_file, results.seconds_left()), log_file)
        state = json.loads((folder / "trainer_state.json").read_text())
        seconds = [entry["seconds"] for entry in state["log_history"] if "seconds" in entry]
        values: dict[str, Any] = {"updates": state["global_step"], "minutes": seconds[-1] / 60 if seconds else None}
        for dtype in ("float32", "bfloat16"):
            output = setup.output / f"multi30k_{dtype}.json"
            output.unlink(missing_ok=True)
            evaluate = [*PACKAGE, "evaluate", average, "--test_file", str(text / "val"), "--dtype", dtype]
            _check(_run([*evaluate, "--bleu_tokenize", "none"], output, results.seconds_left()), output)
            scores = output.read_text()
            values[f"val BLEU, {dtype}"] = json.JSONDecoder().raw_decode(scores[scores.index("{") :])[0]["bleu"]
        return values

    results.measure("recipe", f"{RECIPE}, bfloat16", run)


def measure_launchers(setup: "Setup", results: Results) -> None:
    """Add one row for each configuration of accelerate for one device: a run, and one that is killed and resumed."""
    configurations = {"one_gpu": None, "fsdp": None, "deepspeed_zero2": "deepspeed"}
    for name, requirement in configurations.items():
        if setup.small and name != "one_gpu":
            continue
        results.measure("launchers", name, partial(_launch, setup, results, name, requirement))


def _launch(setup: "Setup", results: Results, name: str, requirement: str | None) -> dict[str, Any]:
    """Train undisturbed, and train with a SIGKILL in between; return how much the weights differ."""
    if requirement and not find_spec(requirement):
        raise MissingError(requirement)
    steps, folders = (12, 3) if setup.small else (200, 50), {}
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", f"scripts/accelerate/{name}.yaml"]
    launch += ["--num_processes", "1", *(["--cpu"] if setup.device.type == "cpu" else [])]
    for kind in ("undisturbed", "killed"):
        folder = folders[kind] = setup.output / f"{name}_{kind}"
        log_file = Path(f"{folder}.log")
        command = [*launch, "scripts/train.py", RECIPE, "--output_dir", str(folder), *(SMALL if setup.small else [])]
        command += ["--train_file", str(setup.text / "multi30k" / "train"), "--max_steps", str(steps[0])]
        command += [
            "--save_steps",
            str(steps[1]),
            "--save_total_limit",
            "20",
            "--eval_strategy",
            "no",
            *_on_cpu(setup),
        ]
        if kind == "killed":
            checkpoint = folder / f"checkpoint-{2 * steps[1]}"
            _run(command, log_file, results.seconds_left(), until=checkpoint.is_dir)
            log(f"{name}: killed and started again")
        _check(_run(command, log_file, results.seconds_left()), log_file)
    first, second = (load_file(folder / "model.safetensors") for folder in folders.values())
    difference = max(float((first[key] - second[key]).abs().max()) for key in first)
    resumed = "Resuming from" in Path(f"{folders['killed']}.log").read_text(errors="replace")
    return {"resumed": str(resumed), "largest difference of weights": difference, "same bits": str(difference == 0)}
