"""The scripts for study, as a user runs them."""

import importlib
import itertools
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from corpora import ROOT

from hf_vanilla_transformer.data.phrases import splits
from hf_vanilla_transformer.training.presets import TABLE_3

BENCHMARKS = ROOT / "scripts" / "benchmarks"


def run(name: str, *flags: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    return subprocess.run(
        [sys.executable, f"scripts/{name}", *flags], cwd=ROOT, env=environment, capture_output=True, text=True
    )


def table(text: str) -> dict[str, dict[str, str]]:
    """The rows of a Markdown table by their first cell."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    return {row[0]: dict(zip(rows[0], row, strict=True)) for row in rows[2:]}


@pytest.mark.slow
def test_table3_prints_every_row_with_our_counts_beside_the_papers():
    rows = table(run("study/table3.py").stdout)
    assert list(rows) == list(TABLE_3)
    for name, published in TABLE_3.items():
        assert float(rows[name]["PPL (paper)"]) == published.perplexity
        if published.millions:
            assert float(rows[name]["M parameters (ours)"]) == pytest.approx(published.millions, rel=0.07)
    assert (rows["B1"]["d_k"], rows["B1"]["d_v"]) == ("16", "64")


@pytest.mark.slow
def test_ablate_trains_rows_equally_long_and_goes_on_where_it_stopped(tmp_path):
    for language, split in itertools.product(("en", "de"), ("train", "validation")):
        phrases = splits()[split][:100]
        (tmp_path / f"{split}.{language}").write_text("".join(f"{getattr(p, language)}\n" for p in phrases))
    flags = ["--reduce", "16", "--num_encoder_layers", "1", "--num_decoder_layers", "1", "--vocab_size", "300"]
    flags += ["--max_steps", "3", "--max_tokens", "256", "--save_steps", "3", "--eval_strategy", "no", "--use_cpu"]
    flags += ["--train_file", str(tmp_path / "train"), "--validation_file", str(tmp_path / "validation")]
    flags += ["--dropout", "0.3", "--output_dir", str(tmp_path)]
    first = run("study/ablate.py", "base", "B1", "D1", "D3", *flags)
    rows = table(first.stdout)
    assert list(rows) == ["base", "B1", "D1", "D3"], first.stderr[-2000:]
    assert {row["steps"] for row in rows.values()} == {"3"}
    results = json.loads((tmp_path / "ablation.json").read_text())
    assert results["B1"]["millions"] < results["base"]["millions"] == results["D1"]["millions"]
    for name, change in (("base", {"dropout: 0.3"}), ("D1", {"dropout: 0.0"}), ("B1", {"d_k: 1", "dropout: 0.3"})):
        settings = (tmp_path / name / "settings.yaml").read_text().splitlines()
        assert change <= set(settings)
    assert "label_smoothing_factor: 0.0" in (tmp_path / "D3" / "settings.yaml").read_text()
    again = run("study/ablate.py", "base", "B1", "D1", "D3", *flags)
    assert again.stderr.count("is finished") == 4
    assert table(again.stdout) == rows


@pytest.mark.slow
def test_ablate_without_validation_text_says_what_is_missing(tmp_path):
    (tmp_path / "text.en").write_text("one two three\n" * 50)
    (tmp_path / "text.de").write_text("eins zwei drei\n" * 50)
    output = run(
        "study/ablate.py", "base", "--train_file", str(tmp_path / "text"), "--output_dir", str(tmp_path / "out")
    )
    assert output.returncode == 1
    assert "give --validation_file" in output.stderr.splitlines()[-1]
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_batches_for_millions_of_pairs_are_planned_in_seconds_and_little_memory():
    if not sys.platform.startswith("linux"):
        pytest.skip("the benchmark measures memory on Linux only")
    megabytes, seconds = json.loads(run("benchmarks/benchmark.py", "--measure_memory", "planning").stdout)
    assert 1 < megabytes < 500
    assert seconds < 10


@pytest.mark.slow
@pytest.mark.parametrize(("theirs", "status"), [([[1], [2]], 0), ([[1], [3]], 1)])
def test_the_benchmark_exits_0_only_if_outputs_agree(theirs, status, tmp_path):
    code = f"""
import sys, benchmark
def decode(report, *rest):
    report.add("row", 3.0, 2.0, 1.5, "1.2", "s")
    report.agree("beam", [[1], [2]], {theirs})
for name in ("imports", "memory", "base_decoding", "base_training_step", "training", "Text"):
    setattr(benchmark, name, lambda *args: None)
benchmark.ceiling, benchmark.tiny_decoding = lambda: 1e9, decode
sys.argv = ["benchmark.py", "--quick", "--output", {str(tmp_path / "result.json")!r}]
benchmark.main()
"""
    end = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT / "scripts" / "benchmarks", capture_output=True, text=True
    )
    assert end.returncode == status, end.stderr[-2000:]
    assert "| row | s | 3 | 2 | 1.50 | 1.2 |" in end.stdout
    assert ("The outputs differ: beam" in end.stderr) is (status == 1)
    assert json.loads((tmp_path / "result.json").read_text())["rows"]


@pytest.mark.slow
def test_the_benchmarks_rows_for_a_gpu_run_on_any_device():
    code = "import benchmark as b, torch; r = b.Report(); "
    code += "b.accelerator(r, torch.device('cpu'), ('tiny',), pairs=4, sentences=2, repeats=1); print(r.table())"
    output = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT / "scripts" / "benchmarks", capture_output=True, text=True
    )
    assert output.returncode == 0, output.stderr[-2000:]
    assert len(table(output.stdout)) == 4
    assert output.stdout.count("100.0% of the outputs equal") == 2


@pytest.mark.slow
def test_the_toy_run_copies_and_reverses_without_a_mistake():
    output = run("study/train_copy.py").stdout
    assert re.findall(r"(copy|reverse): 100\.0% exact matches", output) == ["copy", "reverse"], output
    assert len((ROOT / "scripts" / "study/train_copy.py").read_text().splitlines()) < 80


@pytest.mark.slow
def test_preparing_planning_and_streaming_are_measured():
    if not sys.platform.startswith("linux"):
        pytest.skip("memory is measured on Linux only")
    result = json.loads(run("benchmarks/data.py", "--pairs", "4000", "--vocab_size", "600").stdout)
    assert result["pairs"] == 4000
    assert result["prepared, peak MB of all processes"] > 50
    assert result["streamed, pairs/s"] > 1000


@pytest.mark.slow
def test_the_walk_through_the_paper_ends_within_three_minutes_and_shows_code_and_numbers():
    start = time.monotonic()
    walk = run("study/walkthrough.py")
    assert time.monotonic() - start < 180
    assert walk.returncode == 0, walk.stderr[-2000:]
    for title in (
        "3.2.1 Scaled",
        "3.2.2 Multi",
        "3.2.3 Masks",
        "3.3 Feed",
        "3.4 Emb",
        "3.5 Pos",
        "5.3 Opt",
        "6.1 Beam",
    ):
        assert title in walk.stdout
    places = re.findall(r"^(\w+\.py), line (\d+):\n    (.+)$", walk.stdout, re.MULTILINE)
    assert len(places) > 10
    for file, line, text in places:
        (source,) = (ROOT / "hf_vanilla_transformer").rglob(file)
        lines = source.read_text(encoding="utf-8").splitlines()
        assert lines[int(line) - 1].strip() == text.strip()
    assert "each row sums to 1.000" in walk.stdout
    assert "mean 0.0000 and variance 1.0000" in walk.stdout
    losses = [float(loss) for loss in re.findall(r"'loss': '([\d.]+)'", walk.stdout)]
    assert losses[-1] < losses[0] / 2


def complexity():
    """scripts/benchmarks/complexity.py as a module."""
    sys.path.insert(0, str(ROOT / "scripts" / "benchmarks"))
    try:
        return importlib.import_module("complexity")
    finally:
        sys.path.pop(0)


def test_exponents_are_slopes_of_logarithms_and_crossings_lie_between():
    script = complexity()
    sizes = (128, 256, 1024)
    assert script.slope(sizes, [3e-9 * n**2.3 for n in sizes]) == pytest.approx(2.3)
    quadratic, linear = [n**2 for n in sizes], [500 * n for n in sizes]
    assert script.crossing(sizes, quadratic, linear) == pytest.approx(500)
    assert script.crossing(sizes, linear, [n * 9000 for n in sizes]) is None


@pytest.mark.parametrize("kind", ["self-attention", "LSTM", "GRU", "convolution", "attention sub-layer"])
def test_the_layers_whose_cost_is_measured_are_what_they_are_called(kind):
    script = complexity()
    output = script.layer(kind, 24, 64)()
    states = output[0] if isinstance(output, tuple) else output
    expected = {"self-attention": (24, 64), "convolution": (8, 64, 24), "attention sub-layer": (1, 24, 64)}
    assert tuple(states.shape) == expected.get(kind, (32, 24, 64))
    with torch.inference_mode():
        assert script.seconds(kind, 8, 16) > 0


def shell(recipe: str, *words: object) -> None:
    """Runs a recipe with this environment's commands."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(
        ["bash", f"scripts/recipes/{recipe}.sh", *map(str, words)],
        cwd=ROOT,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "PATH": path},
        capture_output=True,
        check=True,
    )


@pytest.mark.slow
def test_the_recipes_distil_and_translate_back(tmp_path):
    sides = {language: [getattr(p, language) for p in splits()["train"][:80]] for language in ("en", "de")}
    for language, lines in sides.items():
        (tmp_path / f"pairs.{language}").write_text("".join(f"{line}\n" for line in lines[:60]), encoding="utf-8")
    (tmp_path / "alone.de").write_text("".join(f"{line}\n" for line in sides["de"][60:]), encoding="utf-8")
    flags = ["--preset", "tiny", "--vocab_size", "300", "--d_model", "16", "--d_ff", "32", "--num_heads", "2"]
    flags += ["--num_encoder_layers", "1", "--num_decoder_layers", "1", "--max_steps", "3", "--max_tokens", "512"]
    flags += ["--use_cpu", "--disable_tqdm", "true"]
    back, distilled = tmp_path / "back", tmp_path / "distilled"
    shell("back_translation", tmp_path / "pairs", tmp_path / "alone.de", "en", "de", back, *flags)
    texts = {language: (back / f"text.{language}").read_text(encoding="utf-8").split("\n") for language in sides}
    assert texts["de"] == [*sides["de"], ""]
    assert texts["en"][:60] == sides["en"][:60]
    assert len(texts["en"]) == 81
    directions = {
        (config["source_lang"], config["target_lang"])
        for config in (json.loads((back / name / "config.json").read_text()) for name in ("backwards", "model"))
    }
    assert directions == {("de", "en"), ("en", "de")}
    teachers = f"{back / 'model'} {back / 'model'}"
    shell("distillation", teachers, tmp_path / "pairs", "en", "de", distilled, *flags)
    shell("distillation", teachers, tmp_path / "pairs", "en", "de", distilled, *flags)  # once more: nothing is left
    texts = {language: (distilled / f"text.{language}").read_text(encoding="utf-8").split("\n") for language in sides}
    assert texts["en"] == [*sides["en"][:60], *sides["en"][:60], ""]
    assert texts["de"][:60] == sides["de"][:60]
    assert len(texts["de"]) == 121
    assert json.loads((distilled / "model" / "trainer_state.json").read_text())["global_step"] == 3
