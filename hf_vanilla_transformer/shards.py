"""Text larger than memory: tokenised once, in parallel and in constant memory, into Arrow shards that training reads.

A folder of shards holds `shard-00000.arrow` ..., the tokenizer, and `manifest.json`, which says what is in them.
"""

import json
import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import asdict
from itertools import chain, count, islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, concatenate_datasets, load_dataset
from torch.utils.data import IterableDataset, get_worker_info

from .batching import MaxTokensBatchSampler
from .data import DROPS, VERSION, Cleaning, DataError, Row, check_languages, read_rows, stamps_of, tokenize_batch
from .files import checksum, write_whole
from .tokenizer import fingerprint, train_tokenizer

MANIFEST = "manifest.json"
SAMPLE_PAIRS = 1_000_000  # from which a vocabulary is learned
_IDS = pa.list_(pa.int32())
_COLUMNS = {"input_ids": _IDS, "labels": _IDS, "source_length": pa.int32(), "target_length": pa.int32()}

_tokenizer: Any = None  # of a process that writes shards


def _begin(folder: str) -> None:
    from transformers import AutoTokenizer

    from .loading import load

    global _tokenizer
    _tokenizer = load(AutoTokenizer, folder)


def _pool(processes: int, folder: str) -> Executor:
    if processes == 1:  # here, where the tokenizer uses all cores itself
        return ThreadPoolExecutor(1, initializer=_begin, initargs=(folder,))
    return ProcessPoolExecutor(processes, get_context("spawn"), _begin_alone, (folder,))


def _begin_alone(folder: str) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are parallel
    _begin(folder)


def _write_shard(file: Path, rows: list[Row], max_tokens: int, cleaning: Cleaning | None) -> dict[str, Any]:
    """Tokenises and cleans `rows` into `file`; gives its counts. A duplicate is one within the shard."""
    counts: Counter[str] = Counter(read=len(rows))
    drops: Counter[str] = Counter()
    seen: set[int] = set()
    unfinished = file.with_suffix(".unfinished")
    with pa.OSFile(str(unfinished), "wb") as sink, pa.ipc.new_stream(sink, pa.schema(_COLUMNS)) as writer:
        for start in range(0, len(rows), 5000):
            part = rows[start : start + 5000]
            batch = {side: [row[side] for row in part] for side in ("source", "target")}
            tokens = tokenize_batch(batch, _tokenizer, max_tokens, cleaning)
            kept = []
            for i, (drop, digest) in enumerate(zip(tokens["drop"], tokens["digest"], strict=True)):
                if drop < 0 and cleaning and digest in seen:
                    drop = DROPS.index("duplicate")
                seen.add(digest)
                if drop < 0:
                    kept.append(i)
                else:
                    drops[DROPS[drop]] += 1
            columns = [pa.array([tokens[name][i] for i in kept], type) for name, type in _COLUMNS.items()]
            writer.write_batch(pa.record_batch(columns, schema=pa.schema(_COLUMNS)))
            counts["pairs"] += len(kept)
            for side in ("source", "target"):
                counts[f"{side}_tokens"] += sum(tokens[f"{side}_length"][i] for i in kept)
    unfinished.replace(file)
    about = {**counts, "drops": dict(drops), "bytes": file.stat().st_size, "blake2b": checksum(file)}
    _write_json(file.with_suffix(".json"), about)
    return about


def _write_json(file: Path, content: dict[str, Any]) -> None:
    write_whole(file, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


class HubRows:
    """The train split of a data set of the Hub, read from there as it is needed."""

    def __init__(self, name: str, config_name: str | None, languages: tuple[str, str]):
        self.rows, self.languages = load_dataset(name, config_name, split="train", streaming=True), languages
        if Path(name).is_dir():  # by its name and what is in it, not by where it lies
            files = sorted(str(file) for file in Path(name).rglob("*") if file.is_file())
            self.origin: list[Any] = [Path(name).resolve().name, config_name, *stamps_of(files)]
        else:
            self.origin = [name, config_name]

    def __iter__(self) -> Iterator[Row]:
        for row in self.rows:
            texts = row.get("translation", row)
            yield {
                side: texts[language] or ""
                for side, language in zip(("source", "target"), self.languages, strict=True)
            }


def prepare(
    sources: list[str] | Iterable[Row],
    languages: tuple[str, str],
    output_dir: str,
    tokenizer: Any = None,
    vocab_size: int = 37_000,
    max_tokens: int = 25_000,
    cleaning: Cleaning | None = None,
    shard_pairs: int = 100_000,
    processes: int | None = None,
    progress: Callable[[int], Any] = lambda pairs: None,
) -> dict[str, Any]:
    """Writes a folder of shards and gives its manifest. Cut off and started again, it goes on where it was.

    Args:
        sources: files or Moses prefixes as `data.load_pairs` takes them, or pairs that can be read more than once (a
            streamed data set, `HubRows`).
        tokenizer: else one of `vocab_size` tokens is learned from the first `SAMPLE_PAIRS` pairs.
        progress: called with the number of pairs of each shard that is done.

    Raises:
        DataError: for text that cannot be read; the shards before it stay.
        ValueError: if the folder holds shards of other text or settings.
    """
    check_languages(languages)
    folder = Path(output_dir)
    folder.mkdir(parents=True, exist_ok=True)

    def rows() -> Iterator[Row]:
        if not isinstance(sources, list):
            return iter(sources)
        return chain.from_iterable(read_rows(source, *languages)[0] for source in sources)

    named = sources if isinstance(sources, list) else []
    files = [file for source in named for file in read_rows(source, *languages)[1]]
    settings = {
        "source_lang": languages[0],
        "target_lang": languages[1],
        "files": [(Path(file).name, *stamp) for file, stamp in zip(files, stamps_of(files), strict=True)],
        "dataset": getattr(sources, "origin", None),
        "tokenizer": tokenizer and fingerprint(tokenizer),
        "vocab_size": None if tokenizer else vocab_size,
        "max_tokens": max_tokens,
        "cleaning": cleaning and asdict(cleaning),
        "shard_pairs": shard_pairs,
        "version": VERSION,
    }
    settings = json.loads(json.dumps(settings))
    before = _read_manifest(folder) if (folder / MANIFEST).is_file() else None
    if before is None:
        if tokenizer is None:
            sample = (text for row in islice(rows(), SAMPLE_PAIRS) for text in row.values() if text)
            tokenizer = train_tokenizer(sample, vocab_size)
        tokenizer.save_pretrained(folder)
        _write_json(folder / MANIFEST, {"settings": settings, "whole": False})
    else:
        theirs = before["settings"]
        if before["whole"]:  # stays right when the code changes, or records more
            theirs = {**settings, **theirs, "version": settings["version"]}
        changed = [name for name, value in settings.items() if theirs.get(name) != value]
        if changed:
            raise ValueError(
                f"{folder} holds shards of other text or settings ({', '.join(changed)}, where version is that of the "
                "code that reads text); choose another folder."
            )
        if before["whole"]:
            return before
    processes = processes or os.cpu_count() or 1
    shards: dict[str, dict[str, Any]] = {}
    waiting: deque[tuple[str, int, Future]] = deque()

    def take() -> None:
        name, count, future = waiting.popleft()
        shards[name] = future.result()
        progress(count)

    with _pool(processes, str(folder)) as pool:
        pairs = rows()
        number = 0
        while part := list(islice(pairs, shard_pairs)):
            file = folder / f"shard-{number:05}.arrow"
            number += 1
            if file.with_suffix(".json").is_file():
                shards[file.name] = json.loads(file.with_suffix(".json").read_text("utf-8"))
                progress(len(part))
                continue
            waiting.append((file.name, len(part), pool.submit(_write_shard, file, part, max_tokens, cleaning)))
            if len(waiting) > processes:
                take()
        while waiting:
            take()
    totals: Counter[str] = Counter()
    drops: Counter[str] = Counter()
    for about in shards.values():
        drops.update(about["drops"])
        totals.update({name: about[name] for name in ("read", "pairs", "source_tokens", "target_tokens")})
    if not totals["pairs"]:
        raise DataError(f"No pair is left of {totals['read']:,}: {dict(drops)}.")
    manifest = {
        "settings": settings,
        "whole": True,
        **totals,
        "drops": dict(drops),
        "tokenizer": {"blake2b": checksum(folder / "tokenizer.json")},
        "shards": dict(sorted(shards.items())),
    }
    _write_json(folder / MANIFEST, manifest)
    return manifest


def is_prepared(folder: str | None) -> bool:
    """Whether `folder` is one that `prepare` made, or began to make."""
    return folder is not None and Path(folder, MANIFEST).is_file()


def _read_manifest(folder: str | Path) -> dict[str, Any]:
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
    manifest = _read_manifest(folder)
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
