"""Reading prepared shards: as a memory-mapped dataset, as a stream, and in training."""

import itertools
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from sample_text import LANGUAGES, PAIRS, GivenRows, prepare_sample, rows
from small import model_flags
from torch.utils.data import DataLoader

from hf_vanilla_transformer import VanillaTransformerConfig
from hf_vanilla_transformer.cli import main
from hf_vanilla_transformer.data.formats import DataError, read_translation_manifest
from hf_vanilla_transformer.data.shards import ShardStream, load_shards
from hf_vanilla_transformer.data.source import PreparedFolder, Tokenization
from hf_vanilla_transformer.files import checksum

SMALL = [*model_flags(num_encoder_layers=4, num_decoder_layers=4), "--max_tokens", "256"]


@pytest.fixture
def prepared(sample_folder, sample_tokenizer):
    """The sample text as a folder of shards, with 297 pairs."""
    return prepare_sample(sample_folder, sample_tokenizer)[0]


@pytest.fixture
def tokenization(sample_tokenizer) -> Tokenization:
    return Tokenization(sample_tokenizer, VanillaTransformerConfig(), 200, print)


def take(folder: Path, count: int, **settings) -> list[list[dict]]:
    """Return the first batches of a stream."""
    return list(itertools.islice(ShardStream(str(folder), 200, **settings), count))


def contents(batches: list[list[dict]]) -> list[tuple]:
    return sorted((tuple(pair["input_ids"]), tuple(pair["labels"])) for batch in batches for pair in batch)


@pytest.mark.parametrize("damage", ["missing", "damaged"])
def test_a_missing_or_truncated_shard_is_named(prepared, damage):
    shard = prepared / "shard-00001.arrow"
    if damage == "missing":
        shard.unlink()
    else:
        shard.write_bytes(shard.read_bytes()[:-100])
    with pytest.raises(DataError, match=f"shard-00001.arrow is {damage}"):
        load_shards(str(prepared))


def flip_bits(shard):
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 255
    shard.write_bytes(content)


def read_table(shard):
    with pa.ipc.open_stream(shard.read_bytes()) as stream:
        return stream.read_all()


def record(shard):
    """Record a shard in the manifest, as whoever wrote it would."""
    manifest = json.loads((shard.parent / "manifest.json").read_text())
    manifest["shards"][shard.name] |= {"bytes": shard.stat().st_size, "blake2b": checksum(shard)}
    (shard.parent / "manifest.json").write_text(json.dumps(manifest))


def rewrite(change):
    """Return a change of the table in a shard, which is recorded."""

    def write(shard):
        table = change(read_table(shard))
        with pa.OSFile(str(shard), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table)
        record(shard)

    return write


def point_outside(shard):
    """Let the lists of a shard end far behind their values: whoever reads them reads other memory."""
    ids = read_table(shard)["labels"].chunk(0)
    offsets = np.frombuffer(ids.buffers()[1], np.int32)[: len(ids) + 1]
    broken = np.concatenate([offsets[:1], offsets[1:] + (1 << 30)]).astype(np.int32)
    content = shard.read_bytes()
    assert content.count(offsets.tobytes()) == 1
    shard.write_bytes(content.replace(offsets.tobytes(), broken.tobytes()))
    record(shard)


DAMAGES = {
    "flipped bits": (flip_bits, "its checksum differs from that in the manifest"),
    "lists that end elsewhere": (point_outside, "[Oo]ffset"),
    "other columns": (
        rewrite(lambda table: table.drop(["source_length"])),
        "its columns are input_ids, labels, target",
    ),
}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_shard_of_the_right_size_that_is_damaged_is_named(prepared, tokenization, damage, streamed):
    change, message = DAMAGES[damage]
    change(prepared / "shard-00001.arrow")
    with pytest.raises(DataError, match=rf"shard-00001\.arrow is damaged: [^\n]*{message}"):
        PreparedFolder(LANGUAGES, str(prepared), streamed=streamed).tokenize(tokenization, "train")


def test_token_ids_beyond_the_vocabulary_are_refused(prepared, tmp_path, capsys):
    change = rewrite(
        lambda table: table.set_column(1, "labels", pa.array([[10**6]] * len(table), table.schema[1].type))
    )
    change(prepared / "shard-00001.arrow")
    flags = [*SMALL, "--max_steps", "2", "--train_file", str(prepared), "--output_dir", str(tmp_path / "run")]
    assert main(["train", *flags]) == 1
    assert "The shards contain tokens 2 to 1,000,000, but the vocabulary has" in capsys.readouterr().err


WRONG = ["[]", "{", "{}", '{"settings": {}, "whole": true, "shards": null}', '{"whole": true}', "[" * 100_000]
# of a finished folder: without shards, without their counts, and with values of other types
WRONG += [
    json.dumps({"settings": {}, "whole": whole, "pairs": pairs, "shards": shards})
    for whole, pairs, shards in (
        (True, 1, {}),
        (True, 1, {"a": {"pairs": 1}}),
        (True, 1, {"a": {"pairs": True, "bytes": 1}}),
        (True, 1.5, {"a": {"pairs": 1, "bytes": 1}}),
        ("yes", 1, {"a": {"pairs": 1, "bytes": 1}}),
    )
]


@pytest.mark.parametrize("content", WRONG, ids=range(len(WRONG)))
def test_a_damaged_manifest_is_named(prepared, sample_folder, sample_tokenizer, content):
    (prepared / "manifest.json").write_text(content)
    for read in (lambda: load_shards(str(prepared)), lambda: prepare_sample(sample_folder, sample_tokenizer)):
        with pytest.raises(DataError, match=r"manifest\.json is damaged"):
            read()


@pytest.mark.parametrize(
    "changes",
    [
        {"spans": [[0, 0, 1, 2, 3]]},
        {"spans": [[0, 0, 1, True]]},
        {"spans": {"a": 1}},
        {"whole": 1},
        {"settings": []},
        {"parts": [1]},
    ],
)
def test_a_damaged_manifest_of_translations_is_named(tmp_path, changes):
    intact = {"settings": {}, "whole": True, "spans": [[0, 0, 1, 2]], "parts": ["part-00000.jsonl"]}
    (tmp_path / "translation.json").write_text(json.dumps(intact))
    assert read_translation_manifest(tmp_path) == intact
    (tmp_path / "translation.json").write_text(json.dumps(intact | changes))
    with pytest.raises(DataError, match=r"translation\.json is damaged; translate again into a new folder"):
        read_translation_manifest(tmp_path)


def test_training_reads_a_prepared_folder_with_its_tokenizer(prepared, sample_tokenizer, tmp_path, capsys):
    flags = [*SMALL, "--max_steps", "2", "--train_file", str(prepared), "--output_dir", str(tmp_path / "run")]
    assert main(["train", *flags, "--disable_tqdm", "true"]) == 0
    assert "train: 297 prepared pairs" in capsys.readouterr().err
    used, expected = (json.loads((folder / "tokenizer.json").read_text()) for folder in (tmp_path / "run", prepared))
    assert used == expected
    assert json.loads((tmp_path / "run" / "config.json").read_text())["vocab_size"] == len(sample_tokenizer)


def test_training_streams_a_prepared_folder(prepared, tmp_path):
    flags = [*SMALL, "--max_steps", "60", "--train_file", str(prepared), "--streaming", "--learning_rate", "0.1"]
    assert main(["train", *flags, "--output_dir", str(tmp_path / "run"), "--disable_tqdm", "true"]) == 0
    state = json.loads((tmp_path / "run" / "trainer_state.json").read_text())
    assert state["global_step"] == 60
    assert json.loads((tmp_path / "run" / "training.json").read_text())["pairs"] == 297


def test_training_rejects_a_prepared_folder_of_different_languages(prepared, tmp_path, capsys):
    flags = ["--train_file", str(prepared), "--target_lang", "fr", "--output_dir", str(tmp_path / "run"), "--use_cpu"]
    assert main(["train", "--preset", "tiny", *flags]) == 1
    message = "contains text from en to de, not from en to fr; use --source_lang en --target_lang de"
    assert message in capsys.readouterr().err


def test_a_stream_yields_each_pair_once_per_pass_in_batches_of_at_most_max_tokens(prepared):
    endless = iter(ShardStream(str(prepared), 200, buffer_pairs=297))
    passes = []
    for _ in range(2):
        batches = []
        while sum(map(len, batches)) < 297:
            batches.append(next(endless))
        passes.append(batches)
    expected = contents([list(load_shards(str(prepared)))])
    assert contents(passes[0]) == contents(passes[1]) == expected
    assert passes[0] != passes[1]
    for batch in passes[0]:
        assert max(len(pair[side]) for pair in batch for side in ("input_ids", "labels")) * len(batch) <= 200


def test_a_stream_is_reproducible_and_depends_on_the_seed(prepared):
    first, again = (take(prepared, 80, buffer_pairs=50) for _ in range(2))
    assert first == again
    assert first != take(prepared, 80, buffer_pairs=50, seed=1)


@pytest.mark.parametrize(("world_size", "workers"), [(2, 0), (1, 2), (3, 2)])
def test_processes_and_workers_read_disjoint_pairs(sample_folder, sample_tokenizer, world_size, workers):
    folder, _ = prepare_sample(sample_folder, sample_tokenizer, max_tokens=200)
    pairs = []
    for rank in range(world_size):
        readers = max(1, workers)
        for worker in range(readers):
            source = ShardStream(str(folder), 200, rank=rank, world_size=world_size)
            reader, num_readers = rank * readers + worker, world_size * readers
            share = sum(len(range(reader, count, num_readers)) for count in source.shards.values())
            pairs += itertools.islice(source._pairs(reader, num_readers), share)
    assert contents([pairs]) == contents([list(load_shards(str(folder)))])
    if workers:
        stream = ShardStream(str(folder), 200, world_size=world_size)
        batches = list(itertools.islice(DataLoader(stream, None, num_workers=workers, collate_fn=list), 4))
        assert batches[0] != batches[1]


@pytest.mark.parametrize("damage", ["missing", "truncated"])
def test_a_shard_lost_while_streaming_is_named(prepared, damage):
    batches = iter(ShardStream(str(prepared), 200, buffer_pairs=20))
    next(batches)
    for shard in prepared.glob("*.arrow"):
        if damage == "truncated":
            shard.write_bytes(shard.read_bytes()[: shard.stat().st_size // 2])
        else:
            shard.unlink()
    with pytest.raises(DataError, match=r"shard-0000\d.arrow (can no longer be read|is damaged)"):
        list(itertools.islice(batches, 500))


@pytest.mark.parametrize("streamed", [False, True])
def test_pairs_longer_than_max_tokens_are_named_before_training(prepared, tokenization, streamed):
    shards = load_shards(str(prepared))
    longest = max(shards["source_length"][:] + shards["target_length"][:])
    folder = PreparedFolder(LANGUAGES, str(prepared), streamed=streamed)
    tokenization.max_tokens = longest
    assert folder.tokenize(tokenization, "train") is not None
    tokenization.max_tokens = longest - 1
    with pytest.raises(DataError, match=rf"up to {longest} tokens, more than {longest - 1}; raise --max_tokens, or"):
        folder.tokenize(tokenization, "train")


@pytest.mark.slow
def test_more_readers_than_pairs_per_shard_are_rejected(sample_folder, sample_tokenizer, trainer):
    folder, _ = prepare_sample(sample_folder, sample_tokenizer, source=GivenRows(rows(PAIRS[:3])))
    assert next(iter(ShardStream(str(folder), 500, rank=2, world_size=3)))
    with pytest.raises(DataError, match="at most 3 pairs per shard, too few for 4 parallel readers"):
        ShardStream(str(folder), 500, world_size=4).sampler(500, 0, 1)
    run = trainer(train_dataset=ShardStream(str(folder), 500), dataloader_num_workers=4)
    with pytest.raises(DataError, match="lower --dataloader_num_workers"):
        run.get_train_dataloader()
