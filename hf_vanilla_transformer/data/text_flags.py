"""Flags that `train` and `prepare` share: how text is tokenised and cleaned.

They are apart from what uses them, because the datasets library is slow to import.
"""

from dataclasses import dataclass

from ..errors import UserError
from ..flags import Decides, Flags, Meaning, option

TOKENIZER_MODELS = ("bpe", "unigram", "word", "char", "subword-nmt")  # what they are: `train_tokenizer`
_LEARNING = Meaning(Decides.LEARNING)


@dataclass
class VocabularyFlags(Flags):
    """The vocabulary to learn, unless a tokenizer is given.

    Args:
        vocab_size: Size of the joint vocabulary.
        tokenizer_model: Kind of vocabulary to learn.
        bpe_codes: File of merges by `subword-nmt learn-bpe`, to use instead of learning them (--tokenizer_model
            subword-nmt).
        normalization: Unicode normalisation of the text before it is tokenised.
    """

    vocab_size: int | None = option(None, Meaning(Decides.SIZES))
    tokenizer_model: str = option("bpe", _LEARNING, choices=TOKENIZER_MODELS)
    bpe_codes: str | None = option(None, Meaning(Decides.LEARNING, private=True))
    normalization: str = option("none", _LEARNING, choices=("none", "nfkc"))

    def __post_init__(self):
        if self.bpe_codes and self.tokenizer_model != "subword-nmt":
            raise UserError("--bpe_codes needs --tokenizer_model subword-nmt.")


@dataclass
class CleaningFlags(Flags):
    """Which pairs are dropped from the training text.

    Args:
        clean: Drop training pairs that are long, uneven or duplicate, or contain markup.
        filter_language: Drop training pairs that are in other languages (extra: clean).
        max_sentence_tokens: Maximum tokens on either side of a training pair.
        max_length_ratio: Maximum ratio of the lengths of a training pair, in tokens.
    """

    clean: bool = option(True, _LEARNING)
    filter_language: bool = option(False, _LEARNING)
    max_sentence_tokens: int = option(256, _LEARNING)
    max_length_ratio: float = option(4.0, _LEARNING)

    def __post_init__(self):
        from .cleaning import Cleaning  # slow to import

        Cleaning(self.max_sentence_tokens, self.max_length_ratio)  # checks them, before anything is read
        if self.filter_language and not self.clean:
            raise UserError("--filter_language is part of cleaning, which --no_clean turns off.")
