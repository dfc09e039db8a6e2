"""The verb `import`: the files that it writes, and what it says."""

import json
import shlex
import shutil

from import_files import write_csv, write_xlsx
from small import write_moses

from hf_vanilla_transformer.cli import main
from hf_vanilla_transformer.training.recipes import parse_arguments

PAIRS = [(f"the dog number {i} runs", f"der Hund Nummer {i} läuft") for i in range(200)]


def run(tmp_path, *files, out="data", more=()):
    names = [str(tmp_path / file) for file in files]
    return main(
        ["import", *names, "--source_lang", "en", "--target_lang", "de", "--output_dir", str(tmp_path / out), *more]
    )


def lines(tmp_path, name) -> list[str]:
    return (tmp_path / name).read_text("utf-8").splitlines()


def test_several_files_become_three_aligned_parts(tmp_path, capsys):
    write_xlsx(tmp_path / "a.xlsx", PAIRS[:120])
    write_csv(tmp_path / "b.csv", PAIRS[100:])
    assert run(tmp_path, "a.xlsx", "b.csv", more=("--validation", "0.1", "--test", "30")) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary == {
        "read": 220,
        "dropped": {"duplicate": 20},
        "without_markup": 0,
        "train": 150,
        "validation": 20,
        "test": 30,
    }
    found = [
        pair
        for part in ("train", "validation", "test")
        for pair in zip(lines(tmp_path, f"data/{part}.en"), lines(tmp_path, f"data/{part}.de"), strict=True)
    ]
    assert sorted(found) == sorted(PAIRS)
    assert json.loads((tmp_path / "data" / "import.json").read_text())["files"] == ["a.xlsx", "b.csv"]


def test_the_command_to_train_on_it_works(tmp_path, capsys):
    write_moses(tmp_path / "a b", en=[f"word {i}" for i in range(40)], eo=[f"vorto {i}" for i in range(40)])
    flags = ["--source_lang", "en", "--target_lang", "eo", "--output_dir", str(tmp_path / "my words")]
    for held_out in ([], ["--validation", "0", "--test", "0"]):
        assert main(["import", str(tmp_path / "a b"), *flags, *held_out]) == 0
        command = capsys.readouterr().err.partition("Train on it with: vanilla-transformer ")[2]
        words = shlex.split(command)
        assert ("--validation_file" in words) == (not held_out)
        (recipe,) = parse_arguments(words[1:])
        assert recipe.folder == str(tmp_path / "my words" / "model")
        shutil.rmtree(tmp_path / "my words")


def test_text_that_is_held_out_elsewhere_is_left_out(tmp_path, capsys):
    write_xlsx(tmp_path / "a.xlsx", PAIRS)
    assert run(tmp_path, "a.xlsx") == 0
    assert json.loads(capsys.readouterr().out)["test"] == 20  # a tenth
    assert (
        run(
            tmp_path,
            "a.xlsx",
            out="again",
            more=("--validation", "0", "--test", "0", "--exclude", str(tmp_path / "data" / "test")),
        )
        == 0
    )
    assert json.loads(capsys.readouterr().out)["dropped"] == {"excluded": 20}
    assert not set(lines(tmp_path, "again/train.en")) & set(lines(tmp_path, "data/test.en"))
    assert not (tmp_path / "again" / "test.en").exists()


def test_the_encoding_of_the_files_is_not_that_of_what_they_exclude(tmp_path, capsys):
    (tmp_path / "a.csv").write_text("en;de\nmany bears;viele Bären\nmany dogs;viele Hunde\n", "cp1252")
    (tmp_path / "held.en").write_text("other\n", "utf-8")
    (tmp_path / "held.de").write_text("viele Bären\n", "utf-8")
    more = ("--encoding", "cp1252", "--validation", "0", "--test", "0", "--exclude", str(tmp_path / "held"))
    assert run(tmp_path, "a.csv", more=more) == 0
    assert json.loads(capsys.readouterr().out)["dropped"] == {"excluded": 1}
    assert lines(tmp_path, "data/train.de") == ["viele Hunde"]


def test_a_file_that_cannot_be_read_leaves_no_folder(tmp_path, capsys):
    write_xlsx(tmp_path / "a.xlsx", PAIRS)
    (tmp_path / "b.xlsx").write_bytes((tmp_path / "a.xlsx").read_bytes()[:1000])
    assert run(tmp_path, "b.xlsx") == 1
    # once, not also as a note of what was left out
    assert capsys.readouterr().err.count("b.xlsx: damaged") == 1
    assert not (tmp_path / "data").exists()


def test_a_file_that_cannot_be_read_among_others_is_reported_and_counted(tmp_path, capsys):
    write_xlsx(tmp_path / "a.xlsx", PAIRS)
    (tmp_path / "b.xlsx").write_bytes((tmp_path / "a.xlsx").read_bytes()[:1000])
    (tmp_path / "c.tmx").write_text("<tmx><body>", "utf-8")
    assert run(tmp_path, "b.xlsx", "a.xlsx", "c.tmx") == 0
    output = capsys.readouterr()
    assert json.loads(output.out)["dropped"] == {"unreadable file": 2}
    assert "b.xlsx: damaged" in output.err
    assert "c.tmx: damaged XML" in output.err
    # a wrong name is a mistake of the user's, which is told before anything is read
    assert run(tmp_path, "a.xlsx", "d.xlsx", out="more") == 1
    assert "d.xlsx: neither a file nor a pair" in capsys.readouterr().err
    assert run(tmp_path, "b.xlsx", "c.tmx", out="more") == 1
    assert "b.xlsx: damaged" in capsys.readouterr().err


def test_names_of_columns_are_not_those_of_the_languages(tmp_path, capsys):
    (tmp_path / "a.csv").write_text("".join(f"{en},{de}\n" for en, de in [("Source", "Target"), *PAIRS]))
    assert run(tmp_path, "a.csv", more=("--columns", "Source", "Target", "--target_lang", "pt-BR")) == 0
    assert "not a code" not in capsys.readouterr().err
    assert sorted(file.name for file in (tmp_path / "data").glob("train.*")) == ["train.en", "train.pt-BR"]
    assert run(tmp_path, "a.csv", out="named", more=("--source_lang", "Source", "--target_lang", "Target")) == 0
    assert "Source and Target: not a code such as en or pt-BR, so the card will not name" in capsys.readouterr().err


def test_wrong_flags_are_refused(tmp_path, capsys):
    write_xlsx(tmp_path / "a.xlsx", PAIRS)
    for more, message in (
        (("--columns", "en"), "--columns takes two names"),
        (("--validation", "1.5"), "a share below 1"),
        (("--validation", "-1"), "a share below 1"),
        (("--target_lang", "en"), "are the same"),
    ):
        try:
            status = run(tmp_path, "a.xlsx", more=more)
        except SystemExit as stop:
            status = stop.code
        assert status == 2
        assert message in capsys.readouterr().err


def test_what_was_recognised_is_said_before_an_error(tmp_path, capsys):
    (tmp_path / "a.csv").write_bytes("Français;Deutsch\r\nété;Sommer\r\n".encode("cp850"))
    assert run(tmp_path, "a.csv", more=("--columns", "Français", "Swahili", "--encoding", "cp437")) == 1
    notes = capsys.readouterr().err
    assert "encoding: cp437" in notes
    assert notes.index("separator: ';'") < notes.index("no column Swahili")
