"""The tokenizers of MarianMT models: the languages and tags of OPUS-MT's, and a plain one for models of this package.

OPUS-MT's `MarianTokenizer` has two SentencePiece models and one vocabulary; it is kept as it is, since no single
tokenizer of `tokenizers` encodes sources and targets differently.
"""

import json
import re
from pathlib import Path

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from ..data.languages import short_name
from ..errors import UserError
from ..files import JsonObject, read_json
from ..model.text_rules_vanilla_transformer import language_tag

_TARGET = re.compile(r">>(\S+)<<")  # tags of OPUS-MT, such as >>fra<<
# of a model of OPUS-MT, such as opus-mt-en-de or opus-mt-tc-big-en-fr
_NAME = re.compile(r"opus-(?:mt|tatoeba)-(?:tc-(?:bible-)?(?:big|base)-)?([^-]+)-([^-]+)")


def adopt_languages(
    tokenizer: PreTrainedTokenizerBase, name: str, source_lang: str | None = None, target_lang: str | None = None
) -> JsonObject:
    """Give a tokenizer of OPUS-MT this package's tags, and return the languages of its model for the config.

    The tags of target languages, such as `>>fra<<`, are renamed, here to `<2fr>`, and become special tokens.

    Args:
        name: the name of the model, which contains its languages if neither the tokenizer nor the arguments name them.
        source_lang, target_lang: the languages, if the caller knows them better.

    Raises:
        ValueError: if the model has tags, and its source language is unknown or `target_lang` is given.
    """
    vocabulary = tokenizer.get_vocab()
    named = _NAME.fullmatch(Path(name).name)
    sides = [source_lang, target_lang]
    for i, side in enumerate(("source_lang", "target_lang")):
        own = getattr(tokenizer, side, None) or (named and named[i + 1])
        sides[i] = sides[i] or (own and short_name(own))
    tags = sorted(token for token in vocabulary if _TARGET.fullmatch(token))
    if not tags:
        return {"source_lang": sides[0], "target_lang": sides[1]}

    if target_lang:
        raise UserError(
            f"This model has a tag for each target language ({' '.join(tags[:3])} ...): omit --target_lang."
        )
    if not sides[0]:
        raise UserError("The source language of this model is unknown: give it with --source_lang.")
    targets: dict[str, str] = {}
    for tag in tags:
        language = tag[2:-2]
        # >>cmn<< and >>zho<< would both be zh
        short = short_name(language)
        targets[language if short in targets else short] = tag
    renamed = {language_tag(target): tag for target, tag in targets.items()}
    for name, tag in renamed.items():
        token_id = tokenizer.encoder.pop(tag)
        tokenizer.encoder[name] = token_id
        tokenizer.decoder[token_id] = name
    tokenizer.add_special_tokens({"extra_special_tokens": list(renamed)}, replace_extra_special_tokens=False)
    pairs = [f"{sides[0]}-{target}" for target in targets if target != sides[0]]
    return {"source_lang": sides[0], "target_lang": None, "language_pairs": pairs}


def for_marian(tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> tuple[PreTrainedTokenizerBase, list[int]]:
    """Return a tokenizer for a MarianMT model, and the old id of each token in its order.

    Padding becomes the last token, because CTranslate2 removes the last token of Marian's models. In text, the tags of
    target languages are then tags, because there is no other way to give one.

    Args:
        tokenizer: a fast tokenizer, or OPUS-MT's own, which is kept.
        vocab_size: number of tokens of the model.

    Raises:
        ValueError: if the tokenizer has no equivalent, or another number of tokens than the model.
    """
    if hasattr(tokenizer, "spm_files"):
        tokenizer.split_special_tokens = False
        return tokenizer, list(range(vocab_size))
    if not tokenizer.is_fast or len(tokenizer) != vocab_size:
        own = f"a {type(tokenizer).__name__} of {len(tokenizer):,} tokens"
        raise UserError(f"Cannot convert: the model needs a fast tokenizer of {vocab_size:,} tokens, but has {own}.")
    padding = tokenizer.pad_token_id
    order = [*(i for i in range(vocab_size) if i != padding), padding]
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    content |= {"padding": None, "truncation": None}
    _reorder(content, {old: new for new, old in enumerate(order)}, str(tokenizer.pad_token))
    roles = {role: str(token) for role, token in tokenizer.special_tokens_map.items() if isinstance(token, str)}
    copy = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(content)),
        **roles,
        model_max_length=tokenizer.model_max_length,
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
    )
    # Formats of `tokenizers` that `_reorder` does not know
    same = [order[i] for i in copy("A b, c!")["input_ids"]] == tokenizer("A b, c!")["input_ids"]
    if not same or copy.pad_token_id != vocab_size - 1:
        raise UserError(f"Cannot convert: the padding of the tokenizer ({padding}) cannot become its last token.")
    return copy, order


def _reorder(content: JsonObject, new_ids: dict[int, int], padding: str) -> None:
    """Change the ids in a `tokenizer.json`; the padding becomes a token beside its model, added last."""
    model = content["model"]
    if isinstance(model["vocab"], dict):
        model["vocab"] = {token: new_ids[i] for token, i in model["vocab"].items() if token != padding}
    else:
        # [token, score] by id
        model["vocab"] = [entry for entry in model["vocab"] if entry[0] != padding]
        if model.get("unk_id") is not None:
            model["unk_id"] = new_ids[model["unk_id"]]
    added = [{**token, "id": new_ids[token["id"]]} for token in content["added_tokens"]]
    content["added_tokens"] = sorted(added, key=lambda token: token["id"])
    for token in (content["post_processor"] or {}).get("special_tokens", {}).values():
        token["ids"] = [new_ids[i] for i in token["ids"]]


def save_for_all_releases(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Save a tokenizer such that transformers 4 loads it too: it does not know the class that transformers 5 names."""
    tokenizer.save_pretrained(folder)
    file = folder / "tokenizer_config.json"
    config = read_json(file)
    if tokenizer.is_fast:
        config["tokenizer_class"] = "PreTrainedTokenizerFast"
    # The name in transformers 4
    if tags := config.pop("extra_special_tokens", None):
        config["additional_special_tokens"] = tags
    file.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
