"""Text larger than memory: tokenised once, in parallel and in constant memory, into Arrow shards that training reads.

A folder of shards holds `shard-00000.arrow` ..., the tokenizer, and `manifest.json`, which says what is in them.
"""

import json
import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict
from itertools import chain, islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow as pa
from datasets import Dataset, concatenate_datasets

from .data import DROPS, Cleaning, DataError, Row, read_rows, stamps_of, tokenize_batch
from .tokenizer import train_tokenizer

MANIFEST = "manifest.json"
SAMPLE_PAIRS = 1_000_000  # from which a vocabulary is learned
_IDS = pa.list_(pa.int32())
_COLUMNS = {"input_ids": _IDS, "labels": _IDS, "source_length": pa.int32(), "target_length": pa.int32()}

_tokenizer: Any = None  # of a process that writes shards


def _begin(folder: str) -> None:
    from transformers import AutoTokenizer

    global _tokenizer
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are parallel
    _tokenizer = AutoTokenizer.from_pretrained(folder)


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
    about = {**counts, "drops": dict(drops), "bytes": file.stat().st_size}
    _write_json(file.with_suffix(".json"), about)
    return about


def _write_json(file: Path, content: dict[str, Any]) -> None:
    unfinished = file.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", "utf-8")
    unfinished.replace(file)


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
        sources: files or Moses prefixes as `data.load_pairs` takes them, or pairs as they come (a streamed data set).
        tokenizer: else one of `vocab_size` tokens is learned from the first `SAMPLE_PAIRS` pairs.
        progress: called with the number of pairs of each shard that is done.

    Raises:
        DataError: for text that cannot be read; the shards before it stay.
        ValueError: if the folder holds shards of other text or settings.
    """
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
        "files": {Path(file).name: stamp for file, stamp in zip(files, stamps_of(files), strict=True)},
        "max_tokens": max_tokens,
        "cleaning": cleaning and asdict(cleaning),
        "shard_pairs": shard_pairs,
    }
    settings = json.loads(json.dumps(settings))
    before = json.loads((folder / MANIFEST).read_text("utf-8")) if (folder / MANIFEST).is_file() else None
    if before is None:
        if tokenizer is None:
            sample = (text for row in islice(rows(), SAMPLE_PAIRS) for text in row.values() if text)
            tokenizer = train_tokenizer(sample, vocab_size)
        tokenizer.save_pretrained(folder)
        _write_json(folder / MANIFEST, {"settings": settings, "whole": False})
    elif before["settings"] != settings:
        raise ValueError(f"{folder} holds shards of other text or settings; choose another folder.")
    elif before["whole"]:
        return before
    processes = processes or os.cpu_count() or 1
    shards: dict[str, dict[str, Any]] = {}
    waiting: deque[tuple[str, int, Future]] = deque()

    def take() -> None:
        name, count, future = waiting.popleft()
        shards[name] = future.result()
        progress(count)

    with ProcessPoolExecutor(processes, get_context("spawn"), _begin, (str(folder),)) as pool:
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
    counts = {**totals, "drops": dict(drops), "shards": dict(sorted(shards.items()))}
    _write_json(folder / MANIFEST, {"settings": settings, "whole": True, **counts})
    return {"settings": settings, "whole": True, **counts}


def is_prepared(folder: str | None) -> bool:
    """Whether `folder` is one that `prepare` made, or began to make."""
    return folder is not None and Path(folder, MANIFEST).is_file()


def load_shards(folder: str) -> Dataset:
    """The pairs of a folder of shards, mapped into memory: only what is read takes room.

    Raises:
        DataError: if the folder is not whole, or a shard is missing or torn, naming it.
    """
    manifest = json.loads(Path(folder, MANIFEST).read_text("utf-8"))
    if not manifest["whole"]:
        raise DataError(f"{folder} is not finished; give the command that began it again.")
    for name, about in manifest["shards"].items():
        file = Path(folder, name)
        if not file.is_file():
            raise DataError(f"{file} is missing; make the folder anew.")
        if file.stat().st_size != about["bytes"]:
            raise DataError(
                f"{file} is torn: {file.stat().st_size} bytes, not {about['bytes']}; make the folder anew."
            )
    return concatenate_datasets([Dataset.from_file(str(Path(folder, name))) for name in manifest["shards"]])
