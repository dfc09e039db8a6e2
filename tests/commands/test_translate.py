import io
import os
import subprocess
import sys

import pytest

from hf_vanilla_transformer import train_tokenizer, translate
from hf_vanilla_transformer.cli import main


def translate_bytes(data: bytes, folder, monkeypatch, capsys) -> tuple[int, list[str], list[str]]:
    """Run `translate` with `data` on stdin, and return the exit status, the output lines and the error lines."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data), encoding="ascii"))
    status = main(["translate", str(folder / "model"), "--num_beams", "1"])
    out, err = capsys.readouterr()
    errors = [line for line in err.splitlines() if line.startswith("vanilla-transformer: ")]
    return status, out.split("\n")[:-1], errors


def test_each_input_line_becomes_one_output_line(saved, capsys, monkeypatch):
    text = (saved.folder / "test.en").read_bytes()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))
    assert main(["translate", saved.path, "--num_beams", "2"]) == 0
    captured = capsys.readouterr()
    translations = translate(saved.model, saved.tokenizer, saved.sources, num_beams=2)
    expected = [" ".join(translation.splitlines()) for translation in translations]
    assert captured.out.split("\n") == [*expected, ""]
    assert expected[2] == ""
    # a bar is for a terminal
    assert captured.err == ""


@pytest.mark.slow
def test_each_line_is_translated_as_soon_as_it_arrives(saved, start_process):
    with start_process("translate", saved.path, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        for line in ("a dog runs", "", "two men sit"):
            process.stdin.write(f"{line}\n")
            process.stdin.flush()
            expected = " ".join(translate(saved.model, saved.tokenizer, [line])[0].splitlines())
            assert process.stdout.readline() == f"{expected}\n"
        process.stdin.close()
        assert process.wait() == 0


@pytest.mark.slow
def test_a_closed_output_pipe_ends_translation_without_a_message(saved, start_process):
    with start_process("translate", saved.path, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdin.write("a dog runs\n")
        process.stdin.flush()
        process.stdout.readline()
        process.stdout.close()
        process.stdin.write("two men sit\n" * 10)
        process.stdin.close()
        process.stdin = None
        errors = process.stderr.read()
        assert process.wait() == 1
    assert "Traceback" not in errors
    assert "Broken pipe" not in errors


def test_an_invalid_line_is_named_and_the_lines_before_it_are_translated(saved, monkeypatch, capsys):
    valid = translate(saved.model, saved.tokenizer, saved.sources[:2], num_beams=1)
    too_long = b"x" * ((1 << 20) + 1)
    for invalid, message in ((b"\xff\n", "line 3: not UTF-8"), (too_long, "line 3: longer than 1,048,576")):
        data = "".join(f"{line}\n" for line in saved.sources[:2]).encode() + invalid + b"two men sit\n"
        status, lines, errors = translate_bytes(data, saved.folder, monkeypatch, capsys)
        assert status == 1
        assert lines == [" ".join(text.splitlines()) for text in valid]
        assert len(errors) == 1
        assert f"standard input, {message}" in errors[0]


def test_a_byte_order_mark_on_stdin_is_ignored(saved, monkeypatch, capsys):
    plain = translate_bytes(b"a dog runs\n", saved.folder, monkeypatch, capsys)
    assert translate_bytes(b"\xef\xbb\xbfa dog runs\n", saved.folder, monkeypatch, capsys) == plain
    assert plain[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("streams", "message"), [("<&-", "Standard input is closed"), (">&-", "Standard output is closed")]
)
def test_a_closed_standard_stream_is_reported_in_one_line(saved, streams, message):
    words = f'"{sys.executable}" -m hf_vanilla_transformer translate "{saved.path}" {streams}'
    run = subprocess.run(["bash", "-c", words], capture_output=True, text=True, input="a\n")
    assert run.returncode == 1
    assert len(run.stderr.splitlines()) == 1
    assert message in run.stderr


@pytest.mark.slow
def test_translations_are_utf8_even_if_the_terminal_is_ascii(saved):
    tokenizer = train_tokenizer(["ü ü ü"] * 3, 270)
    model = saved.model.__class__.from_pretrained(saved.path)
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    token = tokenizer("ü").input_ids[0]
    model.lm_head.bias.data[:] = -1e4
    model.lm_head.bias.data[token] = 1e4
    model.save_pretrained(saved.path)
    tokenizer.save_pretrained(saved.path)
    run = subprocess.run(
        [sys.executable, "-m", "hf_vanilla_transformer", "translate", saved.path, "--num_beams", "1"],
        **{"input": "ü\n".encode(), "capture_output": True, "env": {**os.environ, "PYTHONIOENCODING": "ascii"}},
    )
    assert run.returncode == 0, run.stderr.decode()
    assert set(run.stdout.decode("utf-8").replace("\n", "").replace(" ", "")) == {"ü"}


@pytest.mark.slow
def test_a_failure_while_stdin_stays_open_does_not_abort_the_interpreter(saved, start_process):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with start_process("translate", saved.path, python=sys.executable, **pipes) as process:
        process.stdin.buffer.write(b"\xff\n")
        process.stdin.flush()
        errors = process.stderr.read()
        assert process.wait() == 1
        process.stdin.close()
    assert "line 1: not UTF-8" in errors
    assert "Fatal Python error" not in errors


def test_sampling_is_repeatable_and_differs_between_seeds(saved, capsys, monkeypatch):
    text = (saved.folder / "test.en").read_bytes()
    outputs = []
    for flags in (["--seed", "1"], ["--seed", "1"], ["--seed", "2"], ["--top_k", "1"]):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))
        assert main(["translate", saved.path, "--do_sample", *flags]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1] != outputs[2]
    greedy = [" ".join(t.splitlines()) for t in translate(saved.model, saved.tokenizer, saved.sources, num_beams=1)]
    assert outputs[3].splitlines() == greedy  # only the best token is left


def test_sampling_flags_without_effect_are_refused(saved, capsys):
    assert main(["translate", saved.path, "--top_k", "5"]) == 2
    assert "--top_k has no effect without --do_sample" in capsys.readouterr().err
    assert main(["translate", saved.path, "--do_sample", "--backend", "ctranslate2"]) == 2
    assert "--do_sample requires --backend torch" in capsys.readouterr().err
