"""The tasks that turn text into shards: read it into pieces, find duplicates, and clean the pieces into shards."""

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
from transformers import PreTrainedTokenizerBase

from ...data.cleaning import DROP_REASONS, Cleaning, clean_batch, pair_digest, portions
from ...data.formats import NOT_LINES, DataError, Row, ending_of, identify, read_lines
from ...data.shards import SCHEMA as SHARD_SCHEMA
from ...data.shards import read_manifest
from ...data.source import Source, TextFile
from ...data.text_flags import VocabularyFlags
from ...files import checksum, replacing
from ...loading import load_tokenizer
from .deduplication import duplicates_of, find_duplicates, write_digests
from .job_folder import damaged, read_note, write_json

_TEXT = pa.schema({"source": pa.string(), "target": pa.string()})
ROWS_PER_BATCH = 5000  # tokenised at a time, and written as one record batch, fewer of very long texts
CHARACTERS_PER_BATCH = 1 << 26
WORK = "prepare-work"  # subfolder of temporary files, removed at the end


@dataclass(kw_only=True)
class Preparation(VocabularyFlags):
    """Settings that decide what the shards of a text contain.

    Those of the vocabulary hold if a tokenizer is trained (on the first `SAMPLE_PAIRS` pairs).

    Args:
        languages: source and target language, named as in the text.
        max_tokens: maximum number of tokens in either side of a batch; pairs with a longer sentence are dropped.
        cleaning: further limits for pairs; if None, only unusable pairs and those in `exclude` are dropped.
        shard_pairs: number of pairs read per shard.
        exclude: paths as for `read_excluded`; a pair with one of their sentences on either side is dropped.
    """

    languages: tuple[str, str]
    vocab_size: int = 37_000
    max_tokens: int = 25_000
    cleaning: Cleaning | None = None
    shard_pairs: int = 100_000
    exclude: tuple[str, ...] = ()


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
        # compressed, because it is read from start to end; shards are not, so that training can map them into memory
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        for first in iterator:
            piece = chain([first], islice(iterator, self.preparation.shard_pairs - 1))
            with _arrow_writer(self.file("text", number, len(counts)), _TEXT, options) as writer:
                counts.append(0)
                for rows in portions(piece, _characters, CHARACTERS_PER_BATCH, ROWS_PER_BATCH):
                    writer.write_batch(pa.RecordBatch.from_pylist(rows, _TEXT))
                    counts[-1] += len(rows)
        known = read_manifest(self.folder)["settings"]["text"]
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
        pieces: list[Piece] = []
        for source in range(sources):
            note = self.file("source", source, ending="json")
            for index, pairs in enumerate(read_note(note, {"pairs": [int]})["pairs"]):
                if not 0 < pairs <= self.preparation.shard_pairs:
                    raise damaged(note)
                pieces.append(Piece(len(pieces), source, index, pairs))
        return pieces

    def batches(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        """Yield the text of a piece, in the columns "source" and "target".

        Raises:
            DataError: If its file is damaged.
        """
        file = self.file("text", piece.source, piece.part)
        try:
            with pa.OSFile(str(file)) as source, pa.ipc.open_stream(source) as batches:
                yield from batches
        except pa.ArrowException as error:
            raise DataError(f"{file} is damaged ({error}); start the job again in a new folder.") from None

    def text(self, pieces: Iterable[Piece]) -> Iterator[str]:
        """Yield the source and the target of each pair of pieces."""
        for batch in chain.from_iterable(map(self.batches, pieces)):
            for row in batch.to_pylist():
                yield from row.values()

    def write_digests(self, piece: Piece) -> int:
        """Write the digests of a piece, by which duplicates are found."""
        digests = [pair_digest(**row) for batch in self.batches(piece) for row in batch.to_pylist()]
        write_digests(self.file("digests", piece.number, ending="npy"), digests)
        return piece.pairs

    def find_duplicates(self, task: tuple[int, int, int]) -> int:
        """Find the duplicates in one range of digests; a task is the range, the number of ranges and of pieces."""
        index, ranges, pieces = task
        files = [self.file("digests", piece, ending="npy") for piece in range(pieces)]
        return find_duplicates(files, index, ranges, self.file("duplicates", index, ending="npy"))

    def write(self, task: tuple[Piece, int]) -> int:
        """Tokenise a piece, and write what cleaning keeps and is no duplicate as its shard, with the counts.

        Args:
            task: the piece, and the number of ranges in which duplicates were found.
        """
        piece, ranges = task
        settings = self.preparation
        tokenizer = tokenizer_of(self.folder)
        excluded = load_excluded(settings.exclude, settings.languages)
        duplicates = duplicates_of([self.file("duplicates", i, ending="npy") for i in range(ranges)], piece.number)
        shard = self.shard(piece)
        counts = Counter[str](read=piece.pairs)
        drops = Counter[str]()
        start = 0
        with _arrow_writer(shard, SHARD_SCHEMA) as writer:
            for batch in self.batches(piece):
                rows = clean_batch(batch.to_pydict(), tokenizer, settings.max_tokens, settings.cleaning, excluded)
                reasons = np.array(rows["drop"])
                # equal pairs have the same other reason, if any
                repeated = np.isin(np.arange(start, start + batch.num_rows), duplicates) & (reasons < 0)
                reasons[repeated] = DROP_REASONS.index("duplicate")
                start += batch.num_rows
                drops.update(DROP_REASONS[reason] for reason in reasons[reasons >= 0])
                kept = np.flatnonzero(reasons < 0).tolist()
                columns = [pa.array([rows[column.name][i] for i in kept], column.type) for column in SHARD_SCHEMA]
                writer.write_batch(pa.record_batch(columns, schema=SHARD_SCHEMA))
                counts["pairs"] += len(kept)
                for side in ("source", "target"):
                    counts[f"{side}_tokens"] += sum(rows[f"{side}_length"][i] for i in kept)
        ordered = {reason: drops[reason] for reason in DROP_REASONS if drops[reason]}
        entry = {**counts, "drops": ordered, "bytes": shard.stat().st_size, "blake2b": checksum(shard)}
        write_json(shard.with_suffix(".json"), entry)
        return piece.pairs


def _characters(row: Row) -> int:
    return sum(map(len, row.values()))


@lru_cache(1)
def tokenizer_of(folder: Path) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a folder of shards, loaded once per process."""
    return load_tokenizer(str(folder))


def read_excluded(path: str, languages: tuple[str, str]) -> tuple[list, Iterator[str]]:
    """Return the identity of a file of sentences in either language, or of parallel text, and its sentences."""
    if Path(path).is_file() and ending_of(path).lower() not in NOT_LINES:
        return [[identify(path)]], read_lines(path)
    text = TextFile(languages, path)
    return text.identity(), chain.from_iterable(row.values() for row in text)


@lru_cache(1)
def load_excluded(paths: tuple[str, ...], languages: tuple[str, str]) -> frozenset[str]:
    """Return the sentences to exclude, without white space around them.

    Raises:
        DataError: if a path cannot be read, or has no sentences.
    """
    excluded: set[str] = set()
    for path in paths:
        _, texts = read_excluded(path, languages)
        sentences = set(map(str.strip, texts)) - {""}
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
