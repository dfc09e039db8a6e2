"""Tokenise text larger than memory, once, into Arrow shards for training; in parallel and in constant memory."""

import json
import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import chain, islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow as pa
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from ..files import checksum, replacing, write_whole
from ..model.loading import load
from . import cleaning, readers
from .cleaning import DROP_REASONS, Cleaning, all_dropped, tokenize_batch
from .formats import Row
from .readers import check_languages, file_stamps, read_rows
from .shards import MANIFEST, read_manifest
from .tokenizer import fingerprint, train_tokenizer

SAMPLE_PAIRS = 1_000_000  # number of pairs on which a tokenizer is trained
VERSION = readers.VERSION + cleaning.VERSION  # version of the code that reads and cleans text
_IDS = pa.list_(pa.int32())
_COLUMNS = {"input_ids": _IDS, "labels": _IDS, "source_length": pa.int32(), "target_length": pa.int32()}
ROWS_PER_BATCH = 5000  # tokenised at a time, and written as one record batch
_tokenizer: PreTrainedTokenizerBase  # set in each process that writes shards


@dataclass(frozen=True)
class Preparation:
    """Settings that decide what the shards of a text contain.

    Args:
        languages: source and target language, named as in the text.
        vocab_size: size of the tokenizer, if one is trained (on the first `SAMPLE_PAIRS` pairs).
        max_tokens: maximum number of tokens in either side of a batch; pairs with a longer sentence are dropped.
        cleaning: further limits for pairs; if None, only unusable pairs are dropped.
        shard_pairs: number of pairs read per shard.
    """

    languages: tuple[str, str]
    vocab_size: int = 37_000
    max_tokens: int = 25_000
    cleaning: Cleaning | None = None
    shard_pairs: int = 100_000


def prepare(
    sources: list[str] | Iterable[Row],
    preparation: Preparation,
    output_dir: str,
    tokenizer: PreTrainedTokenizerBase | None = None,
    processes: int | None = None,
    progress: Callable[[int], object] = lambda pairs: None,
) -> dict[str, Any]:
    """Write a folder of shards and return its manifest. After an interruption, the same call resumes.

    Args:
        sources: files or Moses prefixes, as for `readers.load_pairs`, or an iterable of pairs that can be iterated
            more than once (a streamed dataset, `hub_datasets.HubRows`).
        tokenizer: tokenizer to use; by default, one is trained on the text.
        processes: number of processes; by default, one per core.
        progress: called with the number of pairs read for a shard once it is finished.

    Raises:
        DataError: if text cannot be read (finished shards are kept), or every pair was dropped.
        ValueError: if the folder contains shards of different text or settings.
    """
    check_languages(preparation.languages)
    folder = Path(output_dir)
    folder.mkdir(parents=True, exist_ok=True)

    def rows() -> Iterator[Row]:
        if not isinstance(sources, list):
            return iter(sources)
        return chain.from_iterable(read_rows(source, *preparation.languages)[0] for source in sources)

    settings = _settings(sources, preparation, tokenizer)
    earlier = _earlier_manifest(folder, settings)
    if earlier is None:
        if tokenizer is None:
            sample = (text for row in islice(rows(), SAMPLE_PAIRS) for text in row.values() if text)
            tokenizer = train_tokenizer(sample, preparation.vocab_size)
        tokenizer.save_pretrained(folder)
        _write_json(folder / MANIFEST, {"settings": settings, "whole": False})
    elif earlier["whole"]:
        return earlier
    shards = _write_shards(rows(), preparation, folder, processes or os.cpu_count() or 1, progress)
    manifest = {"settings": settings, "whole": True, **_sum_counts(shards.values())}
    manifest["tokenizer"] = {"blake2b": checksum(folder / "tokenizer.json")}
    manifest["shards"] = dict(sorted(shards.items()))
    _write_json(folder / MANIFEST, manifest)
    return manifest


def _settings(
    sources: list[str] | Iterable[Row], preparation: Preparation, tokenizer: PreTrainedTokenizerBase | None
) -> dict[str, Any]:
    """Return everything that determines the content of the shards, in types of JSON."""
    paths = sources if isinstance(sources, list) else []
    files = [file for path in paths for file in read_rows(path, *preparation.languages)[1]]
    settings = {
        "source_lang": preparation.languages[0],
        "target_lang": preparation.languages[1],
        "files": [(Path(file).name, *stamp) for file, stamp in zip(files, file_stamps(files), strict=True)],
        "dataset": getattr(sources, "origin", None),
        "tokenizer": tokenizer and fingerprint(tokenizer),
        "vocab_size": None if tokenizer else preparation.vocab_size,
        "max_tokens": preparation.max_tokens,
        "cleaning": preparation.cleaning and _without_none(asdict(preparation.cleaning)),
        "shard_pairs": preparation.shard_pairs,
        "version": VERSION,
    }
    return json.loads(json.dumps(settings))


def _without_none(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that are set, so that a new one does not invalidate earlier folders."""
    return {name: value for name, value in settings.items() if value is not None}


def _earlier_manifest(folder: Path, settings: dict[str, Any]) -> dict[str, Any] | None:
    """Return the manifest of an earlier call with the same settings, or None if there was none.

    Raises:
        ValueError: if the settings of that call are different.
    """
    if not (folder / MANIFEST).is_file():
        return None
    earlier = read_manifest(folder)
    recorded = earlier["settings"]
    if earlier["whole"]:  # remains valid if the code changes or records additional settings
        recorded = {**settings, **recorded, "version": settings["version"]}
    changed = [name for name, value in settings.items() if recorded.get(name) != value]
    if changed:
        raise ValueError(
            f'{folder} contains shards of different text or settings ({", ".join(changed)}; "version" identifies '
            "the code that reads and cleans text); choose another folder."
        )
    return earlier


def _write_shards(
    rows: Iterator[Row], preparation: Preparation, folder: Path, processes: int, progress: Callable[[int], object]
) -> dict[str, dict[str, Any]]:
    """Write the shards that do not exist yet; return the counts of all shards by name."""
    shards: dict[str, dict[str, Any]] = {}
    pending: deque[tuple[str, int, Future[dict[str, Any]]]] = deque()

    def collect() -> None:
        name, pairs, future = pending.popleft()
        shards[name] = future.result()
        progress(pairs)

    with _start_pool(processes, str(folder)) as pool:
        number = 0
        while shard_rows := list(islice(rows, preparation.shard_pairs)):
            file = folder / f"shard-{number:05}.arrow"
            number += 1
            if file.with_suffix(".json").is_file():
                shards[file.name] = json.loads(file.with_suffix(".json").read_text("utf-8"))
                progress(len(shard_rows))
                continue
            future = pool.submit(_write_shard, file, shard_rows, preparation.max_tokens, preparation.cleaning)
            pending.append((file.name, len(shard_rows), future))
            if len(pending) > processes:
                collect()
        while pending:
            collect()
    return shards


def _start_pool(processes: int, folder: str) -> Executor:
    if processes == 1:  # a thread, since the tokenizer then uses all cores itself
        return ThreadPoolExecutor(1, initializer=_load_tokenizer, initargs=(folder,))
    return ProcessPoolExecutor(processes, get_context("spawn"), _init_process, (folder,))


def _load_tokenizer(folder: str) -> None:
    global _tokenizer
    _tokenizer = load(AutoTokenizer, folder)


def _init_process(folder: str) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes already run in parallel
    _load_tokenizer(folder)


def _write_shard(file: Path, rows: list[Row], max_tokens: int, cleaning: Cleaning | None) -> dict[str, Any]:
    """Tokenise and clean `rows`, write them to `file`, and return its counts. Only duplicates in `rows` are found."""
    counts: Counter[str] = Counter(read=len(rows))
    drops: Counter[str] = Counter()
    seen: set[int] = set()
    schema = pa.schema(_COLUMNS)
    with (
        replacing(file) as unfinished,
        pa.OSFile(str(unfinished), "wb") as sink,
        pa.ipc.new_stream(sink, schema) as writer,
    ):
        for start in range(0, len(rows), ROWS_PER_BATCH):
            batch_rows = rows[start : start + ROWS_PER_BATCH]
            batch = {side: [row[side] for row in batch_rows] for side in ("source", "target")}
            tokens = tokenize_batch(batch, _tokenizer, max_tokens, cleaning)
            kept = []
            for i, (drop, digest) in enumerate(zip(tokens["drop"], tokens["digest"], strict=True)):
                if drop < 0 and cleaning and digest in seen:
                    drop = DROP_REASONS.index("duplicate")
                seen.add(digest)
                if drop < 0:
                    kept.append(i)
                else:
                    drops[DROP_REASONS[drop]] += 1
            columns = [pa.array([tokens[name][i] for i in kept], type) for name, type in _COLUMNS.items()]
            writer.write_batch(pa.record_batch(columns, schema=schema))
            counts["pairs"] += len(kept)
            for side in ("source", "target"):
                counts[f"{side}_tokens"] += sum(tokens[f"{side}_length"][i] for i in kept)
    entry = {**counts, "drops": dict(drops), "bytes": file.stat().st_size, "blake2b": checksum(file)}
    _write_json(file.with_suffix(".json"), entry)
    return entry


def _sum_counts(shards: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return the total counts of all shards.

    Raises:
        DataError: if every pair was dropped.
    """
    totals: Counter[str] = Counter()
    drops: Counter[str] = Counter()
    for shard in shards:
        drops.update(shard["drops"])
        totals.update({name: shard[name] for name in ("read", "pairs", "source_tokens", "target_tokens")})
    if not totals["pairs"]:
        raise all_dropped(totals["read"], drops)
    return {**totals, "drops": dict(drops)}


def _write_json(file: Path, content: dict[str, Any]) -> None:
    write_whole(file, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
