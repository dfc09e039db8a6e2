"""Translate corpora: many files, in tasks of some thousand lines each, which run in any order and in any process.

The output folder has one file per task, `part-00000.jsonl` or `.txt` and so on, in the order of the input; `tasks/`
with a note for each file that is complete; and `translation.json` with the model, the settings, the input and, once
every task is done, the totals.
"""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

from transformers import set_seed
from transformers.utils import logging

from ...data.formats import DataError, read_translation_manifest
from ...data.formats import identify as identify_text
from ...files import CORPUS_MANIFEST, JsonObject, read_json, replacing
from ...inference.exports import identify
from ...inference.translator import Hypothesis, Translation, Translator
from ...loading import load_config
from ...version import __version__
from .job_folder import JobFolder, damaged, is_complete, write_json
from .runner import SHARED_DISK_DELAY, Runner, wait_for
from .spans import Span, check_start, cut, read_span

_MAX_PROBLEMS = 5  # messages on unusable lines that are kept per task
_NOTES = "tasks"
_NEW_FOLDER = "translate into a new folder"


@dataclass(frozen=True)
class CorpusTranslation:
    """Settings of the translation of a corpus.

    Args:
        models: folder of the model or its name on the Hub; several form an ensemble.
        backend, dtype: as for `Translator.load`.
        languages: source and target language: the keys of the output and, in JSON lines and Parquet, of the input.
        format: "jsonl" for objects with the source and the translation, or "txt" for translations only.
        nbest: number of hypotheses of each line, which are consecutive lines of the output.
        scores: whether the objects have the key "score", as `translator.Hypothesis`.
        seed: seed of the sampling, if tokens are sampled.
        options: arguments of `Translator.translate`.
    """

    models: tuple[str, ...]
    backend: str
    dtype: str | None
    languages: tuple[str, str]
    format: str = "jsonl"
    nbest: int = 1
    scores: bool = False
    seed: int | None = None
    options: JsonObject = field(default_factory=dict)

    def run(self, sentences: list[str], number: int, folder: Path) -> list[Translation]:
        """Return the translation of each sentence of task `number`, which decides what is sampled.

        Raises:
            DataError: if the models are not those with which the job in `folder` started.
        """
        translator = _load(self.models, self.backend, self.dtype, folder)
        if self.seed is not None:
            set_seed(self.seed + number)
        return translator.translate(sentences, nbest=self.nbest, scores=self.scores, **self.options)

    def lines(self, sentence: str, translation: Translation) -> Iterator[str]:
        """Yield the lines of the output for a sentence, one per hypothesis."""
        hypotheses = translation.hypotheses
        # a pair of which a part is missing would be wrong in training, which drops pairs with blank sides
        is_unusable = translation.problem and self.format == "jsonl"
        if is_unusable or not hypotheses:
            sentence = ""
            hypotheses = [Hypothesis("", 0.0)] * self.nbest
        for hypothesis in hypotheses:
            # one line of output per hypothesis
            text = " ".join(hypothesis.text.splitlines())
            if self.format == "txt":
                yield text + "\n"
                continue
            row: dict[str, str | float] = dict(zip(self.languages, (sentence, text), strict=True))
            if self.scores:
                row["score"] = round(hypothesis.score, 6)
            yield json.dumps(row, ensure_ascii=False) + "\n"


@lru_cache(1)
def _load(models: tuple[str, ...], backend: str, dtype: str | None, folder: Path) -> Translator:
    """Return the translator of some models, loaded once per process.

    Raises:
        DataError: if they are not those with which the job in `folder` started.
    """
    # there would be one per process
    logging.disable_progress_bar()
    translator = Translator.load(models, backend, dtype)
    # afterwards, since files may be replaced at any time; the translator does not depend on them any more
    expected = read_translation_manifest(folder)["settings"]["models"]
    for name, identity in zip(models, expected, strict=True):
        if _identify(name) != identity:
            raise DataError(f"{name} has changed since this job started; restore it, or {_NEW_FOLDER}.")
    return translator


def recorded_dtype(output_dir: str) -> str | None:
    """Return the number format of the job in a folder, None if there is none."""
    try:
        return read_translation_manifest(output_dir)["settings"].get("dtype")
    except (OSError, DataError):
        # no job, or a damaged one, which is reported when it starts
        return None


class Task(NamedTuple):
    """The translation of one span of the input into one file of the output."""

    number: int
    span: Span


class _Writer(NamedTuple):
    """Writes the output of tasks into a folder."""

    translation: CorpusTranslation
    folder: Path

    def part(self, number: int) -> Path:
        """Return the file of a task."""
        return self.folder / f"part-{number:05}.{self.translation.format}"

    def note(self, number: int) -> Path:
        """Return the note that the file of a task is complete."""
        return self.folder / _NOTES / f"{number:05}.json"

    def write(self, task: Task) -> Task:
        """Translate the span of a task and write its file, then its note."""
        file = task.span.file
        sentences, problems = read_span(task.span, self.translation.languages[0])
        translations = self.translation.run(sentences, task.number, self.folder)
        for number, translation in enumerate(translations, task.span.first):
            if translation.problem:
                problems.append(f"{file}, line {number}: {translation.problem}.")
        part = self.part(task.number)
        with replacing(part, shared=True) as unfinished, unfinished.open("w", encoding="utf-8", newline="") as output:
            for sentence, translation in zip(sentences, translations, strict=True):
                output.writelines(self.translation.lines(sentence, translation))
        # without folders, because the manifest may be shared
        examples = [problem.replace(file, Path(file).name) for problem in problems[:_MAX_PROBLEMS]]
        note = {"bytes": part.stat().st_size, "unusable_lines": len(problems), "problems": examples}
        write_json(self.note(task.number), note)
        return task


class CorpusJob:
    """The translation of files into a folder. The same job in the same folder resumes.

    Args:
        translation: model and settings.
        files: text, .jsonl or .parquet, as for `spans.cut`.
        output_dir: folder for the output: new, empty, or of this job.
        shard_lines: number of lines per task.

    Raises:
        DataError: if a file is damaged, or there are no lines.
        OSError: if a file cannot be read.
        ValueError: if the folder contains anything else.
    """

    def __init__(
        self, translation: CorpusTranslation, files: Sequence[str], output_dir: str, shard_lines: int = 10_000
    ):
        folder = Path(output_dir).resolve()
        self._folder = JobFolder(folder, CORPUS_MANIFEST, _NOTES, read_translation_manifest)
        self._writer = _Writer(translation, folder)
        # not resolved: a link's target may lack the extension
        files = [os.path.abspath(file) for file in files]
        settings = _settings(translation, files, shard_lines)
        names = [Path(name).resolve().name for name in translation.models]
        manifest = self._folder.resume(settings)
        # the model may have changed
        _load.cache_clear()
        if manifest is None:
            spans: list[tuple[int, ...]] = []
            for i, file in enumerate(files):
                of_file = cut(file, shard_lines)
                for first in of_file[:1]:
                    check_start(first, translation.languages[0])
                spans += [(i, *span[1:]) for span in of_file]
            if not spans:
                raise DataError(f"There are no lines in {', '.join(files)}.")
            manifest = self._folder.start(settings, models=names, spans=spans)
        elif not all(0 <= file < len(files) for file, *_ in manifest["spans"]):
            raise damaged(folder / CORPUS_MANIFEST)
        self.manifest = manifest
        self._files = files
        self.tasks = [Task(i, Span(files[file], *rest)) for i, (file, *rest) in enumerate(manifest["spans"])]

    def is_done(self, task: Task) -> bool:
        """Return whether the file of a task is complete."""
        expected = {"unusable_lines": int, "problems": [str]}
        return is_complete(self._writer.part(task.number), self._writer.note(task.number), expected)

    def run(self, runner: Runner) -> Iterator[int]:
        """Run the tasks of the runner's share that are not done, and yield the number of lines of each.

        Raises:
            DataError, OSError, ValueError: as `Runner.run`, or if a file lacks the source language or is damaged.
        """
        for task in runner.run(self._writer.write, self.tasks, self.is_done):
            # another node has written it, and its file may appear here later
            if not wait_for(partial(self.is_done, task), SHARED_DISK_DELAY):
                part = self._writer.part(task.number)
                raise OSError(f"{part} is missing or incomplete: all nodes of the cluster must share its folder.")
            yield task.span.lines

    def finish(self) -> JsonObject:
        """Return the manifest, in which "whole" says whether every task is done; if so, there are totals as well.

        Raises:
            DataError: if a file has changed since the job started.
        """
        if self.manifest["whole"] or not all(map(self.is_done, self.tasks)):
            return self.manifest
        for file, identity in zip(self._files, self.manifest["settings"]["files"], strict=True):
            if identify_text(file) != identity:
                raise DataError(f"{file} has changed while it was translated; {_NEW_FOLDER}.")
        notes = [read_json(self._writer.note(task.number)) for task in self.tasks]
        totals = {
            "lines": sum(task.span.lines for task in self.tasks),
            "unusable_lines": sum(note["unusable_lines"] for note in notes),
            "problems": [problem for note in notes for problem in note["problems"]][:_MAX_PROBLEMS],
            "parts": [self._writer.part(task.number).name for task in self.tasks],
        }
        self.manifest = self._folder.finish(self.manifest, totals)
        return self.manifest


def _settings(translation: CorpusTranslation, files: Sequence[str], shard_lines: int) -> JsonObject:
    """Return everything that determines the content of the output, in types of JSON."""
    settings = asdict(translation)
    source_lang, target_lang = settings.pop("languages")
    settings |= {
        "models": [_identify(model) for model in translation.models],
        "source_lang": source_lang,
        "target_lang": target_lang,
        "shard_lines": shard_lines,
        "version": __version__,
        "files": list(map(identify_text, files)),
    }
    return json.loads(json.dumps(settings))


def _identify(model: str) -> dict[str, str]:
    """Return the checksums of the files that decide what a model translates, or its name on the Hub and its commit."""
    folder = Path(model)
    if not folder.is_dir():
        return {"name": model, "revision": str(load_config(model)._commit_hash)}
    return identify(folder)
