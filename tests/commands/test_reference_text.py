import json

import datasets

from hf_vanilla_transformer.cli import main


def test_unknown_languages_must_be_given_as_flags(saved, capsys):
    saved.model.config.source_lang = None
    saved.model.save_pretrained(saved.path)
    assert main(["evaluate", saved.path, "--test_file", saved.test_file]) == 2
    assert "--source_lang" in capsys.readouterr().err


def test_the_built_in_phrases_are_refused_for_other_languages(saved, capsys):
    saved.model.config.target_lang = "fr"
    saved.model.save_pretrained(saved.path)
    assert main(["evaluate", saved.path]) == 2
    assert "pass --test_file" in capsys.readouterr().err


def test_equal_source_and_target_languages_are_refused(saved, capsys):
    assert main(["evaluate", saved.path, "--test_file", saved.test_file, "--target_lang", "en"]) == 2
    assert "translates into de, not into 'en'" in capsys.readouterr().err


def test_a_dataset_scores_like_the_same_text_in_files(saved, capsys):
    rows = [{"de": de, "en": en} for de, en in zip(saved.references, saved.sources, strict=True)]
    (saved.folder / "set").mkdir()
    datasets.Dataset.from_dict({"translation": rows}).to_parquet(saved.folder / "set" / "test.parquet")
    scores = []
    for text in (["--dataset_name", str(saved.folder / "set")], ["--test_file", saved.test_file]):
        assert main(["evaluate", saved.path, *text]) == 0
        scores.append({**json.loads(capsys.readouterr().out), "seconds": 0})
    assert [score.pop("text") for score in scores] == ["set, test", "test"]
    assert scores[0] == scores[1]


def test_scores_on_a_dataset_of_the_hub_name_it_apart_from_its_split(saved, capsys, monkeypatch):
    rows = [{"de": de, "en": en} for de, en in zip(saved.references, saved.sources, strict=True)]
    split = datasets.Dataset.from_dict({"translation": rows})
    monkeypatch.setattr(
        "hf_vanilla_transformer.data.source.load_dataset", lambda *_, **__: datasets.DatasetDict(dev=split)
    )
    flags = ["--dataset_name", "someone/text", "--dataset_config_name", "de-en", "--split", "dev"]
    assert main(["evaluate", saved.path, *flags]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores["text"] == "someone/text, dev"
    assert scores["dataset"] == {"id": "someone/text", "config": "de-en", "split": "dev"}
