"""The measurements for a GPU, with tiny models on the CPU."""

import importlib
import json
import os
import subprocess
import sys

import pytest
from corpora import ROOT
from script_runs import read_table
from small import write_phrases

from hf_vanilla_transformer.data.phrases import splits

BENCHMARKS = ROOT / "scripts" / "benchmarks"


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


def measure(text, output, *stages, minutes="5", flags="--small") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHON": sys.executable, "GPU_FLAGS": flags, "MINUTES": minutes}
    command = ["bash", str(BENCHMARKS / "gpu.sh"), str(text), str(output), *stages]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


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
    results = gpu_results.Results(tmp_path / "gpu.json", seconds=0)
    with pytest.raises(gpu_results.OutOfTimeError):
        results.measure("speed", "row", lambda: {"s": 1})


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_all_stages_run_resume_and_print_a_table(text, tmp_path):
    output = tmp_path / "out"
    unfinished = measure(text, output, "training", minutes="0")
    assert unfinished.returncode == 0, unfinished.stderr[-2000:]
    assert "training is unfinished; the same command continues it" in unfinished.stderr
    finished = measure(text, output, minutes="12")
    assert finished.returncode == 0, finished.stderr[-2000:]
    assert "unfinished" not in finished.stderr
    rows = json.loads((output / "gpu.json").read_text())
    training, decoding = rows["training tiny"], rows["decoding"]
    unavailable = {name for name, values in training.items() if "failed" in values}
    assert unavailable == {
        *("flex_attention", "flash_attention_2", "float32", "float32, matrix products in TF32", "float16")
    }
    assert all(values["tokens/s"] > 0 for name, values in training.items() if name not in unavailable)
    assert training["flash_attention_2"]["failed"] == "flash-attn is not installed"
    assert len(decoding) == 8
    assert all(values["sentences/s"] > 0 and values["MarianMT"] > 0 for values in decoding.values())
    assert decoding["tiny, greedy, batch of 2, float32"]["equal to MarianMT"] == 1.0
    assert rows["launchers"]["one_gpu"] == {
        "resumed": "True",
        "difference of the resumed run": 0.0,
        "difference of a second undisturbed run": 0.0,
    }
    (recipe,) = rows["recipe"].values()
    assert recipe["updates"] == 4
    assert {"val BLEU, float32", "val BLEU, bfloat16"} <= recipe.keys()
    assert "failed" not in rows["tests"]["devices"]
    assert "4 passed" in rows["tests"]["devices"]["result"]
    tables = (output / "gpu.md").read_text()
    assert len(read_table(tables.split("### decoding")[1].split("###")[0])) == 8
    last = decoding.popitem()[0]
    (output / "gpu.json").write_text(json.dumps(rows))
    assert measure(text, output, "decoding").returncode == 0  # with the export that is there
    again = json.loads((output / "gpu.json").read_text())["decoding"]
    assert again[last]["MarianMT"] > 0
    assert {name: again[name] for name in decoding} == decoding


@pytest.mark.slow
def test_missing_text_and_a_missing_gpu_are_named(text, tmp_path):
    missing = measure(tmp_path, tmp_path / "out", "training")
    assert missing.returncode == 2
    assert "multi30k/train.en does not exist" in missing.stderr
    if not importlib.import_module("torch").cuda.is_available():
        no_gpu = measure(text, tmp_path / "out", "training", flags="")
        assert no_gpu.returncode == 2
        assert "there is no GPU; --small runs everything on the CPU" in no_gpu.stderr
