"""Read text larger than memory, from folders of Arrow shards written by `preparation.prepare`.

Such a folder contains `shard-00000.arrow` ..., the tokenizer, and `manifest.json`, which describes the shards.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, concatenate_datasets
from torch.utils.data import IterableDataset, get_worker_info

from ..files import JsonObject, inside
from .batching import MaxTokensBatchSampler, Rows
from .formats import DataError, finished_files, identify, read_checked

MANIFEST = "manifest.json"
_IDS = pa.list_(pa.int32())
SCHEMA = pa.schema({"input_ids": _IDS, "labels": _IDS, "source_length": pa.int32(), "target_length": pa.int32()})
PREPARE_AGAIN = "prepare the text again in a new folder"


def is_prepared(folder: str | None) -> bool:
    """Return whether `prepare` has written to `folder`, even if it has not finished."""
    return folder is not None and Path(folder, MANIFEST).is_file()


def read_manifest(folder: str | Path) -> JsonObject:
    """Return the manifest of a folder to which `prepare` has written, even if it has not finished.

    Raises:
        DataError: if the manifest is damaged.
    """
    shard = {"pairs": int, "bytes": int, "blake2b": str}
    finished = {"read": int, "pairs": int, "drops": {str: int}, "shards": {str: shard}}
    manifest = read_checked(Path(folder, MANIFEST), {}, finished, PREPARE_AGAIN)
    if manifest["whole"] and not manifest["shards"]:
        raise DataError(f"{Path(folder, MANIFEST)} is damaged: it names no shards; {PREPARE_AGAIN}.")
    return manifest


def finished_manifest(folder: str) -> JsonObject:
    """Return the manifest of a finished folder, after checking that every shard exists and has the right size."""
    manifest = read_manifest(folder)
    files = finished_files(folder, manifest, "shards", PREPARE_AGAIN)
    for file, shard in zip(files, manifest["shards"].values(), strict=True):
        # The size reveals an interrupted copy without reading gigabytes, as a checksum would.
        size = file.stat().st_size
        if size != shard["bytes"]:
            raise DataError(f"{file} is damaged: {size:,} bytes instead of {shard['bytes']:,}; {PREPARE_AGAIN}.")
    return manifest


def load_shards(folder: str) -> Dataset:
    """Return the pairs of a folder of shards as a memory-mapped dataset, of which only the pages in use occupy memory.

    Before that, each process reads every shard once, about a gigabyte per second: damage would go unnoticed, or end
    the process.

    Raises:
        DataError: if the folder is not finished, or a shard is missing or damaged (the message names it).
    """
    shards = finished_manifest(folder)["shards"]
    return concatenate_datasets(
        [_load_shard(inside(folder, name), shard["blake2b"]) for name, shard in shards.items()]
    )


def _load_shard(file: Path, expected: str) -> Dataset:
    """Return the pairs of a shard whose digest is given."""
    try:
        if identify(str(file)) != expected:
            raise DataError("its checksum differs from that in the manifest")
        shard = Dataset.from_file(str(file))
        # whoever wrote the shard wrote the checksum too
        shard.data.validate(full=True)
        if not shard.data.schema.equals(SCHEMA):
            raise DataError(f"its columns are {', '.join(shard.column_names)}")
    except (ValueError, OSError) as error:
        raise DataError(f"{file} is damaged: {error}; {PREPARE_AGAIN}.") from None
    return shard


def check_ids(shards: Dataset, vocab_size: int) -> None:
    """Check that a vocabulary of this size contains all token ids of shards.

    Raises:
        DataError: if it does not.
    """
    for side in ("input_ids", "labels"):
        bounds = pc.min_max(pc.list_flatten(shards.data[side])).as_py()
        least = bounds["min"] or 0
        most = bounds["max"] or 0
        if not 0 <= least <= most < vocab_size:
            problem = f"The shards contain tokens {least:,} to {most:,}, but the vocabulary has {vocab_size:,}"
            raise DataError(f"{problem}; {PREPARE_AGAIN}.")


@dataclass(eq=False)
class ShardStream(Rows, IterableDataset):
    """Batches from a folder of shards that is read sequentially, pass after pass without end, in constant memory.

    A buffer is filled with pairs and divided into batches of at most `max_tokens` source and target tokens, which are
    yielded in random order. Each pass reads the shards in a different order. Every worker of every process reads
    different pairs of each shard. The same arguments produce the same batches.

    Args:
        folder: folder of shards.
        max_tokens: maximum number of tokens in the source and in the target of a batch, including padding.
        seed: seed of the order of shards and of the batches.
        rank: index of this process.
        world_size: number of processes.
        buffer_pairs: number of pairs in the buffer.

    Raises:
        DataError: if the folder is not finished; when it is read, if a shard is missing or truncated.
    """

    folder: str
    max_tokens: int
    seed: int = 0
    rank: int = 0
    world_size: int = 1
    buffer_pairs: int = 50_000

    def __post_init__(self):
        shards = finished_manifest(self.folder)["shards"]
        self.shards = {name: shard["pairs"] for name, shard in shards.items()}

    def sampler(self, max_tokens: int, seed: int, readers: int) -> None:
        """Check that a shard has at least one pair for each of `readers` workers on every process.

        Raises:
            DataError: if no shard has that many pairs.
        """
        readers *= self.world_size
        pairs = max(self.shards.values())
        if readers > pairs:
            problem = f"has at most {pairs} pairs per shard, too few for {readers} parallel readers"
            advice = "lower --dataloader_num_workers or the number of processes"
            raise DataError(f"{self.folder} {problem}; {advice}.")

    def __iter__(self) -> Iterator[list[dict[str, list[int]]]]:
        worker = get_worker_info()
        workers, worker_id = (worker.num_workers, worker.id) if worker else (1, 0)
        pairs = self._pairs(self.rank * workers + worker_id, self.world_size * workers)
        for fill in count():
            # A full buffer may continue with the next pass: there is no batch of leftovers at the end of one.
            buffer = list(islice(pairs, self.buffer_pairs))
            source = [len(pair["input_ids"]) for pair in buffer]
            target = [len(pair["labels"]) for pair in buffer]
            sampler = MaxTokensBatchSampler(source, target, self.max_tokens, seed=self.seed)
            sampler.set_epoch(fill)
            for batch in sampler:
                yield [buffer[i] for i in batch]

    def _pairs(self, reader: int, num_readers: int) -> Iterator[dict[str, list[int]]]:
        """Yield the pairs of one reader, pass after pass."""
        names = list(self.shards)
        # All readers draw the same order, so that they read neighbouring parts of one file at a time.
        for epoch in count():
            for i in np.random.default_rng((self.seed, epoch)).permutation(len(names)):
                yield from self._read(names[i], reader, num_readers)

    def _read(self, name: str, reader: int, num_readers: int) -> Iterator[dict[str, list[int]]]:
        """Yield every `num_readers`-th pair of a shard, starting at index `reader`."""
        file = Path(self.folder, name)
        count = 0
        try:
            # Not memory-mapped: pages of a mapped file would count as memory of this process.
            with pa.OSFile(str(file)) as source, pa.ipc.open_stream(source) as batches:
                for batch in batches:
                    # The pairs are counted across the batches of the file, whose sizes need not divide evenly.
                    indices = pa.array(range((reader - count) % num_readers, batch.num_rows, num_readers), pa.int64())
                    yield from batch.select(["input_ids", "labels"]).take(indices).to_pylist()
                    count += batch.num_rows
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{file} can no longer be read: {error}") from None
        # Arrow reads a stream that was cut between two batches to its end without an error.
        if count != self.shards[name]:
            raise DataError(f"{file} is damaged: {count:,} pairs instead of {self.shards[name]:,}; {PREPARE_AGAIN}.")
