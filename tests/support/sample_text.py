"""A small parallel text, with some pairs that cleaning drops, and a function that prepares it as shards."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from datasets import Dataset

from hf_vanilla_transformer.data.cleaning import Cleaning
from hf_vanilla_transformer.data.phrases import splits
from hf_vanilla_transformer.data.source import Source, Text, TextFile

PAIRS = [(phrase.en, phrase.de) for phrase in splits()["train"][:300]]
PAIRS[10:12] = [("", "nichts"), ("a <b>tag</b>", "ein Tag")]
PAIRS[15] = PAIRS[14]
CLEANING = Cleaning(256, 4.0)
LANGUAGES = ("en", "de")


def rows(pairs: Iterable[tuple[str, str]] = PAIRS) -> list[dict[str, str]]:
    return [{"source": en, "target": de} for en, de in pairs]


class GivenRows(Text):
    """Rows that only this process can read, like those of a dataset on the Hub."""

    name = "given"
    needs_network = True

    def __init__(self, given: Iterable[dict[str, str]]):
        super().__init__(LANGUAGES)
        self._given = given

    def pairs(self) -> Dataset:
        return Dataset.from_list([*self._given])

    def __iter__(self) -> Iterator[dict[str, str]]:
        return iter(self._given)

    def identity(self) -> list:
        return []


def prepare_text(source: Text, folder: Path, tokenizer=None, share=(0, 1), watch=None, **settings) -> dict:
    """Prepare text in a folder, and return the manifest; `settings` are fields of `Preparation`.

    Skips the test if the plugin is not there.
    """
    pytest.importorskip("hf_vanilla_transformer.plugins.corpus", reason="needs the plugin corpus")
    from hf_vanilla_transformer.plugins.corpus.pieces import Preparation
    from hf_vanilla_transformer.plugins.corpus.preparation import prepare
    from hf_vanilla_transformer.plugins.corpus.runner import Runner

    watched = {"watch": watch} if watch else {}
    runner = Runner(workers=1, task=share[0], tasks=share[1])
    return prepare(source, Preparation(languages=LANGUAGES, **settings), str(folder), tokenizer, runner, **watched)


def prepare_sample(folder: Path, tokenizer, name: str = "prepared", **settings) -> tuple[Path, dict]:
    """Prepare the text of the fixture `sample_folder` in `folder / name`; return that folder and the manifest.

    `settings` are fields of `Preparation` and arguments of `prepare`.
    """
    files = [TextFile(LANGUAGES, str(folder / name)) for name in ("first", "second")]
    source = settings.pop("source", Source(files))
    settings = {"cleaning": CLEANING, "shard_pairs": 64, **settings}
    return folder / name, prepare_text(source, folder / name, tokenizer, **settings)
