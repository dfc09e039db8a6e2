"""The tasks that turn text into shards: read it into pieces, clean these, find duplicates, and write the shards."""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from transformers import PreTrainedTokenizerBase

from ...data.cleaning import DROP_REASONS, Cleaning, clean_batch, portions
from ...data.formats import DataError, Row
from ...data.shards import SCHEMA as SHARD_SCHEMA
from ...data.shards import read_manifest
from ...data.source import Source, text_to_exclude
from ...files import checksum, replacing
from ...loading import load_tokenizer
from .deduplication import digest, duplicates_of, find_duplicates, write_digests
from .runner import damaged, read_note, write_json

_TEXT = pa.schema({"source": pa.string(), "target": pa.string()})
ROWS_PER_BATCH = 5000  # tokenised at a time, and written as one record batch, fewer of very long texts
CHARACTERS_PER_BATCH = 1 << 26
WORK = "prepare-work"  # subfolder of temporary files, removed at the end


@dataclass(frozen=True)
class Preparation:
    """Settings that decide what the shards of a text contain.

    Args:
        languages: source and target language, named as in the text.
        vocab_size: size of the tokenizer, if one is trained (on the first `SAMPLE_PAIRS` pairs).
        max_tokens: maximum number of tokens in either side of a batch; pairs with a longer sentence are dropped.
        cleaning: further limits for pairs; if None, only unusable pairs and those in `exclude` are dropped.
        shard_pairs: number of pairs read per shard.
        tokenizer_model, normalization: kind of tokenizer, as for `train_tokenizer`.
        exclude: paths as for `text_to_exclude`; a pair with one of their sentences on either side is dropped.
        bpe_codes: file of merges, as `codes` for `train_tokenizer`.
    """

    languages: tuple[str, str]
    vocab_size: int = 37_000
    max_tokens: int = 25_000
    cleaning: Cleaning | None = None
    shard_pairs: int = 100_000
    tokenizer_model: str = "bpe"
    normalization: str = "none"
    exclude: tuple[str, ...] = ()
    bpe_codes: str | None = None


class Piece(NamedTuple):
    """A part of the text of at most `shard_pairs` pairs, which becomes a shard.

    Args:
        number: its number among all pieces.
        source, part: which piece of which source it is.
        pairs: number of pairs read.
    """

    number: int
    source: int
    part: int
    pairs: int


class PieceTasks(NamedTuple):
    """The tasks of a preparation in a folder. Each method that writes is a task, and returns its number of pairs."""

    folder: Path
    preparation: Preparation

    def file(self, kind: str, *numbers: int, ending: str = "arrow") -> Path:
        """Return the temporary file of a kind."""
        return self.folder / WORK / f"{'-'.join([kind, *(f'{number:05}' for number in numbers)])}.{ending}"

    def shard(self, piece: Piece) -> Path:
        """Return the shard that a piece becomes."""
        return self.folder / f"shard-{piece.number:05}.arrow"

    def read(self, numbered: tuple[int, Source]) -> int:
        """Read a source, with its number, into pieces.

        Raises:
            DataError: If it has changed since the job started.
        """
        number, source = numbered
        iterator = iter(source)
        counts: list[int] = []
        # compressed, because it is read only once; shards are not, so that training can map them into memory
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        for first in iterator:
            piece = chain([first], islice(iterator, self.preparation.shard_pairs - 1))
            with _arrow_writer(self.file("text", number, len(counts)), _TEXT, options) as writer:
                counts.append(0)
                for rows in portions(piece, _characters, CHARACTERS_PER_BATCH, ROWS_PER_BATCH):
                    writer.write_batch(pa.RecordBatch.from_pylist(rows, _TEXT))
                    counts[-1] += len(rows)
        known = read_manifest(self.folder)["settings"]["files"]
        local = [part for part in source.parts if not part.needs_network]
        if not all(content in known for part in local for content in part.identity()):
            raise DataError(f"{source.name} has changed while it was read; prepare it in a new folder.")
        # last, since it marks the task as done
        write_json(self.file("source", number, ending="json"), {"pairs": counts})
        return sum(counts)

    def pieces(self, sources: int) -> list[Piece]:
        """Return the pieces of all sources, which have been read.

        Raises:
            DataError: If the note of a source is damaged.
        """
        found: list[Piece] = []
        for source in range(sources):
            note = self.file("source", source, ending="json")
            for index, pairs in enumerate(read_note(note, {"pairs": [int]})["pairs"]):
                if not 0 < pairs <= self.preparation.shard_pairs:
                    raise damaged(note)
                found.append(Piece(len(found), source, index, pairs))
        return found

    def text(self, pieces: Iterable[Piece]) -> Iterator[str]:
        """Yield the source and the target of each pair of pieces."""
        for piece in pieces:
            for batch in _arrow_batches(self.file("text", piece.source, piece.part)):
                for row in batch.to_pylist():
                    yield from row.values()

    def clean(self, piece: Piece) -> int:
        """Tokenise a piece, drop what cleaning drops, and write the tokens and digests of the rest."""
        tokenizer = tokenizer_of(self.folder)
        drops = Counter[str]()
        digests = []
        excluded = load_excluded(self.preparation.exclude, self.preparation.languages)
        with _arrow_writer(self.file("tokens", piece.number), SHARD_SCHEMA) as writer:
            for batch in _arrow_batches(self.file("text", piece.source, piece.part)):
                texts = batch.to_pydict()
                tokens = clean_batch(
                    texts, tokenizer, self.preparation.max_tokens, self.preparation.cleaning, excluded
                )
                drops.update(DROP_REASONS[drop] for drop in tokens["drop"] if drop >= 0)
                kept = [i for i, drop in enumerate(tokens["drop"]) if drop < 0]
                if self.preparation.cleaning:
                    digests += [digest(texts["source"][i], texts["target"][i]) for i in kept]
                columns = [pa.array([tokens[column.name][i] for i in kept], column.type) for column in SHARD_SCHEMA]
                writer.write_batch(pa.record_batch(columns, schema=SHARD_SCHEMA))
        if self.preparation.cleaning:
            write_digests(self.file("digests", piece.number, ending="npy"), digests)
        write_json(self.file("tokens", piece.number, ending="json"), {"drops": dict(drops)})
        return piece.pairs

    def find_duplicates(self, task: tuple[int, int, int]) -> int:
        """Find the duplicates in one range of digests; a task is the range, the number of ranges and of pieces."""
        index, ranges, pieces = task
        files = [self.file("digests", piece, ending="npy") for piece in range(pieces)]
        return find_duplicates(files, index, ranges, self.file("duplicates", index, ending="npy"))

    def write(self, task: tuple[Piece, int]) -> int:
        """Write the shard of a piece without duplicates, and its counts; a task is the piece and number of ranges."""
        piece, ranges = task
        files = (self.file("duplicates", index, ending="npy") for index in range(ranges))
        duplicates = duplicates_of(files, piece.number)
        drops = Counter[str](
            read_note(self.file("tokens", piece.number, ending="json"), {"drops": {str: int}})["drops"]
        )
        if len(duplicates):
            drops["duplicate"] = len(duplicates)
        shard = self.shard(piece)
        counts = Counter[str](read=piece.pairs)
        start = 0
        with _arrow_writer(shard, SHARD_SCHEMA) as writer:
            for batch in _arrow_batches(self.file("tokens", piece.number)):
                kept = np.ones(batch.num_rows, bool)
                # duplicates are numbered within the piece, not within the batch
                here = duplicates[(duplicates >= start) & (duplicates < start + batch.num_rows)]
                kept[here.astype(np.int64) - start] = False
                start += batch.num_rows
                kept_batch = batch.filter(pa.array(kept))
                writer.write_batch(kept_batch)
                counts["pairs"] += kept_batch.num_rows
                for side in ("source", "target"):
                    counts[f"{side}_tokens"] += pc.sum(kept_batch[f"{side}_length"]).as_py() or 0
        entry = {**counts, "drops": dict(drops), "bytes": shard.stat().st_size, "blake2b": checksum(shard)}
        write_json(shard.with_suffix(".json"), entry)
        return piece.pairs


def _characters(row: Row) -> int:
    return sum(map(len, row.values()))


@lru_cache(1)
def tokenizer_of(folder: Path) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a folder of shards, loaded once per process."""
    return load_tokenizer(str(folder))


@lru_cache(1)
def load_excluded(paths: tuple[str, ...], languages: tuple[str, str]) -> frozenset[str]:
    """Return the sentences to exclude, without white space around them.

    Raises:
        DataError: if a path cannot be read, or has no sentences.
    """
    excluded: set[str] = set()
    for path in paths:
        sentences = {text.strip() for row in text_to_exclude(path, languages) for text in row.values()} - {""}
        if not sentences:
            raise DataError(f"{path} contains no sentences to exclude.")
        excluded |= sentences
    return frozenset(excluded)


@contextmanager
def _arrow_writer(
    file: Path, schema: pa.Schema, options: pa.ipc.IpcWriteOptions | None = None
) -> Iterator[pa.RecordBatchStreamWriter]:
    """Yield a writer of record batches, whose file appears when it is complete."""
    with (
        replacing(file, shared=True) as unfinished,
        pa.OSFile(str(unfinished), "wb") as sink,
        pa.ipc.new_stream(sink, schema, options=options) as writer,
    ):
        yield writer


def _arrow_batches(file: Path) -> Iterator[pa.RecordBatch]:
    try:
        with pa.OSFile(str(file)) as source, pa.ipc.open_stream(source) as batches:
            yield from batches
    except pa.ArrowException as error:
        raise DataError(f"{file} is damaged ({error}); start the job again in a new folder.") from None
