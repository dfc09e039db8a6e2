"""What a model can translate: its directions, its limit on length, and text in normal form; finite weights.

`inference.translator.Translator` follows these rules, and so does the pipeline, which travels with a saved model and
cannot import the package.
"""

import logging
import math
import re
import sys
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

from .errors_vanilla_transformer import UserError

if TYPE_CHECKING:
    from torch import nn

logger = logging.getLogger(__name__)

Pair = tuple[str, str]  # source and target language

LANGUAGE_TAG = "<2"  # start of the tags of target languages
_DEFAULT_MAX_TOKENS = 1024  # for models of other classes that do not name a limit
_WRITTEN_TAG = re.compile(r"\s*>>\S+<<")  # how users of OPUS-MT's models choose a target language
_NO_LIMIT = 10**9  # transformers' tokenizers without a limit have a `model_max_length` of 10^30
# Where zero-width spaces and joiners mean something: scripts from Arabic to Myanmar, Khmer, Mongolian, others of Asia
# and Africa, Arabic presentation forms; and emoji, which joiners combine
_JOINING = (
    r"\u0620-\u109f\u1780-\u18af\u1900-\u1cff\ua800-\uabff\ufb50-\ufdff\ufe70-\ufefc\U00010a00-\U00011fff"
    r"\U0001e900-\U0001e95f\u2190-\u2bff\ufe0f\U0001f000-\U0001faff"
)
# Soft hyphens, directions of writing, word joiners, byte order marks; elsewhere, zero-width spaces and joiners too
MEANINGLESS = r"\xad\u061c\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff"
INVISIBLE = re.compile(rf"[{MEANINGLESS}]|[\u200b-\u200d](?<![{_JOINING}].)(?![{_JOINING}])")


@cache
def _warn_once(message: str) -> None:
    """Log a warning, the same one only once per process."""
    logger.warning(message)


def parse_language_pair(pair: str) -> Pair:
    """Return source and target language of a pair such as "en-de".

    Raises:
        ValueError: if it is not of this form, or the languages are the same.
    """
    source, _, target = pair.partition("-")
    if not source or not target or "-" in target or source == target:
        raise UserError(f"{pair!r} is not a language pair: give two different languages, such as en-de.")
    return source, target


def language_tag(target_lang: str) -> str:
    """Return the tag with which a source starts that is translated into a language."""
    return f"{LANGUAGE_TAG}{target_lang}>"


def normalise(text: str) -> str:
    """Return a text with single spaces between its words and without invisible characters that mean nothing.

    Every source that is translated or scored is written so, and every text that `import` reads.
    """
    return " ".join(INVISIBLE.sub("", text).split())


def is_blank(text: str) -> bool:
    """Return whether there is nothing to translate in a text; its translation is empty."""
    return not normalise(text)


def check_weights(model: "nn.Module", name: str = "the model") -> None:
    """Check that the weights of a model are finite: with a single one that is not, its translations mean nothing.

    Raises:
        ValueError: if one is NaN or infinite.
    """
    # slow to import, and not needed where files are only read
    import torch

    for weight_name, weight in model.named_parameters():
        # not those in formats of their own, such as quantised ones, which are subclasses
        is_plain = type(weight) is torch.nn.Parameter and weight.is_floating_point() and not weight.is_meta
        # a sum is much faster than looking at each number, and as reliable: in float32, none of them overflows
        if is_plain and not math.isfinite(weight.detach().sum(dtype=torch.float32)):
            raise UserError(
                f"Cannot translate with {name}: its weights contain NaN or infinity, in {weight_name}. Use a "
                "checkpoint saved before its training diverged."
            )


def max_source_tokens(config: Any, tokenizer: Any) -> int:
    """Return the largest number of source tokens that a model translates, tags and `</s>` included.

    It is `max_position_embeddings`, for sinusoids too: they have encodings for more positions, but the model has never
    seen them in training. A tokenizer, if there is one, may set a lower limit.
    """
    # models of other classes may name it differently, or not at all
    limit = getattr(config, "max_position_embeddings", None)
    own_limit = getattr(tokenizer, "model_max_length", _NO_LIMIT)
    if own_limit < _NO_LIMIT:
        return own_limit if limit is None else min(limit, own_limit)
    return limit or _DEFAULT_MAX_TOKENS


def num_positions(config: Any, is_export: bool = False) -> int:
    """Return for how many positions a model has encodings.

    Sinusoids can be computed for any position. An export has a table of them: twice as many as were seen in training.
    """
    if config.position_embedding == "learned":
        return config.max_position_embeddings
    return 2 * config.max_position_embeddings if is_export else sys.maxsize


class Directions:
    """The directions in which a model translates; nothing else reads languages out of a configuration.

    Args:
        config: the configuration of a model of any class. Those of other classes do not name their directions.

    Attributes:
        pairs: source and target language of each known direction.
        has_tags: whether a source starts with a tag of its target language (Johnson et al. 2017).
        sources, targets: the known languages of each side.
        source_lang, target_lang: the language of a side, None if it is unknown or there are several.
    """

    def __init__(self, config: Any):
        pairs = getattr(config, "language_pairs", None) or ()
        self.has_tags = bool(pairs)
        self.source_lang: str | None = getattr(config, "source_lang", None)
        self.target_lang: str | None = getattr(config, "target_lang", None)
        self.pairs: list[Pair] = [parse_language_pair(pair) for pair in pairs]
        if not pairs and self.source_lang and self.target_lang:
            self.pairs = [(self.source_lang, self.target_lang)]
        # without pairs, at most one side is known
        sides = self.pairs or [(self.source_lang or "", self.target_lang or "")]
        # without repetitions; a dictionary, unlike a set, keeps the order
        self.sources = list(dict.fromkeys(source for source, _ in sides if source))
        self.targets = list(dict.fromkeys(target for _, target in sides if target))

    def __str__(self) -> str:
        return ", ".join(f"{source}-{target}" for source, target in self.pairs) or "unknown languages"

    def resolve(self, source_lang: str | None = None, target_lang: str | None = None) -> tuple[str | None, str | None]:
        """Return the languages given, or the model's own where there is only one; None for one that is unknown.

        Languages that a multilingual model knows, but not in this combination, get a warning.

        Raises:
            ValueError: if the model does not have a language, or has several targets and none is given.
        """
        for language, known, side in ((source_lang, self.sources, "from"), (target_lang, self.targets, "into")):
            # a model that names no languages, such as a converted one, takes any
            if language is not None and known and language not in known:
                raise UserError(f"This model translates {side} {', '.join(known)}, not {side} {language!r}.")
        if target_lang is None and self.has_tags and len(self.targets) > 1:
            names = ", ".join(self.targets)
            raise UserError(f"This model translates into {names}: choose one as the target language.")

        source_lang = source_lang or _only(self.sources)
        target_lang = target_lang or _only(self.targets)
        if source_lang and target_lang and self.pairs and (source_lang, target_lang) not in self.pairs:
            _warn_once(
                f"This model was not trained to translate from {source_lang} to {target_lang}, only {self}; the "
                "quality may be low."
            )
        return source_lang, target_lang

    def tag(self, source_lang: str | None = None, target_lang: str | None = None) -> str | None:
        """Return the tag with which a source to translate into `target_lang` starts, None for models without tags.

        Raises:
            ValueError: as `resolve`.
        """
        _, target_lang = self.resolve(source_lang, target_lang)
        return language_tag(target_lang) if self.has_tags and target_lang else None

    def check_tags(self, texts: Iterable[str]) -> None:
        """Warn of tags that are written in texts, where they are ordinary characters, for models with tags."""
        if self.has_tags and any(map(_WRITTEN_TAG.match, texts)):
            _warn_once(
                "A text starts with a tag such as >>fra<<, which is translated as text: remove it, and give the "
                "language as target_lang."
            )


def _only(languages: list[str]) -> str | None:
    return languages[0] if len(languages) == 1 else None


__all__ = ["Directions", "check_weights", "is_blank", "max_source_tokens", "num_positions", "parse_language_pair"]
