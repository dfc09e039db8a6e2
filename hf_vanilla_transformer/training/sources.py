"""The sources of a run's training text: which text, which languages, with which tag, and how often."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ..data.formats import names_languages
from ..data.shards import is_prepared
from ..data.tags import LANGUAGE_TAG, language_tag
from ..model.text_rules_vanilla_transformer import parse_language_pair
from .arguments import DataArguments

_Value = TypeVar("_Value")
Languages = tuple[str, str]


@dataclass(frozen=True)
class TextSource:
    """One source of training text.

    Args:
        name: how messages and the card call it, without its folder.
        file: a file, prefix or prepared folder; None for a dataset on the Hub or the built-in phrases.
        dataset: name and configuration of a dataset on the Hub, or None.
        languages: source and target language; None if every row names its own.
        tag: tag at the start of every source sentence, or None.
        weight: number of times that each pair is used per epoch, on average; None if the sizes decide.
    """

    name: str
    file: str | None
    dataset: tuple[str, str | None] | None
    languages: Languages | None
    tag: str | None
    weight: float | None

    @property
    def is_prepared(self) -> bool:
        """Return whether the source is a folder of prepared shards."""
        return is_prepared(self.file)


def for_each(flag: str, values: Sequence[_Value] | None, count: int, default: _Value) -> list[_Value]:
    """Return one value per source: those given, or the only one given for all, or the default.

    Raises:
        ValueError: if the number of values fits neither.
    """
    if not values:
        return [default] * count
    if len(values) not in (1, count):
        raise ValueError(f"--{flag} takes one value per source ({count}), or one for all, but has {len(values)}.")
    return list(values) * (count if len(values) == 1 else 1)


def language_pairs(data: DataArguments) -> list[Languages]:
    """Return the different directions that `--language_pairs` names, in order.

    Raises:
        ValueError: if one of them is not a pair of languages.
    """
    return list(dict.fromkeys(map(parse_language_pair, data.language_pairs or ())))


def text_sources(data: DataArguments) -> list[TextSource]:
    """Return the sources that the flags name, files before datasets; without any, the built-in phrases.

    Args:
        data: the flags, with both languages set unless there are several directions.

    Raises:
        ValueError: if the number of weights, tags, languages or configurations does not fit the sources.
    """
    files, names = data.train_file or [], data.dataset_name or []
    count = max(1, len(files) + len(names))
    datasets = list(
        zip(names, for_each("dataset_config_name", data.dataset_config_name, len(names), None), strict=True)
    )
    if data.train_weights and len(data.train_weights) != count:
        raise ValueError(f"--train_weights takes one value per source ({count}), but has {len(data.train_weights)}.")
    given: list[float | None] = [*(data.train_weights or ())]
    weights = given or [None if data.sampling_temperature else 1.0] * count
    tags = for_each("source_tag", data.source_tag, count, "")
    labels = [*(Path(file).resolve().name for file in files), *(Path(name).name for name in names)]
    return [
        TextSource(
            name=labels[i] if labels else "the built-in phrases",
            file=files[i] if i < len(files) else None,
            dataset=datasets[i - len(files)] if datasets and i >= len(files) else None,
            languages=languages,
            tag=tags[i] or None,
            weight=weights[i],
        )
        for i, languages in enumerate(_source_languages(data, files, count))
    ]


def _source_languages(data: DataArguments, files: Sequence[str], count: int) -> list[Languages | None]:
    """Return the languages of each source, None for JSON lines that name their own."""
    if not data.language_pairs:
        assert data.source_lang is not None
        assert data.target_lang is not None
        return [(data.source_lang, data.target_lang)] * count
    pairs = [parse_language_pair(pair) for pair in data.language_pairs]
    directed = [names_languages(file) for file in files] + [False] * (count - len(files))
    if len(pairs) not in (1, count) and all(directed):
        return [None] * count
    languages = for_each("language_pairs", pairs, count, pairs[0])
    return [None if own else pair for own, pair in zip(directed, languages, strict=True)]


def all_tags(config: Any, sources: Sequence[TextSource]) -> list[str]:
    """Return every tag that the sources of a run need, those of the target languages first.

    Raises:
        ValueError: if the tag of a source is that of a language.
    """
    for source in sources:
        if source.tag and source.tag.startswith(LANGUAGE_TAG):
            raise ValueError(f"--source_tag {source.tag}: tags that start with <2 are those of target languages.")
    targets = [parse_language_pair(pair)[1] for pair in config.language_pairs or ()]
    return list(dict.fromkeys([*map(language_tag, targets), *(source.tag for source in sources if source.tag)]))
