"""The small models, texts and runs that tests share."""

import os
from collections.abc import Iterable
from pathlib import Path

from hf_vanilla_transformer.data.phrases import Phrase

SIZES = {"d_model": 16, "num_heads": 2, "num_encoder_layers": 1, "num_decoder_layers": 1, "d_ff": 32}


def as_flags(settings: dict[str, object]) -> list[str]:
    """Return `--name value` for each setting."""
    return [word for name, value in settings.items() for word in (f"--{name}", str(value))]


def model_flags(**changes: int) -> list[str]:
    """Return flags for a small model from changes to `SIZES`, trained on the CPU unless $TEST_DEVICE is "cuda"."""
    device = [] if os.environ.get("TEST_DEVICE") == "cuda" else ["--use_cpu"]
    return ["--preset", "tiny", *as_flags({**SIZES, **changes}), *device]


def write_moses(prefix: Path, **sides: Iterable[str]) -> Path:
    """Write one file of lines per language, `prefix.en` for `en=...`, and return the prefix."""
    for language, lines in sides.items():
        Path(f"{prefix}.{language}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
    return prefix


def write_phrases(prefix: Path, phrases: Iterable[Phrase]) -> Path:
    """Write built-in phrases as an English-German Moses pair, and return its prefix."""
    phrases = list(phrases)
    return write_moses(prefix, en=[phrase.en for phrase in phrases], de=[phrase.de for phrase in phrases])
