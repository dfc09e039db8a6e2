"""Read the test text given on the command line."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ..files import JsonObject, public_name
from .console import UsageError
from .shared_flags import TextFlags


class EvaluationText(NamedTuple):
    """A test text with references."""

    name: str
    direction: str  # such as "en-de"
    sources: list[str]
    references: list[str]
    unseen: Sequence[int] = ()  # indices of the built-in phrases with combinations not seen in training
    dataset: JsonObject | None = None  # where the text is on the Hub: id, config and split of a dataset


def read_text(args: TextFlags, test_file: str | None, languages: tuple[str | None, str | None]) -> EvaluationText:
    """Read the test text given by the flags.

    Args:
        test_file: one of the files given by the flags, or None.
        languages: source and target language; None for one that is unknown.

    Raises:
        UsageError: if the languages are unknown, or the built-in phrases are not available in them.
        ValueError: if the text cannot be read.
    """
    from ..data.formats import read_lines
    from ..data.phrases import splits
    from ..data.source import BuiltInPhrases, HubDataset, Text, TextFile

    source_lang, target_lang = languages
    if source_lang is None or target_lang is None:
        raise UsageError("The languages are unknown: pass --source_lang and --target_lang.")
    pair = (source_lang, target_lang)
    direction = "-".join(pair)
    if args.sacrebleu_testset:
        sources, references = (list(read_lines(file)) for file in _sacrebleu_files(args.sacrebleu_testset, direction))
        return EvaluationText(args.sacrebleu_testset, direction, sources, references)

    unseen: list[int] = []
    dataset: JsonObject | None = None
    if test_file:
        text: Text = TextFile(pair, test_file)
        name = Path(test_file).name
    elif args.dataset_name:
        text = HubDataset(pair, args.dataset_name, args.dataset_config_name, args.split)
        if not Path(args.dataset_name).exists():
            dataset = {"id": args.dataset_name, "config": args.dataset_config_name, "split": args.split}
        name = f"{public_name(args.dataset_name)}, {args.split}"
    elif {*pair} == {"de", "en"}:
        text = BuiltInPhrases(pair, "test")
        name = "built-in phrases"
        unseen = [i for i, phrase in enumerate(splits()["test"]) if phrase.unseen]
    else:
        raise UsageError("The built-in phrases are English and German: pass --test_file for other languages.")

    # Tables can hold nulls: such a line is blank, and keeps its place
    sources, references = ([line or "" for line in text.pairs()[side]] for side in ("source", "target"))
    return EvaluationText(name, direction, sources, references, unseen, dataset)


def _sacrebleu_files(name: str, direction: str) -> tuple[str, str]:
    """Return the files with the source and the reference of a test set of sacreBLEU, which may be downloaded first.

    Raises:
        OSError: if it can neither be found nor downloaded.
        UsageError: if sacreBLEU has no such test set, or not with one reference in this direction.
    """
    from sacrebleu.dataset import DATASETS

    known = {testset: data for testset, data in DATASETS.items() if direction in data.langpairs}
    if name not in known:
        raise UsageError(f"sacreBLEU has no test set {name!r} for {direction}; it has: {', '.join(known) or 'none'}.")
    try:
        source = known[name].get_source_file(direction)
        references = known[name].get_reference_files(direction)
    except OSError as error:
        raise OSError(
            f"Cannot download sacreBLEU's test set {name} ({error}). Where there is a network, run `sacrebleu -t "
            f"{name} -l {direction} --echo src`; then copy ~/.sacrebleu here, or to the folder that SACREBLEU names."
        ) from error
    if len(references) > 1:
        raise UsageError(f"{name} has {len(references)} references for {direction}; only one can be used here.")
    return source, references[0]
