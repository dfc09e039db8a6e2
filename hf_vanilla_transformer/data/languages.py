"""Languages: their names as the Hub expects them, ISO 639 codes and BCP 47 tags; and in which one a text is.

py3langid (Lui & Baldwin 2012), whose model is part of its package, identifies the language of a text.
"""

import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING

from ..errors import UserError
from ..files import import_extra

if TYPE_CHECKING:
    from py3langid.langid import LanguageIdentifier

_NAME = re.compile(r"([A-Za-z]{2,3})((?:[-_@][A-Za-z0-9]{2,8})*)")
_COLUMNS = ("src", "tgt", "trg")  # usual names of columns, although two of them are codes
MIN_PROBABILITY = 0.9  # of the other language; lower ones are mostly names, numbers and short phrases


def base_code(name: str) -> str | None:
    """Return the code of ISO 639 in the name of a language, such as pt for `pt_BR`; None for another name."""
    match = _NAME.fullmatch(name)
    code = match[1].lower() if match else None
    return None if code in _COLUMNS else code


def full_tag(name: str) -> str | None:
    """Return the tag of BCP 47, such as pt-BR for `pt_br`, or None if it would only be the base code."""
    base = base_code(name)
    if base is None or base == name.lower():
        return None
    # a script such as Latn has four letters, a region such as BR two
    cases = {2: str.upper, 4: str.title}
    parts = re.split("[-_@]", name)[1:]
    return "-".join([base, *(cases.get(len(part), str.lower)(part) for part in parts)])


def short_name(name: str) -> str:
    """Return the name of a language with its code of two letters, if it has one: fr for `fra`, zh_Hans for `cmn_Hans`.

    Raises:
        ImportError: if Babel, which knows the codes, is not installed.
    """
    aliases = import_extra("babel.core", "marian").get_global("language_aliases")
    base, *script = name.split("_", 1)
    # of codes of two letters, such as tw, some are aliases too
    short = aliases.get(base, base) if len(base) == 3 else base
    return "_".join([short if len(short) == 2 else base, *script])


def not_languages(names: Iterable[str]) -> str:
    """Return the message for names that are not those of languages, or "" if there are none."""
    wrong = [name for name in dict.fromkeys(names) if base_code(name) is None]
    advice = "to name it, use `vanilla-transformer import` with --columns for the names in the file"
    message = f"not a code such as en or pt-BR, so the card will not name the language; {advice}."
    return f"{' and '.join(wrong)}: {message}" if wrong else ""


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
    likely, probability = _identifier().classify(text)
    return likely != language and probability >= MIN_PROBABILITY


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
