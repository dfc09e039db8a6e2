"""The defaults that scripts/guide/paper.md states in its column "here" are those of the code."""

import re

import pytest
from corpora import ROOT

from hf_vanilla_transformer import (
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerTrainingArguments,
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


@pytest.fixture(scope="module")
def defaults(tmp_path_factory) -> dict[str, list[str]]:
    """What the page must say, from the code's own defaults."""
    args = VanillaTransformerTrainingArguments(output_dir=str(tmp_path_factory.mktemp("run")), use_cpu=True)
    data, vocabulary, config = DataArguments(), ModelArguments(), VanillaTransformerConfig()
    sizes = {"d_model": 16, "num_heads": 2, "num_encoder_layers": 1, "num_decoder_layers": 1, "d_ff": 32}
    model = VanillaTransformerForConditionalGeneration(VanillaTransformerConfig(vocab_size=20, **sizes))
    search = model.generation_config
    assert (config.attention_dropout, config.activation_dropout, config.attention_bias) == (0, 0, False)
    assert (config.tie_word_embeddings, config.position_embedding, config.initializer_range) == (
        True,
        "sinusoidal",
        None,
    )
    assert (args.lr_scheduler_type, args.learning_rate, args.max_grad_norm, data.clean) == ("noam", 1.0, 0, True)
    return {
        "cleaning": [f"at most {data.max_sentence_tokens} tokens", f"ratio at most {data.max_length_ratio:g},"],
        "vocabulary": ["byte-level BPE", f"{config.vocab_size:,}"] if vocabulary.tokenizer_model == "bpe" else ["?"],
        "batches": [f"at most {args.max_tokens:,} per side"],
        "its epsilon": [f"{config.layer_norm_eps:g}".replace("e-0", "e-")],
        "attention biases": ["none"],
        "optimiser": [f"{args.adam_beta1}, {args.adam_beta2}, {args.adam_epsilon:g}".replace("e-0", "e-")],
        "clipping": ["none"],
        "schedule": [f"w = {args.warmup_steps}"],
        "updates": [f"base {args.max_steps:,}"],
        "label smoothing": [f"{args.label_smoothing_factor},"],
        "averaging": [f"average --last {AverageArguments(run='run', output_dir='out').last}"],
        "beam": [f"{search.num_beams}"],
        "length penalty": [f"^{search.length_penalty} "],
        "limit": ["source length + 50"],
        "BLEU": [BleuFlags().bleu_tokenize],
    }


@pytest.mark.parametrize(
    "detail",
    [
        "cleaning",
        "vocabulary",
        "batches",
        "its epsilon",
        "attention biases",
        "optimiser",
        "clipping",
        "schedule",
        "updates",
        "label smoothing",
        "averaging",
        "beam",
        "length penalty",
        "limit",
        "BLEU",
    ],
)
def test_a_default_on_the_page_is_the_one_of_the_code(defaults, detail):
    assert all(re.search(re.escape(words), f"{stated(detail)} ") for words in defaults[detail]), stated(detail)
