import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import datasets
import pytest
import sacrebleu
import torch

from hf_vanilla_transformer import train_tokenizer, translate
from hf_vanilla_transformer.cli import main

SOURCES = ["a dog runs", "two men sit", "", "the dog sleeps\x0chere"]
REFERENCES = ["ein hund rennt", "zwei männer sitzen", "nichts", "der hund schläft"]


@pytest.fixture
def saved(small_model, tmp_path, monkeypatch):
    """A folder with a model and its tokenizer, and a Moses pair beside it."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    tokenizer = train_tokenizer((SOURCES + REFERENCES) * 3, 300)
    model = small_model(vocab_size=len(tokenizer), lm_head_bias=True, source_lang="en", target_lang="de")
    model.lm_head.weight.data[:] *= 3
    model.lm_head.bias.data[:260] = -1e4
    model.lm_head.bias.data[2] = 5.0
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    for language, lines in (("en", SOURCES), ("de", REFERENCES)):
        (tmp_path / f"test.{language}").write_bytes("".join(f"{line}\n" for line in lines).encode())
    return tmp_path, model, tokenizer


def test_evaluate_prints_one_json_object_of_sacrebleu_scores(saved, capsys):
    folder, model, tokenizer = saved
    status = main(["evaluate", str(folder / "model"), "--test_file", str(folder / "test"), "--bleu_tokenize", "none"])
    result = json.loads(capsys.readouterr().out)
    assert status == 0
    assert result["sentences"] == 4
    assert result["seconds"] > 0
    translations = translate(model, tokenizer, SOURCES)
    assert result["chrf"] == pytest.approx(sacrebleu.corpus_chrf(translations, [REFERENCES]).score)
    assert result["ter"] == pytest.approx(sacrebleu.corpus_ter(translations, [REFERENCES]).score)
    assert "tok:none" in result["signatures"]["bleu"]


def test_translate_gives_one_line_out_for_each_line_in(saved, capsys, monkeypatch):
    folder, model, tokenizer = saved
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO((folder / "test.en").read_bytes())))
    assert main(["translate", str(folder / "model"), "--num_beams", "2"]) == 0
    captured = capsys.readouterr()
    expected = [" ".join(text.splitlines()) for text in translate(model, tokenizer, SOURCES, num_beams=2)]
    assert captured.out.split("\n") == [*expected, ""]
    assert expected[2] == ""
    assert "Translating" in captured.err


def test_the_model_must_say_its_languages_or_the_caller(saved, capsys):
    folder, model, _ = saved
    model.config.source_lang = None
    model.save_pretrained(folder / "model")
    assert main(["evaluate", str(folder / "model"), "--test_file", str(folder / "test")]) == 2
    assert "--source_lang" in capsys.readouterr().err


def test_a_model_of_another_language_pair_needs_its_own_test_file(saved, capsys):
    folder, model, _ = saved
    model.config.target_lang = "fr"
    model.save_pretrained(folder / "model")
    assert main(["evaluate", str(folder / "model")]) == 2
    assert "give --test_file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--preset", "tiny", "--train_file", "nowhere/text"], "There is no file nowhere/text.en"),
        (["train", "--target_lang", "fr"], "The built-in phrases are English and German"),
        (["translate", "nowhere/model"], "nowhere/model"),
    ],
)
def test_a_failure_is_one_line_on_stderr_and_status_1(arguments, message, tmp_path, capsys):
    if arguments[0] == "train":
        arguments = [*arguments, "--output_dir", str(tmp_path / "out"), "--use_cpu"]
    assert main(arguments) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert "Traceback" not in captured.err
    assert len(captured.err.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


TRAIN = ["train", "--preset", "tiny", "--train_file", "text", "--output_dir", "out", "--use_cpu"]


@pytest.mark.parametrize(
    ("files", "arguments", "message"),
    [
        ({"text.en": "a\nb\n", "text.de": "c\n"}, TRAIN, "text.en has 2 lines but text.de has 1"),
        ({"text.en": "a\n"}, TRAIN, "There is no file text.de"),
        ({"text.en": "a\n", "text.de": "b\n"}, [*TRAIN, "--target_lang", "fr"], "There is no file text.fr"),
        (
            {"text.tsv": "en\tde\na\tb\n"},
            [*TRAIN, "--train_file", "text.tsv", "--target_lang", "fr"],
            "no column 'fr'",
        ),
        ({"text.en": b"a\n\xe4\n", "text.de": "b\nc\n"}, TRAIN, "text.en, line 2: not UTF-8"),
        ({"text.en": "\n \n", "text.de": "b\nc\n"}, TRAIN, "No pair is left of 2: 2 blank side"),
        ({"text.en": "a " * 30, "text.de": "b"}, [*TRAIN, "--max_tokens", "9"], "No pair is left of 1: 1 too long"),
        (
            {"text.en": "a\n", "text.de": "b\n"},
            [*TRAIN, "--vocab_size", "300"],
            "allows a vocabulary of 260 tokens, not",
        ),
        ({"text.en": "a\n", "text.de": "b\n"}, [*TRAIN, "--streaming"], "--streaming reads a folder made by"),
        ({"r.yaml": "max_stepz: 1\n"}, ["train", "r.yaml", *TRAIN[1:]], "r.yaml, line 1: unknown key 'max_stepz'"),
        ({}, ["train", "r.yaml", *TRAIN[1:]], "r.yaml"),
        ({"text.en": "a\n", "text.de": "b\n"}, [*TRAIN, "--tokenizer_name", "nowhere"], "nowhere"),
        ({}, ["train", "--dataset_name", "nowhere/set", "--output_dir", "out", "--use_cpu"], "nowhere/set"),
    ],
)
def test_bad_input_is_one_line_and_what_was_there_stays(files, arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    for name, content in files.items():
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    assert main(arguments) == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("vanilla-transformer: ")]
    assert len(lines) == 1
    assert message in lines[0]
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"
    assert not (tmp_path / "out" / "settings.yaml").exists()


@pytest.mark.parametrize("verb", ["evaluate", "translate"])
def test_a_tokenizer_that_does_not_fit_its_model_is_a_clear_error(verb, saved, capsys, monkeypatch):
    folder, _, _ = saved
    train_tokenizer([line + word for line in SOURCES for word in REFERENCES] * 9, 330).save_pretrained(
        folder / "model"
    )
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a dog\n")))
    assert main([verb, str(folder / "model")]) == 1
    assert "The tokenizer does not fit the model: it has 330 tokens" in capsys.readouterr().err


def test_a_run_in_a_folder_of_another_is_refused_and_the_folder_stays(saved, capsys):
    folder, _, _ = saved
    before = {file: file.read_bytes() for file in (folder / "model").iterdir()}
    assert main(["train", "--preset", "tiny", "--output_dir", str(folder / "model"), "--use_cpu"]) == 1
    assert "already holds a model; choose another --output_dir" in capsys.readouterr().err
    assert {file: file.read_bytes() for file in (folder / "model").iterdir()} == before


def test_evaluate_reads_a_data_set_of_the_hub(saved, capsys):
    folder, _, _ = saved
    rows = [{"de": de, "en": en} for de, en in zip(REFERENCES, SOURCES, strict=True)]
    (folder / "set").mkdir()
    datasets.Dataset.from_dict({"translation": rows}).to_parquet(folder / "set" / "test.parquet")
    scores = []
    for text in (["--dataset_name", str(folder / "set")], ["--test_file", str(folder / "test")]):
        assert main(["evaluate", str(folder / "model"), *text]) == 0
        scores.append({**json.loads(capsys.readouterr().out), "seconds": 0})
    assert [score.pop("text") for score in scores] == ["set, test", "test"]
    assert scores[0] == scores[1]


def command(*words, **how):
    return subprocess.Popen(
        [sys.executable, "-m", "hf_vanilla_transformer", *map(str, words)], text=True, stderr=subprocess.PIPE, **how
    )


@pytest.mark.slow
def test_translate_answers_each_line_as_soon_as_it_comes(saved):
    folder, model, tokenizer = saved
    with command("translate", folder / "model", stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        for line in ("a dog runs", "", "two men sit"):
            process.stdin.write(f"{line}\n")
            process.stdin.flush()
            expected = " ".join(translate(model, tokenizer, [line])[0].splitlines())
            assert process.stdout.readline() == f"{expected}\n"
        process.stdin.close()
        assert process.wait() == 0


@pytest.mark.slow
def test_output_that_nobody_reads_ends_translation_quietly(saved):
    folder, *_ = saved
    with command("translate", folder / "model", stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
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


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["export", "average"])
def test_ctrl_c_leaves_no_half_file(verb, saved):
    folder, *_ = saved
    if verb == "average":
        for step in range(1, 40):
            shutil.copytree(folder / "model", folder / "run" / f"checkpoint-{step}")
        words = ["average", folder / "run", "--last", 39, "--output_dir", folder / "out"]
    else:
        words = ["export", folder / "model", folder / "out", "--format", "ctranslate2"]
    before = set(folder.iterdir())
    with command(*words) as process:
        while process.poll() is None and set(folder.iterdir()) == before:
            time.sleep(0.001)
        process.send_signal(signal.SIGINT)
        process.communicate()
    assert process.returncode in (0, 130)
    left = {file.name for place in set(folder.iterdir()) - before for file in place.rglob("*")}
    assert not [name for name in left if "unfinished" in name]
    assert process.returncode == 0 or not left & {"model.safetensors", "model.bin"}


def piped(data: bytes, folder, monkeypatch, capsys) -> tuple[int, list[str], list[str]]:
    """Exit status, lines out and error lines of `translate` for these bytes on stdin."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data), encoding="ascii"))
    status = main(["translate", str(folder / "model"), "--num_beams", "1"])
    out, err = capsys.readouterr()
    errors = [line for line in err.splitlines() if line.startswith("vanilla-transformer: ")]
    return status, out.split("\n")[:-1], errors


def test_one_bad_line_loses_none_before_it_and_is_named(saved, monkeypatch, capsys):
    folder, model, tokenizer = saved
    good = translate(model, tokenizer, SOURCES[:2], num_beams=1)
    too_long = b"x" * ((1 << 20) + 1)
    for bad, message in ((b"\xff\n", "line 3: not UTF-8"), (too_long, "line 3: longer than 1,048,576")):
        data = "".join(f"{line}\n" for line in SOURCES[:2]).encode() + bad + b"two men sit\n"
        status, lines, errors = piped(data, folder, monkeypatch, capsys)
        assert status == 1
        assert lines == [" ".join(text.splitlines()) for text in good]
        assert len(errors) == 1
        assert f"standard input, {message}" in errors[0]


def test_windows_mark_of_utf8_on_stdin_is_no_text(saved, monkeypatch, capsys):
    folder, *_ = saved
    plain = piped(b"a dog runs\n", folder, monkeypatch, capsys)
    assert piped(b"\xef\xbb\xbfa dog runs\n", folder, monkeypatch, capsys) == plain
    assert plain[0] == 0


@pytest.mark.parametrize(
    ("streams", "message"), [("<&-", "Standard input is closed"), (">&-", "Standard output is closed")]
)
def test_a_closed_stream_is_one_line(saved, streams, message):
    folder, *_ = saved
    words = f'"{sys.executable}" -m hf_vanilla_transformer translate "{folder / "model"}" {streams}'
    run = subprocess.run(["bash", "-c", words], capture_output=True, text=True, input="a\n")
    assert run.returncode == 1
    assert len(run.stderr.splitlines()) == 1
    assert message in run.stderr


def test_translations_are_utf8_whatever_the_terminal_is(saved):
    folder, model, tokenizer = saved
    tokenizer = train_tokenizer(["ü ü ü"] * 3, 270)
    model = model.__class__.from_pretrained(folder / "model")
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    token = tokenizer("ü").input_ids[0]
    model.lm_head.bias.data[:] = -1e4
    model.lm_head.bias.data[token] = 1e4
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    run = subprocess.run(
        [sys.executable, "-m", "hf_vanilla_transformer", "translate", str(folder / "model"), "--num_beams", "1"],
        **{"input": "ü\n".encode(), "capture_output": True, "env": {**os.environ, "PYTHONIOENCODING": "ascii"}},
    )
    assert run.returncode == 0, run.stderr.decode()
    assert set(run.stdout.decode("utf-8").replace("\n", "").replace(" ", "")) == {"ü"}


def test_stdin_that_stays_open_does_not_spoil_the_end(saved):
    """A reader that waits for the next line must not abort the interpreter when translation has failed."""
    folder, model, _ = saved
    model.config.position_embedding = "learned"
    type(model)(model.config).save_pretrained(folder / "model")
    with command("translate", folder / "model", stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdin.write("a dog " * 99 + "\n")
        process.stdin.flush()
        errors = process.stderr.read()
        assert process.wait() == 1
        process.stdin.close()
    assert "learned positions" in errors
    assert "Fatal Python error" not in errors


@pytest.mark.parametrize("tokenization", ["ja-mecab", "char"])
def test_what_bleu_needs_is_known_before_anything_is_translated(saved, capsys, monkeypatch, tokenization):
    folder, *_ = saved
    monkeypatch.setitem(sys.modules, "MeCab", None)
    monkeypatch.delitem(sys.modules, "sacrebleu.tokenizers.tokenizer_ja_mecab", raising=False)
    for verb in (["evaluate", str(folder / "model")], ["compare", *[str(folder / "model")] * 2]):
        status = main([*verb, "--test_file", str(folder / "test"), "--bleu_tokenize", tokenization])
        err = capsys.readouterr().err
        assert status == (1 if tokenization == "ja-mecab" else 0)
        assert ("Translating" in err) is (tokenization == "char")


def test_the_same_language_twice_is_refused(saved, capsys):
    folder, *_ = saved
    words = ["evaluate", str(folder / "model"), "--test_file", str(folder / "test"), "--target_lang", "en"]
    assert main(words) == 1
    assert "both 'en'" in capsys.readouterr().err


def test_running_out_of_memory_is_one_line(saved, capsys, monkeypatch):
    def no_room(*args, **kwargs):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")

    folder, *_ = saved
    monkeypatch.setattr("hf_vanilla_transformer.inference.translation.translate", no_room)
    assert main(["evaluate", str(folder / "model"), "--test_file", str(folder / "test")]) == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("vanilla-transformer: ")]
    assert len(lines) == 1
    assert "Out of memory on the GPU: use smaller batches (--max_tokens" in lines[0]
