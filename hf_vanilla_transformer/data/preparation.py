"""Tokenise text larger than memory once, in parallel and in constant memory, into Arrow shards that training reads."""

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
from transformers import AutoTokenizer

from ..files import checksum, replacing, write_whole
from ..model.loading import load
from . import cleaning, readers
from .cleaning import DROPS, Cleaning, tokenize_batch
from .readers import DataError, Row, check_languages, read_rows, stamps_of
from .shards import MANIFEST, read_manifest
from .tokenizer import fingerprint, train_tokenizer

SAMPLE_PAIRS = 1_000_000  # from which a vocabulary is learned
VERSION = readers.VERSION + cleaning.VERSION  # of the code that reads and cleans text
_IDS = pa.list_(pa.int32())
_COLUMNS = {"input_ids": _IDS, "labels": _IDS, "source_length": pa.int32(), "target_length": pa.int32()}
_tokenizer: Any = None  # of a process that writes shards


@dataclass(frozen=True)
class Preparation:
    """How text is prepared.

    Args:
        languages: source and target language, as the text names them.
        vocab_size: of a tokenizer that is learned, from the first `SAMPLE_PAIRS` pairs.
        max_tokens: the most tokens of a batch's side; longer sentences are dropped.
        cleaning: what to drop beside; None drops only unusable pairs.
        shard_pairs: pairs read for one shard.
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
    tokenizer: Any = None,
    processes: int | None = None,
    progress: Callable[[int], Any] = lambda pairs: None,
) -> dict[str, Any]:
    """Write a folder of shards and return its manifest. If it is interrupted, the same call resumes it.

    Args:
        sources: files or Moses prefixes as `readers.load_pairs` takes them, or pairs that can be read more than once
            (a streamed data set, `readers.HubRows`).
        tokenizer: by default one is learned from the text.
        processes: by default one per core.
        progress: called with the number of pairs of each finished shard.

    Raises:
        DataError: for text that cannot be read; the shards before it stay.
        ValueError: if the folder holds shards of different text or settings.
    """
    check_languages(preparation.languages)
    folder = Path(output_dir)
    folder.mkdir(parents=True, exist_ok=True)

    def rows() -> Iterator[Row]:
        if not isinstance(sources, list):
            return iter(sources)
        return chain.from_iterable(read_rows(source, *preparation.languages)[0] for source in sources)

    settings = _settings(sources, preparation, tokenizer)
    before = _earlier_manifest(folder, settings)
    if before is None:
        if tokenizer is None:
            sample = (text for row in islice(rows(), SAMPLE_PAIRS) for text in row.values() if text)
            tokenizer = train_tokenizer(sample, preparation.vocab_size)
        tokenizer.save_pretrained(folder)
        _write_json(folder / MANIFEST, {"settings": settings, "whole": False})
    elif before["whole"]:
        return before
    shards = _write_shards(rows(), preparation, folder, processes or os.cpu_count() or 1, progress)
    manifest = {"settings": settings, "whole": True, **_totals(shards.values())}
    manifest["tokenizer"] = {"blake2b": checksum(folder / "tokenizer.json")}
    manifest["shards"] = dict(sorted(shards.items()))
    _write_json(folder / MANIFEST, manifest)
    return manifest


def _settings(sources: list[str] | Iterable[Row], preparation: Preparation, tokenizer: Any) -> dict[str, Any]:
    """Return what decides the content of the shards, in the types of JSON."""
    named = sources if isinstance(sources, list) else []
    files = [file for source in named for file in read_rows(source, *preparation.languages)[1]]
    settings = {
        "source_lang": preparation.languages[0],
        "target_lang": preparation.languages[1],
        "files": [(Path(file).name, *stamp) for file, stamp in zip(files, stamps_of(files), strict=True)],
        "dataset": getattr(sources, "origin", None),
        "tokenizer": tokenizer and fingerprint(tokenizer),
        "vocab_size": None if tokenizer else preparation.vocab_size,
        "max_tokens": preparation.max_tokens,
        "cleaning": preparation.cleaning and asdict(preparation.cleaning),
        "shard_pairs": preparation.shard_pairs,
        "version": VERSION,
    }
    return json.loads(json.dumps(settings))


def _earlier_manifest(folder: Path, settings: dict[str, Any]) -> dict[str, Any] | None:
    """Return the manifest of an earlier call with the same settings, or None if there was none.

    Raises:
        ValueError: if the settings differ.
    """
    if not (folder / MANIFEST).is_file():
        return None
    before = read_manifest(folder)
    recorded = before["settings"]
    if before["whole"]:  # stays valid when the code changes, or records more
        recorded = {**settings, **recorded, "version": settings["version"]}
    changed = [name for name, value in settings.items() if recorded.get(name) != value]
    if changed:
        raise ValueError(
            f"{folder} holds shards of different text or settings ({', '.join(changed)}, where version is that of "
            "the code that reads text); choose another folder."
        )
    return before


def _write_shards(
    rows: Iterator[Row], preparation: Preparation, folder: Path, processes: int, progress: Callable[[int], Any]
) -> dict[str, dict[str, Any]]:
    """Write the shards that are not there yet; return the counts of all of them by name."""
    shards: dict[str, dict[str, Any]] = {}
    waiting: deque[tuple[str, int, Future]] = deque()

    def take() -> None:
        name, pairs, future = waiting.popleft()
        shards[name] = future.result()
        progress(pairs)

    with _pool(processes, str(folder)) as pool:
        number = 0
        while part := list(islice(rows, preparation.shard_pairs)):
            file = folder / f"shard-{number:05}.arrow"
            number += 1
            if file.with_suffix(".json").is_file():
                shards[file.name] = json.loads(file.with_suffix(".json").read_text("utf-8"))
                progress(len(part))
                continue
            future = pool.submit(_write_shard, file, part, preparation.max_tokens, preparation.cleaning)
            waiting.append((file.name, len(part), future))
            if len(waiting) > processes:
                take()
        while waiting:
            take()
    return shards


def _pool(processes: int, folder: str) -> Executor:
    if processes == 1:  # in this process, where the tokenizer uses all cores itself
        return ThreadPoolExecutor(1, initializer=_load_tokenizer, initargs=(folder,))
    return ProcessPoolExecutor(processes, get_context("spawn"), _start_process, (folder,))


def _load_tokenizer(folder: str) -> None:
    global _tokenizer
    _tokenizer = load(AutoTokenizer, folder)


def _start_process(folder: str) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are parallel
    _load_tokenizer(folder)


def _write_shard(file: Path, rows: list[Row], max_tokens: int, cleaning: Cleaning | None) -> dict[str, Any]:
    """Tokenise and clean `rows` into `file`, and return its counts. Duplicates are found within the shard."""
    counts: Counter[str] = Counter(read=len(rows))
    drops: Counter[str] = Counter()
    seen: set[int] = set()
    schema = pa.schema(_COLUMNS)
    with (
        replacing(file) as unfinished,
        pa.OSFile(str(unfinished), "wb") as sink,
        pa.ipc.new_stream(sink, schema) as writer,
    ):
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
            writer.write_batch(pa.record_batch(columns, schema=schema))
            counts["pairs"] += len(kept)
            for side in ("source", "target"):
                counts[f"{side}_tokens"] += sum(tokens[f"{side}_length"][i] for i in kept)
    about = {**counts, "drops": dict(drops), "bytes": file.stat().st_size, "blake2b": checksum(file)}
    _write_json(file.with_suffix(".json"), about)
    return about


def _totals(shards: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return the counts of all shards together.

    Raises:
        DataError: if no pair is left.
    """
    totals: Counter[str] = Counter()
    drops: Counter[str] = Counter()
    for about in shards:
        drops.update(about["drops"])
        totals.update({name: about[name] for name in ("read", "pairs", "source_tokens", "target_tokens")})
    if not totals["pairs"]:
        raise DataError(f"No pair is left of {totals['read']:,}: {dict(drops)}.")
    return {**totals, "drops": dict(drops)}


def _write_json(file: Path, content: dict[str, Any]) -> None:
    write_whole(file, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
