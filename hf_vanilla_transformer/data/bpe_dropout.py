"""BPE dropout (Provilkov et al. 2020): segment each word of the training text differently every time it is seen.

The segmentation of a word depends only on the seed, the epoch, and the number of the pair, so it is the same in every
process and after a resume.
"""

import itertools
import json
import random
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

VARIANTS = 64  # random segmentations of each word, which are cached
CACHED_SEGMENTATIONS = 200_000
LONGEST_CACHED_WORD = 16  # in tokens; longer ones, as in text without spaces, rarely occur twice
WORD_STARTS = ("\u0120", "\u2581")  # how a token begins that starts a word: byte-level BPE, SentencePiece


_BYTE = re.compile(r"<0x[0-9A-F]{2}>")  # how SentencePiece writes a byte of an unknown character


class BpeDropout:
    """Replace the token ids of a text by those of a random segmentation.

    While a word is being merged, each possible merge is left out with probability `probability` at each step
    (algorithm 1 of the paper). Special tokens, and the bytes of unknown characters, stay as they are.

    Args:
        tokenizer: a byte-pair encoding whose words begin with a mark for the space.
        probability: the paper's p, 0.1 for most languages.
        seed: seed of the segmentations.

    Raises:
        ValueError: if the tokenizer is not such an encoding, or the probability is not in [0, 1).
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", probability: float, seed: int):
        if not 0.0 <= probability < 1.0:
            raise ValueError(f"bpe_dropout must be in [0, 1), got {probability}.")
        model: dict[str, Any] = {"type": None}
        if tokenizer.is_fast:
            model = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
        if model["type"] != "BPE" or model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
            raise ValueError(
                "BPE dropout needs a byte-pair encoding that marks where words start, such as the one that `train` "
                f"learns by default, but this tokenizer is {model['type'] or type(tokenizer).__name__}."
            )
        self.probability, self.seed = probability, seed
        self.vocabulary: dict[str, int] = model["vocab"]
        merges = (merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"])
        self.ranks = {tuple(merge): rank for rank, merge in enumerate(merges)}
        self.tokens = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
        special = np.array([_BYTE.fullmatch(token) is not None for token in self.tokens])
        special[list(tokenizer.added_tokens_decoder)] = True
        starts = np.array([token.startswith(WORD_STARTS) for token in self.tokens])
        if not starts.any():
            raise ValueError("BPE dropout needs a tokenizer that marks where words start, and this one does not.")
        self._is_fixed, self._is_start = special, starts | special
        self._segment = lru_cache(CACHED_SEGMENTATIONS)(self.segment)

    def __getstate__(self) -> dict:
        return {name: value for name, value in vars(self).items() if name != "_segment"}

    def __setstate__(self, state: dict) -> None:
        vars(self).update(state)
        self._segment = lru_cache(CACHED_SEGMENTATIONS)(self.segment)

    def segment(self, word: tuple[int, ...], variant: int) -> tuple[int, ...]:
        """Return the token ids of segmentation number `variant` of a word, given by any of its segmentations."""
        text = "".join(self.tokens[token] for token in word)
        if self._is_fixed[list(word)].any() or any(character not in self.vocabulary for character in text):
            return word
        generator = random.Random(f"{self.seed} {variant} {text}")
        symbols = list(text)
        while True:
            merges = [
                (rank, i)
                for i, pair in enumerate(itertools.pairwise(symbols))
                if (rank := self.ranks.get(pair)) is not None and generator.random() >= self.probability
            ]
            if not merges:
                return tuple(self.vocabulary[symbol] for symbol in symbols)
            _, i = min(merges)
            symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]

    def __call__(self, ids: np.ndarray, *key: int) -> np.ndarray:
        """Return other token ids (T',) of the text whose token ids are `ids` (T,).

        Args:
            key: what the segmentation depends on besides the seed, such as the epoch and the number of the pair.
        """
        starts = self._is_start[ids]
        starts[1:] |= self._is_fixed[ids[:-1]]
        starts[:1] = True
        places, tokens = np.flatnonzero(starts).tolist(), ids.tolist()
        variants = np.random.default_rng((self.seed, *key)).integers(VARIANTS, size=len(places)).tolist()
        segmented: list[int] = []
        for start, end, variant in zip(places, [*places[1:], len(tokens)], variants, strict=True):
            segment = self._segment if end - start <= LONGEST_CACHED_WORD else self.segment
            segmented += segment(tuple(tokens[start:end]), variant)
        return np.array(segmented, dtype=ids.dtype)
