"""BPE dropout (Provilkov et al. 2020): segment each word of the training text differently every time it is seen.

The segmentation of a word depends only on the seed, and on the number of the pair and of its use, so it is the same in
every process and after a resume.
"""

import heapq
import itertools
import json
import random
import re
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from transformers import PreTrainedTokenizerBase

from ..errors import UserError
from .tokenizer import vocabulary_size

VARIANTS = 32  # random segmentations of each word, which are cached
CACHED_SEGMENTATIONS = 400_000
NO_MERGE = 2**31  # the rank of two symbols that are never merged
LONGEST_CACHED_WORD = 16  # in tokens; longer ones, as in text without spaces, rarely occur twice
WORD_STARTS = ("\u0120", "\u2581")  # how a token begins that starts a word: byte-level BPE, SentencePiece
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")  # how SentencePiece writes a byte of an unknown character


def _scramble(state: np.ndarray) -> np.ndarray:
    """Return well-mixed 64-bit numbers, by the generator SplitMix64 (Steele et al. 2014, figure 17)."""
    # Arithmetic of unsigned integers in NumPy arrays wraps around at 2**64, as the generator requires.
    state = state + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


class BpeDropout:
    """Replace the token ids of a text by those of a random segmentation.

    While a word is being merged, each possible merge is left out with probability `probability` at each step
    (algorithm 1 of the paper). Special tokens, and the bytes of unknown characters, stay as they are.

    Args:
        tokenizer: a byte-pair encoding whose words begin with a mark for the space, or end with a mark.
        probability: the paper's p, at least 0 and below 1, 0.1 for most languages.
        seed: seed of the segmentations.

    Raises:
        ValueError: if the tokenizer is not such an encoding.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, probability: float, seed: int):
        # Only its JSON contains the merges; `Tokenizer.model` has no attribute for them.
        model = json.loads(tokenizer.backend_tokenizer.to_str())["model"] if tokenizer.is_fast else {}
        kind = model.get("type", type(tokenizer).__name__)
        if kind != "BPE" or model.get("continuing_subword_prefix"):
            raise UserError(
                "BPE dropout needs a byte-pair encoding that marks where words start or end, such as the one that "
                f"`train` learns by default, but this tokenizer is {kind}."
            )
        self.end = model.get("end_of_word_suffix") or ""
        self.probability = probability
        self.seed = seed
        self.vocabulary: dict[str, int] = model["vocab"]
        self.ranks = {tuple(merge): rank for rank, merge in enumerate(model["merges"])}

        # By id, with "" for ids that no token has.
        self.tokens = [""] * vocabulary_size(tokenizer)
        for token, number in tokenizer.get_vocab().items():
            self.tokens[number] = token
        special = np.array([_BYTE.fullmatch(token) is not None for token in self.tokens])
        special[list(tokenizer.added_tokens_decoder)] = True
        starts = np.array([token.startswith(WORD_STARTS) and not self.end for token in self.tokens])
        ends = np.array([token.endswith(self.end) and self.end != "" for token in self.tokens])
        if not (starts | ends).any():
            raise UserError("BPE dropout needs a tokenizer that marks where words start, and this one does not.")
        self._is_start = starts | special
        self._is_end = ends | special
        self._fixed = set(np.flatnonzero(special).tolist())

    @lru_cache(CACHED_SEGMENTATIONS)  # noqa: B019  # a process has one object of this class, for as long as it trains
    def _cached_segment(self, word: tuple[int, ...], variant: int) -> tuple[int, ...]:
        return self.segment(word, variant)

    def segment(self, word: tuple[int, ...], variant: int) -> tuple[int, ...]:
        """Return the token ids of segmentation number `variant` of a word, given by any of its segmentations."""
        text = "".join(self.tokens[token] for token in word)
        symbols = list(text.removesuffix(self.end))
        # not at the end of an incomplete word, such as one before an unknown character
        if self.end and text.endswith(self.end):
            symbols[-1] += self.end
        # A special token, or a character that is no symbol of its own, cannot be put together by merges.
        if not (self._fixed.isdisjoint(word) and all(map(self.vocabulary.__contains__, symbols))):
            return word

        # By the text and not by the ids: equal words draw equally however they were segmented before.
        generator = random.Random(f"{self.seed} {variant} {text}")
        # A ring linked in both directions, closed by an empty symbol. A symbol that was merged is empty.
        preceding = [len(symbols), *range(len(symbols))]
        symbols.append("")
        following = [*range(1, len(symbols)), 0]
        ranks = [self.ranks.get((symbols[i], symbols[following[i]]), NO_MERGE) for i in range(len(symbols))]

        # A heap, because the time to search a list at each step would grow with the square of a word's length.
        merges = [(rank, i) for i, rank in enumerate(ranks) if rank < NO_MERGE]
        heapq.heapify(merges)
        while True:
            left_out = []
            while merges:
                rank, i = heapq.heappop(merges)
                # No longer so if one of the two symbols has been merged.
                if ranks[i] == rank:
                    # Lazily: merges after the first one kept draw no number.
                    if generator.random() >= self.probability:
                        break
                    left_out.append((rank, i))
            else:
                return tuple(self.vocabulary[symbol] for symbol in symbols if symbol)

            merged = following[i]
            symbols[i] += symbols[merged]
            symbols[merged] = ""
            ranks[merged] = NO_MERGE
            following[i] = following[merged]
            preceding[following[i]] = i

            # Only the pairs to the left and right of the merged symbol are new.
            for left in (preceding[i], i):
                ranks[left] = self.ranks.get((symbols[left], symbols[following[left]]), NO_MERGE)
                if ranks[left] < NO_MERGE:
                    left_out.append((ranks[left], left))
            for merge in left_out:
                heapq.heappush(merges, merge)

    def __call__(self, rows: Sequence[np.ndarray], *key: np.ndarray | int) -> list[np.ndarray]:
        """Return the token ids of a random segmentation of each text.

        Args:
            rows: token ids of each text (T_i,), for n > 0 texts of at least one token each.
            key: what the segmentations depend on besides the seed, such as the number of each text (n,) and its side.
        """
        ids = np.concatenate(rows)
        row_starts = np.cumsum([0, *map(len, rows[:-1])])

        # A word starts at or after a mark, at a special token, after one, and at the start of a text.
        starts = self._is_start[ids]
        starts[1:] |= self._is_end[ids[:-1]]
        starts[row_starts] = True
        places = np.flatnonzero(starts)
        first_words = np.searchsorted(places, row_starts)
        words_per_row = np.diff(first_words, append=len(places))

        # Every word of a text draws its variant by its place in the text, and so the same in every process.
        within = np.arange(len(places)) - np.repeat(first_words, words_per_row)
        state = np.zeros(len(rows), np.uint64)
        for part in (self.seed, *key):
            state = _scramble(state + np.asarray(part).astype(np.uint64))
        variants = _scramble(np.repeat(state, words_per_row) + within.astype(np.uint64)) % np.uint64(VARIANTS)

        # `lru_cache` needs tuples, whose elements are Python integers: converted once for all rows.
        tokens = ids.tolist()
        words = (tuple(tokens[start:end]) for start, end in itertools.pairwise([*places.tolist(), len(tokens)]))
        segmented = (
            (self._cached_segment if len(word) <= LONGEST_CACHED_WORD else self.segment)(word, variant)
            for word, variant in zip(words, variants.tolist(), strict=True)
        )
        return [
            np.fromiter(itertools.chain.from_iterable(itertools.islice(segmented, count)), rows[0].dtype)
            for count in words_per_row.tolist()
        ]
