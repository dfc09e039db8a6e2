"""Prepare text larger than memory for training, once: clean and tokenise it into shards, by tasks that run anywhere.

A preparation has five steps: read the text into pieces, train a tokenizer, write a digest of each pair, find the
duplicates by these, and clean and tokenise the pieces into shards. The folder `prepare-work`, for what one step leaves
to the next, is removed at the end.
"""

import json
import shutil
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TypeVar

from transformers import PreTrainedTokenizerBase

from ...data import cleaning
from ...data.cleaning import all_dropped
from ...data.formats import DataError, check_languages, identify
from ...data.shards import MANIFEST, read_manifest
from ...data.source import VERSION as SOURCE_VERSION
from ...data.source import Source, Text
from ...data.text_flags import VocabularyFlags
from ...data.tokenizer import fingerprint, save_tokenizer, train_tokenizer
from ...files import JsonObject, read_json
from ...flags import values_of
from .deduplication import number_of_ranges
from .job_folder import JobFolder, is_complete, write_json
from .pieces import WORK, Piece, PieceTasks, Preparation, load_excluded, read_excluded, tokenizer_of
from .runner import SHARED_DISK_DELAY, Runner, wait_for

SAMPLE_PAIRS = 1_000_000  # number of pairs on which a tokenizer is trained
VERSION = SOURCE_VERSION + cleaning.VERSION  # version of the code that reads and cleans text
Task = TypeVar("Task")
Watch = Callable[[str, int | None, Iterator[int]], object]


class _WaitsForOthersError(Exception):
    """Raised if a step is not done after this share of its tasks."""


def prepare(
    source: Source,
    preparation: Preparation,
    output_dir: str,
    tokenizer: PreTrainedTokenizerBase | None = None,
    runner: Runner | None = None,
    watch: Watch = lambda step, total, finished: deque(finished, maxlen=0),
) -> JsonObject:
    """Write a folder of shards and return its manifest. After an interruption, the same call resumes.

    The shards depend neither on where tasks run nor on how many run at once. Of pairs that occur more than once, the
    first is kept, unless `preparation.cleaning` is None. If the runner has only a share of the tasks, and others are
    still to be done, "whole" is false in the manifest: the same call then continues once they are.

    Args:
        source: the text; this process reads the parts of it that need the network, and tasks the others.
        tokenizer: tokenizer to use; by default, one is trained on the text.
        runner: where the tasks run; by default, one process per core.
        watch: called for each step with its name, its number of pairs (None if unknown), and an iterator over the
            number of pairs of each finished task, which it must exhaust.

    Raises:
        DataError: if text cannot be read (finished tasks are kept), or every pair was dropped.
        ValueError: if the folder contains shards of different text or settings.
        OSError: as `Runner.run`.
    """
    check_languages(preparation.languages)
    job = JobFolder(Path(output_dir).resolve(), MANIFEST, WORK, read_manifest)
    settings = _settings(source, preparation, tokenizer)
    manifest = job.resume(settings)
    if manifest is not None and manifest["whole"]:
        # which may have been interrupted
        _clean_up(job)
        return manifest
    load_excluded(preparation.exclude, preparation.languages)  # fails before hours of work
    manifest = manifest or job.start(settings)
    (job.path / WORK).mkdir(exist_ok=True)
    # Each step asks which files are missing, so a call that follows an interruption does only the rest.
    steps = _Steps(PieceTasks(job.path, preparation), runner or Runner(), watch)
    try:
        pieces = steps.read(source)
        steps.make_tokenizer(tokenizer, pieces)
        shards = steps.write(pieces)
    except (_WaitsForOthersError, FileNotFoundError) as error:
        # another element may have finished the job and removed the work folder
        manifest = read_manifest(job.path)
        waits = isinstance(error, _WaitsForOthersError)
        if manifest["whole"] or (waits and steps.runner.share != (0, 1)):
            return manifest
        if not waits:
            raise
        raise OSError(f"Output of tasks is missing in {job.path}: all nodes of the cluster must share it.") from None
    totals = _sum_counts(shards.values())
    tokenizer_identity = {"blake2b": fingerprint(tokenizer_of(job.path))}
    manifest = job.finish(manifest, {**totals, "tokenizer": tokenizer_identity, "shards": shards})
    _clean_up(job)
    return manifest


def _clean_up(job: JobFolder) -> None:
    """Remove what is no longer needed when all shards are written."""
    # another process may be removing it
    shutil.rmtree(job.path / WORK, ignore_errors=True)
    job.remove_leftovers()


_TOTALS = ("read", "pairs", "source_tokens", "target_tokens")
_COUNTS: JsonObject = {"drops": {str: int}, **dict.fromkeys(_TOTALS, int)}  # of a shard, in the note beside it


class _Steps:
    """The steps of a preparation, each of which runs the tasks that are not done."""

    def __init__(self, tasks: PieceTasks, runner: Runner, watch: Watch):
        self.tasks = tasks
        self.runner = runner
        self.watch = watch

    def run(
        self,
        step: str,
        function: Callable[[Task], int],
        items: Sequence[Task],
        is_done: Callable[[Task], bool],
        pairs: Callable[[Task], int] | None = None,
    ) -> None:
        """Run a step; `pairs` returns the number of pairs of a task.

        Raises:
            _WaitsForOthersError: if tasks of other elements of the job array are not done.
        """
        total = sum(map(pairs, self.runner.missing(items, is_done))) if pairs else None
        self.watch(step, total, self.runner.run(function, items, is_done))
        # An element of a job array does not wait for the others, which may not even have started.
        delay = SHARED_DISK_DELAY if self.runner.share == (0, 1) else 0
        if not wait_for(lambda: all(map(is_done, items)), delay):
            raise _WaitsForOthersError

    def read(self, source: Source) -> list[Piece]:
        """Read the text and return its pieces."""

        def is_done(numbered: tuple[int, Text]) -> bool:
            return self.tasks.file("source", numbered[0], ending="json").is_file()

        parts = list(enumerate(source.parts))
        tasks = [(number, part) for number, part in parts if not part.needs_network]
        if tasks:
            self.run("Reading", self.tasks.read, tasks, is_done)
        # Nodes of a cluster often have no access to the network, so datasets are read by this process.
        for numbered in parts:
            if numbered[1].needs_network and not is_done(numbered):
                self._check_first()
                self.watch("Reading", None, iter([self.tasks.read(numbered)]))
        pieces = self.tasks.pieces(len(parts))
        if not pieces:
            raise DataError("There are no sentence pairs in the text.")
        return pieces

    def make_tokenizer(self, tokenizer: PreTrainedTokenizerBase | None, pieces: list[Piece]) -> None:
        """Save the given tokenizer, or train one."""
        done = self.tasks.file("tokenizer", ending="json")
        preparation = self.tasks.preparation
        if not done.is_file():
            self._check_first()
            if tokenizer is None:
                sample = filter(None, islice(self.tasks.text(pieces), 2 * SAMPLE_PAIRS))
                kind = (preparation.tokenizer_model, preparation.normalization, preparation.bpe_codes)
                tokenizer = train_tokenizer(sample, preparation.vocab_size, *kind)
            save_tokenizer(tokenizer, self.tasks.folder, shared=True)
            # last, because the tokenizer has several files
            write_json(done, {})
        # files may have changed since an earlier call in this process
        tokenizer_of.cache_clear()
        load_excluded.cache_clear()

    def _check_first(self) -> None:
        """Check that this is the element of a job array that does what cannot be divided."""
        if self.runner.share[0]:
            raise _WaitsForOthersError

    def write(self, pieces: list[Piece]) -> dict[str, JsonObject]:
        """Find duplicates and write the shards; return the counts of the shards by name."""
        tasks = self.tasks
        ranges = 0
        if tasks.preparation.cleaning:
            ranges = number_of_ranges(sum(piece.pairs for piece in pieces))
            self.run(
                "Hashing",
                tasks.write_digests,
                pieces,
                lambda piece: tasks.file("digests", piece.number, ending="npy").is_file(),
                lambda piece: piece.pairs,
            )
            self.run(
                "Finding duplicates",
                tasks.find_duplicates,
                [(i, ranges, len(pieces)) for i in range(ranges)],
                lambda task: tasks.file("duplicates", task[0], ending="npy").is_file(),
            )
        self.run(
            "Tokenising",
            tasks.write,
            [(piece, ranges) for piece in pieces],
            lambda task: is_complete(tasks.shard(task[0]), tasks.shard(task[0]).with_suffix(".json"), _COUNTS),
            lambda task: task[0].pairs,
        )
        shards = [tasks.shard(piece) for piece in pieces]
        return {shard.name: read_json(shard.with_suffix(".json")) for shard in shards}


def _settings(source: Source, preparation: Preparation, tokenizer: PreTrainedTokenizerBase | None) -> JsonObject:
    """Return everything that determines the content of the shards, in types of JSON."""
    cleaning = asdict(preparation.cleaning).items() if preparation.cleaning else ()
    settings = {
        "source_lang": preparation.languages[0],
        "target_lang": preparation.languages[1],
        "text": source.identity(),
        "exclude": [read_excluded(path, preparation.languages)[0] for path in preparation.exclude],
        "tokenizer": tokenizer and fingerprint(tokenizer),
        **{name: None if tokenizer else value for name, value in values_of(preparation, VocabularyFlags).items()},
        "bpe_codes": preparation.bpe_codes and identify(preparation.bpe_codes),
        "max_tokens": preparation.max_tokens,
        # only what is set, so that a new setting does not invalidate earlier folders
        "cleaning": {name: value for name, value in cleaning if value is not None} or None,
        "shard_pairs": preparation.shard_pairs,
        "version": VERSION,
    }
    # as they come back from the manifest: a tuple becomes a list
    return json.loads(json.dumps(settings))


def _sum_counts(shards: Iterable[JsonObject]) -> JsonObject:
    """Return the total counts of all shards.

    Raises:
        DataError: if every pair was dropped.
    """
    totals: Counter[str] = Counter()
    drops: Counter[str] = Counter()
    for shard in shards:
        drops.update(shard["drops"])
        totals.update({name: shard[name] for name in _TOTALS})
    if not totals["pairs"]:
        raise all_dropped(totals["read"], drops)
    return {**totals, "drops": dict(drops)}
