"""The defaults that scripts/guide/paper.md states in its column "here" are those of the code."""

import re
from dataclasses import fields

import torch
from corpora import ROOT
from small import SIZES
from transformers import GenerationConfig

from hf_vanilla_transformer import (
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerTrainingArguments,
    train_tokenizer,
)
from hf_vanilla_transformer.commands.average import AverageArguments
from hf_vanilla_transformer.commands.shared_flags import BleuFlags
from hf_vanilla_transformer.training.arguments import DataArguments, ModelArguments

TEXT = (ROOT / "scripts" / "guide" / "paper.md").read_text(encoding="utf-8")
CELLS = [[cell.strip() for cell in line.strip("|").split("|")] for line in TEXT.splitlines() if line.startswith("| ")]
# by detail: the columns of the paper, of tensor2tensor and of this package
ROWS = {cells[0]: (cells[1], cells[2], cells[4]) for cells in CELLS if len(cells) == 6}


def stated(detail: str) -> str:
    """Return what the page says is done here, in the words of the column to which it refers if it does."""
    paper, tensor2tensor, here = ROWS[detail]
    return {"as in the paper": paper, "as tensor2tensor": tensor2tensor}.get(here.partition(",")[0], here)


def written(number: float) -> str:
    return f"{number:g}".replace("e-0", "e-")


def test_the_defaults_on_the_page_are_those_of_the_code(tmp_path):
    args = VanillaTransformerTrainingArguments(output_dir=str(tmp_path), use_cpu=True)
    data = DataArguments()
    config = VanillaTransformerConfig()
    model = VanillaTransformerForConditionalGeneration(VanillaTransformerConfig(vocab_size=20, **SIZES))
    search = model.generation_config
    expected = {
        "cleaning": f"at most {data.max_sentence_tokens} tokens, ratio at most {data.max_length_ratio:g},",
        "vocabulary": f"{config.vocab_size:,}",
        "batches": f"at most {args.max_tokens:,} per side",
        "its epsilon": written(config.layer_norm_eps),
        "optimiser": f"Adam, {args.adam_beta1}, {args.adam_beta2}, {written(args.adam_epsilon)}",
        "schedule": f"w = {args.warmup_steps}",
        "updates": f"base {args.max_steps:,}",
        "label smoothing": f"{args.label_smoothing_factor}, over all tokens but padding",
        "averaging": f"average --last {AverageArguments(run='run', output_dir='out').last}",
        "beam": str(search.num_beams),
        "length penalty": f"((5 + n) / 6)^{search.length_penalty}",
        "BLEU": f"sacreBLEU, {BleuFlags().bleu_tokenize}",
    }
    assert {detail: stated(detail) for detail, words in expected.items() if words not in stated(detail)} == {}


def test_what_the_page_says_is_absent_is_absent(tmp_path):
    args = VanillaTransformerTrainingArguments(output_dir=str(tmp_path), use_cpu=True)
    config = VanillaTransformerConfig()
    for detail in ("clipping", "weight decay", "attention biases", "output bias"):
        assert stated(detail) == "none"
    assert (args.max_grad_norm, args.weight_decay, config.attention_bias, config.lm_head_bias) == (0, 0, False, False)
    assert stated("number format").startswith("float32")
    assert (args.bf16, args.fp16) == (False, False)
    # "as in the paper": dropout only of sub-layers and embeddings, one matrix, sines, and its schedule
    assert (config.dropout, config.attention_dropout, config.activation_dropout) == (0.1, 0, 0)
    assert (config.tie_word_embeddings, config.position_embedding) == (True, "sinusoidal")
    assert (args.lr_scheduler_type, args.learning_rate) == ("noam", 1.0)
    # "as tensor2tensor", not normal
    assert config.initializer_range is None
    assert (ModelArguments().tokenizer_model, DataArguments().clean) == ("bpe", True)


def test_positions_start_and_end_are_as_the_page_says():
    model = VanillaTransformerForConditionalGeneration(VanillaTransformerConfig(vocab_size=20, **SIZES))
    assert ROWS["positions"][2].endswith("from 0")
    # sin 0 and cos 0 in turn
    torch.testing.assert_close(model.model.encoder.embed_positions(0, 1)[0], torch.tensor([0.0, 1.0] * 8))

    tokenizer = train_tokenizer(["a b"], 300)
    assert tokenizer.convert_ids_to_tokens(model.config.decoder_start_token_id) == "<s>"
    assert tokenizer("a").tokens()[-1] == "</s>"
    assert ROWS["start and end"][2].startswith("`</s>` ends both sides; `<s>`")
    # transformers' heuristic, which takes neither of the two values that the row offers
    assert model.generation_config.early_stopping not in (True, "never")


def test_every_keyword_on_the_page_exists():
    flags = [cells[5] for cells in CELLS if len(cells) == 6]
    known = {flag.name for flag in fields(VanillaTransformerConfig)}
    keywords = {word for cell in flags for word in re.findall(r"`(\w+)=", cell)}
    assert {"layer_norm_eps", "length_normalization"} <= keywords <= known
    of_generate = {word for cell in flags for word in re.findall(r"`generate\((\w+)=", cell)}
    assert {"early_stopping", "max_new_tokens"} <= of_generate <= vars(GenerationConfig()).keys()
