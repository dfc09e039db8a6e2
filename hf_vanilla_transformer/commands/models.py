"""Load the models given on the command line, and translate with them."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .console import UsageError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def load_models(
    names: Sequence[str], backend: str = "torch", dtype: str | None = None
) -> tuple[Any, "PreTrainedTokenizerBase"]:
    """Load a model and its tokenizer from a folder or the Hub; several names form an ensemble.

    Raises:
        OSError, ValueError: if a model cannot be loaded, or the models have different vocabularies or languages.
        UsageError: if several models are used with a backend other than torch.
    """
    if len(names) == 1:
        return _load_one(names[0], backend, dtype)
    from ..inference.ensemble import Ensemble

    if backend != "torch":
        raise UsageError("An ensemble requires --backend torch.")
    models, tokenizers = zip(*(_load_one(name, backend, dtype) for name in names), strict=True)
    for name, tokenizer in zip(names, tokenizers, strict=True):
        if tokenizer.get_vocab() != tokenizers[0].get_vocab():
            raise ValueError(
                f"{names[0]} and {name} have different vocabularies, but the models of an ensemble must share one."
            )
    common_languages(dict(zip(names, models, strict=True)))
    return Ensemble(models), tokenizers[0]


def _load_one(name: str, backend: str, dtype: str | None) -> tuple[Any, "PreTrainedTokenizerBase"]:
    """Load a model, on the accelerator if one is available, and its tokenizer."""
    from ..inference.loading import load_with_tokenizer

    if backend != "torch":
        if dtype is not None:
            raise UsageError("--dtype requires --backend torch; export a model with --quantization instead.")
        from ..export.registry import load_export

        exported = load_export(name, backend)
        return exported, exported.tokenizer

    return load_with_tokenizer(name, dtype or "float32")


def labels(names: Sequence[str]) -> list[str]:
    """Return a short name for each folder or model: its last part, or all of it if several have the same last part."""
    short = [Path(name).resolve().name for name in names]
    return short if len(set(short)) == len(short) else list(names)


def languages_of(model: Any) -> tuple[str | None, str | None]:
    """Return the source and target language of a model, each None if unknown."""
    return model.config.source_lang, model.config.target_lang


def common_languages(models: dict[str, Any]) -> tuple[str | None, str | None]:
    """Return the source and target language that all models share, each None if unknown or if there are no models.

    Args:
        models: maps names, for the error message, to models.

    Raises:
        ValueError: if the models have different languages.
    """
    languages = {name: languages_of(model) for name, model in models.items()}
    if len(set(languages.values())) > 1:
        directions = "; ".join(f"{name}: {source} to {target}" for name, (source, target) in languages.items())
        raise ValueError(f"The models have different languages: {directions}.")
    pairs = {name: ", ".join(getattr(model.config, "language_pairs", None) or ()) for name, model in models.items()}
    if len(set(pairs.values())) > 1:
        directions = "; ".join(f"{name}: {known or 'a single direction'}" for name, known in pairs.items())
        raise ValueError(f"The models have different directions: {directions}.")
    return next(iter(languages.values()), (None, None))


def decoding_settings(args: argparse.Namespace) -> dict[str, Any]:
    """Return the beam search settings that were given as flags."""
    names = ("num_beams", "length_penalty")
    return {name: getattr(args, name) for name in names if getattr(args, name) is not None}


def direction(model: Any, args: argparse.Namespace) -> dict[str, str | None]:
    """Return the languages and the tag with which a model translates, from the flags and the model itself."""
    source_lang, target_lang = languages_of(model)
    return {
        "source_lang": args.source_lang or source_lang,
        "target_lang": args.target_lang or target_lang,
        "tag": args.tag,
    }


def translate_sentences(
    model: Any, tokenizer: "PreTrainedTokenizerBase", sources: list[str], args: argparse.Namespace
) -> list[str]:
    """Translate `sources` with the settings in `args`, and show a progress bar."""
    from tqdm import tqdm

    from ..inference.translation import translate

    with tqdm(total=len(sources), desc="Translating", unit=" sentences", file=sys.stderr) as bar:
        settings = {**direction(model, args), **decoding_settings(args)}
        return translate(model, tokenizer, sources, args.max_tokens, progress=bar.update, **settings)
