"""Locate real text for the tests: downloaded by a script, or in a shared folder beside the project."""

from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared" / "data"


class _Corpus(NamedTuple):
    """Real text, and the command that downloads it."""

    title: str
    command: str
    downloaded: Path
    shared: Path


# By the name of the fixture that returns the folder of the text, or skips a test that asks for it
CORPORA = {
    "multi30k": _Corpus(
        "Multi30k", "bash scripts/get_multi30k.sh", ROOT / "data" / "multi30k", SHARED / "multi30k" / "tok"
    ),
    "multi30k_raw": _Corpus(
        "Multi30k as it was written",
        "bash scripts/get_multi30k.sh --raw",
        ROOT / "data" / "multi30k-raw",
        SHARED / "multi30k" / "raw",
    ),
    "wmt_sample": _Corpus(
        "the sample of WMT", "bash scripts/get_wmt_sample.sh", ROOT / "data" / "wmt-sample", SHARED / "wmt"
    ),
}


def find_corpus(name: str) -> Path:
    """Return the folder of the text called `name`, one of `CORPORA`; without it, skip the test that asks for it."""
    corpus = CORPORA[name]
    for folder in (corpus.downloaded, corpus.shared):
        if (folder / "train.en").is_file():
            return folder
    pytest.skip(f"{corpus.title} is not here; download it with `{corpus.command}`")
