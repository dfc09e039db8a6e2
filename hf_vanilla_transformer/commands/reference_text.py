"""Read the test text given on the command line."""

from pathlib import Path
from typing import NamedTuple

from .console import UsageError
from .flags import TextFlags


class ReferenceText(NamedTuple):
    """A test text with references."""

    name: str
    sources: list[str]
    references: list[str]
    direction: str  # such as "en-de"
    unseen: list[int]  # indices of the built-in phrases with combinations not seen in training


def read_text(args: TextFlags, test_file: str | None, languages: tuple[str | None, str | None]) -> ReferenceText:
    """Read the test text given by the flags.

    Args:
        test_file: one of the files given by the flags, or None.
        languages: source and target language of the model, used if the flags do not name them.

    Raises:
        UsageError: if the languages are unknown, or the built-in phrases are not available in them.
        ValueError: if the text cannot be read.
    """
    source_lang, target_lang = args.source_lang or languages[0], args.target_lang or languages[1]
    if source_lang is None or target_lang is None:
        raise UsageError("The languages are unknown: pass --source_lang and --target_lang.")
    if not (test_file or args.dataset_name):
        return _built_in_phrases(source_lang, target_lang)
    from ..data.hub_datasets import load_hub_pairs
    from ..data.readers import load_pairs

    if test_file:
        pairs, name = load_pairs(test_file, source_lang, target_lang), Path(test_file).name
    else:
        dataset, split = str(args.dataset_name), args.split
        name = f"{Path(dataset).name if Path(dataset).exists() else dataset}, {split}"
        pairs = load_hub_pairs(dataset, args.dataset_config_name, source_lang, target_lang, (split,))[split]
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
