"""The tests, the recipe's training and accelerate's configurations, each in processes of their own."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
from gpu_results import FAILED, MissingError, OutOfTimeError, Results, Setup
from gpu_training import SMALL
from measuring import log
from safetensors.torch import load_file

ROOT = Path(__file__).parents[2]
PACKAGE = [sys.executable, "-m", "hf_vanilla_transformer"]
RECIPE = "scripts/recipes/multi30k_en_de_tiny.yaml"
SMALL_FLAGS = [word for name, value in SMALL.items() for word in (f"--{name}", str(value))] + ["--max_tokens", "256"]


def _run(
    command: list[str],
    log_file: Path,
    seconds: float,
    until: Callable[[], bool] | None = None,
    environment: dict[str, str] | None = None,
) -> int | None:
    """Run a command with its output appended to `log_file`, and return its exit status.

    None means that it was killed, with all processes that it had started: after `seconds`, or once `until` was true.
    """
    log_file.parent.mkdir(parents=True, exist_ok=True)
    with log_file.open("a") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **(environment or {})}, stdout=output, stderr=subprocess.STDOUT
        )
        end = time.monotonic() + seconds
        while process.poll() is None and time.monotonic() < end and not (until and until()):
            time.sleep(0.1)
        if process.poll() is not None:
            return process.returncode
        for each in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
            with suppress(psutil.NoSuchProcess):  # it has just ended
                each.kill()
        process.wait()
    return None


def _check(status: int | None, log_file: Path) -> None:
    """Raise an exception if a command failed, or was killed because the time was over."""
    if status is None:
        raise OutOfTimeError
    if status:
        raise RuntimeError(f"status {status}; the output is in {log_file.name}")


def _on_cpu(setup: Setup) -> list[str]:
    return ["--use_cpu"] if setup.device.type == "cpu" else []


def test_devices(setup: Setup, results: Results) -> None:
    """Add rows for the tests that put every model on the GPU: this package's, and transformers' own suite."""
    _pytest(setup, results, "devices", ["tests/test_devices.py", *(["-k", "logits"] if setup.small else [])])
    if not setup.small:
        _pytest(setup, results, "conformance", ["tests/test_conformance.py"])


def run_tests(setup: Setup, results: Results) -> None:
    """Add rows for the tests of exact resuming with the training on the GPU, and for the fast tests."""
    if not setup.small:
        _pytest(setup, results, "resuming", ["tests/system/test_resume.py"])
        parallel = ["-n", str(os.cpu_count())] if find_spec("xdist") else []
        _pytest(setup, results, "fast tests", ["-m", "not slow", "--continue-on-collection-errors", *parallel])


def _pytest(setup: Setup, results: Results, name: str, selection: list[str]) -> None:
    """Add a row with the last line of a run of pytest; one without a passed test has failed."""

    def run() -> dict[str, Any]:
        start, log_file = time.monotonic(), setup.output / f"{name.replace(' ', '_')}.log"
        log_file.unlink(missing_ok=True)
        environment = {"TEST_DEVICE": setup.device.type, "OMP_NUM_THREADS": "1"}
        # a plugin that is installed may warn of parallel tests, and warnings are errors
        command = [sys.executable, "-m", "pytest", "-p", "no:benchmark", *selection]
        status = _run(command, log_file, results.seconds_left(), environment=environment)
        if status is None:
            raise OutOfTimeError
        summary = log_file.read_text(errors="replace").splitlines()[-1].strip("= ")
        values = {"result": summary, "seconds": time.monotonic() - start}
        return values if status == 0 and "passed" in summary else {**values, FAILED: f"see {log_file.name}"}

    results.measure("tests", name, run)


def measure_recipe(setup: Setup, results: Results) -> None:
    """Add a row with the time and the BLEU of the recipe for Multi30k in bfloat16."""
    folder, text = setup.output / "multi30k", setup.text / "multi30k"
    flags = [*SMALL_FLAGS, "--max_steps", "4", "--save_steps", "2", "--eval_steps", "2"] if setup.small else []

    def run() -> dict[str, Any]:
        log_file, average = setup.output / "multi30k.log", Path(f"{folder}-average")
        if not (folder / "model.safetensors").is_file():
            train = [*PACKAGE, "train", RECIPE, "--bf16", "--eval_strategy", "no", "--output_dir", str(folder), *flags]
            train += ["--train_file", str(text / "train"), "--validation_file", str(text / "val"), *_on_cpu(setup)]
            _check(_run(train, log_file, results.seconds_left()), log_file)
        shutil.rmtree(average, ignore_errors=True)
        last = "2" if setup.small else "10"
        command = [*PACKAGE, "average", str(folder), "--last", last, "--output_dir", str(average)]
        _check(_run(command, log_file, results.seconds_left()), log_file)
        state = json.loads((folder / "trainer_state.json").read_text())
        seconds = [entry["seconds"] for entry in state["log_history"] if "seconds" in entry]
        values: dict[str, Any] = {"updates": state["global_step"], "minutes": seconds[-1] / 60 if seconds else None}
        for dtype in ("bfloat16",) if setup.small else ("float32", "bfloat16"):
            evaluate = [*PACKAGE, "evaluate", str(average), "--test_file", str(text / "val"), "--dtype", dtype]
            evaluate += ["--bleu_tokenize", "none"]
            output = subprocess.run(evaluate, cwd=ROOT, stdout=subprocess.PIPE, check=True, timeout=300).stdout
            values[f"val BLEU, {dtype}"] = json.loads(output)["bleu"]
        return values

    results.measure("recipe", f"{RECIPE}, bfloat16", run)


def measure_launchers(setup: Setup, results: Results) -> None:
    """Add one row for each of accelerate's configurations, on one device: a run that is killed and resumed."""
    configurations = {"one_gpu": None, "fsdp": None, "deepspeed_zero2": "deepspeed"}
    for name in configurations if not setup.small else ("one_gpu",):
        run = partial(_launch, setup, results, name, configurations[name])
        results.measure("launchers", name, run, seconds=10 if setup.small else 90)


def _launch(setup: Setup, results: Results, name: str, requirement: str | None) -> dict[str, Any]:
    """Train undisturbed (on a GPU twice), and once with a SIGKILL in between; return how much the weights differ."""
    if requirement and not find_spec(requirement):
        raise MissingError(f"{requirement} is not installed")
    steps, save_steps = (12, 3) if setup.small else (200, 50)
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", f"scripts/accelerate/{name}.yaml"]
    launch += ["--num_processes", "1", *(["--cpu"] if setup.device.type == "cpu" else [])]
    weights, output = {}, ""
    kinds = ["undisturbed", "killed"]
    if not setup.small:  # the kernels of a CPU are deterministic
        kinds.insert(1, "repeated")
    for kind in kinds:
        folder = setup.output / f"{name}_{kind}"
        log_file = Path(f"{folder}.log")
        shutil.rmtree(folder, ignore_errors=True)
        log_file.unlink(missing_ok=True)
        command = [*launch, "scripts/train.py", RECIPE, "--output_dir", str(folder)]
        command += SMALL_FLAGS if setup.small else []
        command += ["--train_file", str(setup.text / "multi30k" / "train"), "--max_steps", str(steps), *_on_cpu(setup)]
        command += ["--save_steps", str(save_steps), "--save_total_limit", "20", "--eval_strategy", "no"]
        if kind == "killed":
            _run(command, log_file, results.seconds_left(), until=(folder / f"checkpoint-{2 * save_steps}").is_dir)
            log(f"{name}: killed and started again")
        _check(_run(command, log_file, results.seconds_left()), log_file)
        weights[kind], output = load_file(folder / "model.safetensors"), log_file.read_text(errors="replace")

    def difference(kind: str) -> float:
        """Return the largest difference from the weights of the undisturbed run."""
        return max(float((value - weights[kind][key]).abs().max()) for key, value in weights["undisturbed"].items())

    values = {"resumed": str("Resuming from" in output), "difference of the resumed run": difference("killed")}
    if "repeated" in kinds:
        values["difference of a second undisturbed run"] = difference("repeated")
    return values
