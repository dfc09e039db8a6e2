"""The measurements for a GPU, with tiny models on the CPU."""

import importlib
import json
import os
import shutil
import subprocess
import sys

import pytest
from corpora import ROOT
from forked_python import forked_python
from script_runs import read_table
from small import write_phrases

from hf_vanilla_transformer.data.phrases import splits

BENCHMARKS = ROOT / "scripts" / "benchmarks"
STAGES = ["devices", "graphs", "compiled", "training", "decoding", "profile", "recipe", "launchers", "tests"]


@pytest.fixture
def gpu_results(monkeypatch):
    """The module scripts/benchmarks/gpu_results.py."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("gpu_results")


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A folder with multi30k/ and wmt/, both with built-in phrases."""
    folder = tmp_path_factory.mktemp("text")
    phrases = splits()
    for name in ("multi30k", "wmt"):
        (folder / name).mkdir()
        write_phrases(folder / name / "train", phrases["train"][:2000])
        write_phrases(folder / name / "val", phrases["test"][:20])
    return folder


@pytest.fixture
def gpu(monkeypatch):
    """A function that runs scripts/benchmarks/gpu.py with the given words in this process."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    module = importlib.import_module("gpu")

    def run(*words: object) -> None:
        monkeypatch.setattr("sys.argv", ["gpu.py", *map(str, words)])
        module.main()

    return run


def test_each_row_is_measured_once_and_kept(gpu_results, tmp_path):
    calls = []
    for _ in range(2):
        results = gpu_results.Results(tmp_path / "gpu.json", seconds=60)
        values = results.measure("speed", "row", lambda: calls.append(1) or {"tokens/s": 12345.6})
        assert values == {"tokens/s": 12345.6}
    assert calls == [1]
    assert "| row | 12,346 |" in results.markdown()


def test_a_row_that_fails_is_named_and_measured_again_only_on_request(gpu_results, tmp_path):
    def fail():
        raise RuntimeError("out of memory\nand more")

    results = gpu_results.Results(tmp_path / "gpu.json", seconds=60)
    assert results.measure("speed", "row", fail) == {"failed": "RuntimeError: out of memory"}
    again = gpu_results.Results(tmp_path / "gpu.json", seconds=60)
    assert "failed" in again.measure("speed", "row", lambda: {"s": 1})
    retried = gpu_results.Results(tmp_path / "gpu.json", seconds=60, retry=True)
    assert retried.measure("speed", "row", lambda: {"s": 1}) == {"s": 1}


def test_a_row_in_which_the_process_dies_does_not_stop_the_next_run(gpu_results, tmp_path):
    code = "import gpu_results, os, pathlib, sys; "
    code += "r = gpu_results.Results(pathlib.Path(sys.argv[1]), 60); r.measure('speed', 'row', lambda: os._exit(9))"
    end = subprocess.run([sys.executable, "-c", code, str(tmp_path / "gpu.json")], cwd=BENCHMARKS)
    assert end.returncode == 9
    results = gpu_results.Results(tmp_path / "gpu.json", seconds=60)
    assert results.measure("speed", "row", lambda: {"s": 1}) == {"failed": "the process ended"}


def test_no_row_starts_when_the_time_is_over(gpu_results, tmp_path):
    for seconds, limit in ((0, 60), (60, 0)):
        results = gpu_results.Results(tmp_path / "gpu.json", seconds)
        results.limit(limit)
        with pytest.raises(gpu_results.OutOfTimeError):
            results.measure("speed", "row", lambda: {"s": 1})


STAND_IN = """#!/usr/bin/env bash
# Stands in for Python in gpu.sh: notes each stage, and ends it with the next of the given statuses.
[ "$1" = -c ] && exit 0
[ "$2" = table ] && echo "all tables" && exit 0
echo "$2" >>stages
status=$(head -n 1 statuses)
sed -i 1d statuses
[ "$status" -eq 1 ] && date +%N >>"$OUTPUT/gpu.json" # the row in which the process died
exit "$status"
"""


@pytest.fixture
def gpu_sh(tmp_path):
    """A function that runs gpu.sh with gpu.py's exit statuses given, and returns its result and the stages it ran."""
    root, output = tmp_path / "project", tmp_path / "out"
    script = root / "scripts" / "benchmarks" / "gpu.sh"
    script.parent.mkdir(parents=True)
    shutil.copy(BENCHMARKS / "gpu.sh", script)
    python = tmp_path / "python"
    python.write_text(STAND_IN)
    python.chmod(0o755)

    def run(statuses: list[int], *stages: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
        (root / "statuses").write_text("".join(f"{status}\n" for status in statuses))
        environment = {**os.environ, "PYTHON": str(python), "OUTPUT": str(output)}
        command = ["bash", str(script), str(tmp_path), str(output), *stages]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        return done, (root / "stages").read_text().split()

    return run


def test_all_stages_run_in_order_and_their_tables_are_printed(gpu_sh):
    done, stages = gpu_sh([0] * len(STAGES))
    assert done.returncode == 0
    assert stages == STAGES
    assert done.stdout == "all tables\n"
    assert done.stderr == ""


def test_a_stage_continues_after_a_row_in_which_the_process_died(gpu_sh):
    done, stages = gpu_sh([1, 0, 0], "training", "recipe")
    assert stages == ["training", "training", "recipe"]
    assert done.stderr == ""


def test_a_stage_that_ran_out_of_time_is_named_and_the_next_one_runs(gpu_sh):
    done, stages = gpu_sh([3, 0], "training", "recipe")
    assert stages == ["training", "recipe"]
    assert done.stderr == "gpu.sh: training is unfinished; the same command continues it.\n"


def test_wrong_use_ends_all_stages(gpu_sh):
    done, stages = gpu_sh([2], "training", "recipe")
    assert (done.returncode, stages) == (2, ["training"])


def test_missing_text_and_a_missing_gpu_are_named(gpu, text, tmp_path, monkeypatch, capsys):
    for folder, message in (
        (tmp_path, "multi30k/train.en does not exist"),
        (text, "there is no GPU; --small runs everything on the CPU"),
    ):
        monkeypatch.setattr("torch.cuda.is_available", lambda: False)
        with pytest.raises(SystemExit) as stop:
            gpu("training", "--text", folder, "--output_dir", tmp_path / "out")
        assert stop.value.code == 2
        assert message in capsys.readouterr().err


@pytest.mark.slow
def test_every_stage_measures_its_rows(text, tmp_path):
    output = tmp_path / "out"
    (output / "exports" / "tiny" / "float32").mkdir(parents=True)  # left by an interrupted run
    (output / "exports" / "tiny" / "float32" / "model.bin").touch()
    code = f"""
import sys
python, sys.executable = sys.executable, {forked_python()!r}
import gpu
for stage in {STAGES}:
    # pytest needs to import its plugins itself
    sys.executable = python if stage == "devices" else {forked_python()!r}
    sys.argv = ["gpu.py", stage, "--text", {str(text)!r}, "--output_dir", {str(output)!r}, "--small"]
    gpu.main()
sys.argv = ["gpu.py", "table", "--output_dir", {str(output)!r}]
gpu.main()
"""
    finished = subprocess.run([forked_python(), "-c", code], cwd=BENCHMARKS, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr[-2000:]
    rows = json.loads((output / "gpu.json").read_text())
    training, decoding = rows["training tiny"], rows["decoding"]
    unavailable = {name for name, values in training.items() if "failed" in values}
    assert unavailable == {
        *("flex_attention", "flash_attention_2", "float32", "float32, matrix products in TF32", "float16")
    }
    assert all(values["tokens/s"] > 0 for name, values in training.items() if name not in unavailable)
    assert training["flash_attention_2"]["failed"] == "flash-attn is not installed"
    assert len(decoding) == 4
    assert all(values["sentences/s"] > 0 and values["MarianMT"] > 0 for values in decoding.values())
    assert decoding["tiny, greedy, batch of 2, float32"]["equal to MarianMT"] == 1.0
    assert decoding["tiny, greedy, batch of 2, float32"]["CTranslate2 float32"] > 0
    graphs = rows["graphs"]
    assert set(graphs) == {"tiny, beam 4, batches of 2", "tiny, greedy, batches of 2"}
    assert all(values["batches, ours"] == values["batches, MarianMT"] == 2 for values in graphs.values())
    assert all(values["ours / MarianMT"] > 0 for values in graphs.values())
    assert set(rows["compiled"]) == {"tiny, as it is", "tiny, compiled"}
    assert all(values["tokens/s"] > 0 and values["seconds"] > 0 for values in rows["compiled"].values())
    assert rows["launchers"]["one_gpu"] == {"resumed": "True", "difference of the resumed run": 0.0}
    (recipe,) = rows["recipe"].values()
    assert recipe["updates"] == 4
    assert "val BLEU, bfloat16" in recipe
    assert "failed" not in rows["tests"]["devices"]
    assert "4 passed" in rows["tests"]["devices"]["result"]
    assert len(read_table(finished.stdout.split("### decoding")[1].split("###")[0])) == 4
