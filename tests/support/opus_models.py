"""Small MarianMT models in the form of OPUS-MT's: two SentencePiece models, one vocabulary, the same settings."""

import io
import json
from collections.abc import Sequence
from pathlib import Path

import sentencepiece
import torch
from transformers import MarianConfig, MarianMTModel, MarianTokenizer

SIZES = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
}


def train_sentencepiece(lines: Sequence[str], size: int) -> bytes:
    """Return a SentencePiece model."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, vocab_size=size, hard_vocab_limit=False, minloglevel=2
    )
    return model.getvalue()


def write_opus_tokenizer(
    folder: Path,
    sources: Sequence[str],
    targets: Sequence[str],
    size: int = 150,
    tags: Sequence[str] = (),
    **languages,
) -> MarianTokenizer:
    """Write a tokenizer with `</s>`, `<unk>`, the tags, the pieces of both sides, and padding last, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    pieces: dict[str, None] = {}
    for side, lines in (("source", sources), ("target", targets)):
        model = train_sentencepiece(lines, size)
        (folder / f"{side}.spm").write_bytes(model)
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        pieces |= dict.fromkeys(processor.id_to_piece(i) for i in range(processor.get_piece_size()))
    words = [piece for piece in pieces if piece not in ("<unk>", "<s>", "</s>")]
    vocabulary = ["</s>", "<unk>", *tags, *words, "<pad>"]
    (folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(vocabulary)}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "MarianTokenizer", **languages}))
    return MarianTokenizer.from_pretrained(folder)


def opus_model(tokenizer: MarianTokenizer, num_beams: int = 4, max_length: int = 512, **changes) -> MarianMTModel:
    """Return a random model with OPUS-MT's settings, whose outputs differ in length."""
    padding = tokenizer.pad_token_id
    torch.manual_seed(0)
    fields = {
        "vocab_size": padding + 1,
        "max_position_embeddings": 512,
        "scale_embedding": True,
        "activation_function": "swish",
        "pad_token_id": padding,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "decoder_start_token_id": padding,
        "forced_eos_token_id": 0,
    }
    model = MarianMTModel(MarianConfig(**{**fields, **SIZES, **changes})).eval()
    for name, parameter in model.named_parameters():
        if "layers" in name:
            # so that outputs depend on the source and do not repeat one token
            parameter.data += (0.3 if "layer_norm" in name else 2 / model.config.d_model**0.5) * torch.randn_like(
                parameter
            )
    model.model.shared.weight.data = torch.randn_like(model.model.shared.weight) / model.config.d_model**0.25
    # as in OPUS-MT's, where padding is only the start token
    model.model.shared.weight.data[padding] = 0.0
    model.final_logits_bias.normal_()
    model.final_logits_bias[0, 0] += 3.0
    model.final_logits_bias[0, padding] = 0.0
    model.generation_config.update(
        bad_words_ids=[[padding]], renormalize_logits=True, max_length=max_length, num_beams=num_beams
    )
    return model
