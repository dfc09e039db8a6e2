"""Prepared shards against the text they come from and against what training makes of that text by itself."""

import gzip
import hashlib
import itertools
import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from corpora import ROOT
from datasets import Dataset
from torch.utils.data import DataLoader

from hf_vanilla_transformer import train_tokenizer
from hf_vanilla_transformer.cli import main
from hf_vanilla_transformer.data.cleaning import Cleaning, tokenize_pairs
from hf_vanilla_transformer.data.phrases import splits
from hf_vanilla_transformer.data.preparation import Preparation, prepare
from hf_vanilla_transformer.data.readers import DataError, HubRows, load_pairs
from hf_vanilla_transformer.data.shards import ShardStream, load_shards

PAIRS = [(phrase.en, phrase.de) for phrase in splits()["train"][:300]]
PAIRS[10:12] = [("", "nichts"), ("a <b>tag</b>", "ein Tag")]
PAIRS[15] = PAIRS[14]
CLEANING = Cleaning(256, 4.0)
LANGUAGES = ("en", "de")


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([text for pair in PAIRS for text in pair], 400)


@pytest.fixture
def text(tmp_path, monkeypatch):
    """The pairs in two Moses pairs, one of them compressed."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    for i, language in enumerate(LANGUAGES):
        lines = [f"{pair[i]}\n" for pair in PAIRS]
        (tmp_path / f"all.{language}").write_text("".join(lines), encoding="utf-8")
        (tmp_path / f"first.{language}").write_text("".join(lines[:180]), encoding="utf-8")
        with pa.output_stream(str(tmp_path / f"second.{language}.zst"), compression="zstd") as file:
            file.write("".join(lines[180:]).encode())
    return tmp_path


def build(text: Path, tokenizer, folder: str = "prepared", **settings) -> tuple[Path, dict]:
    sources = settings.pop("sources", [str(text / "first"), str(text / "second")])
    how = {name: settings.pop(name, default) for name, default in (("processes", 1), ("progress", lambda pairs: None))}
    preparation = Preparation(LANGUAGES, **{"cleaning": CLEANING, "shard_pairs": 64, **settings})
    return text / folder, prepare(sources, preparation, str(text / folder), tokenizer, **how)


@pytest.mark.parametrize("processes", [1, 2])
def test_shards_hold_what_training_makes_of_the_same_text_in_its_order(text, tokenizer, processes):
    folder, manifest = build(text, tokenizer, processes=processes)
    expected, drops = tokenize_pairs(load_pairs(str(text / "all"), *LANGUAGES), tokenizer, 25_000, CLEANING)
    shards = load_shards(str(folder))
    assert shards["input_ids"][:] == expected["input_ids"][:]
    assert shards["labels"][:] == expected["labels"][:]
    assert shards["source_length"][:] == expected["source_length"][:]
    assert manifest["drops"] == dict(drops) == {"blank side": 1, "markup": 1, "duplicate": 1}
    assert (manifest["read"], manifest["pairs"]) == (300, 297)
    assert manifest["target_tokens"] == sum(map(len, expected["labels"][:]))
    assert len(manifest["shards"]) == 5
    for name, about in manifest["shards"].items():
        assert about["blake2b"] == hashlib.blake2b((folder / name).read_bytes(), digest_size=16).hexdigest()


def test_a_cut_off_preparation_goes_on_and_ends_the_same(text, tokenizer, monkeypatch):
    folder, whole = build(text, tokenizer, "whole")
    broken = iter([{"source": en, "target": de} for en, de in PAIRS[:150]])

    def stream():
        yield from broken
        raise OSError("the network is gone")

    with pytest.raises(OSError, match="the network is gone"):
        build(text, tokenizer, sources=stream())
    done = {file: file.stat().st_mtime_ns for file in (text / "prepared").glob("shard-*.json")}
    assert 1 <= len(done) <= 2
    with pytest.raises(DataError, match="is not finished; give the command that began it again"):
        load_shards(str(text / "prepared"))
    _, manifest = build(text, tokenizer, sources=iter([{"source": en, "target": de} for en, de in PAIRS]))
    assert {file: file.stat().st_mtime_ns for file in done} == done  # not made twice
    assert manifest["shards"] == whole["shards"]
    for name in manifest["shards"]:
        assert (text / "prepared" / name).read_bytes() == (folder / name).read_bytes()


def test_other_settings_or_changed_text_in_the_same_folder_are_refused(text, tokenizer):
    _, manifest = build(text, tokenizer)
    assert build(text, tokenizer)[1] == manifest
    with pytest.raises(ValueError, match="different text or settings"):
        build(text, tokenizer, shard_pairs=65)
    with (text / "first.en").open("a") as file, (text / "first.de").open("a") as other:
        file.write("more\n"), other.write("mehr\n")
    with pytest.raises(ValueError, match="different text or settings"):
        build(text, tokenizer)


@pytest.mark.parametrize("damage", ["missing", "torn"])
def test_a_damaged_shard_is_named(text, tokenizer, damage):
    folder, _ = build(text, tokenizer)
    shard = folder / "shard-00001.arrow"
    if damage == "missing":
        shard.unlink()
    else:
        shard.write_bytes(shard.read_bytes()[:-100])
    with pytest.raises(DataError, match=f"shard-00001.arrow is {damage}"):
        load_shards(str(folder))


def test_training_reads_a_prepared_folder_with_its_tokenizer(text, tokenizer, capsys):
    folder, _ = build(text, tokenizer)
    flags = [
        "--preset",
        "tiny",
        "--d_model",
        "16",
        "--num_heads",
        "2",
        "--d_ff",
        "32",
        "--max_steps",
        "2",
        "--use_cpu",
    ]
    flags += ["--max_tokens", "256", "--train_file", str(folder), "--output_dir", str(text / "run")]
    assert main(["train", *flags, "--disable_tqdm", "true"]) == 0
    assert "train: 297 prepared pairs" in capsys.readouterr().err
    assert json.loads((text / "run" / "tokenizer.json").read_text()) == json.loads(
        (folder / "tokenizer.json").read_text()
    )
    assert json.loads((text / "run" / "config.json").read_text())["vocab_size"] == len(tokenizer)


def stream(folder: Path, batches: int, **settings) -> list[list[dict]]:
    return list(itertools.islice(ShardStream(str(folder), 200, **settings), batches))


def contents(batches: list[list[dict]]) -> list[tuple]:
    return sorted((tuple(pair["input_ids"]), tuple(pair["labels"])) for batch in batches for pair in batch)


def test_a_stream_gives_each_pair_once_a_pass_in_batches_within_the_budget(text, tokenizer):
    folder, _ = build(text, tokenizer)
    endless = iter(ShardStream(str(folder), 200, buffer_pairs=297))
    passes = []
    for _ in range(2):
        batches = []
        while sum(map(len, batches)) < 297:
            batches.append(next(endless))
        passes.append(batches)
    whole = contents([list(load_shards(str(folder)))])
    assert contents(passes[0]) == contents(passes[1]) == whole
    assert passes[0] != passes[1]
    for batch in passes[0]:
        assert max(len(pair[side]) for pair in batch for side in ("input_ids", "labels")) * len(batch) <= 200


def test_a_stream_repeats_itself_and_changes_with_the_seed(text, tokenizer):
    folder, _ = build(text, tokenizer)
    first, again = (stream(folder, 80, buffer_pairs=50) for _ in range(2))
    assert first == again
    assert first != stream(folder, 80, buffer_pairs=50, seed=1)


@pytest.mark.parametrize(("world", "workers"), [(2, 0), (1, 2), (3, 2)])
def test_processes_and_workers_read_pairs_of_their_own(text, tokenizer, world, workers):
    folder, _ = build(text, tokenizer, max_tokens=200)
    pairs = []
    for rank in range(world):
        parts = max(1, workers)
        for worker in range(parts):
            source = ShardStream(str(folder), 200, rank=rank, world=world)
            shares = [len(range(rank * parts + worker, n, world * parts)) for n in source.shards.values()]
            pairs += itertools.islice(source._pairs(rank * parts + worker, world * parts), sum(shares))
    assert contents([pairs]) == contents([list(load_shards(str(folder)))])
    if workers:
        loader = DataLoader(ShardStream(str(folder), 200, world=world), None, num_workers=workers, collate_fn=list)
        given = list(itertools.islice(loader, 4))
        assert given[0] != given[1]


@pytest.mark.parametrize("damage", ["vanished", "torn"])
def test_a_shard_that_is_lost_while_it_is_read_is_named(text, tokenizer, damage):
    folder, _ = build(text, tokenizer)
    batches = iter(ShardStream(str(folder), 200, buffer_pairs=20))
    next(batches)
    for shard in folder.glob("*.arrow"):
        if damage == "torn":
            shard.write_bytes(shard.read_bytes()[: shard.stat().st_size // 2])
        else:
            shard.unlink()
    with pytest.raises(DataError, match=r"shard-0000\d.arrow (cannot be read any more|is torn)"):
        list(itertools.islice(batches, 500))


def test_training_streams_a_prepared_folder(text, tokenizer):
    folder, _ = build(text, tokenizer)
    flags = ["--preset", "tiny", "--d_model", "16", "--num_heads", "2", "--d_ff", "32", "--max_steps", "60"]
    flags += ["--max_tokens", "256", "--train_file", str(folder), "--streaming", "--use_cpu", "--learning_rate", "0.1"]
    assert main(["train", *flags, "--output_dir", str(text / "run"), "--disable_tqdm", "true"]) == 0
    state = json.loads((text / "run" / "trainer_state.json").read_text())
    assert state["global_step"] == 60
    assert json.loads((text / "run" / "training.json").read_text())["pairs"] == 297


@pytest.mark.slow
def test_the_script_prepares_compressed_text_and_learns_a_vocabulary(text):
    for language in LANGUAGES:
        with gzip.open(text / f"packed.{language}.gz", "wb") as file:
            file.write((text / f"all.{language}").read_bytes())
    script = ROOT / "scripts" / "prepare_data.py"
    words = [
        str(text / "packed"),
        "--source_lang",
        "en",
        "--target_lang",
        "de",
        "--output_dir",
        str(text / "prepared"),
    ]
    command = [
        sys.executable,
        str(script),
        *words,
        "--vocab_size",
        "400",
        "--shard_pairs",
        "100",
        "--num_workers",
        "2",
    ]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(run.stdout)["pairs"] == 297
    assert len(load_shards(str(text / "prepared"))) == 297
    (text / "all.de").write_text("eine Zeile\n")
    failed = subprocess.run([*command[:2], str(text / "all"), *command[3:]], capture_output=True, text=True)
    assert failed.returncode == 1
    assert "different text or settings" in failed.stderr.splitlines()[-1]


@pytest.mark.slow
def test_the_script_streams_a_data_set_of_the_hub(text, tokenizer):
    rows = [{"en": en, "de": de} for en, de in PAIRS]
    (text / "set").mkdir()
    Dataset.from_dict({"translation": rows}).to_parquet(text / "set" / "train.parquet")
    tokenizer.save_pretrained(text / "tokenizer")
    script = ROOT / "scripts" / "prepare_data.py"
    words = ["--dataset_name", str(text / "set"), "--source_lang", "en", "--target_lang", "de", "--shard_pairs", "64"]
    words += ["--tokenizer_name", str(text / "tokenizer"), "--output_dir", str(text / "streamed")]
    subprocess.run([sys.executable, str(script), *words], capture_output=True, text=True, check=True)
    _, manifest = build(text, tokenizer)
    streamed = json.loads((text / "streamed" / "manifest.json").read_text())
    assert streamed["shards"] == manifest["shards"]
    assert streamed["tokenizer"] == manifest["tokenizer"]


def test_a_preparation_goes_on_only_with_its_own_text_tokenizer_and_vocabulary(text, tokenizer):
    other = train_tokenizer(["something else entirely"] * 3, 300)
    build(text, tokenizer)
    with pytest.raises(ValueError, match=r"different text or settings \(tokenizer,"):
        build(text, other)
    build(text, None, "learned", vocab_size=400)
    with pytest.raises(ValueError, match=r"different text or settings \(vocab_size,"):
        build(text, None, "learned", vocab_size=410)
    build(text, None, "learned", vocab_size=400)


def test_a_streamed_data_set_that_was_cut_off_is_not_gone_on_with_from_another(text, tokenizer):
    for name in ("one", "two"):
        (text / name).mkdir()
        rows = [{"en": f"{name} {en}", "de": de} for en, de in PAIRS]
        Dataset.from_dict({"translation": rows}).to_parquet(text / name / "train.parquet")

    def rows_of(name: str, fail: bool = False) -> HubRows:
        rows = HubRows(str(text / name), None, LANGUAGES)
        if fail:
            rows.rows = itertools.chain(itertools.islice(rows.rows, 150), (1 / 0 for _ in range(1)))
        return rows

    with pytest.raises(ZeroDivisionError):
        build(text, tokenizer, sources=rows_of("one", fail=True))
    with pytest.raises(ValueError, match=r"different text or settings \(dataset,"):
        build(text, tokenizer, sources=rows_of("two"))
    folder, manifest = build(text, tokenizer, sources=rows_of("one"))
    assert manifest["read"] == 300
    assert str(text) not in (folder / "manifest.json").read_text()


def test_a_changed_reader_ends_what_was_cut_off_but_not_what_is_finished(text, tokenizer, monkeypatch):
    _, manifest = build(text, tokenizer)
    with pytest.raises(OSError, match="gone"):
        build(text, tokenizer, "cut", sources=fails_after(150))
    monkeypatch.setattr("hf_vanilla_transformer.data.preparation.VERSION", "later")
    assert build(text, tokenizer)[1] == manifest
    with pytest.raises(ValueError, match=r"different text or settings \(version,"):
        build(text, tokenizer, "cut", sources=fails_after(150))


def fails_after(count: int):
    yield from ({"source": en, "target": de} for en, de in PAIRS[:count])
    raise OSError("the network is gone")


def test_a_stream_with_sentences_beyond_a_batch_is_refused_before_it_starts(text, tokenizer):
    folder, _ = build(text, tokenizer)
    longest = max(load_shards(str(folder))["source_length"][:] + load_shards(str(folder))["target_length"][:])
    assert ShardStream(str(folder), longest).pairs == 297
    with pytest.raises(
        DataError, match=rf"up to {longest} tokens, more than a whole batch of --max_tokens {longest - 1}"
    ):
        ShardStream(str(folder), longest - 1)


def test_one_language_on_both_sides_is_refused(text, tokenizer):
    with pytest.raises(DataError, match="both 'en'"):
        prepare(iter([{"source": "a", "target": "b"}]), Preparation(("en", "en")), str(text / "prepared"), tokenizer)
    assert not (text / "prepared").exists()


def test_more_readers_than_pairs_are_refused(text, tokenizer, trainer):
    rows = [{"source": en, "target": de} for en, de in PAIRS[:3]]
    folder, _ = build(text, tokenizer, sources=iter(rows))
    assert next(iter(ShardStream(str(folder), 500, rank=2, world=3)))
    with pytest.raises(DataError, match="at most 3 pairs in a shard, fewer than the 4 that read it"):
        ShardStream(str(folder), 500, world=4)
    run = trainer(train_dataset=ShardStream(str(folder), 500), dataloader_num_workers=4)
    with pytest.raises(DataError, match="lower --dataloader_num_workers"):
        run.get_train_dataloader()


def test_a_prepared_folder_is_for_its_own_languages(text, tokenizer, tmp_path, capsys):
    folder, _ = build(text, tokenizer)
    flags = ["--train_file", str(folder), "--target_lang", "fr", "--output_dir", str(tmp_path / "run"), "--use_cpu"]
    assert main(["train", "--preset", "tiny", *flags]) == 1
    assert "holds text from en to de: give --source_lang en --target_lang de" in capsys.readouterr().err


@pytest.mark.parametrize(
    "content", ["[]", "{", "{}", '{"settings": {}, "whole": true, "shards": null}', '{"whole": true}']
)
def test_a_damaged_manifest_is_named(text, tokenizer, content):
    folder, _ = build(text, tokenizer)
    (folder / "manifest.json").write_text(content)
    for read in (lambda: load_shards(str(folder)), lambda: build(text, tokenizer)):
        with pytest.raises(DataError, match=r"manifest\.json is damaged"):
            read()


def test_another_configuration_of_a_data_set_is_another_text(text, tokenizer):
    (text / "set").mkdir()
    rows = [{"en": en, "de": de} for en, de in PAIRS]
    Dataset.from_dict({"translation": rows}).to_parquet(text / "set" / "train.parquet")
    build(text, tokenizer, sources=HubRows(str(text / "set"), None, LANGUAGES))
    with pytest.raises(ValueError, match=r"different text or settings \(dataset,"):
        build(text, tokenizer, sources=HubRows(str(text / "set"), "default", LANGUAGES))
