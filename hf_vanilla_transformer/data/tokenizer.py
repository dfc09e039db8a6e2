"""One joint byte-pair encoding for source and target (section 5.1), as a plain transformers tokenizer."""

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

SPECIAL_TOKENS = ["<pad>", "<s>", "</s>", "<unk>"]  # ids 0 to 3; <s> starts the decoder
MIN_VOCAB_SIZE = len(SPECIAL_TOKENS) + 256  # every byte has a token, so no text is unknown


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Learns a byte-level BPE of `vocab_size` tokens from `texts` (both languages together).

    Every text survives encoding and decoding, and encodings end in `</s>`. The result is a plain
    `PreTrainedTokenizerFast`: `AutoTokenizer` loads it without this package. Special tokens written out in a text are
    text. Where the texts have fewer merges to offer than `vocab_size` asks for, the vocabulary stays smaller.

    Raises:
        ValueError: if `vocab_size` leaves no room for the special tokens and the 256 bytes.
    """
    if vocab_size < MIN_VOCAB_SIZE:
        raise ValueError(
            f"vocab_size must be at least {MIN_VOCAB_SIZE} (4 special tokens, 256 bytes), got {vocab_size}."
        )
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    # A first word is the same token as inside a sentence: one space is put before every text and taken off again
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


def fingerprint(tokenizer: Any) -> str:
    """Return a digest of all that decides which ids `tokenizer` makes of a text."""
    if hasattr(tokenizer, "backend_tokenizer"):
        content = json.loads(tokenizer.backend_tokenizer.to_str())
        content = {name: part for name, part in content.items() if name not in ("truncation", "padding")}
    else:
        content = tokenizer.get_vocab()
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=16).hexdigest()


def check_tokenizer(tokenizer: Any, config: Any) -> None:
    """Sees that a tokenizer fits a model.

    Raises:
        ValueError: if it has more tokens than the model has embeddings, or another `<pad>` or `</s>`.
    """
    if len(tokenizer) > config.vocab_size:
        raise ValueError(
            f"The tokenizer does not fit the model: it has {len(tokenizer):,} tokens, the model {config.vocab_size:,}."
        )
    for name in ("pad_token_id", "eos_token_id"):
        ours, models = getattr(tokenizer, name), getattr(config, name)
        if ours != models:
            raise ValueError(f"The tokenizer does not fit the model: its {name} is {ours}, the model's {models}.")
