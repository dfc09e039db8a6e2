"""Every verb, on damaged folders, files and flags, exits with 0, 1 or 2, and with one error line if it fails."""

import asyncio
import gc
import io
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from corpora import ROOT
from damaged_folders import COMMANDS, create, damage, fault
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hf_vanilla_transformer.cli import find_verbs, main

PREPARING = (
    *("source_lang", "target_lang", "tokenizer_name", "vocab_size", "max_tokens", "max_sentence_tokens"),
    *("max_length_ratio", "exclude", "output_dir", "task", "tasks"),
)
FILES = ("input_files", "nbest", "output_dir", "output_format", "task", "tasks")
SERVING = ("host", "port", "max_queue", "timeout", "api_key_file", "backend")
LANGUAGES = ("source_lang", "target_lang")
DECODING = ("num_beams", "length_penalty", "max_tokens")
TESTING = ("source_lang", "target_lang", "split", "dataset_name", "test_file")
REVERSE = ("reverse_model", "reverse_weight")
MODEL = ("preset", "dropout", "d_model", "num_heads", "vocab_size", "tokenizer_name", "license", "num_beams")
TRAINING = (
    *("max_steps", "learning_rate", "warmup_steps", "lr_scheduler_type", "label_smoothing_factor", "save_strategy"),
    *(
        "eval_strategy",
        "metric_for_best_model",
        "resume_from_checkpoint",
        "accelerator_config",
        "debug",
        "optim",
        "seed",
    ),
    *("dataloader_num_workers", "max_sentence_tokens", "max_length_ratio", "early_stopping_patience", "ema_decay"),
    *("r_drop_alpha", "simcut_alpha", "simcut_p"),
    *("train_file", "output_dir", "max_tokens", "bleu_tokenize", "source_lang", "target_lang"),
)


# Flags that each command accepts, to be added
ACCEPTED = {
    "evaluate": (*DECODING, *TESTING, *REVERSE, "bleu_tokenize"),
    "evaluate two": ("backend",),
    "evaluate JSON lines": TESTING,
    "score": (*TESTING, "max_tokens"),
    "compare": (*DECODING, *TESTING, "bleu_tokenize"),
    "translate": (*DECODING, *REVERSE, "backend"),
    "train": (*MODEL, *TRAINING),
    "train by recipe": (*MODEL, *TRAINING),
    "fine-tune": (*MODEL, *TRAINING),
    "resume": TRAINING,
    "train on shards": (*MODEL, *TRAINING),
    "stream shards": (*MODEL, *TRAINING),
    "tune": (*MODEL, *TRAINING, "method", "trials"),
    "average": ("last", "output_dir"),
    "convert to Marian": ("to", *LANGUAGES),
    "convert from Marian": ("to", *LANGUAGES),
    "export": ("quantization", "format"),
    "push": ("license", "scores"),
    "plot training": ("output",),
    "plot attention": ("layer", "output"),
    "translate an export": (*DECODING, "backend"),
    "demo": ("host", "port"),
    "serve": (*SERVING, *DECODING),
    "prepare": PREPARING,
    "prepare again": PREPARING,
    "translate files": (*FILES, *DECODING),
    "translate files again": FILES,
}
FLAGS = {
    "num_beams": ["0", "-1", "many", "3", "1e9"],
    "length_penalty": ["nan", "inf", "-2", "x"],
    "max_tokens": ["0", "1", "-5", "8", "x"],
    "bleu_tokenize": ["none", "foo", "ja-mecab", "zh"],
    "source_lang": ["de", "fr", "", "../en"],
    "target_lang": ["en", "xx"],
    "backend": ["onnxx", "torch"],
    "split": ["test", "nowhere"],
    "dataset_name": ["nowhere", ".", "text"],
    "preset": ["huge", "A1", ""],
    "dropout": ["1", "-1", "nan", "x"],
    "d_model": ["0", "7", "-8"],
    "num_heads": ["3", "0"],
    "vocab_size": ["1", "100000", "-3"],
    "max_steps": ["-1", "0", "1", "x"],
    "learning_rate": ["nan", "-1", "1e30"],
    "warmup_steps": ["0", "0.5", "-3"],
    "lr_scheduler_type": ["linear", "nonsense", "noam"],
    "label_smoothing_factor": ["2", "-0.1", "nan"],
    "save_strategy": ["no", "epoch", "best", "never"],
    "eval_strategy": ["no", "epoch", "never"],
    "metric_for_best_model": ["chrf", "loss", "bleu"],
    "resume_from_checkpoint": ["nowhere", "model", "run/checkpoint-2", "text.en"],
    "accelerator_config": ['{"non_blocking": true}', "{", "[]"],
    "debug": ["underflow_overflow", "nonsense"],
    "optim": ["sgd", "nonsense"],
    "seed": ["-1", "x", "99999999999999999999"],
    "dataloader_num_workers": ["-1", "x"],
    "max_sentence_tokens": ["0", "-1"],
    "max_length_ratio": ["0", "nan"],
    "early_stopping_patience": ["0", "2"],
    "ema_decay": ["1", "0.9", "-1"],
    "r_drop_alpha": ["-1", "1", "nan"],
    "simcut_alpha": ["-1", "3", "nan"],
    "simcut_p": ["1", "0.1", "-1"],
    "reverse_model": ["nowhere", "model", "text.en"],
    "reverse_weight": ["nan", "2"],
    "tokenizer_name": ["nowhere", "model", "text.en"],
    "license": ["mit", ""],
    "last": ["0", "1", "9", "x"],
    "layer": ["0", "7", "-9", "x"],
    "quantization": ["int8", "foo"],
    "format": ["onnxx", "ctranslate2"],
    "to": ["marian", "vanilla_transformer", "bart"],
    "host": ["256.1.1.1", "localhost"],
    "port": ["0", "99999", "x"],
    "scores": ["nowhere", "ablation.json"],
    "output": ["new.gif", "nowhere/new.png", "new.svg"],
    "output_dir": ["model", "text.en", "run", ""],
    "method": ["random", "nonsense"],
    "trials": ["0", "1"],
    "exclude": ["nowhere", "text.en", "text.jsonl"],
    "task": ["-1", "0", "1", "9"],
    "tasks": ["0", "2", "x"],
    "input_files": ["nowhere", "text.*", "model", "table.csv", "empty.jsonl"],
    "nbest": ["0", "2", "9"],
    "output_format": ["txt", "csv"],
    "max_queue": ["0", "1"],
    "timeout": ["0", "nan", "1"],
    "api_key_file": ["nowhere", "empty.jsonl", "model"],
    "test_file": ["nowhere", "table.csv", "text.tsv", "model", "empty.jsonl"],
    "train_file": ["nowhere", "table.csv", "shards", "model", "empty.jsonl"],
}


def test_every_verb_that_reads_a_folder_is_among_the_commands():
    # `import` reads files; tests/plugins/importing/test_importing.py damages them
    verbs = {name.partition(".")[0] for name in find_verbs()}
    assert {COMMANDS[name].words[0] for name in ACCEPTED} == verbs - {"import"}


@pytest.fixture(scope="module")
def undamaged(tmp_path_factory) -> Path:
    """A folder with all files and folders that the commands use, undamaged."""
    folder = tmp_path_factory.mktemp("undamaged")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(folder)
        create()
    return folder


@pytest.fixture
def event_loops():
    """Delete the event loops that `gradio.Blocks` leaves open while the filter of this test still ignores it."""
    yield
    asyncio.set_event_loop(None)
    gc.collect()


@pytest.mark.usefixtures("event_loops")
@pytest.mark.filterwarnings("ignore")  # as outside the tests
@settings(
    max_examples=400,
    deadline=None,
    derandomize=True,  # the same cases in every run, so that a failure is reproducible
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data())
def test_every_verb_ends_with_a_known_status_and_at_most_one_error_line(undamaged, tmp_path_factory, data):
    monkeypatch, folder = pytest.MonkeyPatch(), tmp_path_factory.mktemp("case", numbered=True)
    stderr = io.StringIO()
    try:
        shutil.copytree(undamaged, folder, dirs_exist_ok=True)
        monkeypatch.chdir(folder)
        monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", folder / "cache")
        monkeypatch.setattr("gradio.Blocks.launch", lambda *args, **kwargs: None)
        monkeypatch.setattr("hf_vanilla_transformer.plugins.serving.process.serve_until_stopped", lambda *args: None)
        stdin = data.draw(
            st.sampled_from([b"a dog runs .\n", b"", b"\n\n", b"\xff\n", b"a\x00b\n"]) | st.binary(max_size=40)
        )
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        command = data.draw(st.sampled_from(sorted(ACCEPTED)))
        flags = ACCEPTED[command]
        words, reads = COMMANDS[command]
        rng = random.Random(data.draw(st.integers(0, 10**6)))
        damages = [damage(folder / rng.choice(reads), rng) for _ in range(data.draw(st.integers(0, 2)))]
        for flag in data.draw(st.lists(st.sampled_from(flags), min_size=not damages, max_size=2)):
            words = [*words, f"--{flag}", data.draw(st.sampled_from(FLAGS[flag]))]
        monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))
        monkeypatch.setattr("sys.stderr", stderr)
        try:
            status = main(words)
        except SystemExit as stop:
            status = stop.code
    finally:
        monkeypatch.undo()
        shutil.rmtree(folder, ignore_errors=True)
    problem = fault(status, stderr.getvalue())
    assert not problem, f"{problem}: {words} after {damages}: {status}\n{stderr.getvalue()[-3000:]}"


@pytest.mark.filterwarnings("ignore")
def test_every_verb_ends_properly_on_damaged_folders_within_its_memory_and_time(undamaged):
    script = ROOT / "tests" / "support" / "damaged_folders.py"
    command = [
        sys.executable,
        str(script),
        "--cases",
        "8",
        "--first",
        "3",
        "--seed",
        "2",
        "--undamaged",
        str(undamaged),
    ]
    run = subprocess.run(command, capture_output=True, text=True)
    assert "8 cases with seed 2: 0 failures" in run.stdout, run.stdout + run.stderr
