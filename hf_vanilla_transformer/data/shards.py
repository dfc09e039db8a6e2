"""Read text larger than memory: folders of Arrow shards that `preparation.prepare` wrote.

A folder of shards holds `shard-00000.arrow` ..., the tokenizer, and `manifest.json`, which says what is in them.
"""

import json
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, concatenate_datasets
from torch.utils.data import IterableDataset, get_worker_info

from .batching import MaxTokensBatchSampler
from .readers import DataError

MANIFEST = "manifest.json"


def is_prepared(folder: str | None) -> bool:
    """Whether `folder` is one that `prepare` made, or began to make."""
    return folder is not None and Path(folder, MANIFEST).is_file()


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """The manifest of a folder that `prepare` made or began.

    Raises:
        DataError: if it is damaged.
    """
    file = Path(folder, MANIFEST)
    try:
        manifest = json.loads(file.read_text("utf-8"))
        shards = {name: (about["pairs"], about["bytes"]) for name, about in manifest.get("shards", {}).items()}
        {**manifest["settings"]}
        numbers = all(isinstance(number, int) for pair in shards.values() for number in pair)
        if numbers and (not manifest["whole"] or (shards and isinstance(manifest["pairs"], int))):
            return manifest
    except (ValueError, TypeError, LookupError, AttributeError):
        pass
    raise DataError(f"{file} is damaged; make the folder again.")


def _manifest(folder: str) -> dict[str, Any]:
    manifest = read_manifest(folder)
    if not manifest["whole"]:
        raise DataError(f"{folder} is not finished; give the command that began it again.")
    for name, about in manifest["shards"].items():
        file = Path(folder, name)
        if not file.is_file():
            raise DataError(f"{file} is missing; make the folder anew.")
        size = file.stat().st_size
        if size != about["bytes"]:
            raise DataError(f"{file} is torn: {size} bytes, not {about['bytes']}; make the folder anew.")
    return manifest


def check_languages_of(folder: str, languages: tuple[str, str]) -> None:
    """See that a prepared folder is text of the two `languages`, source and target.

    Raises:
        DataError: if it is not.
    """
    settings = _manifest(folder)["settings"]
    theirs = (settings.get("source_lang"), settings.get("target_lang"))
    if theirs != languages:
        raise DataError(
            f"{folder} holds text from {theirs[0]} to {theirs[1]}: give --source_lang {theirs[0]} --target_lang "
            f"{theirs[1]}, not {languages[0]} and {languages[1]}."
        )


def load_shards(folder: str) -> Dataset:
    """The pairs of a folder of shards, mapped into memory: only what is read takes room.

    Raises:
        DataError: if the folder is not whole, or a shard is missing or torn, naming it.
    """
    return concatenate_datasets([Dataset.from_file(str(Path(folder, name))) for name in _manifest(folder)["shards"]])


class ShardStream(IterableDataset):
    """Batches by tokens from a folder of shards that is read from start to end, over and over, in constant memory.

    A buffer of pairs is filled, cut into batches of at most `max_tokens` tokens a side, and given out in random order.
    Shards come in another order in each pass. Of each shard every process, and each of its workers, reads pairs of its
    own. The same arguments give the same batches.

    Raises:
        DataError: as `load_shards` does, for a pair longer than `max_tokens`, and where a shard vanishes or is torn
            later on.
    """

    def __init__(
        self, folder: str, max_tokens: int, seed: int = 0, rank: int = 0, world: int = 1, buffer_pairs: int = 50_000
    ):
        manifest = _manifest(folder)
        self.pairs = manifest["pairs"]
        self.shards = {name: about["pairs"] for name, about in manifest["shards"].items()}
        self.folder, self.max_tokens, self.seed = folder, max_tokens, seed
        self.rank, self.world, self.buffer_pairs = rank, world, buffer_pairs
        table = load_shards(folder).data
        longest = max(pc.max(table[f"{side}_length"]).as_py() for side in ("source", "target"))
        if longest > max_tokens:
            raise DataError(
                f"{folder} has pairs of up to {longest} tokens, more than a whole batch of --max_tokens {max_tokens}: "
                "raise it, or prepare the text again with a lower --max_sentence_tokens."
            )
        self.check_readers(1)

    def check_readers(self, workers: int) -> None:
        """See that there is a pair for each of `workers` readers on every process.

        Raises:
            DataError: if there is not.
        """
        readers, pairs = self.world * workers, max(self.shards.values())
        if readers > pairs:
            raise DataError(
                f"{self.folder} has at most {pairs} pairs in a shard, fewer than the {readers} that read it side by "
                "side: lower --dataloader_num_workers, or the number of processes."
            )

    def __iter__(self) -> Iterator[list[dict[str, list[int]]]]:
        worker = get_worker_info()
        workers, number = (worker.num_workers, worker.id) if worker else (1, 0)
        self.check_readers(workers)
        part, parts = self.rank * workers + number, self.world * workers
        pairs = self._pairs(part, parts)
        for fill in count():
            buffer = list(islice(pairs, self.buffer_pairs))
            source, target = ([len(pair[side]) for pair in buffer] for side in ("input_ids", "labels"))
            sampler = MaxTokensBatchSampler(source, target, self.max_tokens, seed=self.seed)
            sampler.set_epoch(fill)
            for batch in sampler:
                yield [buffer[i] for i in batch]

    def _pairs(self, part: int, parts: int) -> Iterator[dict[str, list[int]]]:
        names = list(self.shards)
        for epoch in count():
            for i in np.random.default_rng((self.seed, epoch)).permutation(len(names)):
                yield from self._read(names[i], part, parts)

    def _read(self, name: str, part: int, parts: int) -> Iterator[dict[str, list[int]]]:
        """Every `parts`-th pair of a shard, from `part` on."""
        file, found = Path(self.folder, name), 0
        try:
            with pa.OSFile(str(file)) as source, pa.ipc.open_stream(source) as batches:
                for batch in batches:
                    mine = range((part - found) % parts, batch.num_rows, parts)
                    yield from batch.select(["input_ids", "labels"]).take(pa.array(mine, pa.int64())).to_pylist()
                    found += batch.num_rows
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{file} cannot be read any more: {error}") from None
        if found != self.shards[name]:
            raise DataError(f"{file} is torn: {found:,} pairs, not {self.shards[name]:,}; make the folder anew.")
