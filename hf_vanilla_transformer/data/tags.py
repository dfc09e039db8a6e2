"""Tags at the start of a source: the target language (Johnson et al. 2017), or the kind of text (Caswell et al. 2019).

A tag is a special token, so no text can produce it.
"""

import re
from collections.abc import Iterable

from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from ..errors import UserError
from ..model.text_rules_vanilla_transformer import LANGUAGE_TAG, Directions

_TAG = re.compile(r"<[^\s<>]+>")


def add_tags(tokenizer: PreTrainedTokenizerBase, tags: Iterable[str]) -> list[str]:
    """Add those of `tags` that `tokenizer` lacks as special tokens, and return them.

    Raises:
        ValueError: if a tag does not have the form <...>, or is already a token that texts can contain.
    """
    special = set(special_tokens(tokenizer))
    vocabulary = tokenizer.get_vocab()
    named = _named_tokens(tokenizer)
    for tag in tags:
        if not _TAG.fullmatch(tag):
            raise UserError(f"{tag!r} cannot be a tag: tags have the form <...>, without spaces, such as <bt>.")
        if tag in named:
            raise UserError(f"{tag} cannot be a tag: the tokenizer uses it already.")
        if tag in vocabulary and tag not in special:
            raise UserError(f"{tag} cannot be a tag: it is an ordinary token of the tokenizer.")
    missing = [tag for tag in dict.fromkeys(tags) if tag not in special]
    if missing:
        # Without replace_extra_special_tokens=False, the tags of an earlier call would lose their role.
        tokenizer.add_special_tokens({"extra_special_tokens": missing}, replace_extra_special_tokens=False)
        # In a text, a tag is ordinary characters: only `prefix_ids` produces the token.
        tokenizer.split_special_tokens = True
    return missing


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Return all special tokens, those added as tags included."""
    return [str(token) for token in tokenizer.added_tokens_decoder.values() if token.special]


def _named_tokens(tokenizer: PreTrainedTokenizerBase) -> set[str]:
    """Return the special tokens with a role, such as `</s>`."""
    return {str(token) for token in tokenizer.special_tokens_map.values() if not isinstance(token, list)}


def prefix_ids(
    config: PreTrainedConfig,
    tokenizer: PreTrainedTokenizerBase,
    source_lang: str | None = None,
    target_lang: str | None = None,
    tag: str | None = None,
) -> list[int]:
    """Return the token ids with which a source starts: the tag of the target language, if there are tags, and `tag`.

    Args:
        config: configuration of the model.

    Raises:
        ValueError: if the model lacks the target language or the tag.
    """
    language = Directions(config).tag(source_lang, target_lang)
    known = special_tokens(tokenizer)
    named = _named_tokens(tokenizer)
    others = [token for token in known if token not in named and not token.startswith(LANGUAGE_TAG)]
    # The user's own tag cannot be a language's: it would contradict the target language.
    for token, allowed in ((language, set(known) - named), (tag, others)):
        if token and token not in allowed:
            raise UserError(f"This model has no tag {token}; it has {', '.join(others) or 'none'}.")
    return tokenizer.convert_tokens_to_ids([token for token in (language, tag) if token])  # type: ignore[return-value]
