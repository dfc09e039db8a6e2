"""Read the test text given on the command line."""

import argparse
from pathlib import Path
from typing import NamedTuple

from .console import UsageError


class ReferenceText(NamedTuple):
    """A test text with references."""

    name: str
    sources: list[str]
    references: list[str]
    direction: str  # such as "en-de"
    unseen: list[int]  # indices of the built-in phrases with combinations not seen in training


def read_text(args: argparse.Namespace, languages: tuple[str | None, str | None]) -> ReferenceText:
    """Read the test text given by the flags.

    Args:
        languages: source and target language of the model, used if the flags do not name them.

    Raises:
        UsageError: if the languages are unknown, or the built-in phrases are not available in them.
        ValueError: if the text cannot be read.
    """
    source_lang, target_lang = args.source_lang or languages[0], args.target_lang or languages[1]
    if source_lang is None or target_lang is None:
        raise UsageError("The languages are unknown: pass --source_lang and --target_lang.")
    if not (args.test_file or args.dataset_name):
        return _built_in_phrases(source_lang, target_lang)
    from ..data.source import HubDataset, source_at

    direction = (source_lang, target_lang)
    if args.test_file:
        source = source_at(args.test_file, direction)
        name = Path(args.test_file).name
    else:
        dataset, split = args.dataset_name, args.split
        source = HubDataset(direction, dataset, args.dataset_config_name, split)
        name = f"{Path(dataset).name if Path(dataset).exists() else dataset}, {split}"
    pairs = source.pairs()
    sources, references = ([text or "" for text in pairs[side]] for side in ("source", "target"))
    return ReferenceText(name, sources, references, f"{source_lang}-{target_lang}", [])


def _built_in_phrases(source_lang: str, target_lang: str) -> ReferenceText:
    """Return the held-out test split of the built-in phrases."""
    from ..data.phrases import splits

    if {source_lang, target_lang} != {"de", "en"}:
        raise UsageError("The built-in phrases are English and German: pass --test_file for other languages.")
    phrases = splits()["test"]
    sources, references = ([getattr(phrase, side) for phrase in phrases] for side in (source_lang, target_lang))
    unseen = [i for i, phrase in enumerate(phrases) if phrase.unseen]
    return ReferenceText("built-in phrases", sources, references, f"{source_lang}-{target_lang}", unseen)
