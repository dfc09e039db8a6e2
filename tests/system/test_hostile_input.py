"""For any bytes, the readers return a result or raise one of their documented errors, in bounded memory."""

import gzip
import io
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from corpora import ROOT
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hf_vanilla_transformer import cli, train_tokenizer, translate
from hf_vanilla_transformer.data.formats import DataError
from hf_vanilla_transformer.data.source import TextFile
from hf_vanilla_transformer.training.recipes import read_recipe

FORMATS = [".jsonl", ".tsv", ".csv", ".jsonl.gz", ".tsv.zst", ".parquet"]
quiet = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["en", "de", "translation"]), inner),
)
rows = st.lists(json_like.map(json.dumps).map(str.encode) | st.binary(max_size=40), max_size=6).map(b"\n".join)
tables = st.binary(max_size=200).map(lambda tail: b"en\tde\n" + tail) | st.binary().map(lambda t: b"en,de\n" + t)
content = st.binary(max_size=300) | rows | tables | rows.map(gzip.compress)


def result_or_error(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except ValueError as error:
        return error


@quiet
@given(data=content, ending=st.sampled_from(FORMATS))
def test_any_bytes_are_read_as_pairs_or_raise_an_error_that_names_the_file(tmp_path, data, ending):
    path = tmp_path / f"text{ending}"
    path.write_bytes(data)
    result = result_or_error(lambda: list(TextFile(("en", "de"), str(path))))
    if isinstance(result, ValueError):
        assert isinstance(result, DataError)
        assert str(path) in str(result)
    else:
        texts = [text or "" for pair in result for text in pair.values()]
        "".join(texts).encode("utf-8")  # no unpaired surrogates
        assert len(texts) == 2 * len(result)


@quiet
@given(data=st.binary(max_size=300) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "replace")))
def test_any_recipe_is_read_as_flags_or_raises_an_error_that_names_the_file(tmp_path, data):
    path = tmp_path / "recipe.yaml"
    path.write_bytes(data)
    result = result_or_error(lambda: read_recipe(str(path), {"max_steps", "preset"}))
    assert str(path) in str(result) if isinstance(result, ValueError) else all(isinstance(f, str) for f in result)


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(["some words to learn from"] * 3, 270)


@settings(parent=quiet, max_examples=40)
@given(lines=st.lists(st.text(max_size=30), max_size=4))
def test_translate_returns_one_line_for_each_line_of_any_text(small_model, tokenizer, lines):
    model = small_model(vocab_size=len(tokenizer))
    lines = [line.replace("\n", " ").replace("\r", " ") for line in lines]
    translations = translate(model, tokenizer, lines, num_beams=1, max_new_tokens=4)
    assert len(translations) == len(lines)
    for line, translation in zip(lines, translations, strict=True):
        assert isinstance(translation, str)
        assert line.strip() or not translation


@pytest.fixture
def folder(small_model, tokenizer, tmp_path):
    small_model(vocab_size=len(tokenizer), position_embedding="learned").save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    return str(tmp_path)


@pytest.mark.parametrize("data", [b"\xff\xfe a\n", b"a\x00b\n", b"\xed\xa0\x80\n", b"x" * 3_000_000 + b"\n"])
def test_unusual_bytes_on_stdin_are_translated_or_end_with_one_error_line(data, folder, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
    status = cli.main(["translate", folder, "--num_beams", "1"])
    out, err = capsys.readouterr()
    if status == 0:
        assert out.count("\n") == 1
    else:
        assert status == 1
        assert len([line for line in err.splitlines() if line.startswith("vanilla-transformer: ")]) == 1


BOMB_SIZE = 2**31  # bytes


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_a_compression_bomb_is_refused_in_little_memory(tmp_path, ending):
    """The file of at most two megabytes contains two gigabytes of zeros in a single line."""
    path = tmp_path / f"bomb.jsonl{ending}"
    block = bytes(2**24)
    with gzip.open(path, "wb", 1) if ending == ".gz" else pa.output_stream(str(path), compression="zstd") as file:
        for _ in range(BOMB_SIZE // len(block)):
            file.write(block)
    code = f"""
from hf_vanilla_transformer.data.source import TextFile
import resource
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    list(TextFile(("en", "de"), {str(path)!r}))
except ValueError as error:
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024, error)
"""
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    megabytes, message = output.split(maxsplit=1)
    assert "line 1: longer than 1,048,576 bytes" in message
    assert float(megabytes) < 60


@pytest.mark.parametrize("target", ["rows", "recipe", "import"])
def test_coverage_guided_fuzzing_finds_no_other_error(target, tmp_path):
    """atheris runs for 12 seconds."""
    pytest.importorskip("atheris")
    command = [
        sys.executable,
        str(ROOT / "tests" / "support" / "fuzz.py"),
        target,
        str(tmp_path),
        "-max_total_time=12",
        "-seed=1",
    ]
    command += ["-timeout=60", "-rss_limit_mb=3000", "-max_len=4096", f"-artifact_prefix={tmp_path}/"]
    shell = ["sh", "-c", '"$@"; exit $?', "sh"]  # Linux counts the peak memory of the parent, here a small one
    run = subprocess.run([*shell, *command], capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr[-3000:]
    assert "Done" in run.stderr
