"""The BPE of subword-nmt (Sennrich et al. 2016): merges of characters within words that spaces separate.

The last character of a word carries a mark, `</w>`. fairseq's recipes and most papers use this BPE, on text that Moses
has tokenised.
"""

import io
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import redirect_stderr

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from ..errors import UserError
from ..files import import_extra
from .formats import DataError, read_lines

END = "</w>"
# of a word from which merges are learnt, since that takes some 100 bytes of memory for each letter of different words
LONGEST_WORD = 250
_VERSION = "#version: 0.2"
_Pair = tuple[str, str]


def count_words(texts: Iterable[str]) -> Counter[str]:
    """Return how often each word occurs; only spaces separate words."""
    return Counter(word for text in texts for word in text.split(" ") if word)


def _characters(word: str) -> list[str]:
    return [*word[:-1], word[-1] + END]


def learn_codes(words: Counter[str], size: int) -> list[_Pair]:
    """Return the first merges that `subword-nmt learn-bpe` learns, in its order, up to a vocabulary of `size` symbols.

    Args:
        words: how often each word, which has no space, occurs; those with a line break, which no file of codes can
            hold, and those that are too long are left out.

    Raises:
        ImportError: if subword-nmt is not installed.
    """
    codes = io.StringIO()
    lines = [f"{word} {count}" for word, count in words.items() if 1 < len(word) <= LONGEST_WORD]
    dictionary = [line for line in lines if not re.search(r"[\r\n]", line)]
    if not dictionary:
        return []
    # its progress bar counts merges that may never be learned
    with redirect_stderr(io.StringIO()):
        import_extra("subword_nmt.learn_bpe", "paper").learn_bpe(dictionary, codes, size, is_dict=True)
    vocabulary = {symbol for word in words for symbol in _characters(word)}
    merges: list[_Pair] = []
    for line in codes.getvalue().split("\n")[1:-1]:
        if len(vocabulary) >= size:
            break
        left, right = line.split(" ")
        merges.append((left, right))
        # two merges may lead to the same symbol
        vocabulary.add(left + right)
    return merges


def read_codes(path: str) -> list[_Pair]:
    """Return the merges in a file that `subword-nmt learn-bpe` has written.

    Raises:
        DataError: if it is no such file.
    """
    lines = read_lines(path)
    if next(lines, "") != _VERSION:
        raise DataError(f"{path} is not a file of BPE codes: its first line must be {_VERSION!r}.")
    merges: dict[_Pair, None] = {}
    for number, line in enumerate(lines, start=2):
        left, _, right = line.strip(" ").partition(" ")
        if not right or " " in right:
            raise DataError(f"{path}, line {number}: expected two symbols separated by a space, got {line!r}.")
        merges[left, right] = None
    return list(merges)


def train_subword_nmt(
    texts: Iterable[str], vocab_size: int, special_tokens: Sequence[str], codes: str | None
) -> Tokenizer:
    """Return a tokenizer that segments as `subword-nmt apply-bpe`, with the characters of `texts` in its vocabulary.

    Args:
        vocab_size: number of tokens, if the merges are learned.
        codes: file of merges; if None, they are learned from the texts.

    Raises:
        DataError: as `read_codes`.
        ValueError: if `vocab_size` is too small for the characters.
    """
    words = count_words(texts)
    alphabet = {symbol for word in words for symbol in _characters(word)}
    size = vocab_size - len(special_tokens)
    if codes is None and len(alphabet) > size:
        raise UserError(f"vocab_size must be at least {len(alphabet) + len(special_tokens)}, got {vocab_size}.")

    merges = read_codes(codes) if codes else learn_codes(words, size)
    # What would become a special token stays in parts
    merges = [pair for pair in merges if "".join(pair) not in special_tokens]
    tokens = dict.fromkeys([*special_tokens, *sorted(alphabet.union(*merges)), *map("".join, merges)])
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", end_of_word_suffix=END))
    tokenizer.add_special_tokens(list(special_tokens))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", behavior="removed")
    tokenizer.decoder = decoders.BPEDecoder(suffix=END)
    return tokenizer
