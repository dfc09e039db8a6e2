"""The scripts in scripts/benchmarks/, on small inputs."""

import importlib
import json
import random
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import sacrebleu
import torch
from corpora import ROOT
from script_runs import run_script
from small import write_phrases
from transformers import GenerationConfig

from hf_vanilla_transformer import (
    Translator,
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    train_tokenizer,
)
from hf_vanilla_transformer.data.phrases import splits
from hf_vanilla_transformer.inference.translator import Hypothesis, Translation

BENCHMARKS = ROOT / "scripts" / "benchmarks"


@pytest.fixture
def load(monkeypatch) -> Callable[[str], ModuleType]:
    """A function that imports a module of scripts/benchmarks/ by its name."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


@pytest.fixture
def complexity(load) -> ModuleType:
    return load("complexity")


@pytest.mark.slow
def test_planning_batches_for_millions_of_pairs_takes_little_memory(load, monkeypatch, capsys):
    if not sys.platform.startswith("linux"):
        pytest.skip("the benchmark measures memory on Linux only")
    decoding = load("decoding")
    assert decoding.PLANNED_PAIRS == 4_500_000
    monkeypatch.setattr(decoding, "PLANNED_PAIRS", 1_000_000)
    decoding.print_memory("planning")
    megabytes, seconds = json.loads(capsys.readouterr().out)
    assert 1 < megabytes < 500 / 4.5
    assert seconds > 0


@pytest.mark.parametrize(("theirs", "status"), [([[1], [2]], 0), ([[1], [3]], 1)])
def test_the_benchmark_exits_0_only_if_outputs_agree(theirs, status, load, tmp_path, monkeypatch, capsys):
    benchmark = load("benchmark")

    def decode(report, *rest):
        report.add("row", 3.0, 2.0, 1.5, "1.2", "s")
        report.add_agreement("beam", [[1], [2]], theirs)

    for name in ("imports", "memory", "base_decoding", "opus_decoding", "base_training_step", "loss", "training"):
        monkeypatch.setattr(benchmark, f"measure_{name}", lambda *args: None)
    monkeypatch.setattr(benchmark, "Text", lambda: None)
    monkeypatch.setattr(benchmark, "gemm_rate", lambda: 1e9)
    monkeypatch.setattr(benchmark, "measure_tiny_decoding", decode)
    monkeypatch.setattr("sys.argv", ["benchmark.py", "--quick", "--output", str(tmp_path / "result.json")])
    if status:
        with pytest.raises(SystemExit, match="The outputs differ: beam"):
            benchmark.main()
    else:
        benchmark.main()
    assert "| row | s | 3 | 2 | 1.50 | 1.2 |" in capsys.readouterr().out
    assert json.loads((tmp_path / "result.json").read_text())["rows"]


@pytest.mark.slow
def test_latency_is_measured_with_equal_outputs():
    output = run_script("benchmarks/latency.py", "--models", "tiny", "--repeats", "1")
    assert output.returncode == 0, output.stderr[-2000:]
    for search in ("beam 4", "greedy"):
        assert f"\n| `tiny`, {search}, one sentence, against MarianMT | ms | " in output.stdout
        assert f"\ntiny, {search}: 100.0% of the outputs equal." in output.stdout


@pytest.mark.slow
def test_parallel_compares_two_searches_at_a_time_with_one():
    output = run_script("benchmarks/parallel.py", "--batches", "2", "--repeats", "1")
    for search in ("beam 4", "greedy"):
        row = f"\n| `tiny`, {search}, a batch on each core, against one after the other | sentences/s | "
        assert row in output.stdout


@pytest.mark.slow
def test_data_measures_preparing_planning_and_streaming():
    if not sys.platform.startswith("linux"):
        pytest.skip("memory is measured on Linux only")
    flags = ("--pairs", "2000", "--duplicates", "0.2", "--vocab_size", "600")
    result = json.loads(run_script("benchmarks/data.py", *flags).stdout)
    assert result["pairs"] == 2000
    assert result["duplicates found"] == result["duplicates"] == 400
    assert result["prepared, peak MB of all processes"] > 50
    assert result["segmented with BPE dropout, pairs/s"] > 0
    assert result["streamed, pairs/s"] > 0


def write_text_and_model(folder: Path) -> None:
    """Write phrases (text.en, text.de), and a random model of a few thousand parameters."""
    write_phrases(folder / "text", splits()["train"][:600])
    tokenizer = train_tokenizer([phrase.en for phrase in splits()["train"][:600]], 400)
    sizes = {"d_model": 16, "num_heads": 2, "d_ff": 16, "num_encoder_layers": 1, "num_decoder_layers": 1}
    config = VanillaTransformerConfig(vocab_size=len(tokenizer), source_lang="en", target_lang="de", **sizes)
    VanillaTransformerForConditionalGeneration(config).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")


@pytest.mark.slow
def test_attack_checks_short_requests_beside_clients_of_every_kind(tmp_path):
    write_text_and_model(tmp_path)
    # with several beams, hypotheses of random weights tie, and rounding decides
    GenerationConfig.from_pretrained(tmp_path / "model", num_beams=1).save_pretrained(tmp_path / "model")
    clients = [f"--{name}=1" for name in ("slow", "vanishing", "large", "tokens", "quotes", "documents", "uploads")]
    flags = ("--model", str(tmp_path / "model"), "--text", str(tmp_path / "text"), "--seconds", "10")
    output = run_script("benchmarks/attack.py", *flags, "--half_open=20", *clients)
    assert output.returncode == 0, output.stderr[-2000:]
    answers = json.loads(output.stdout)["answers"]
    assert answers["answered"] > 0
    assert "wrong" not in answers
    assert all(any(name.startswith(kind) for name in answers) for kind in ("large", "tokens", "quotes"))


@pytest.mark.slow
def test_documents_measures_placeholders_and_html(tmp_path):
    write_text_and_model(tmp_path)
    flags = ("--sentences", "40", "--html_sentences", "10", "--repeats", "1")
    output = run_script("benchmarks/documents.py", str(tmp_path / "model"), str(tmp_path / "text"), *flags)
    assert output.returncode == 0, output.stderr[-2000:]
    assert "\n| placeholders kept exactly once | sentences | 40 | 40 | 1.00 |  |" in output.stdout
    assert "\n| placeholders lost or doubled, and not reported | sentences | 0 | 40 | 0.00 | 0 |" in output.stdout
    assert "\n| sentences reported | sentences | 0 | 40 | 0.00 | at most 0.02 |" in output.stdout
    assert "\n| HTML, beam 4, against the same text without tags | s | " in output.stdout


@pytest.mark.slow
def test_doubt_counts_what_is_marked_of_each_kind_of_text(tmp_path):
    write_text_and_model(tmp_path)
    for name, phrases in (("val", splits()["validation"][:120]), ("test", splits()["test"][:20])):
        write_phrases(tmp_path / name, phrases)
    files = [str(tmp_path / name) for name in ("model", "val", "test", "test")]
    output = run_script("benchmarks/doubt.py", *files)
    assert output.returncode == 0, output.stderr[-2000:]
    assert re.search(r"^greedy search: limit -\d+\.\d\d, rank correlation with chrF ", output.stdout, re.MULTILINE)
    rows = [line.strip("| ").split(" | ") for line in output.stdout.splitlines() if line.endswith("% |")]
    assert len(rows) == 9
    # a random model is as sure of one text as of another
    assert all(0 <= float(share.removesuffix(" %")) <= 100 for _, *shares in rows for share in shares)


@pytest.mark.slow
def test_models_are_compared_by_bleu_and_speed_with_the_first(tmp_path):
    write_text_and_model(tmp_path)
    write_phrases(tmp_path / "text", splits()["test"][:20])
    first = str(tmp_path / "model")
    second = str(shutil.copytree(first, tmp_path / "second"))
    output = run_script("benchmarks/models.py", str(tmp_path / "text"), first, second, "--repeats", "1")
    assert output.returncode == 0, output.stderr[-2000:]
    cells = [line.strip("| ").split(" | ") for line in output.stdout.splitlines() if line.startswith("| ")]
    rows = {tuple(row[:3]): row[3:] for row in cells[1:]}
    assert len(rows) == len(cells[1:]) >= 8  # two models, searches and at least two formats
    lines, references = ((tmp_path / f"text.{language}").read_text().splitlines() for language in ("en", "de"))
    for search, beams in (("beam 4", 4), ("greedy", 1)):
        found = [each.text for each in Translator.load(first).translate(lines, num_beams=beams)]
        expected = sacrebleu.corpus_bleu(found, [references]).score
        for name in (first, second):
            bleu, speed, ratio = map(float, rows[name, "float32", search])
            assert bleu == pytest.approx(expected, abs=0.01)
            # of speeds that are rounded to whole sentences
            reference = float(rows[first, "float32", "beam 4"][1])
            assert (speed - 0.5) / (reference + 0.5) - 0.01 <= ratio <= (speed + 0.5) / (reference - 0.5) + 0.01


def test_documents_counts_what_is_lost_and_scores_the_rest(load):
    documents, measuring = load("documents"), load("measuring")

    class Careless:
        """Translate by copying, but lose the placeholder of the first text and refuse the second."""

        def translate(self, texts, split_sentences):
            assert split_sentences
            results = [Translation([Hypothesis(text, 0.0)]) for text in texts]
            if texts != lines:
                results[0] = Translation([Hypothesis(lines[0], 0.0)])
                results[1] = Translation([Hypothesis(texts[1], 0.0)], "2 tokens, more than 1")
            return results

    lines = [phrase.en for phrase in splits()["train"][:10]]
    report = measuring.Report()
    documents.measure_placeholders(report, Careless(), lines, lines)
    assert [row["ours"] for row in report.rows] == [9, 1, 1, pytest.approx(100.0)]


def test_documents_marks_up_the_same_text(load):
    documents = load("documents")
    chooser = random.Random(1)
    lines = [phrase.en for phrase in splits()["train"][:50]]
    pages = [documents.as_html(line, chooser) for line in lines]
    assert [re.sub("<[^>]+>", "", page) for page in pages] == lines
    assert sum(page.count("<b>") + page.count("<a ") for page in pages) > 50


@pytest.mark.slow
def test_scale_measures_rates_and_computes_tables(tmp_path):
    write_text_and_model(tmp_path)
    flags = ("--model", str(tmp_path / "model"), "--text", str(tmp_path / "text"), "--lines_per_task", "50")
    output = run_script("benchmarks/scale.py", *flags)
    assert output.returncode == 0, output.stderr[-2000:]
    rates = json.loads(output.stdout.partition("\n\n")[0])
    assert min(rates[name] for name in ("read", "hash", "deduplicate", "clean", "translate")) > 0
    assert rates["two workers / one worker"] > 0
    assert output.stdout.count("\n| 1,000,000,000 |") == 4


def test_exponents_are_log_log_slopes_and_crossovers_are_interpolated(complexity):
    sizes = (128, 256, 1024)
    assert complexity.fit_exponent(sizes, [3e-9 * n**2.3 for n in sizes]) == pytest.approx(2.3)
    quadratic, linear = [n**2 for n in sizes], [500 * n for n in sizes]
    assert complexity.crossover(sizes, quadratic, linear) == pytest.approx(500)
    assert complexity.crossover(sizes, linear, [n * 9000 for n in sizes]) is None


@pytest.mark.parametrize("kind", ["self-attention", "LSTM", "GRU", "convolution", "attention sub-layer"])
def test_each_measured_layer_has_the_named_type(complexity, kind):
    output = complexity.forward_pass(kind, 24, 64)()
    states = output[0] if isinstance(output, tuple) else output
    expected = {"self-attention": (24, 64), "convolution": (8, 64, 24), "attention sub-layer": (1, 24, 64)}
    assert tuple(states.shape) == expected.get(kind, (32, 24, 64))
    with torch.inference_mode():
        assert complexity.measure_seconds(kind, 8, 16) > 0


def test_layer_costs_are_plotted_by_length(complexity):
    times = {"self-attention": [1e-3, 4e-3], "LSTM": [2e-3, 4e-3]}
    (axes,) = complexity.plot_times([64, 128], times, 64).axes
    curves = {line.get_label(): [list(line.get_xdata()), list(line.get_ydata())] for line in axes.lines}
    assert {name: curves[name] for name in times} == {
        "self-attention": [[64, 128], [1, 4]],  # milliseconds
        "LSTM": [[64, 128], [2, 4]],
    }
