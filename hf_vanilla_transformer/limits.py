"""Bounds on what the files of a model from anywhere make other packages compute and allocate, checked beforehand."""

import base64
import binascii
import json
import re
from collections.abc import Iterable, Iterator
from math import prod
from pathlib import Path
from reprlib import repr as shortened
from typing import Any

from .errors import UserError
from .files import JsonObject, read_document, read_json

MAX_SETTINGS_BYTES = 1 << 22  # of a file of settings; the largest, of tokenizers with many added tokens, have 1 MB
MAX_SETTINGS = 1000  # by name, which transformers sorts and compares; a configuration has some 100
MAX_GROWTH = 1000  # how many times as long a tokenizer may make a text
MAX_RANK = 1024  # of an adapter; one beyond the width of the model adds nothing
MAX_SIZE = 100_000  # of its other sizes, such as the number of virtual tokens
MAX_ENTRIES = 1000  # of a list in an adapter, such as names of modules
_MAX_PATTERN = 200  # characters of a regular expression
_MAX_CHOICES = 3  # repetitions, and groups, in a regular expression

_RANKS = ("r", "rank", "init_r", "target_r", "rank_pattern")
# Fields of an adapter by which PEFT chooses modules, with regular expressions
_PATTERNS = (
    *("target_modules", "exclude_modules", "modules_to_save", "layers_pattern", "target_parameters"),
    *("rank_pattern", "alpha_pattern", "feedforward_modules"),
)
# Fields of an adapter with which PEFT would import a module, or read files or models elsewhere, or copy layers
_REFUSED = ("megatron_config", "adapters", "shadow_model", "prompt_tuning_init_state_dict_path", "layer_replication")
_COUNTERS = re.compile("alpha|seed|key|step|init|final|delta|interval", re.IGNORECASE)  # numbers that are not sizes
# How much longer a normaliser makes a text at most, by the Unicode standard; those with a content are computed
_UNICODE_GROWTH = {"NFKC": 18, "NFKD": 18, "NFC": 3, "NFD": 4, "Lowercase": 3, "BertNormalizer": 4}
_PARTS = ("normalizers", "pretokenizers", "processors", "decoders")  # of a sequence


def check_settings(file: Path) -> None:
    """Check the size of a JSON file of settings.

    Raises:
        OSError: if it cannot be read.
        ValueError: if it is too large, or has too many settings; one that is damaged is left to its reader.
    """
    text = read_document(file, MAX_SETTINGS_BYTES)
    try:
        settings = json.loads(text)
    except (ValueError, RecursionError):
        return
    if isinstance(settings, dict) and len(settings) > MAX_SETTINGS:
        raise UserError(
            f"it has {len(settings):,} settings, more than {MAX_SETTINGS:,}; remove those that are unknown"
        )


def check_adapter(file: Path, d_model: int) -> None:
    """Check that PEFT can build an adapter in memory and time like those of its model, and from its own files alone.

    Args:
        file: its configuration.
        d_model: width of its model.

    Raises:
        OSError: if it cannot be read.
        ValueError: if it is not.
    """
    check_settings(file)
    fields: JsonObject = read_json(file)
    for field in _REFUSED:
        if fields.get(field):
            raise UserError(f"{field} names code or other files, or copies layers; remove it")

    for name, number in _numbers(fields):
        is_rank = name in _RANKS
        largest = max(MAX_RANK, d_model) if is_rank else MAX_SIZE
        if number > largest and (is_rank or not _COUNTERS.search(name)):
            raise UserError(f"{name} must be at most {largest:,}, but is {shortened(number)}")
    initial = fields.get("init_lora_weights", True)
    if isinstance(initial, str) and not initial.isalpha():
        # such as pissa_niter_N, with a number of steps
        raise UserError(f"init_lora_weights must be a name, but is {shortened(initial)}")

    for field, value in fields.items():
        if isinstance(value, (list, dict)) and len(value) > MAX_ENTRIES:
            raise UserError(f"{field} must have at most {MAX_ENTRIES:,} entries, but has {len(value):,}")
    for field in _PATTERNS:
        value = fields.get(field) or ()
        for pattern in (value,) if isinstance(value, str) else value:
            if not isinstance(pattern, str) or not _is_cheap(pattern):
                raise UserError(
                    f"{field} must be names of modules or a short regular expression with at most {_MAX_CHOICES} "
                    f"repetitions, but has {shortened(pattern)}; list the names instead"
                )


def _numbers(fields: JsonObject) -> Iterator[tuple[str, float]]:
    """Yield the name and value of each number of an adapter, also of those in dictionaries."""
    for name, value in fields.items():
        for number in value.values() if isinstance(value, dict) else (value,):
            if isinstance(number, (int, float)):
                yield name, number


def _is_cheap(pattern: str) -> bool:
    """Return whether a regular expression is matched in a time that grows no faster than a power of the length.

    Nothing but characters is repeated, and few times: a group that is repeated can match in exponentially many ways.
    """
    repetitions = re.findall(r"(?<!\()[*+?{]", pattern)
    return (
        len(pattern) <= _MAX_PATTERN
        and max(len(repetitions), pattern.count("(")) <= _MAX_CHOICES
        and not re.search(r"\)[*+?{]", pattern)
    )


def check_tokenizer(file: Path) -> None:
    """Check that a tokenizer cannot make a text many times as long, neither before nor after it cuts it into tokens.

    Args:
        file: its `tokenizer.json`.

    Raises:
        OSError: if it cannot be read.
        ValueError: if it can.
    """
    tokenizer = read_json(file)
    if not isinstance(tokenizer, dict):
        # its reader says more
        return
    for name in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        growth = prod(map(_growth, _steps(tokenizer.get(name))))
        if growth > MAX_GROWTH:
            raise UserError(f"its {name} can make a text {growth:.3g} times as long, more than {MAX_GROWTH:,} times")


def _steps(part: Any) -> Iterator[JsonObject]:
    """Yield the steps of a part of a tokenizer, which may be sequences of others."""
    if isinstance(part, dict):
        yield part
        for name in _PARTS:
            inner = part.get(name)
            for step in inner if isinstance(inner, list) else ():
                yield from _steps(step)


def _growth(step: JsonObject) -> float:
    """Return how many times as long a step makes a text at most."""
    match step:
        case {"type": "Replace", "content": str(content), "pattern": {"String": str(replaced)}}:
            return max(1.0, len(content) / max(1, len(replaced)))
        case {"type": "Replace", "content": str(content)}:
            # at every place between two characters
            return 1.0 + len(content)
        case {"type": "Prepend", "prepend": str(text)}:
            return 1.0 + len(text)
        case {"type": "Precompiled", "precompiled_charsmap": str(table)}:
            return _longest_replacement(table)
        case {"type": "TemplateProcessing", "single": list(single)}:
            return max(1.0, sum(map(_template_length, single, [step.get("special_tokens")] * len(single))))
        case {"type": str(name)}:
            return float(_UNICODE_GROWTH.get(name, 1))
    return 1.0


def _template_length(piece: Any, special_tokens: Any) -> int:
    """Return the length of a piece of a template: 1 for the text, for a special token that of its ids."""
    match piece:
        case {"SpecialToken": {"id": str(name)}} if isinstance(special_tokens, dict):
            ids = (special_tokens.get(name) or {}).get("ids", ())
            return len(ids) if isinstance(ids, list) else 1
    return 1


def _longest_replacement(table: str) -> float:
    """Return the length of the longest text by which SentencePiece's table replaces a character or several."""
    try:
        content = base64.b64decode(table)
    except (ValueError, binascii.Error):
        return 1.0
    # the size of a trie, the trie, and then all replacements, each of which ends with a NUL
    replacements: Iterable[bytes] = content[4 + int.from_bytes(content[:4], "little") :].split(b"\0")
    return float(max(map(len, replacements), default=1) or 1)
