"""Reading datasets in the layout of the Hub."""

import errno
import os
import random

import datasets
import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset

from hf_vanilla_transformer.data.formats import DataError
from hf_vanilla_transformer.data.source import BuiltInPhrases, HubDataset, Source, TextFile, _parquet_tables

LANGUAGES = ("en", "de")
pytestmark = pytest.mark.usefixtures("datasets_cache")


@pytest.fixture
def hub_dataset(tmp_path):
    """A dataset in the layout of the Hub, with two configurations and the same feature type as the WMT datasets."""
    translation = datasets.Features({"translation": datasets.Translation(languages=["de", "en"])})
    for config, splits in {"de-en": ("train", "validation", "test"), "small": ("train",)}.items():
        for split in splits:
            rows = {"translation": [{"de": f"{split} eins", "en": f"{split} one"}]}
            (tmp_path / "set" / config).mkdir(parents=True, exist_ok=True)
            Dataset.from_dict(rows, features=translation).to_parquet(tmp_path / f"set/{config}/{split}.parquet")
    configs = "".join(f"- config_name: {name}\n  data_dir: {name}\n" for name in ("de-en", "small"))
    (tmp_path / "set" / "README.md").write_text(f"---\nconfigs:\n{configs}---\n")
    return str(tmp_path / "set")


def test_a_dataset_comes_with_its_validation_split_if_it_has_one(hub_dataset):
    train = HubDataset(LANGUAGES, hub_dataset, "de-en")
    for name, source in (("train", train), ("validation", train.validation())):
        assert source.pairs()[0] == {"source": f"{name} one", "target": f"{name} eins"}
    assert HubDataset(LANGUAGES, hub_dataset, "small").validation() is None


def test_a_missing_split_or_language_of_a_hub_dataset_is_reported_with_the_existing_ones(hub_dataset):
    with pytest.raises(DataError, match=r"\(small\) has no split test; its splits are train"):
        HubDataset(LANGUAGES, hub_dataset, "small", "test").pairs()
    with pytest.raises(DataError, match=r"\(de-en\), train, has no column 'fr'; its columns are de, en"):
        HubDataset(("en", "fr"), hub_dataset, "de-en").pairs()


def test_a_dataset_on_the_hub_that_was_loaded_is_known_by_its_text(tmp_path):
    def loaded(*targets: str, name: str = "someone/text", chunks: int = 1) -> HubDataset:
        source = HubDataset(LANGUAGES, name)
        rows = Dataset.from_dict({"en": ["a dog", "a cat"], "de": targets})
        parts = [rows.shard(chunks, i, contiguous=True) for i in range(chunks)]
        source._splits = datasets.DatasetDict(train=datasets.concatenate_datasets(parts))
        return source

    identity = loaded("ein H.", "die K.").identity()
    assert loaded("die K.", "ein H.").identity() != identity  # as after an update of the dataset
    assert loaded("ein H.", "die K.", name="later/name", chunks=2).identity() == identity


def test_a_null_row_of_a_stream_is_blank(tmp_path):
    (tmp_path / "null").mkdir()
    rows = [{"en": "a", "de": "b"}, None]
    Dataset.from_dict({"translation": rows}).to_parquet(tmp_path / "null" / "train.parquet")
    expected = [{"source": "a", "target": "b"}, {"source": "", "target": ""}]
    assert list(HubDataset(LANGUAGES, str(tmp_path / "null"))) == expected


def test_a_stream_without_the_language_or_with_numbers_is_reported(hub_dataset, tmp_path):
    with pytest.raises(DataError, match=r"\(de-en\), row 1: no 'fr' among the keys \(de, en\)"):
        list(HubDataset(("en", "fr"), hub_dataset, "de-en"))
    (tmp_path / "numbers").mkdir()
    Dataset.from_dict({"en": ["a", "b"], "de": [1, 2]}).to_parquet(tmp_path / "numbers" / "train.parquet")
    with pytest.raises(DataError, match="row 1: the value of 'de' is not a string"):
        list(HubDataset(LANGUAGES, str(tmp_path / "numbers")))


def test_hidden_files_in_a_local_dataset_do_not_change_what_it_is(tmp_path):
    folder = tmp_path / "text"
    folder.mkdir()
    pq.write_table(pa.table({"en": ["a"], "de": ["b"]}), folder / "train.parquet")
    before = HubDataset(LANGUAGES, str(folder)).identity()
    for name in (".git/HEAD", ".cache/huggingface/x.metadata", ".DS_Store"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("changes")
    assert HubDataset(LANGUAGES, str(folder)).identity() == before
    pq.write_table(pa.table({"en": ["a"], "de": ["c"]}), folder / "train.parquet")
    assert HubDataset(LANGUAGES, str(folder)).identity() != before


def test_views_of_strings_in_a_local_dataset_are_text(tmp_path):
    (tmp_path / "views").mkdir()
    columns = {side: pa.array(text, pa.string_view()) for side, text in (("en", ["a", None]), ("de", ["b", "c"]))}
    pq.write_table(pa.table(columns), tmp_path / "views" / "train.parquet")
    views = HubDataset(LANGUAGES, str(tmp_path / "views"))
    other = BuiltInPhrases(LANGUAGES)
    joined = Source([views, other]).pairs()
    assert joined[:2] == {"source": ["a", None], "target": ["b", "c"]}
    assert len(joined) == 2 + len(other.pairs())


def test_equal_source_and_target_languages_are_rejected(tmp_path):
    Dataset.from_dict({"en": ["a"], "de": ["b"]}).to_parquet(tmp_path / "text.parquet")
    with pytest.raises(DataError, match="both 'en'"):
        HubDataset(("en", "en"), str(tmp_path)).pairs()


@pytest.mark.parametrize("read", [HubDataset.pairs, list], ids=["loaded", "streamed"])
@pytest.mark.parametrize("name", ["arrow", "xml"])
def test_formats_whose_readers_trust_their_files_are_refused(tmp_path, name, read):
    (tmp_path / "set").mkdir()
    with pa.OSFile(str(tmp_path / "set" / f"train.{name}"), "wb") as sink:
        table = pa.table({"en": ["a"], "de": ["b"]})
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
    message = f"set has files of the format {name}, which are not read; convert them to parquet."
    with pytest.raises(DataError, match=message):
        read(HubDataset(LANGUAGES, str(tmp_path / "set")))


@pytest.mark.parametrize("read", [HubDataset.pairs, list], ids=["loaded", "streamed"])
@pytest.mark.parametrize("column", ["de", "picture"])
def test_a_local_dataset_that_repeats_a_text_is_refused_before_it_fills_the_memory(tmp_path, column, read):
    (tmp_path / "set").mkdir()
    long = pa.DictionaryArray.from_arrays(pa.array([0] * 20_000, pa.int32()), pa.array(["x" * 1_000_000]))
    rows = {"en": ["a"] * 20_000, "de": ["b"] * 20_000} | {column: long}
    pq.write_table(pa.table(rows), tmp_path / "set" / "train.parquet", compression="zstd")
    with pytest.raises(DataError, match=r"train\.parquet repeats its texts so often that they exceed 134,217,728"):
        read(HubDataset(LANGUAGES, str(tmp_path / "set")))


def repeated(rows: int) -> pa.Array:
    """Return a text of 1 MB so many times, stored once."""
    return pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array(["x" * 1_000_000]))


@pytest.mark.parametrize("read", [HubDataset.pairs, list], ids=["loaded", "streamed"])
def test_a_dataset_on_the_hub_that_repeats_a_text_is_refused_as_well(tmp_path, read, monkeypatch):
    with fsspec.open("memory://train.parquet", "wb") as file:
        pq.write_table(pa.table({"en": repeated(20_000), "de": ["b"] * 20_000}), file)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    builder = datasets.load_dataset_builder("parquet", data_files="memory://train.parquet")
    monkeypatch.setattr("hf_vanilla_transformer.data.source.load_dataset_builder", lambda *_, **__: builder)
    monkeypatch.setattr(HubDataset, "_check_file", lambda *_: None)
    with pytest.raises(DataError, match="repeats its texts so often that they exceed 134,217,728"):
        read(HubDataset(LANGUAGES, "someone/text"))


@pytest.mark.parametrize("read", [HubDataset.pairs, list], ids=["loaded", "streamed"])
@pytest.mark.parametrize("kind", ["list", "list of structs"])
def test_a_row_that_repeats_a_text_is_refused_before_it_is_written_out(tmp_path, kind, read):
    texts = repeated(20_000)
    items = texts if kind == "list" else pa.StructArray.from_arrays([texts], ["text"])
    column = pa.ListArray.from_arrays(pa.array([0, len(items)], pa.int32()), items)
    (tmp_path / "set").mkdir()
    table = pa.table({"en": ["a"], "de": ["b"], "other": column})
    pq.write_table(table, tmp_path / "set" / "train.parquet", compression="zstd")
    with pytest.raises(DataError, match="repeats its texts so often that they exceed 134,217,728"):
        read(HubDataset(LANGUAGES, str(tmp_path / "set")))


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOTSUP])
def test_a_cache_without_locks_is_named_and_what_to_do(tmp_path, code, monkeypatch):
    def refuse(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("fcntl.flock", refuse)
    (tmp_path / "text.en").write_text("a\n")
    (tmp_path / "text.de").write_text("b\n")
    message = rf"^The cache folder .* cannot be used \({os.strerror(code)}\); .*set HF_DATASETS_CACHE"
    with pytest.raises(OSError, match=message):
        TextFile(LANGUAGES, str(tmp_path / "text")).pairs()


def test_small_parts_of_a_parquet_file_are_joined_up_to_a_limit(tmp_path, monkeypatch):
    texts = [f"A dog {number} runs." for number in range(1000)]
    pq.write_table(pa.table({"en": texts, "de": texts}), tmp_path / "train.parquet", row_group_size=300)
    builder = datasets.load_dataset_builder("parquet", data_files=str(tmp_path / "train.parquet"))

    def tables() -> list[pa.Table]:
        return [table for _, table in _parquet_tables(builder, [str(tmp_path / "train.parquet")], [None])]

    (joined,) = tables()
    assert joined.column("en").num_chunks == 1
    assert joined.column("de").to_pylist() == texts
    monkeypatch.setattr("hf_vanilla_transformer.data.source._TABLE_BYTES", 10_000)
    several = tables()
    assert all(table.nbytes <= 10_000 for table in several)
    assert 4 <= len(several) <= 6
    assert pa.concat_tables(several).column("en").to_pylist() == texts


def test_a_row_of_long_text_is_not_called_a_repetition(tmp_path):
    (tmp_path / "set").mkdir()
    text = random.Random(1).randbytes(300_000).hex() * 250
    table = pa.table({"en": [text], "de": ["b"]})
    pq.write_table(table, tmp_path / "set" / "train.parquet", compression="zstd", use_dictionary=False)
    with pytest.raises(
        DataError, match=r"train\.parquet has a row with more than 134,217,728 bytes; divide or remove it"
    ):
        HubDataset(LANGUAGES, str(tmp_path / "set")).pairs()
