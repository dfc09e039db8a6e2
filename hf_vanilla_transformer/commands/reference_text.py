"""Read the test text given on the command line."""

from pathlib import Path
from typing import NamedTuple

from .console import UsageError
from .shared_flags import TextFlags


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
    source_lang = args.source_lang or languages[0]
    target_lang = args.target_lang or languages[1]
    if source_lang is None or target_lang is None:
        raise UsageError("The languages are unknown: pass --source_lang and --target_lang.")
    from ..data.phrases import splits
    from ..data.source import BuiltInPhrases, HubDataset, Text, TextFile

    direction = (source_lang, target_lang)
    unseen: list[int] = []
    if test_file:
        source: Text = TextFile(direction, test_file)
        name = Path(test_file).name
    elif args.dataset_name:
        source = HubDataset(direction, args.dataset_name, args.dataset_config_name, args.split)
        folder = Path(args.dataset_name)
        name = f"{folder.name if folder.exists() else args.dataset_name}, {args.split}"
    elif {*direction} == {"de", "en"}:
        source = BuiltInPhrases(direction, "test")
        name = "built-in phrases"
        unseen = [i for i, phrase in enumerate(splits()["test"]) if phrase.unseen]
    else:
        raise UsageError("The built-in phrases are English and German: pass --test_file for other languages.")
    pairs = source.pairs()
    sources, references = ([text or "" for text in pairs[side]] for side in ("source", "target"))
    return ReferenceText(name, sources, references, "-".join(direction), unseen)
