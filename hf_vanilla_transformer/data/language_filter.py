"""Find text in an unexpected language, with py3langid (Lui & Baldwin 2012), whose model is part of its package."""

import re
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from ..errors import UserError
from ..files import import_extra

if TYPE_CHECKING:
    from py3langid.langid import LanguageIdentifier

MIN_PROBABILITY = 0.9  # of the other language; lower ones are mostly names, numbers and short phrases


@cache  # the model is slow to load
def _identifier() -> "LanguageIdentifier":
    langid = import_extra("py3langid.langid", "clean")
    return langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)


def check_known(*languages: str) -> None:
    """Check that the languages can be identified.

    Raises:
        ImportError: if py3langid is not installed.
        ValueError: if it does not know a language.
    """
    for language in languages:
        if language not in _identifier().labels:
            raise UserError(
                f"--filter_language cannot identify {language!r}: py3langid does not know it. If it is not the ISO "
                "639-1 code of the language, such as en, use that code; otherwise omit the flag."
            )


def is_other_language(text: str, language: str) -> bool:
    """Return whether `text` is almost certainly in another language than `language` (an ISO 639-1 code)."""
    found, probability = _identifier().classify(text)
    return found != language and probability >= MIN_PROBABILITY


def probabilities(text: str, languages: Sequence[str]) -> dict[str, float]:
    """Return the probability of each language, given that `text` is in one of them; 0 for unknown languages.

    Args:
        languages: codes of ISO 639-1, followed by a region or script, if any, such as pt-BR; these do not count.

    Raises:
        ImportError: if py3langid is not installed.
    """
    ranked = {label: float(probability) for label, probability in _identifier().rank(text)}
    known = {language: ranked.get(re.split("[-_]", language)[0], 0.0) for language in languages}
    total = sum(known.values())
    return {language: probability / total if total else 0.0 for language, probability in known.items()}
