import pytest

from hf_vanilla_transformer.cli import main

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
        ({"text.en": "\n \n", "text.de": "b\nc\n"}, TRAIN, "Every pair was dropped (2 in total: 2 blank side)"),
        (
            {"text.en": "a " * 30, "text.de": "b"},
            [*TRAIN, "--max_tokens", "9"],
            "Every pair was dropped (1 in total: 1 too long)",
        ),
        (
            {"text.en": "a\n", "text.de": "b\n"},
            [*TRAIN, "--vocab_size", "300"],
            "allows a vocabulary of 260 tokens, not",
        ),
        ({"text.en": "a\n", "text.de": "b\n"}, [*TRAIN, "--streaming"], "--streaming reads a single folder made by"),
        ({"r.yaml": "max_stepz: 1\n"}, ["train", "r.yaml", *TRAIN[1:]], "r.yaml, line 1: unknown key 'max_stepz'"),
        ({}, ["train", "r.yaml", *TRAIN[1:]], "r.yaml"),
        ({"text.en": "a\n", "text.de": "b\n"}, [*TRAIN, "--tokenizer_name", "nowhere"], "nowhere"),
        ({}, ["train", "--dataset_name", "nowhere/set", "--output_dir", "out", "--use_cpu"], "nowhere/set"),
    ],
)
def test_invalid_input_is_reported_in_one_line_and_existing_files_are_kept(
    files, arguments, message, tmp_path, monkeypatch, capsys
):
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


def test_training_into_the_folder_of_another_model_is_refused(saved, capsys):
    folder = saved.folder / "model"
    before = {file: file.read_bytes() for file in folder.iterdir()}
    assert main(["train", "--preset", "tiny", "--output_dir", saved.path, "--use_cpu"]) == 1
    assert "already holds a model; choose another --output_dir" in capsys.readouterr().err
    assert {file: file.read_bytes() for file in folder.iterdir()} == before
