"""The BPE of subword-nmt (Sennrich et al. 2016): merges of characters within words that spaces separate.

The last character of a word carries a mark, `</w>`. fairseq's recipes and most papers use this BPE, on text that Moses
has tokenised.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from .formats import DataError, read_lines

END = "</w>"
MIN_FREQUENCY = 2  # of a pair that is merged
_VERSION = "#version: 0.2"
_Pair = tuple[str, str]


def count_words(texts: Iterable[str]) -> Counter[str]:
    """Return how often each word occurs; only spaces separate words."""
    return Counter(word for text in texts for word in text.split(" ") if word)


def _characters(word: str) -> list[str]:
    return [*word[:-1], word[-1] + END]


def _merge(symbols: list[str], pair: _Pair) -> list[str]:
    """Return the symbols of a word in which each occurrence of the pair, from left to right, is one symbol."""
    merged: list[str] = []
    for symbol in symbols:
        if merged and (merged[-1], symbol) == pair:
            merged[-1] += symbol
        else:
            merged.append(symbol)
    return merged


def _priority(frequency: int, pair: _Pair) -> tuple:
    """Return a key that sorts pairs by frequency, and those of equal frequency backwards, as `max` of tuples does."""
    # 1 is greater than all others, so that a prefix comes after what it begins
    return -frequency, *([*(-ord(character) for character in symbol), 1] for symbol in pair), pair


def learn_codes(words: Counter[str], size: int) -> list[_Pair]:
    """Return the merges that `subword-nmt learn-bpe` learns, in its order, for a vocabulary of `size` symbols.

    Args:
        words: how often each word occurs.
    """
    symbols = {word: _characters(word) for word in words}
    vocabulary = {symbol for split in symbols.values() for symbol in split}
    frequencies: Counter[_Pair] = Counter()
    # the words in which a pair occurs, or occurred
    places: defaultdict[_Pair, set[str]] = defaultdict(set)
    heap: list[tuple] = []
    merges: list[_Pair] = []
    changed = {word: split[:1] for word, split in symbols.items()}  # what the pairs of each word were counted for
    while len(vocabulary) < size:
        changes: Counter[_Pair] = Counter()
        for word, before in changed.items():
            for pair in pairwise(before):
                changes[pair] -= words[word]
            for pair in pairwise(symbols[word]):
                changes[pair] += words[word]
                places[pair].add(word)
        for pair in filter(changes.get, changes):
            frequencies[pair] += changes[pair]
            heapq.heappush(heap, _priority(frequencies[pair], pair))

        # Entries of pairs whose frequency has changed since are out of date
        while heap and frequencies[heap[0][-1]] != -heap[0][0]:
            heapq.heappop(heap)
        if not heap or -heap[0][0] < MIN_FREQUENCY:
            break
        best = heapq.heappop(heap)[-1]
        merges.append(best)
        vocabulary.add("".join(best))
        changed = {word: symbols[word] for word in places.pop(best)}
        symbols |= {word: _merge(split, best) for word, split in changed.items()}
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
        raise ValueError(f"vocab_size must be at least {len(alphabet) + len(special_tokens)}, got {vocab_size}.")

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
