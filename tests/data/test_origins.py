"""Every origin of parallel text is a source that yields the same pairs and rows for the same text."""

import ast
import csv
import gzip
import itertools
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from copy import copy, deepcopy
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import small
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_text import LANGUAGES, PAIRS, prepare_sample

import hf_vanilla_transformer
from hf_vanilla_transformer import VanillaTransformerConfig
from hf_vanilla_transformer.data.formats import DataError
from hf_vanilla_transformer.data.source import (
    BuiltInPhrases,
    DirectedLines,
    HubDataset,
    PreparedFolder,
    Source,
    Text,
    TextFile,
    Tokenization,
)
from hf_vanilla_transformer.data.tokenizer import add_tags
from hf_vanilla_transformer.model.text_rules_vanilla_transformer import language_tag

Pairs = list[tuple[str, str]]
pytestmark = pytest.mark.usefixtures("datasets_cache")


def write_moses(folder: Path, pairs: Pairs) -> Text:
    for language, side in zip(LANGUAGES, zip(*pairs, strict=True), strict=True):
        (folder / f"text.{language}").write_bytes("".join(f"{line}\n" for line in side).encode())
    return TextFile(LANGUAGES, str(folder / "text"))


def write_compressed_moses(folder: Path, pairs: Pairs) -> Text:
    write_moses(folder, pairs)
    (folder / "packed.en.gz").write_bytes(gzip.compress((folder / "text.en").read_bytes()))
    with pa.output_stream(str(folder / "packed.de.zst"), compression="zstd") as file:
        file.write((folder / "text.de").read_bytes())
    return TextFile(LANGUAGES, str(folder / "packed"))


def write_tsv(folder: Path, pairs: Pairs) -> Text:
    (folder / "text.tsv").write_bytes("".join(f"{en}\t{de}\n" for en, de in [LANGUAGES, *pairs]).encode())
    return TextFile(LANGUAGES, str(folder / "text.tsv"))


def write_csv(folder: Path, pairs: Pairs) -> Text:
    with (folder / "text.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("de", "en"), *((de, en) for en, de in pairs)])
    return TextFile(LANGUAGES, str(folder / "text.csv"))


def write_jsonl(folder: Path, pairs: Pairs) -> Text:
    lines = (json.dumps({"translation": {"en": en, "de": de}}) for en, de in pairs)
    (folder / "text.jsonl").write_text("\n".join(lines))
    return TextFile(LANGUAGES, str(folder / "text.jsonl"))


def write_directed_jsonl(folder: Path, pairs: Pairs) -> Text:
    rows = [{"source": de, "target": en, "source_lang": "de", "target_lang": "en"} for en, de in pairs]
    rows += [{"source": en, "target": de, "source_lang": "en", "target_lang": "de"} for en, de in pairs]
    (folder / "directed.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return DirectedLines(LANGUAGES, str(folder / "directed.jsonl"), ("en-de", "de-en"))


def write_parquet(folder: Path, pairs: Pairs) -> Text:
    Dataset.from_list([{"de": de, "en": en} for en, de in pairs]).to_parquet(folder / "text.parquet")
    return TextFile(LANGUAGES, str(folder / "text.parquet"))


def write_translations(folder: Path, pairs: Pairs) -> Text:
    parts = {"1.jsonl": pairs[:1], "2.jsonl": pairs[1:]}
    for name, part in parts.items():
        (folder / name).write_text("".join(json.dumps({"en": en, "de": de}) + "\n" for en, de in part))
    manifest = {"settings": {"format": "jsonl"}, "spans": [], "whole": True, "parts": list(parts)}
    (folder / "translation.json").write_text(json.dumps(manifest))
    return TextFile(LANGUAGES, str(folder))


def write_hub_dataset(folder: Path, pairs: Pairs) -> Text:
    rows = [{"translation": {"en": en, "de": de}} for en, de in pairs]
    Dataset.from_list(rows).to_parquet(folder / "train.parquet")
    return HubDataset(LANGUAGES, str(folder))


WRITERS = [
    write_moses,
    write_compressed_moses,
    write_tsv,
    write_csv,
    write_jsonl,
    write_directed_jsonl,
    write_parquet,
    write_translations,
    write_hub_dataset,
]
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\n\r\t\ufeff"), max_size=12)


def read(text: Source) -> Pairs:
    return [(pair["source"], pair["target"]) for pair in text]


@pytest.mark.parametrize("write", WRITERS)
@settings(max_examples=5, deadline=None)
@given(pairs=st.lists(st.tuples(texts, texts), min_size=1, max_size=4))
def test_every_origin_yields_the_same_pairs_row_by_row_and_as_a_dataset(write: Callable[..., Text], pairs: Pairs):
    with tempfile.TemporaryDirectory() as folder:
        text = write(Path(folder), pairs)
        assert read(text) == pairs
        assert list(zip(*(text.pairs()[side] for side in ("source", "target")), strict=True)) == pairs


def tokenization(tokenizer, messages: list[str]) -> Tokenization:
    return Tokenization(tokenizer, VanillaTransformerConfig(), 200, messages.append)


def contents(rows) -> list[tuple]:
    return sorted((tuple(map(int, row["input_ids"])), tuple(map(int, row["labels"]))) for row in rows)


def test_every_origin_yields_the_same_rows_also_prepared_and_streamed(sample_folder, sample_tokenizer):
    prepared, _ = prepare_sample(sample_folder, sample_tokenizer, cleaning=None)
    found: dict[str, Text] = {}
    for write in WRITERS:
        folder = sample_folder / write.__name__
        folder.mkdir()
        found[write.__name__] = write(folder, PAIRS)
    found["prepared"] = PreparedFolder(LANGUAGES, str(prepared))

    messages: list[str] = []
    how = tokenization(sample_tokenizer, messages)
    rows = {name: text.tokenize(how, name) for name, text in found.items()}
    expected = contents(rows["write_moses"])
    assert len(expected) == 299  # one pair has a blank side
    for name, each in rows.items():
        assert contents(each) == expected, name
        assert [side.tolist() for side in each.lengths] == [side.tolist() for side in rows["write_moses"].lengths]
        assert found[name].counts == (300, 299, {"blank side": 1}), name
    assert messages[0] == "write_moses: 299 of 300 pairs; dropped: 1 blank side"
    assert messages[-1] == "prepared: 299 prepared pairs"

    stream: Any = PreparedFolder(LANGUAGES, str(prepared), streamed=True).tokenize(how, "stream")
    stream.buffer_pairs = 299  # one pass
    batches = iter(stream)
    streamed: list[dict] = []
    while len(streamed) < 299:
        streamed += next(batches)
    assert contents(streamed) == expected

    how.tokenizer = deepcopy(sample_tokenizer)
    how.config = VanillaTransformerConfig(position_embedding="learned", max_position_embeddings=9)
    with pytest.raises(DataError, match=r"has pairs of up to [0-9]+ tokens, more than 9; prepare the text again"):
        found["prepared"].tokenize(how, "prepared")

    how.config = VanillaTransformerConfig()
    add_tags(how.tokenizer, [language_tag(LANGUAGES[1])])
    how.config.language_pairs = ["-".join(LANGUAGES)]
    with pytest.raises(ValueError, match="cannot be streamed: the model's sources start with a tag"):
        PreparedFolder(LANGUAGES, str(prepared), streamed=True).tokenize(how, "stream")


def test_a_mixture_is_a_source_with_the_pairs_counts_and_identity_of_its_parts(sample_folder, sample_tokenizer):
    first, second = (TextFile(LANGUAGES, str(sample_folder / name)) for name in ("first", "second"))
    backward = TextFile(("de", "en"), str(sample_folder / "first"))
    mixture = Source([Source([first, second]), backward])
    assert read(mixture) == [*PAIRS, *((de, en) for en, de in PAIRS[:180])]
    assert mixture.pairs()["target"][:] == [target for _, target in read(mixture)]
    assert mixture.parts == [first, second, backward]
    assert mixture.identity() == [*first.identity(), *second.identity(), *backward.identity()]
    rows = mixture.tokenize(tokenization(sample_tokenizer, []), "train")
    assert len(rows) == mixture.counts.used == 299 + 179
    assert mixture.counts == (480, 478, {"blank side": 2})


def write_at(time: int, write: Callable[..., Text], folder: Path, pairs: Pairs) -> Text:
    """Write a text whose files have the given modification time."""
    text = write(folder, pairs)
    for file in folder.rglob("*"):
        os.utime(file, (time, time))
    return text


def in_folder(text: Text, old: Path, new: Path) -> Text:
    """Return the same text in another folder."""
    moved = copy(text)
    for name in ("path", "dataset"):
        if hasattr(text, name):
            setattr(moved, name, getattr(text, name).replace(str(old), str(new)))
    return moved


def sizes_and_times(folder: Path) -> dict[str, tuple[int, int]]:
    """Return the size in bytes and the time of the last modification of each file."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    return {str(file.relative_to(folder)): (file.stat().st_size, file.stat().st_mtime_ns) for file in files}


# The target is shifted by one line: the sizes of all files are the same
SHIFTED = [([("a dog", "ein H."), ("a cat", "die K.")], [("a dog", "die K."), ("a cat", "ein H.")])]


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize(("pairs", "other"), SHIFTED)
def test_other_text_of_the_same_path_size_and_time_is_another_text(write, pairs, other, tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    text = write_at(1_700_000_000, write, folder, pairs)
    states = sizes_and_times(folder)
    identity = text.identity()
    assert list(zip(*(text.pairs()[side] for side in ("source", "target")), strict=True)) == pairs

    changed = write_at(1_700_000_000, write, folder, other)
    assert sizes_and_times(folder) == states
    assert changed.identity() != identity
    assert list(zip(*(changed.pairs()[side] for side in ("source", "target")), strict=True)) == other


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize(("pairs", "other"), SHIFTED)
def test_corpora_of_the_same_relative_name_size_and_time_share_no_cache(write, pairs, other, tmp_path, monkeypatch):
    for name, each in (("one", pairs), ("two", other)):
        folder = tmp_path / name / "corpus"
        folder.mkdir(parents=True)
        text = write_at(1_700_000_000, write, folder, each)
        monkeypatch.chdir(folder.parent)
        relative = in_folder(text, folder, Path("corpus"))
        assert list(zip(*(relative.pairs()[side] for side in ("source", "target")), strict=True)) == each


@pytest.mark.parametrize("write", WRITERS)
def test_the_same_text_in_another_folder_and_of_another_time_is_the_same(write, tmp_path):
    folder = tmp_path / "one"
    folder.mkdir()
    text = write(folder, PAIRS[:3])
    shutil.copytree(folder, tmp_path / "two", copy_function=shutil.copyfile)
    moved = write_at(1_700_000_000, lambda there, _: in_folder(text, folder, there), tmp_path / "two", [])
    assert sizes_and_times(tmp_path / "two") != sizes_and_times(folder)
    assert moved.identity() == text.identity()


def test_a_prepared_folder_is_known_by_its_shards_and_not_by_its_origin(sample_folder, sample_tokenizer):
    for language in LANGUAGES:
        shutil.copyfile(sample_folder / f"all.{language}", sample_folder / f"same.{language}")
    identities = []
    for i, (name, pairs) in enumerate((("all", None), ("same", None), ("shifted", [*PAIRS[1:], PAIRS[0]]))):
        if pairs:
            targets = [target for _, target in pairs]
            small.write_moses(sample_folder / name, en=[source for source, _ in PAIRS], de=targets)
        text = TextFile(LANGUAGES, str(sample_folder / name))
        folder, _ = prepare_sample(sample_folder, sample_tokenizer, f"prepared-{i}", source=text)
        identities.append(PreparedFolder(LANGUAGES, str(folder)).identity())
    assert identities[0] == identities[1] != identities[2]


def test_a_path_is_not_a_pattern(tmp_path):
    for name, text in (("corpus[1]", "right"), ("corpus1", "wrong"), ("corpus*", "star")):
        rows = Dataset.from_dict({"en": [text], "de": [text]})
        rows.to_parquet(tmp_path / f"{name}.parquet")
        rows.to_parquet(tmp_path / name / "train.parquet")
    assert read(TextFile(LANGUAGES, str(tmp_path / "corpus[1].parquet"))) == [("right", "right")]
    assert read(TextFile(LANGUAGES, str(tmp_path / "corpus*.parquet"))) == [("star", "star")]
    with pytest.raises(DataError, match="may not contain any of"):
        HubDataset(LANGUAGES, str(tmp_path / "corpus[1]")).pairs()


def test_the_built_in_phrases_are_a_source_in_both_directions():
    backward = BuiltInPhrases(("de", "en"))
    assert list(itertools.islice(read(backward), 10)) == [(de, en) for en, de in PAIRS[:10]]


def test_no_module_asks_what_class_a_source_or_its_rows_have():
    package = Path(hf_vanilla_transformer.__file__).parent
    homes = {"source", "batching", "mixture", "shards"}
    classes = {
        node.name
        for home in homes
        for node in ast.parse((package / "data" / f"{home}.py").read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
        and (home == "source" or "Rows" in ast.unparse(node))
        # a collator is given rows, and is none
        and not node.name.endswith("Collator")
    }
    assert {"Source", "TextFile", "PreparedFolder", "Rows", "MixedRows", "ShardStream"} <= classes
    for file in package.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or ast.unparse(node.func) not in ("isinstance", "issubclass", "type"):
                continue
            named = {
                name.id for argument in node.args[1:] for name in ast.walk(argument) if isinstance(name, ast.Name)
            }
            named |= {name.attr for arg in node.args[1:] for name in ast.walk(arg) if isinstance(name, ast.Attribute)}
            # `as_rows` is the one place for what the user of a trainer gives it
            allowed = {"Rows"} if file.name == "batching.py" else set()
            assert not named & classes - allowed, f"{file}:{node.lineno} tests for {named & classes}"
