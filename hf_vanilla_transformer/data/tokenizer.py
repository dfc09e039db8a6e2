"""Learn a joint vocabulary for source and target (section 5.1), as a plain transformers tokenizer, or adapt one.

A source may start with tags: the target language (Johnson et al. 2017), or the kind of text (Caswell et al. 2019). A
tag is a special token, so no text can produce it.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from reprlib import repr as shortened

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedConfig, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from ..errors import UserError
from ..files import digest, replacing_files
from ..model.text_rules_vanilla_transformer import LANGUAGE_TAG, Directions
from .subword_codes import LONGEST_WORD, count_words, train_subword_nmt
from .text_flags import TOKENIZER_MODELS

SPECIAL_TOKENS = ["<pad>", "<s>", "</s>", "<unk>"]  # ids 0 to 3; <s> starts the decoder
_TAG = re.compile(r"<[^\s<>]+>")
MIN_VOCAB_SIZE = len(SPECIAL_TOKENS) + 256  # every byte has a token, so that no text is unknown
# What no token may cross: the pattern of GPT-2, which is that of `ByteLevel`, with two differences.
# - A word is letters with their combining marks, which the vowel signs of Devanagari, Arabic, Thai and many other
#   scripts are. GPT-2 cuts at every mark. A mark without a letter, such as in an emoji, stays with the symbols.
# - A word has at most 100 letters, because the time to learn from a word grows with the square of its length, and text
#   in Chinese or Japanese has no spaces.
_WORDS = (
    r"'s|'t|'re|'ve|'m|'ll|'d"
    r"| ?(?:\p{L}\p{M}{0,10}){1,100}| ?\p{N}{1,100}| ?[^\s\p{L}\p{N}]{1,100}|\s{1,100}(?!\S)|\s{1,100}"
)
_LONG_WORD = re.compile(rf"(?<!\S)(\S{{{LONGEST_WORD}}})\S+")  # nothing is learnt from its end
_MARK = "\ufdd0\ufdd1"  # noncharacters, which no text contains


def train_tokenizer(
    texts: Iterable[str], vocab_size: int, model: str = "bpe", normalization: str = "none", codes: str | None = None
) -> PreTrainedTokenizerFast:
    """Train a vocabulary of `vocab_size` tokens on `texts` (both languages together).

    The result is a plain `PreTrainedTokenizerFast`, which `AutoTokenizer` loads without this package, and its
    encodings end in `</s>`. "bpe" and "unigram" are byte-level: decoding restores every text exactly, or as
    normalised. The other kinds restore text of known symbols, with single spaces between words. Special tokens that
    occur literally in a text are treated as ordinary text, or as an unknown word; so are special tokens that are added
    to the tokenizer, unless its `split_special_tokens` is set to False. If the texts do not yield enough tokens, the
    vocabulary is smaller than `vocab_size`.

    Args:
        model: "bpe" (Sennrich et al. 2016) or "unigram" (Kudo 2018); "subword-nmt", the BPE of that package, for text
            tokenised by Moses; or symbols that are never divided: "word", separated by spaces, or "char", characters.
        normalization: "nfkc" to unify equivalent Unicode characters, or "none".
        codes: a file of merges by `subword-nmt learn-bpe`, which "subword-nmt" reads instead of learning any.

    Raises:
        ValueError: if `vocab_size` is too small for what every vocabulary contains, an option is unknown, `codes`
            cannot be read, or `texts` are not strings.
    """
    texts = _checked(texts)
    if model not in TOKENIZER_MODELS or normalization not in ("nfkc", "none"):
        raise UserError(f"Unknown kind of vocabulary ({model!r}) or normalisation ({normalization!r}).")
    nfkc = normalizers.NFKC()
    if normalization == "nfkc":
        texts = map(nfkc.normalize_str, texts)

    if model == "subword-nmt":
        tokenizer = train_subword_nmt(texts, vocab_size, SPECIAL_TOKENS, codes)
    elif model in ("word", "char"):
        tokenizer = _train_symbols(texts, vocab_size, model)
    else:
        tokenizer = _train_byte_level(texts, vocab_size, model)

    if normalization == "nfkc":
        own = [tokenizer.normalizer] if tokenizer.normalizer else []
        tokenizer.normalizer = normalizers.Sequence([nfkc, *own])
    end = SPECIAL_TOKENS.index("</s>")
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", end)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        split_special_tokens=True,
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
    )


def _checked(texts: Iterable[str]) -> Iterator[str]:
    """Yield the texts.

    Raises:
        ValueError: if they are a single string, at once, or one of them is not a string.
    """
    if isinstance(texts, (str, bytes)) or not isinstance(texts, Iterable):
        raise UserError(
            f"A vocabulary is learnt from a list of texts, not from {shortened(texts)}: put it into a list."
        )

    def check() -> Iterator[str]:
        for text in texts:
            if not isinstance(text, str):
                kind = f"{type(text).__name__}: {shortened(text)}"
                raise UserError(f"A vocabulary is learnt from texts, but one of them is of type {kind}.")
            yield text

    return check()


def _train_byte_level(texts: Iterable[str], vocab_size: int, model: str) -> Tokenizer:
    """Train tokens of bytes, as `train_tokenizer`."""
    if vocab_size < MIN_VOCAB_SIZE:
        least = f"{MIN_VOCAB_SIZE} (4 special tokens, 256 bytes)"
        raise UserError(f"vocab_size must be at least {least}, got {vocab_size}.")

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>") if model == "bpe" else models.Unigram())
    # One space is prepended to every text and removed again when decoding, so that a word is the same token at the
    # start of a sentence as inside it. A normalizer that prepends it would do so to every added token, and after each.
    # `Metaspace` does so only at the start of a text, but not if that is a space, which the mark therefore precedes.
    tokenizer.normalizer = normalizers.Replace(Regex("^ "), f"{_MARK} ")
    prefix = pre_tokenizers.Metaspace(replacement=" ", prepend_scheme="first", split=False)
    unmark = pre_tokenizers.Split(_MARK, behavior="removed")
    words = pre_tokenizers.Split(Regex(_WORDS), behavior="isolated")
    bytes_of_words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([prefix, unmark, words, bytes_of_words])
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", left=1, right=0)])

    # A pair of symbols that occurs once is not merged: it would be a token that no other text contains.
    trainer_class = trainers.BpeTrainer if model == "bpe" else trainers.UnigramTrainer
    trainer = trainer_class(
        vocab_size=vocab_size,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        **({"min_frequency": 2} if model == "bpe" else {"unk_token": "<unk>"}),
    )
    tokenizer.train_from_iterator((_LONG_WORD.sub(r"\1", text) for text in texts), trainer)
    return tokenizer


def _train_symbols(texts: Iterable[str], vocab_size: int, model: str) -> Tokenizer:
    """Collect the most frequent words or characters, as `train_tokenizer`."""
    if vocab_size < len(SPECIAL_TOKENS):
        raise UserError(f"vocab_size must be at least {len(SPECIAL_TOKENS)}, the special tokens, got {vocab_size}.")
    counts = count_words(texts) if model == "word" else Counter(chain.from_iterable(texts))
    frequent = sorted(counts, key=lambda symbol: (-counts[symbol], symbol))
    tokens = dict.fromkeys([*SPECIAL_TOKENS, *frequent])
    vocabulary = {token: number for number, token in enumerate(islice(tokens, vocab_size))}

    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.add_special_tokens(SPECIAL_TOKENS)
    if model == "word":
        # Without a decoder, tokens are joined with spaces
        tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", behavior="removed")
        # A word that looks like a special token must not get its id
        special = Regex(rf"(?<![^ ])({'|'.join(SPECIAL_TOKENS)})(?![^ ])")
        tokenizer.normalizer = normalizers.Replace(special, "<unk>")
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
        tokenizer.decoder = decoders.Fuse()
    return tokenizer


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: str | Path, shared: bool = False) -> None:
    """Save a tokenizer in a folder, replacing each of its files atomically; `shared` is that of `replacing_files`."""
    with replacing_files(folder, shared) as unfinished:
        tokenizer.save_pretrained(unfinished)


def fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a digest of everything that determines the ids that `tokenizer` assigns to a text."""
    if hasattr(tokenizer, "backend_tokenizer"):
        content = json.loads(tokenizer.backend_tokenizer.to_str())
        # Truncation and padding are settings of the latest call, not of the vocabulary.
        content = {name: part for name, part in content.items() if name not in ("truncation", "padding")}
    else:
        content = tokenizer.get_vocab()
    return digest(content)


def adapt_tokenizer(tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    """Give any tokenizer of transformers what training needs: padding, and an end token with which encodings end.

    Args:
        name: name of the tokenizer, for error messages.

    Raises:
        ValueError: if that is impossible.
    """
    # Tokenizers like BERT's end an encoding with their separator.
    if tokenizer.eos_token_id is None:
        tokenizer.eos_token = tokenizer.sep_token
    if tokenizer.eos_token_id is None or tokenizer.pad_token_id is None:
        missing = "padding" if tokenizer.eos_token_id is not None else "end"
        raise UserError(f"The tokenizer {name} has no {missing} token; set one and save it again.")
    if tokenizer.pad_token_id == tokenizer.eos_token_id:
        raise UserError(f"The tokenizer {name} uses {tokenizer.eos_token} both as padding and as end of a sentence.")
    # Only an encoding shows whether they do: each class of tokenizer has its own setting for it.
    if tokenizer("a")["input_ids"][-1:] != [tokenizer.eos_token_id]:
        if not tokenizer.is_fast:
            raise UserError(f"The encodings of the tokenizer {name} do not end with {tokenizer.eos_token}.")
        end = str(tokenizer.eos_token)
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single=f"$A {end}", special_tokens=[(end, tokenizer.eos_token_id)]
        )


def vocabulary_size(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the number of embeddings that a tokenizer needs: its highest id and 1, since ids may have gaps."""
    return max(tokenizer.get_vocab().values()) + 1


def follow_tokenizer(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> None:
    """Set the size of the vocabulary and the special ids of a new model to those of its tokenizer.

    The decoder starts with the start token of the tokenizer, or its classification token, or padding.
    """
    starts = (tokenizer.bos_token_id, tokenizer.cls_token_id, tokenizer.pad_token_id)
    config.vocab_size = vocabulary_size(tokenizer)
    config.pad_token_id = tokenizer.pad_token_id
    config.bos_token_id = tokenizer.bos_token_id
    config.eos_token_id = tokenizer.eos_token_id
    config.decoder_start_token_id = next(start for start in starts if start is not None)


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig) -> None:
    """Check that a tokenizer fits a model.

    Raises:
        ValueError: if the tokenizer has more tokens than the model has embeddings, or a different `<pad>` or `</s>`.
    """
    size = vocabulary_size(tokenizer)
    if size > config.vocab_size:
        sizes = f"it has {size:,} tokens, but the model has {config.vocab_size:,}"
        raise UserError(f"The tokenizer does not fit the model: {sizes}.")
    for name in ("pad_token_id", "eos_token_id"):
        actual = getattr(tokenizer, name)
        expected = getattr(config, name)
        if actual != expected:
            difference = f"its {name} is {actual}, but the model's is {expected}"
            raise UserError(f"The tokenizer does not fit the model: {difference}.")


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
