"""Parallel text, wherever it comes from: files, datasets on the Hub, prepared folders, the built-in phrases.

Whoever needs text asks a `Source`, and never what class it has.
"""

import glob
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain, islice
from pathlib import Path
from typing import ClassVar, NamedTuple

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import (
    Dataset,
    DatasetBuilder,
    DatasetDict,
    Features,
    IterableDataset,
    Value,
    concatenate_datasets,
    load_dataset_builder,
)
from datasets.builder import Key
from datasets.packaged_modules.parquet.parquet import Parquet
from datasets.utils.file_utils import xopen
from filelock import FileLock
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from ..errors import UserError, damage
from ..files import checksum, digest, inside
from ..loading import load_tokenizer
from ..model.text_rules_vanilla_transformer import num_positions
from . import formats
from .batching import Rows, TokenRows
from .bpe_dropout import BpeDropout
from .cleaning import Cleaning, describe_drops, tokenize_pairs
from .formats import READERS, DataError, Row, check_languages, find_files, identify, json_texts, parquet_batches
from .mixture import MixedRows, temperature_weights
from .phrases import splits
from .shards import ShardStream, check_ids, finished_manifest, load_shards, read_manifest
from .tokenizer import prefix_ids

# Part of the cache keys: changed code reads text again.
VERSION = checksum(Path(__file__)) + checksum(Path(formats.__file__))
TEXT_PAIR = Features({"source": Value("string"), "target": Value("string")})
DIRECTED_PAIR = Features({**TEXT_PAIR, "source_lang": Value("string"), "target_lang": Value("string")})
Languages = tuple[str, str]  # source and target language
_TABLE_BYTES = 1 << 24  # of the tables that `datasets` writes; parts of files are joined up to it
# Other readers of `datasets` trust their files, or bring libraries of their own
_SAFE_FORMATS = ("parquet", "json", "csv", "text")


class Counts(NamedTuple):
    """The numbers of pairs that were read and used, and of those dropped for each reason."""

    read: int
    used: int
    dropped: dict[str, int]


@dataclass
class Tokenization:
    """How text becomes rows of token ids.

    Args:
        tokenizer: knows the tags of all sources.
        config: configuration of the model.
        max_tokens: maximum number of tokens in the source and in the target of a batch, including padding.
        report: called with the counts of each source, as a message for the user.
        cleaning: limits for pairs; if None, only unusable pairs are dropped.
        filter_language: whether cleaning also drops pairs in other languages.
        bpe_dropout: probability with which a merge is left out whenever a pair is used.
        seed: seed of everything that is random.
        rank, world_size: index of this process and number of processes, each of which streams different pairs.
    """

    tokenizer: PreTrainedTokenizerBase
    config: PreTrainedConfig
    max_tokens: int
    report: Callable[[str], None]
    cleaning: Cleaning | None = None
    filter_language: bool = False
    bpe_dropout: float = 0.0
    seed: int = 0
    rank: int = 0
    world_size: int = 1

    @property
    def longest(self) -> int:
        """Return the maximum number of tokens on either side of a pair, tags included."""
        return min(self.max_tokens, num_positions(self.config))


class Source:
    """Parallel text of any origin. A mixture of sources is one as well, and behaves as written here.

    Args:
        sources: the sources of a mixture, which may be mixtures.
        temperature: if given, decides the weights of the sources, as in `temperature_weights`.

    Attributes:
        parts: the sources of one direction that it consists of.
    """

    parts: Sequence["Text"]

    def __init__(self, sources: Sequence["Source"], temperature: float | None = None):
        self.parts = [part for source in sources for part in source.parts]
        self.temperature = temperature

    @property
    def name(self) -> str:
        """Return how messages and the model card call it, without its folder."""
        return ", ".join(part.name for part in self.parts)

    @property
    def counts(self) -> Counts:
        """Return how many pairs were read, used and dropped when it was tokenised."""
        reads, used, drops = zip(*(part.counts for part in self.parts), strict=True)
        return Counts(sum(reads), sum(used), sum(map(Counter, drops), Counter()))

    def identity(self) -> list:
        """Return what determines the pairs, in types of JSON: for each part, a list with the digests of its content.

        Raises:
            DataError: if a file is missing, or a dataset cannot be read.
        """
        return [content for part in self.parts for content in part.identity()]

    def count(self, most: int) -> int:
        """Return the number of pairs, before cleaning, or `most` if there are more; raises as `pairs` does."""
        return min(most, sum(part.count(most) for part in self.parts))

    def pairs(self) -> Dataset:
        """Return the text, in the columns "source" and "target", cached on disk.

        Raises:
            DataError: if it cannot be read; the message says where and why.
        """
        return concatenate_datasets([part.pairs() for part in self.parts])

    def __iter__(self) -> Iterator[Row]:
        """Yield the pairs in constant memory; raises as `pairs` does."""
        for part in self.parts:
            yield from part

    def tokenize(self, how: Tokenization, label: str) -> Rows:
        """Return the pairs as token ids that start with their tags, and report the counts after `label`.

        Raises:
            ValueError: if the text does not fit the settings, or every pair was dropped.
        """
        several = len(self.parts) > 1
        rows = [part.tokenize(how, f"{label}, {part.description}" if several else label) for part in self.parts]
        if self.temperature:
            weights = temperature_weights([part.counts.used for part in self.parts], self.temperature)
            for part, weight in zip(self.parts, weights, strict=True):
                part.weight = weight

        # A single source that is used once per epoch needs no mixture, and keeps the simpler sampler.
        weights = [part.weight or 1.0 for part in self.parts]
        if weights == [1.0] and not how.bpe_dropout:
            return rows[0]
        dropout = BpeDropout(how.tokenizer, how.bpe_dropout, how.seed) if how.bpe_dropout else None
        return MixedRows(rows, weights, dropout, how.longest)


@dataclass(eq=False)
class Text(Source):
    """Parallel text in one direction.

    Args:
        languages: source and target language, named as in the text.
        tag: tag at the start of every source sentence, or None.
        weight: number of times that each pair is used per epoch, on average; None if the sizes decide.

    Attributes:
        needs_network: whether only a process with access to the network can read it.
        has_text: whether `pairs` returns the text, which a prepared folder no longer has.
    """

    needs_network: ClassVar[bool] = False
    has_text: ClassVar[bool] = True
    languages: Languages
    tag: str | None = field(default=None, kw_only=True)
    weight: float | None = field(default=1.0, kw_only=True)
    counts: Counts = field(default=Counts(0, 0, {}), init=False)

    def __post_init__(self):
        self.parts = [self]

    @property
    def description(self) -> str:
        """Return name, direction and tag."""
        return " ".join(filter(None, [self.name, "-".join(self.languages), self.tag]))

    def validation(self) -> "Text | None":
        """Return the validation text of the same origin, or None."""
        return None

    def __iter__(self) -> Iterator[Row]:
        # In batches: `datasets` decodes single rows many times more slowly.
        for batch in self.pairs().iter(1000):
            for source, target in zip(batch["source"], batch["target"], strict=True):
                yield {"source": source, "target": target}

    def count(self, most: int) -> int:
        return sum(1 for _ in islice(self, most))

    def prefix(self, how: Tokenization) -> list[int]:
        """Return the token ids of the tags with which every source sentence starts."""
        return prefix_ids(how.config, how.tokenizer, *self.languages, self.tag)

    def tokenize(self, how: Tokenization, label: str) -> Rows:
        pairs = self.pairs()
        prefix = self.prefix(how)

        # What language a pair should be in depends on its source, unlike the other limits.
        cleaning = how.cleaning
        if cleaning and how.filter_language:
            cleaning = replace(cleaning, languages=self.languages)
        # The tags are not in the cached rows, so that other tags need no new tokenisation.
        tokens, drops = tokenize_pairs(pairs, how.tokenizer, how.longest - len(prefix), cleaning)
        self.counts = Counts(len(pairs), len(tokens), drops)
        how.report(f"{label}: {len(tokens):,} of {len(pairs):,} pairs; dropped: {describe_drops(drops)}")
        return TokenRows(tokens, prefix)


@dataclass(eq=False)
class TextFile(Text):
    """A Moses pair, a .jsonl, .tsv, .csv or .parquet file, or a folder that `translate --output_dir` has written.

    Args:
        path: as for `find_files`.
    """

    path: str

    @property
    def name(self) -> str:
        # The absolute path, because "." and ".." have no name of their own.
        return Path(os.path.abspath(self.path)).name

    def identity(self) -> list:
        return [list(map(identify, find_files(self.path, self.languages)[1]))]

    def pairs(self) -> Dataset:
        format, files = find_files(self.path, self.languages)
        return _cache(self.path, format, files, self.languages, TEXT_PAIR)

    def __iter__(self) -> Iterator[Row]:
        format, files = find_files(self.path, self.languages)
        return READERS[format](files, self.languages)


@dataclass(eq=False)
class DirectedLines(TextFile):
    """One direction of JSON lines that name theirs, by "source", "target", "source_lang" and "target_lang".

    Args:
        expected: the directions that may occur, such as "en-de".
    """

    expected: tuple[str, ...]
    # Not that of TextFile, which would read the lines of all directions.
    __iter__ = Text.__iter__

    def pairs(self) -> Dataset:
        _, files = find_files(self.path, self.languages)
        rows = _cache(self.path, "directed .jsonl", files, self.expected, DIRECTED_PAIR)
        sides = zip(("source_lang", "target_lang"), self.languages, strict=True)
        in_direction = pc.and_(*(pc.equal(rows.data.column(side), language) for side, language in sides))
        return rows.select_columns(["source", "target"]).select(np.flatnonzero(in_direction.to_numpy()))


@dataclass(eq=False)
class PreparedFolder(TextFile):
    """A folder of tokenised shards that `prepare` has written.

    Args:
        path: the folder.
        streamed: whether to read it sequentially instead of memory-mapping it.
    """

    has_text = False
    streamed: bool = False

    def identity(self) -> list:
        # The settings say where the shards come from, and not what they contain
        return [["prepared", digest({**read_manifest(self.path), "settings": None})]]

    def count(self, most: int) -> int:
        return min(most, finished_manifest(self.path)["pairs"])

    def tokenize(self, how: Tokenization, label: str) -> Rows:
        manifest = finished_manifest(self.path)
        source, target = (manifest["settings"].get(name) for name in ("source_lang", "target_lang"))
        if (source, target) != self.languages:
            wanted = " to ".join(self.languages)
            advice = f"use --source_lang {source} --target_lang {target}"
            raise DataError(f"{self.path} contains text from {source} to {target}, not from {wanted}; {advice}.")
        if how.filter_language:
            raise UserError(f"{self.path} is already cleaned: give --filter_language to `prepare` instead.")
        # This run's tokenizer may have more tokens, such as the tags of other sources.
        if not load_tokenizer(self.path).get_vocab().items() <= how.tokenizer.get_vocab().items():
            advice = "prepare it with this run's tokenizer"
            raise UserError(f"{self.path} was prepared with a different vocabulary; {advice}.")
        self.counts = Counts(manifest["read"], manifest["pairs"], manifest["drops"])
        prefix = self.prefix(how)
        if self.streamed and prefix:
            raise UserError(f"{self.path} cannot be streamed: the model's sources start with a tag.")
        shards = load_shards(self.path)
        check_ids(shards, how.config.vocab_size)
        rows: Rows = TokenRows(shards, prefix)
        longest = max(int(side.max()) for side in rows.lengths)
        if longest > how.longest:
            problem = f"has pairs of up to {longest} tokens, more than {how.longest}"
            # otherwise the model has too few positions
            advice = "raise --max_tokens, or " if how.longest == how.max_tokens else ""
            advice += "prepare the text again with a lower --max_sentence_tokens"
            raise DataError(f"{self.path} {problem}; {advice}.")
        if self.streamed:
            rows = ShardStream(self.path, how.max_tokens, how.seed, how.rank, how.world_size)
        how.report(f"{label}: {self.counts.used:,} prepared pairs")
        return rows


@dataclass(eq=False)
class HubDataset(Text):
    """A split of a dataset on the Hub, such as ("wmt/wmt14", "de-en"), or of a local folder with the same layout."""

    needs_network = True
    dataset: str
    config_name: str | None = None
    split: str = "train"

    @property
    def name(self) -> str:
        return Path(self.dataset).name

    @property
    def _origin(self) -> str:
        return f"{self.dataset} ({self.config_name})" if self.config_name else self.dataset

    def _builder(self) -> DatasetBuilder:
        """Return what reads the dataset, after checking that its card names only files of it, of safe formats."""
        options = {}
        if Path(self.dataset).is_dir():
            # `datasets` takes the path of a folder for a pattern, and cannot be told otherwise
            if glob.has_magic(os.path.abspath(self.dataset)):
                problem = "the path of a dataset may not contain any of * ? ["
                raise DataError(f"{self.dataset}: {problem}; rename the folder.")
            # `datasets` knows a file only by its path and time
            options["cache_dir"] = str(Path(datasets.config.HF_DATASETS_CACHE, digest(self._files())))
        _check_cache()
        with _reading_errors(f"The dataset {self._origin}"):
            builder = load_dataset_builder(self.dataset, self.config_name, **options)
            if builder.name not in _SAFE_FORMATS:
                problem = f"has files of the format {builder.name}, which are not read"
                raise DataError(f"The dataset {self._origin} {problem}; convert them to {_SAFE_FORMATS[0]}.")
            for file in chain.from_iterable((builder.config.data_files or {}).values()):
                self._check_file(file)
        if builder.name == "parquet":
            # whose own batches can be many times as large as the file
            builder._generate_tables = partial(_parquet_tables, builder)
        return builder

    def _check_file(self, file: str) -> None:
        """Check that a file from which `datasets` would read is part of the dataset."""
        if Path(self.dataset).is_dir() and os.path.isabs(file):
            inside(os.path.abspath(self.dataset), file)
        elif Path(self.dataset).is_dir() or not file.startswith(f"hf://datasets/{self.dataset}@"):
            raise DataError(f"it names {file[:200]!r}, which is not part of it; nothing is read there")

    def _files(self) -> dict[str, str]:
        """Return the identity of each file in a local folder, by its path there; hidden ones are no text."""
        folder = Path(self.dataset)
        paths = [file.relative_to(folder) for file in sorted(folder.rglob("*")) if file.is_file()]
        visible = [path for path in paths if not any(part.startswith(".") for part in path.parts)]
        return {str(path): identify(str(folder / path)) for path in visible}

    @cached_property
    def _splits(self) -> DatasetDict:
        builder = self._builder()
        with _reading_errors(f"The dataset {self._origin}"):
            builder.download_and_prepare()
            return builder.as_dataset()

    @cached_property
    def _stream(self) -> IterableDataset:
        builder = self._builder()
        with _reading_errors(f"The dataset {self._origin}"):
            stream = builder.as_streaming_dataset(self.split)
        # never open what its other columns name, such as pictures
        return stream.decode(False) if stream.features else stream

    def identity(self) -> list:
        # What has been loaded may no longer be within reach, and so cannot be streamed
        loaded = "_splits" in vars(self)
        if not loaded:
            # Raises if the dataset cannot be read.
            _ = self._stream
        content: object = self.dataset
        if Path(self.dataset).is_dir():
            content = self._files()
        elif loaded:
            content = digest([digest(batch) for batch in self.pairs().iter(1000)])
        return [[content, self.config_name, self.split]]

    def pairs(self) -> Dataset:
        if self.split not in self._splits:
            raise DataError(f"{self._origin} has no split {self.split}; its splits are {', '.join(self._splits)}.")
        return _select_languages(self._splits[self.split], f"{self._origin}, {self.split},", self.languages)

    def validation(self) -> Text | None:
        split = "validation"
        return HubDataset(self.languages, self.dataset, self.config_name, split) if split in self._splits else None

    def __iter__(self) -> Iterator[Row]:
        with _reading_errors(f"The dataset {self._origin}"):
            for number, row in enumerate(self._stream, start=1):
                source, target = json_texts(f"{self._origin}, row {number}", row, self.languages)
                yield {"source": source, "target": target}


@dataclass(eq=False)
class BuiltInPhrases(Text):
    """A split of the built-in English-German phrases."""

    name = "the built-in phrases"
    split: str = "train"

    def identity(self) -> list:
        return [[self.name, self.split]]

    def pairs(self) -> Dataset:
        if sorted(self.languages) != ["de", "en"]:
            raise DataError("The built-in phrases are English and German (en, de); other languages need --train_file.")
        phrases = splits()[self.split]
        source, target = ([getattr(phrase, language) for phrase in phrases] for language in self.languages)
        return Dataset.from_dict({"source": source, "target": target})

    def validation(self) -> Text | None:
        return BuiltInPhrases(self.languages, "validation")


def _read_rows(
    format: str, files: tuple[str, ...], languages: tuple[str, ...], contents: tuple[str, ...], version: str
) -> Iterator[Row]:
    """Yield the rows of `files`; `contents` and `version` only let the cache notice changed files and changed code."""
    empty = True
    for row in READERS[format](files, languages):
        empty = False
        yield row
    if empty:
        raise DataError(f"{files[0]} contains no sentence pairs.")


def _parquet_tables(
    builder: Parquet, files: Sequence[str], row_groups_list: Sequence[Sequence[int] | None]
) -> Iterator[tuple[Key, pa.Table]]:
    """Yield tables of bounded size from Parquet files on this machine or the Hub, for `datasets`."""
    for number, (file, groups) in enumerate(zip(files, row_groups_list, strict=True)):
        with xopen(file, "rb") as content:
            for part, table in enumerate(_joined(parquet_batches(file, content, groups))):
                yield Key(number, part), builder._cast_table(table)


def _joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield batches as tables, small ones together: `datasets` writes each table as a batch of its own."""
    parts: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        size += batch.nbytes
        if parts and size > _TABLE_BYTES:
            yield pa.Table.from_batches(parts).combine_chunks()
            parts = []
            size = batch.nbytes
        parts.append(batch)
    if parts:
        yield pa.Table.from_batches(parts).combine_chunks()


def _select_languages(dataset: Dataset, origin: str, languages: Languages) -> Dataset:
    """Return the two languages of a dataset, from its column "translation" or from columns named after them.

    Args:
        origin: where the dataset is from, for error messages.
    """
    check_languages(languages)
    # Flattening renames the columns of the table and reads no row.
    if "translation" in dataset.column_names:
        dataset = dataset.select_columns("translation").flatten()
        dataset = dataset.rename_columns({name: name.removeprefix("translation.") for name in dataset.column_names})
    for language in languages:
        if language not in dataset.column_names:
            raise DataError(f"{origin} has no column {language!r}; its columns are {', '.join(dataset.column_names)}.")
        if getattr(dataset.features[language], "dtype", None) not in ("string", "large_string", "string_view"):
            raise DataError(f"{origin}: column {language!r} does not contain text.")
    dataset = dataset.select_columns(list(languages))
    dataset = dataset.rename_columns(dict(zip(languages, ("source", "target"), strict=True)))
    # datasets that are joined must have the same types
    return dataset if dataset.features == TEXT_PAIR else dataset.cast(TEXT_PAIR)


def _check_cache() -> None:
    """Check that `datasets` can write to its cache and lock files there, since its own errors do not say what to do.

    Raises:
        OSError: if it cannot.
    """
    folder = datasets.config.HF_DATASETS_CACHE
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        # as `datasets` does for each file
        with tempfile.TemporaryDirectory(dir=folder) as scratch, FileLock(Path(scratch, "lock")):
            pass
    except OSError as error:
        advice = "make it writable, or set HF_DATASETS_CACHE to another folder"
        raise OSError(f"The cache folder {folder} cannot be used ({error.strerror}); {advice}.") from None


def _cache(path: str, format: str, files: tuple[str, ...], languages: tuple[str, ...], features: Features) -> Dataset:
    """Return what a reader yields, as a dataset that is cached on disk."""
    # `from_generator` derives the cache key from the arguments, and would divide a list among processes.
    arguments: dict[str, object] = {"format": format, "files": files, "languages": languages, "version": VERSION}
    arguments["contents"] = tuple(map(identify, files))
    _check_cache()
    with _reading_errors(path):
        return Dataset.from_generator(_read_rows, features=features, gen_kwargs=arguments)


@contextmanager
def _reading_errors(origin: str) -> Iterator[None]:
    """Turn the errors of text that cannot be read, such as a dataset with a loading script, into a `DataError`."""
    try:
        yield
    except (OSError, MemoryError):
        raise
    # Damaged files can raise any exception
    except Exception as error:
        # What a reader of this package raises arrives as the cause of an error of `datasets`.
        for known in (error, error.__cause__):
            if isinstance(known, DataError):
                raise known from None
        raise DataError(f"{origin} cannot be read: {damage(error.__cause__ or error)}") from None
