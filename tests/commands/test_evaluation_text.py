import json
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from urllib.error import URLError

import datasets
import pytest
from sacrebleu.dataset import DATASETS

from hf_vanilla_transformer.cli import main
from hf_vanilla_transformer.data import source


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
    config = SimpleNamespace(data_files=None)
    prepared = {"download_and_prepare": lambda: None, "as_dataset": lambda: datasets.DatasetDict(dev=split)}
    monkeypatch.setattr(
        source, "load_dataset_builder", lambda *_, **__: SimpleNamespace(name="parquet", config=config, **prepared)
    )
    flags = ["--dataset_name", "someone/text", "--dataset_config_name", "de-en", "--split", "dev"]
    assert main(["evaluate", saved.path, *flags]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores["text"] == "someone/text, dev"
    assert scores["dataset"] == {"id": "someone/text", "config": "de-en", "split": "dev"}


@pytest.fixture
def sacrebleu_cache(saved, monkeypatch):
    """The folder where sacreBLEU looks for wmt14/full, without a network."""

    def refuse(*args, **kwargs):
        raise URLError("no network")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    folder = saved.folder / "wmt14" / "full"
    monkeypatch.setattr(DATASETS["wmt14/full"], "_outdir", str(folder))
    monkeypatch.setattr(DATASETS["wmt14/full"], "_rawdir", str(folder / "raw"))
    return folder


def write_sgml(folder: Path, **texts: list[str]) -> None:
    """Write a test set as the archive of WMT 2014 holds it, extracted, so that it need not be downloaded."""
    (folder / "raw" / "test-full").mkdir(parents=True)
    (folder / "raw" / "wmt14_full.test-full.tgz").write_bytes(b"extracted already")
    for name, lines in texts.items():
        side, _, language = name.partition("_")
        segments = [f'<seg id="{i}">{line}</seg>' for i, line in enumerate(lines, start=1)]
        text = "\n".join(['<doc docid="d" genre="news" origlang="en">', *segments, "</doc>", ""])
        (folder / "raw" / "test-full" / f"newstest2014-deen-{side}.{language}.sgm").write_text(text, encoding="utf-8")


def test_a_test_set_of_sacrebleu_scores_like_the_same_text_in_files(saved, sacrebleu_cache, capsys):
    # sacreBLEU collapses white space
    sources = [" ".join(line.split()) for line in saved.sources]
    write_sgml(sacrebleu_cache, src_en=sources, ref_de=saved.references)
    scores = []
    for text in (["--sacrebleu_testset", "wmt14/full"], ["--test_file", saved.test_file]):
        assert main(["evaluate", saved.path, *text]) == 0
        scores.append({**json.loads(capsys.readouterr().out), "seconds": 0})
    assert [score.pop("text") for score in scores] == ["wmt14/full", "test"]
    assert scores[0] == scores[1]
    for verb in (["compare", saved.path, saved.path], ["score", saved.path]):
        assert main([*verb, "--sacrebleu_testset", "wmt14/full"]) == 0


def test_a_test_set_that_cannot_be_had_is_reported_in_one_line(saved, sacrebleu_cache, capsys):
    for name, status, message in (
        ("wmt14/full", 1, "Cannot download sacreBLEU's test set wmt14/full (<urlopen error no network>)"),
        ("wmt14/ful", 2, "sacreBLEU has no test set 'wmt14/ful' for en-de; it has: "),
    ):
        assert main(["evaluate", saved.path, "--sacrebleu_testset", name]) == status
        (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("vanilla-transformer: ")]
        assert message in line
    assert main(["evaluate", saved.path, "--sacrebleu_testset", "wmt14/full", "--test_file", "x"]) == 2
    assert "Give only one of --test_file, --dataset_name and --sacrebleu_testset" in capsys.readouterr().err


def test_a_test_set_with_several_references_is_refused(saved, sacrebleu_cache, capsys, monkeypatch):
    write_sgml(sacrebleu_cache, src_en=["a"], ref_de=["a"])
    monkeypatch.setattr(DATASETS["wmt14/full"], "get_reference_files", lambda direction: ["a", "b"])
    assert main(["evaluate", saved.path, "--sacrebleu_testset", "wmt14/full"]) == 2
    assert "wmt14/full has 2 references for en-de; only one can be used here" in capsys.readouterr().err
