"""Read parallel text from datasets on the Hub, as a dataset on disk or as a stream."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from datasets import Dataset, load_dataset
from datasets.exceptions import DatasetGenerationError

from .formats import DataError, Row
from .readers import file_stamps, select_languages


def load_hub_pairs(
    name: str, config_name: str | None, source_lang: str, target_lang: str, splits: tuple[str, ...]
) -> dict[str, Dataset]:
    """Read a dataset from the Hub, such as ("wmt/wmt14", "de-en"), or from a local folder with the same layout.

    Returns:
        Those of `splits` that the dataset has, each with the string columns "source" and "target".

    Raises:
        DataError: if the dataset has none of the splits, lacks a language, or needs a loading script.
    """
    origin = _full_name(name, config_name)
    with _reading_errors(origin):
        dataset = load_dataset(name, config_name)
    found = {
        split: select_languages(dataset[split], f"{origin}, {split},", (source_lang, target_lang))
        for split in splits
        if split in dataset
    }
    if not found:
        raise DataError(f"{origin} has no split {' or '.join(splits)}; its splits are {', '.join(dataset)}.")
    return found


def _full_name(name: str, config_name: str | None) -> str:
    return f"{name} ({config_name})" if config_name else name


@contextmanager
def _reading_errors(dataset: str) -> Iterator[None]:
    """Turn the errors of a dataset that cannot be read, such as one with a loading script, into a `DataError`."""
    try:
        yield
    except (RuntimeError, DatasetGenerationError) as error:
        raise DataError(f"The dataset {dataset} cannot be read: {error.__cause__ or error}") from None


class HubRows:
    """The train split of a dataset on the Hub, streamed. It can be iterated more than once.

    Attributes:
        origin: identifies the dataset, in types of JSON.

    Raises:
        DataError: if the dataset cannot be read, here or while it is iterated.
    """

    def __init__(self, name: str, config_name: str | None, languages: tuple[str, str]):
        self.name, self.languages = _full_name(name, config_name), languages
        with _reading_errors(self.name):
            self.rows = load_dataset(name, config_name, split="train", streaming=True)
        if Path(name).is_dir():  # identified by its name and files, not by its path
            files = sorted(str(file) for file in Path(name).rglob("*") if file.is_file())
            self.origin: list[Any] = [Path(name).resolve().name, config_name, *file_stamps(files)]
        else:
            self.origin = [name, config_name]

    def _readable_rows(self) -> Iterator[dict[str, Any]]:
        with _reading_errors(self.name):
            yield from self.rows

    def __iter__(self) -> Iterator[Row]:
        for number, row in enumerate(self._readable_rows(), 1):
            texts = row.get("translation", row) or dict.fromkeys(self.languages)  # a row may be null
            for language in self.languages:
                if language not in texts:
                    raise DataError(f"{self.name} has no column {language!r}; its columns are {', '.join(texts)}.")
                if not isinstance(texts[language], str | None):
                    kind = type(texts[language]).__name__
                    raise DataError(f"{self.name}, row {number}: {language!r} is not text but {kind}.")
            source, target = (texts[language] or "" for language in self.languages)
            yield {"source": source, "target": target}
