"""Names in files of strangers lead to no file outside their folder, whose words would end up in a vocabulary."""

import json
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest
from datasets import Dataset, Features, Image, Value

from hf_vanilla_transformer.data import source
from hf_vanilla_transformer.data.formats import DataError
from hf_vanilla_transformer.data.shards import load_shards
from hf_vanilla_transformer.data.source import HubDataset, TextFile
from hf_vanilla_transformer.files import inside

LANGUAGES = ("en", "de")
ROW = json.dumps({"en": "secret", "de": "geheim"}) + "\n"
pytestmark = pytest.mark.usefixtures("datasets_cache")


@pytest.fixture
def place(tmp_path):
    """A folder beside which there is text that is not part of it, and in which a link leads there."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "secret.jsonl").write_text(ROW)
    (tmp_path / "folder" / "link.jsonl").symlink_to(tmp_path / "secret.jsonl")
    (tmp_path / "folder" / "train.jsonl").write_text(ROW.replace("secret", "public"))
    return tmp_path / "folder"


def elsewhere(folder):
    names = ("../secret.jsonl", str(folder.parent / "secret.jsonl"), "link.jsonl", "x/../../secret.jsonl")
    return dict(zip(("above", "absolute", "link", "detour"), names, strict=True))


KINDS = ["above", "absolute", "link", "detour"]


@pytest.mark.parametrize("kind", KINDS)
def test_parts_of_a_translation(place, kind):
    manifest = {"settings": {"format": "jsonl"}, "whole": True, "spans": [], "parts": [elsewhere(place)[kind]]}
    (place / "translation.json").write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match=r"names '.*', which is outside the folder; nothing is read there"):
        list(TextFile(LANGUAGES, str(place)))
    (place / "translation.json").write_text(json.dumps(manifest | {"parts": ["./train.jsonl"]}))
    assert list(TextFile(LANGUAGES, str(place))) == [{"source": "public", "target": "geheim"}]


@pytest.mark.parametrize("kind", KINDS)
def test_shards_of_a_prepared_folder(place, kind):
    counts = {"pairs": 1, "bytes": len(ROW), "blake2b": ""}
    manifest = {"settings": {}, "whole": True, "read": 1, "pairs": 1, "drops": {}}
    manifest["shards"] = {elsewhere(place)[kind]: counts}
    (place / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match="which is outside the folder"):
        load_shards(str(place))


CARDS = {
    **{kind: f"data_files: {{{kind}}}" for kind in KINDS[:3]},
    "a pattern": "data_files: ../*.jsonl",
    "a folder": "data_dir: ../elsewhere",
    "one of two splits": "data_files:\n  - split: train\n    path: train.jsonl\n  - split: test\n    path: {above}",
    "a URL": "data_files: file://{absolute}",
}


@pytest.mark.parametrize("read", [HubDataset.pairs, list], ids=["loaded", "streamed"])
@pytest.mark.parametrize("card", CARDS)
def test_the_card_of_a_local_dataset(place, card, read):
    (place.parent / "elsewhere").mkdir()
    (place.parent / "elsewhere" / "train.jsonl").write_text(ROW)
    config = CARDS[card].format(**elsewhere(place))
    (place / "README.md").write_text(f"---\nconfigs:\n- config_name: default\n  {config}\n---\n")
    with pytest.raises(DataError, match="which is outside the folder"):
        read(HubDataset(LANGUAGES, str(place)))
    (place / "README.md").write_text("---\nconfigs:\n- config_name: default\n  data_files: train.jsonl\n---\n")
    assert read(HubDataset(LANGUAGES, str(place)))[0] == {"source": "public", "target": "geheim"}


@pytest.mark.parametrize(
    "file", ["{absolute}", "hf://datasets/someone/private@1/train.jsonl", "https://x.org/a.jsonl"]
)
def test_the_card_of_a_dataset_on_the_hub(place, file, monkeypatch):
    config = SimpleNamespace(data_files={"train": ["hf://datasets/someone/set@1/train.jsonl"]})
    rows = {"train": Dataset.from_dict({"en": ["a"], "de": ["b"]})}
    builder = SimpleNamespace(name="json", config=config, download_and_prepare=lambda: None, as_dataset=lambda: rows)
    monkeypatch.setattr(source, "load_dataset_builder", lambda *_, **__: builder)
    assert HubDataset(LANGUAGES, "someone/set").pairs()[0] == {"source": "a", "target": "b"}
    config.data_files["test"] = [file.format(**elsewhere(place))]
    with pytest.raises(DataError, match="which is not part of it; nothing is read there"):
        HubDataset(LANGUAGES, "someone/set").pairs()


def test_pictures_of_a_dataset_are_not_opened(tmp_path):
    features = Features({"en": Value("string"), "de": Value("string"), "picture": Image()})
    rows = {"en": ["a"], "de": ["b"], "picture": [{"path": "/dev/no such device", "bytes": None}]}
    (tmp_path / "set").mkdir()
    pq.write_table(Dataset.from_dict(rows, features=features).data.table, tmp_path / "set" / "train.parquet")
    assert list(HubDataset(LANGUAGES, str(tmp_path / "set"))) == [{"source": "a", "target": "b"}]


@pytest.mark.parametrize("name", ["", "a" * 300, "~/x", "x/../y"])
def test_names_of_files_inside(tmp_path, name, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in (tmp_path, "."):
        assert inside(folder, name).resolve().is_relative_to(tmp_path)


@pytest.mark.parametrize("name", ["\0", "../folder2/x", "..", "loop"])
def test_names_of_nothing_inside(tmp_path, name, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    for folder in (tmp_path, "."):
        with pytest.raises((ValueError, OSError), match=r"outside the folder|symbolic links"):
            inside(folder, name).read_text()
