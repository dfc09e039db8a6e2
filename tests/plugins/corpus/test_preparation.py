"""Preparation of text as shards: its content, resuming, and the verb `prepare`."""

import gzip
import hashlib
import itertools
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from datasets import Dataset
from sample_text import CLEANING, LANGUAGES, PAIRS, GivenRows, prepare_sample, rows
from small import write_moses
from transformers import ByT5Tokenizer

from hf_vanilla_transformer import train_tokenizer
from hf_vanilla_transformer.cli import main
from hf_vanilla_transformer.data.cleaning import tokenize_pairs
from hf_vanilla_transformer.data.formats import DataError
from hf_vanilla_transformer.data.shards import load_shards
from hf_vanilla_transformer.data.source import HubDataset, Source, TextFile
from hf_vanilla_transformer.plugins.corpus.pieces import Preparation
from hf_vanilla_transformer.plugins.corpus.preparation import prepare

LANGUAGE_FLAGS = ["--source_lang", "en", "--target_lang", "de"]


def interrupted_rows(count: int = 150):
    """Yield some pairs, then fail."""
    yield from rows(PAIRS[:count])
    raise OSError("the network is gone")


def stamps(folder: Path, files: Iterable[Path] | None = None) -> dict[Path, int]:
    """Return the modification times of the given files, by default of all notes on finished tasks in the folder."""
    found = folder.rglob("*-*.json") if files is None else files
    return {file: file.stat().st_mtime_ns for file in found}


def test_a_text_that_changes_while_it_is_read_is_named(sample_folder, sample_tokenizer, monkeypatch):
    rows_of = TextFile.__iter__

    def change_and_read(source):
        yield from rows_of(source)
        for language in LANGUAGES:
            with Path(f"{source.path}.{language}").open("a") as file:
                file.write("one more line\n")

    monkeypatch.setattr(TextFile, "__iter__", change_and_read)
    with pytest.raises(DataError, match="first has changed while it was read; prepare it in a new folder"):
        prepare_sample(sample_folder, sample_tokenizer)
    assert not list((sample_folder / "prepared").rglob("source-*.json"))


# that two workers write the same shards is tested in tests/system/test_corpus_jobs.py
def test_shards_contain_the_same_pairs_as_tokenize_pairs_in_the_same_order(sample_folder, sample_tokenizer):
    folder, manifest = prepare_sample(sample_folder, sample_tokenizer)
    pairs = TextFile(LANGUAGES, str(sample_folder / "all")).pairs()
    expected, drops = tokenize_pairs(pairs, sample_tokenizer, 25_000, CLEANING)
    shards = load_shards(str(folder))
    assert shards["input_ids"][:] == expected["input_ids"][:]
    assert shards["labels"][:] == expected["labels"][:]
    assert shards["source_length"][:] == expected["source_length"][:]
    assert manifest["drops"] == dict(drops) == {"blank side": 1, "markup": 1, "duplicate": 1}
    assert (manifest["read"], manifest["pairs"]) == (300, 297)
    assert manifest["target_tokens"] == sum(map(len, expected["labels"][:]))
    assert len(manifest["shards"]) == 5
    for name, shard in manifest["shards"].items():
        assert shard["blake2b"] == hashlib.blake2b((folder / name).read_bytes(), digest_size=16).hexdigest()


def test_text_is_prepared_with_a_tokenizer_without_a_file_of_its_own(sample_folder):
    tokenizer = ByT5Tokenizer()
    _, manifest = prepare_sample(sample_folder, tokenizer)
    assert manifest["whole"]
    assert load_shards(str(sample_folder / "prepared"))[0]["input_ids"][-1] == tokenizer.eos_token_id


def test_an_interrupted_preparation_resumes_and_produces_the_same_shards(sample_folder, sample_tokenizer):
    folder, uninterrupted = prepare_sample(sample_folder, sample_tokenizer, "uninterrupted")
    for step, files in (("Hashing", "prepare-work/digests-*.npy"), ("Tokenising", "shard-*.json")):

        def interrupt(name: str, total: int | None, finished: Iterator[int], step: str = step) -> None:
            for done, _ in enumerate(finished, start=1):
                if name == step and done == 2:
                    raise OSError("the disk is gone")

        written = stamps(sample_folder / "prepared")
        with pytest.raises(OSError, match="the disk is gone"):
            prepare_sample(sample_folder, sample_tokenizer, watch=interrupt)
        assert len(list((sample_folder / "prepared").glob(files))) == 2
        assert stamps(sample_folder / "prepared", written) == written  # not written again
        with pytest.raises(DataError, match="is not finished; run the command that created it again"):
            load_shards(str(sample_folder / "prepared"))
    written = stamps(sample_folder / "prepared")
    _, manifest = prepare_sample(sample_folder, sample_tokenizer)
    shards = {file: stamp for file, stamp in written.items() if file.name.startswith("shard-")}
    assert len(shards) == 2
    assert stamps(sample_folder / "prepared", shards) == shards
    assert manifest["shards"] == uninterrupted["shards"]
    for name in manifest["shards"]:
        assert (sample_folder / "prepared" / name).read_bytes() == (folder / name).read_bytes()
    assert not (sample_folder / "prepared" / "prepare-work").exists()


def test_an_interrupted_preparation_whose_temporary_files_were_removed_starts_over(sample_folder, sample_tokenizer):
    with pytest.raises(OSError, match="gone"):
        prepare_sample(sample_folder, sample_tokenizer, source=GivenRows(interrupted_rows()))
    shutil.rmtree(sample_folder / "prepared" / "prepare-work")
    _, manifest = prepare_sample(sample_folder, sample_tokenizer, source=GivenRows(rows()))
    assert (manifest["whole"], manifest["read"]) == (True, 300)


@pytest.mark.parametrize("count", [2**64, 10**6, 0, -1, "1"])
def test_a_count_of_pairs_that_cannot_be_is_refused(count, sample_folder, sample_tokenizer):
    prepare_sample(sample_folder, sample_tokenizer, share=(0, 2))
    [note] = (sample_folder / "prepared" / "prepare-work").glob("source-*.json")
    note.write_text(json.dumps({"pairs": [count]}))
    with pytest.raises(DataError, match=f"^{re.escape(str(note))} is damaged; start the job again in a new folder"):
        prepare_sample(sample_folder, sample_tokenizer)


def test_the_elements_of_an_array_write_the_same_shards_step_by_step(sample_folder, sample_tokenizer):
    _, expected = prepare_sample(sample_folder, None, "expected", vocab_size=400)
    for rounds in range(1, 10):
        wholes = [prepare_sample(sample_folder, None, vocab_size=400, share=(i, 3))[1]["whole"] for i in (2, 0, 1)]
        if all(wholes):
            break
        assert not wholes[0] or rounds > 1
    _, manifest = prepare_sample(sample_folder, None, vocab_size=400, share=(1, 3))
    assert manifest["shards"] == expected["shards"]
    assert manifest["tokenizer"] == expected["tokenizer"]
    assert 2 <= rounds <= 5


def test_duplicates_are_found_across_files_and_shards_and_the_first_is_kept(sample_folder, sample_tokenizer):
    repeated = [*PAIRS[200:260], ("new", "neu"), *PAIRS[20:50], ("new", "neu")]
    write_moses(sample_folder / "third", en=[en for en, _ in repeated], de=[de for _, de in repeated])
    files = Source([TextFile(LANGUAGES, str(sample_folder / name)) for name in ("first", "second", "third")])
    folder, manifest = prepare_sample(sample_folder, sample_tokenizer, source=files)
    assert manifest["drops"]["duplicate"] == 1 + len(repeated) - 1
    kept = load_shards(str(folder))
    texts = sample_tokenizer.batch_decode(kept["input_ids"][:], skip_special_tokens=True)
    expected = [en for i, (en, _) in enumerate(PAIRS) if i not in (10, 11, 15)]
    assert texts == [*expected, "new"]
    _, kept_all = prepare_sample(sample_folder, sample_tokenizer, "all", source=files, cleaning=None)
    assert kept_all["pairs"] == 300 + len(repeated) - 1  # all but the blank side


@pytest.mark.parametrize("cleaning", [CLEANING, None])
def test_pairs_with_a_sentence_to_exclude_are_dropped(sample_folder, sample_tokenizer, cleaning):
    (sample_folder / "test.en").write_text(f"  {PAIRS[3][0]} \n\n")
    with gzip.open(sample_folder / "test.de.gz", "wt") as file:
        file.write(f"{PAIRS[5][1]}\n{PAIRS[3][1]}\nnicht dabei\n")
    exclude = (str(sample_folder / "test.en"), str(sample_folder / "test.de.gz"))
    expected = sum(en == PAIRS[3][0] or de in (PAIRS[3][1], PAIRS[5][1]) for en, de in PAIRS)
    folder, manifest = prepare_sample(sample_folder, sample_tokenizer, exclude=exclude, cleaning=cleaning)
    assert manifest["drops"]["excluded"] == expected
    texts = sample_tokenizer.batch_decode(load_shards(str(folder))["input_ids"][:], skip_special_tokens=True)
    assert PAIRS[3][0] not in texts
    with pytest.raises(ValueError, match=r"different text or settings \(exclude;"):
        prepare_sample(sample_folder, sample_tokenizer, cleaning=cleaning)


def test_a_folder_rejects_different_settings_and_changed_text(sample_folder, sample_tokenizer):
    _, manifest = prepare_sample(sample_folder, sample_tokenizer)
    assert prepare_sample(sample_folder, sample_tokenizer)[1] == manifest
    with pytest.raises(ValueError, match="different text or settings"):
        prepare_sample(sample_folder, sample_tokenizer, shard_pairs=65)
    with (sample_folder / "first.en").open("a") as file, (sample_folder / "first.de").open("a") as other:
        file.write("more\n"), other.write("mehr\n")
    with pytest.raises(ValueError, match="different text or settings"):
        prepare_sample(sample_folder, sample_tokenizer)


def shift(file: Path) -> None:
    """Move the first line to the end, and restore the modification time."""
    time = file.stat().st_mtime_ns
    first, *others = file.read_text(encoding="utf-8").splitlines(keepends=True)
    file.write_text("".join([*others, first]), encoding="utf-8")
    os.utime(file, ns=(time, time))


@pytest.mark.parametrize(("changed", "setting"), [("first.de", "text"), ("test.en", "exclude")])
def test_shards_of_other_text_of_the_same_name_size_and_time_are_not_kept(
    sample_folder, sample_tokenizer, changed, setting
):
    (sample_folder / "test.en").write_text(f"{PAIRS[3][0]}\nelse\n")
    exclude = (str(sample_folder / "test.en"),)
    prepare_sample(sample_folder, sample_tokenizer, exclude=exclude)
    shift(sample_folder / changed)
    with pytest.raises(ValueError, match=rf"different text or settings \({setting};"):
        prepare_sample(sample_folder, sample_tokenizer, exclude=exclude)


def test_text_under_other_names_and_of_other_times_is_not_prepared_again(sample_folder, sample_tokenizer):
    (sample_folder / "test.en").write_text(f"{PAIRS[3][0]}\n")
    (sample_folder / "moved").mkdir()
    old, new = (
        {
            "exclude": (str(sample_folder / f"{place}.en"),),
            "source": Source([TextFile(LANGUAGES, str(sample_folder / name)) for name in names]),
        }
        for place, names in (("test", ("first", "second")), ("moved/test", ("moved/a", "moved/b")))
    )
    folder, manifest = prepare_sample(sample_folder, sample_tokenizer, **old)
    names = {"test.en": "test.en", "first.en": "a.en", "first.de": "a.de"}
    for name, renamed in {**names, "second.en.zst": "b.en.zst", "second.de.zst": "b.de.zst"}.items():
        os.utime((sample_folder / name).rename(sample_folder / "moved" / renamed), (1, 1))
    written = stamps(folder, folder.iterdir())
    assert prepare_sample(sample_folder, sample_tokenizer, **new)[1] == manifest
    assert stamps(folder, folder.iterdir()) == written


def test_a_folder_rejects_a_different_tokenizer_or_vocabulary_size(sample_folder, sample_tokenizer):
    other = train_tokenizer(["something else entirely"] * 3, 300)
    prepare_sample(sample_folder, sample_tokenizer)
    with pytest.raises(ValueError, match=r"different text or settings \(tokenizer;"):
        prepare_sample(sample_folder, other)
    prepare_sample(sample_folder, None, "trained", vocab_size=400)
    with pytest.raises(ValueError, match=r"different text or settings \(vocab_size;"):
        prepare_sample(sample_folder, None, "trained", vocab_size=410)
    prepare_sample(sample_folder, None, "trained", vocab_size=400)


def test_an_interrupted_stream_is_not_resumed_from_a_different_dataset(sample_folder, sample_tokenizer):
    for name in ("one", "two"):
        (sample_folder / name).mkdir()
        translations = [{"en": f"{name} {en}", "de": de} for en, de in PAIRS]
        Dataset.from_dict({"translation": translations}).to_parquet(sample_folder / name / "train.parquet")

    def hub_rows(name: str, fail: bool = False) -> HubDataset:
        source = HubDataset(LANGUAGES, str(sample_folder / name))
        if fail:
            source._stream = itertools.chain(itertools.islice(source._stream, 150), (1 / 0 for _ in range(1)))
        return source

    with pytest.raises(ValueError, match="one cannot be read: division by zero"):
        prepare_sample(sample_folder, sample_tokenizer, source=hub_rows("one", fail=True))
    with pytest.raises(ValueError, match=r"different text or settings \(text;"):
        prepare_sample(sample_folder, sample_tokenizer, source=hub_rows("two"))
    folder, manifest = prepare_sample(sample_folder, sample_tokenizer, source=hub_rows("one"))
    assert manifest["read"] == 300
    assert str(sample_folder) not in (folder / "manifest.json").read_text()


def test_a_different_configuration_of_a_dataset_is_a_different_text(sample_folder, sample_tokenizer):
    (sample_folder / "set").mkdir()
    translations = [{"en": en, "de": de} for en, de in PAIRS]
    Dataset.from_dict({"translation": translations}).to_parquet(sample_folder / "set" / "train.parquet")
    stream = HubDataset(LANGUAGES, str(sample_folder / "set"))
    prepare_sample(sample_folder, sample_tokenizer, source=stream)
    other = HubDataset(LANGUAGES, str(sample_folder / "set"), "default")
    with pytest.raises(ValueError, match=r"different text or settings \(text;"):
        prepare_sample(sample_folder, sample_tokenizer, source=other)


def test_changed_code_invalidates_interrupted_but_not_finished_folders(sample_folder, sample_tokenizer, monkeypatch):
    _, manifest = prepare_sample(sample_folder, sample_tokenizer)
    with pytest.raises(OSError, match="gone"):
        prepare_sample(sample_folder, sample_tokenizer, "interrupted", source=GivenRows(interrupted_rows()))
    monkeypatch.setattr("hf_vanilla_transformer.plugins.corpus.preparation.VERSION", "later")
    assert prepare_sample(sample_folder, sample_tokenizer)[1] == manifest
    with pytest.raises(ValueError, match=r"different text or settings \(version;"):
        prepare_sample(sample_folder, sample_tokenizer, "interrupted", source=GivenRows(interrupted_rows()))


def test_a_folder_with_other_files_is_refused(sample_folder, sample_tokenizer):
    (sample_folder / "prepared" / "prepare-work").mkdir(parents=True)
    prepare_sample(sample_folder, sample_tokenizer)  # what an interrupted call leaves before its manifest
    (sample_folder / "model").mkdir()
    (sample_folder / "model" / "tokenizer.json").touch()
    with pytest.raises(ValueError, match="model is in use: choose a new or empty folder"):
        prepare_sample(sample_folder, sample_tokenizer, "model")


def write_excluded(folder: Path, kind: str, pairs: list[tuple[str, str]]) -> str:
    """Write pairs with independent writers and return what `--exclude` takes."""
    path = str(folder / f"held{kind}")
    if kind == "":
        write_moses(folder / "held", en=[en for en, _ in pairs], de=[de for _, de in pairs])
    elif kind == ".jsonl":
        Path(path).write_text("".join(json.dumps({"en": en, "de": de}) + "\n" for en, de in pairs))
    elif kind == ".tsv.gz":
        Path(path).write_bytes(gzip.compress("\n".join(map("\t".join, [LANGUAGES, *pairs])).encode()))
    elif kind == ".parquet":
        Dataset.from_list([{"en": en, "de": de} for en, de in pairs]).to_parquet(path)
    else:
        Path(path).write_text("".join(f"{en}\n" for en, _ in pairs))
    return path


@pytest.mark.parametrize("kind", ["", ".jsonl", ".tsv.gz", ".parquet", ".txt"])
def test_every_kind_of_text_can_be_excluded(kind, sample_folder, sample_tokenizer):
    held = [PAIRS[3], PAIRS[7]]
    exclude = (write_excluded(sample_folder, kind, held),)
    sentences = [en for en, _ in held] + ([] if kind == ".txt" else [de for _, de in held])
    expected = sum(en in sentences or de in sentences for en, de in PAIRS)
    assert expected >= 2
    _, manifest = prepare_sample(sample_folder, sample_tokenizer, exclude=exclude)
    assert manifest["drops"]["excluded"] == expected


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("test.json", '[{"en": "a", "de": "b"}]', "`vanilla-transformer import test.json` converts it to Moses files"),
        ("test.json.gz", "", "`vanilla-transformer import test.json.gz` converts it to Moses files"),
        ("test.xlsx", "PK", "`vanilla-transformer import test.xlsx` converts it to Moses files"),
        ("test.TSV", "en\tde\na\tb\n", "write the ending of test.TSV in lower case"),
        ("test.jsonl", '{"en": "a", "fr": "b"}\n', "test.jsonl, line 1: no 'de' among the keys (en, fr)"),
        ("test.en", " \n\n", "test.en contains no sentences to exclude"),
        ("test.txt", "", "test.txt contains no sentences to exclude"),
        ("nowhere", None, "nowhere stands for"),
    ],
)
def test_what_cannot_be_excluded_is_an_error_before_anything_is_written(name, content, message, sample_folder, capsys):
    if content is not None:
        (sample_folder / name).write_text(content)
    flags = [*LANGUAGE_FLAGS, "--output_dir", str(sample_folder / "out"), "--exclude", str(sample_folder / name)]
    assert main(["prepare", str(sample_folder / "all"), *flags]) == 1
    assert message in capsys.readouterr().err
    assert not (sample_folder / "out").exists()


def test_flags_of_a_new_vocabulary_are_refused_beside_a_tokenizer(sample_folder, capsys):
    flags = [*LANGUAGE_FLAGS, "--output_dir", str(sample_folder / "prepared"), "--tokenizer_name", "old"]
    assert main(["prepare", str(sample_folder / "all"), *flags, "--normalization", "nfkc"]) == 2
    assert "--normalization has no effect: old has its own vocabulary" in capsys.readouterr().err


def test_equal_source_and_target_languages_are_rejected(sample_folder, sample_tokenizer):
    folder = sample_folder / "prepared"
    with pytest.raises(DataError, match="both 'en'"):
        prepare(GivenRows(rows([("a", "b")])), Preparation(languages=("en", "en")), str(folder), sample_tokenizer)
    assert not folder.exists()


def test_the_verb_prepares_compressed_text_and_trains_a_tokenizer(sample_folder, capsys):
    for language in LANGUAGES:
        with gzip.open(sample_folder / f"packed.{language}.gz", "wb") as file:
            file.write((sample_folder / f"all.{language}").read_bytes())
    flags = [*LANGUAGE_FLAGS, "--output_dir", str(sample_folder / "prepared")]
    flags += ["--vocab_size", "400", "--shard_pairs", "100", "--workers", "1"]
    assert main(["prepare", str(sample_folder / "packed"), *flags]) == 0
    assert json.loads(capsys.readouterr().out)["pairs"] == 297
    assert len(load_shards(str(sample_folder / "prepared"))) == 297
    (sample_folder / "all.de").write_text("eine Zeile\n")
    assert main(["prepare", str(sample_folder / "all"), *flags]) == 1
    assert "different text or settings" in capsys.readouterr().err.splitlines()[-1]


def test_the_verb_streams_a_dataset_from_the_hub(sample_folder, sample_tokenizer):
    translations = [{"en": en, "de": de} for en, de in PAIRS]
    (sample_folder / "set").mkdir()
    Dataset.from_dict({"translation": translations}).to_parquet(sample_folder / "set" / "train.parquet")
    sample_tokenizer.save_pretrained(sample_folder / "tokenizer")
    flags = ["--dataset_name", str(sample_folder / "set"), *LANGUAGE_FLAGS, "--shard_pairs", "64"]
    flags += ["--tokenizer_name", str(sample_folder / "tokenizer"), "--output_dir", str(sample_folder / "streamed")]
    assert main(["prepare", *flags, "--workers", "1"]) == 0
    _, manifest = prepare_sample(
        sample_folder, sample_tokenizer, source=TextFile(LANGUAGES, str(sample_folder / "all"))
    )
    streamed = json.loads((sample_folder / "streamed" / "manifest.json").read_text())
    assert streamed["shards"] == manifest["shards"]
    assert streamed["tokenizer"] == manifest["tokenizer"]
