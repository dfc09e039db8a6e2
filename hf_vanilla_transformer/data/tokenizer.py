"""Train a joint byte-pair encoding for source and target (section 5.1), as a plain transformers tokenizer."""

import hashlib
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

if TYPE_CHECKING:  # they import torch
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

SPECIAL_TOKENS = ["<pad>", "<s>", "</s>", "<unk>"]  # ids 0 to 3; <s> starts the decoder
MIN_VOCAB_SIZE = len(SPECIAL_TOKENS) + 256  # every byte has a token, so that no text is unknown


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE of `vocab_size` tokens on `texts` (both languages together).

    Decoding restores every text exactly, and encodings end in `</s>`. The result is a plain `PreTrainedTokenizerFast`,
    which `AutoTokenizer` loads without this package. Special tokens that occur literally in a text are treated as
    ordinary text. If the texts do not yield enough merges, the vocabulary is smaller than `vocab_size`.

    Raises:
        ValueError: if `vocab_size` is too small for the special tokens and the 256 bytes.
    """
    if vocab_size < MIN_VOCAB_SIZE:
        raise ValueError(
            f"vocab_size must be at least {MIN_VOCAB_SIZE} (4 special tokens, 256 bytes), got {vocab_size}."
        )
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    # One space is prepended to every text and removed again when decoding, so that a word is the same token at the
    # start of a sentence as inside it.
    tokenizer.normalizer = normalizers.Prepend(" ")
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", left=1, right=0)])
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
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


def fingerprint(tokenizer: "PreTrainedTokenizerBase") -> str:
    """Return a digest of everything that determines the ids that `tokenizer` assigns to a text."""
    if hasattr(tokenizer, "backend_tokenizer"):
        content = json.loads(tokenizer.backend_tokenizer.to_str())
        content = {name: part for name, part in content.items() if name not in ("truncation", "padding")}
    else:
        content = tokenizer.get_vocab()
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=16).hexdigest()


def check_tokenizer(tokenizer: "PreTrainedTokenizerBase", config: "PreTrainedConfig") -> None:
    """Check that a tokenizer fits a model.

    Raises:
        ValueError: if the tokenizer has more tokens than the model has embeddings, or a different `<pad>` or `</s>`.
    """
    if len(tokenizer) > config.vocab_size:
        raise ValueError(
            f"The tokenizer does not fit the model: it has {len(tokenizer):,} tokens, but the model has "
            f"{config.vocab_size:,}."
        )
    for name in ("pad_token_id", "eos_token_id"):
        actual, expected = getattr(tokenizer, name), getattr(config, name)
        if actual != expected:
            raise ValueError(
                f"The tokenizer does not fit the model: its {name} is {actual}, but the model's is {expected}."
            )
