"""Load the models that a verb names, and translate with them."""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from .console import UsageError


def load_models(names: Sequence[str], backend: str = "torch") -> tuple[Any, Any]:
    """Return the model and tokenizer of a folder or Hub repository; for several names, their ensemble.

    Raises:
        OSError, ValueError: if a model cannot be loaded or the models do not fit together.
        UsageError: for several models on another backend than torch, or an export without its backend.
    """
    if len(names) == 1:
        return _load_one(names[0], backend)
    from ..inference.ensemble import Ensemble

    if backend != "torch":
        raise UsageError("An ensemble of several models needs --backend torch.")
    models, tokenizers = zip(*(_load_one(name, backend) for name in names), strict=True)
    for name, tokenizer in zip(names, tokenizers, strict=True):
        if tokenizer.get_vocab() != tokenizers[0].get_vocab():
            raise ValueError(
                f"{names[0]} and {name} have different vocabularies; the models of an ensemble share one."
            )
    common_languages(dict(zip(names, models, strict=True)))
    return Ensemble(models), tokenizers[0]


def _load_one(name: str, backend: str) -> tuple[Any, Any]:
    """Return one model, on the best device there is, and its tokenizer."""
    import torch
    from transformers import AutoTokenizer

    from ..data.tokenizer import check_tokenizer
    from ..inference.exports import export_format
    from ..model.loading import load, load_model

    if backend != "torch":
        from ..sharing.export import load_export

        exported = load_export(name, backend)
        return exported, exported.tokenizer

    if format := export_format(name):
        raise UsageError(
            f"{name} is a {format} export: run evaluate and translate with --backend {format}; give compare a file of "
            "translations."
        )
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")
    model, tokenizer = load_model(name), load(AutoTokenizer, name)
    check_tokenizer(tokenizer, model.config)
    return model.to(device), tokenizer


def languages_of(model: Any) -> tuple[str | None, str | None]:
    """Return the languages that a model translates from and to, where they are known."""
    return model.config.source_lang, model.config.target_lang


def common_languages(models: dict[str, Any]) -> tuple[str | None, str | None]:
    """Return the languages that all `models` (by name) translate from and to; unknown if there are no models.

    Raises:
        ValueError: if they differ.
    """
    languages = {name: languages_of(model) for name, model in models.items()}
    if len(set(languages.values())) > 1:
        each = "; ".join(f"{name}: {source} to {target}" for name, (source, target) in languages.items())
        raise ValueError(f"The models translate different languages: {each}.")
    return next(iter(languages.values()), (None, None))


def decoding_settings(args: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of beam search that were given as flags."""
    names = ("num_beams", "length_penalty")
    return {name: getattr(args, name) for name in names if getattr(args, name) is not None}


def translate_sentences(model: Any, tokenizer: Any, sources: list[str], args: argparse.Namespace) -> list[str]:
    """Translate `sources` with the flags in `args`, showing a progress bar."""
    from tqdm import tqdm

    from ..inference.translation import translate

    with tqdm(total=len(sources), desc="Translating", unit=" sentences", file=sys.stderr) as bar:
        return translate(model, tokenizer, sources, args.max_tokens, progress=bar.update, **decoding_settings(args))
