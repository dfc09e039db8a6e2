"""Language names as the Hub expects them: ISO 639 codes and BCP 47 tags."""

import re
from collections.abc import Iterable

from ..files import import_extra

_NAME = re.compile(r"([A-Za-z]{2,3})((?:[-_@][A-Za-z0-9]{2,8})*)")
_COLUMNS = ("src", "tgt", "trg")  # usual names of columns, although two of them are codes


def base_code(name: str) -> str | None:
    """Return the code of ISO 639 in the name of a language, such as pt for `pt_BR`; None for others: `Source`."""
    found = _NAME.fullmatch(name)
    code = found[1].lower() if found else None
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
