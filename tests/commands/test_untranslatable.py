"""Text that cannot be translated: every verb follows the same rule."""

import io
import json
import sys

import pytest
from small import write_moses

from hf_vanilla_transformer import translate
from hf_vanilla_transformer.cli import main

LONG = "a dog runs " * 40
LINES = ["a dog runs", LONG, "", "two men sit"]


@pytest.fixture
def on_stdin(saved, monkeypatch, capsys):
    """A function that translates lines from stdin with flags; returns the output lines and stderr."""

    def run(lines, *flags):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("\n".join(lines).encode())))
        assert main(["translate", saved.path, "--num_beams", "1", *flags]) == 0
        captured = capsys.readouterr()
        return captured.out.split("\n")[:-1], captured.err

    return run


def one_line(text: str) -> str:
    return " ".join(text.splitlines())


def test_stdin_writes_a_blank_line_and_names_the_number_and_a_count(saved, on_stdin):
    lines, errors = on_stdin(LINES)
    expected = [one_line(each) for each in translate(saved.model, saved.tokenizer, [LINES[0], LINES[3]], num_beams=1)]
    assert lines == [expected[0], "", "", expected[1]]
    assert "standard input, line 2: not translated: " in errors
    assert "tokens, more than 64" in errors
    assert "1 of 4 lines were not translated, and left blank" in errors


def test_stdin_splits_lines_into_sentences_on_request(saved, on_stdin):
    sentence = "A dog runs."
    lines, errors = on_stdin([f"{sentence} " * 30, sentence], "--split_sentences")
    expected = one_line(translate(saved.model, saved.tokenizer, sentence, num_beams=1))
    assert lines == [" ".join([expected] * 30) + " ", expected]
    assert "not translated" not in errors


def test_lines_and_files_keep_the_placeholders_of_users(saved, on_stdin, capsys):
    flags = ["--split_sentences", "--placeholders", r"ACME-\d+"]
    (line,), _ = on_stdin(["A dog ACME-12 runs."], *flags)
    assert line.count("ACME-12") == 1
    (saved.folder / "in.txt").write_text("A dog ACME-12 runs.\n")
    where = ["--input_files", str(saved.folder / "in.txt"), "--output_dir", str(saved.folder / "out")]
    files = ["--num_beams", "1", "--workers", "1", "--output_format", "txt"]
    assert main(["translate", saved.path, *where, *files, *flags]) == 0
    assert (saved.folder / "out" / "part-00000.txt").read_text() == f"{line}\n"


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--placeholders", "x"], "--placeholders requires --split_sentences."),
        (["--placeholders", "(", "--split_sentences"], "Not a regular expression for placeholders: '('"),
    ],
)
def test_wrong_placeholders_are_reported_before_the_model_is_loaded(flags, problem, tmp_path, capsys):
    file = tmp_path / "in.txt"
    file.write_text("a dog\n")
    for files in ([], ["--input_files", str(file), "--output_dir", str(tmp_path / "out")]):
        with pytest.raises(SystemExit, match="2"):
            sys.exit(main(["translate", "nowhere", *files, *flags]))
        assert problem in capsys.readouterr().err


def test_files_split_lines_into_sentences_on_request(saved, capsys):
    (saved.folder / "in.txt").write_text("A dog runs. " * 30 + "\n")
    where = ["--input_files", str(saved.folder / "in.txt"), "--output_dir", str(saved.folder / "out")]
    flags = ["--num_beams", "1", "--workers", "1", "--output_format", "txt", "--split_sentences"]
    assert main(["translate", saved.path, *where, *flags]) == 0
    expected = one_line(translate(saved.model, saved.tokenizer, "A dog runs.", num_beams=1))
    assert (saved.folder / "out" / "part-00000.txt").read_text() == " ".join([expected] * 30) + " \n"
    assert json.loads(capsys.readouterr().out)["unusable_lines"] == 0


def test_files_leave_the_line_blank_and_name_it(saved, capsys):
    (saved.folder / "in.txt").write_text("".join(f"{line}\n" for line in LINES))
    where = ["--input_files", str(saved.folder / "in.txt"), "--output_dir", str(saved.folder / "out")]
    assert main(["translate", saved.path, *where, "--workers", "1", "--output_format", "txt", "--num_beams", "1"]) == 0
    assert (saved.folder / "out" / "part-00000.txt").read_text().split("\n")[1] == ""
    captured = capsys.readouterr()
    assert "Left blank: in.txt, line 2: " in captured.err
    assert "Unusable lines, left blank: 1" in captured.err
    assert json.loads(captured.out)["unusable_lines"] == 1


@pytest.mark.parametrize("verb", ["evaluate", "compare"])
def test_scores_count_the_sentences_without_a_translation(verb, saved, capsys):
    write_moses(saved.folder / "long", en=LINES, de=["x"] * 4)
    models = [saved.path] * (2 if verb == "compare" else 1)
    assert main([verb, *models, "--test_file", str(saved.folder / "long"), "--num_beams", "1"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["untranslated"] == (1 if verb == "evaluate" else {"A": 1, "B": 1})
    assert "line 2: not translated: " in captured.err


@pytest.mark.parametrize("flag", ["--source_lang", "--target_lang"])
def test_a_language_that_the_model_does_not_have_is_refused_by_every_verb(flag, saved, capsys):
    (saved.folder / "in.txt").write_text("a dog\n")
    corpus = ["--input_files", str(saved.folder / "in.txt"), "--output_dir", str(saved.folder / "out")]
    text = ["--test_file", saved.test_file]
    for words in (
        ["translate", saved.path],
        ["translate", saved.path, *corpus],
        ["evaluate", saved.path, *text],
        ["score", saved.path, *text],
        ["compare", saved.path, saved.path, *text],
    ):
        assert main([*words, flag, "fr"]) == 2
        assert "'fr'" in capsys.readouterr().err.splitlines()[-1]
    assert not (saved.folder / "out").exists()


def test_a_page_on_stdin_keeps_its_tags(saved, on_stdin):
    # longer than a line of a corpus may be, as pages with their images in them are
    image = f"<img src='data:{'x' * (1 << 20)}'\r\n>"
    lines, _ = on_stdin([image, "<p>A <b>dog</b> runs.", "</p><br/>", "12", ""], "--format", "html")
    page = "\n".join(lines)
    assert page.startswith(f"{image}\n<p>")
    assert page.count("<b>") == page.count("</b>") == page.count("<p>") == 1
    assert page.endswith("</p><br/>\n12")
    assert main(["translate", saved.path, "--format", "html", "--output_dir", "b"]) == 2
