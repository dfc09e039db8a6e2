"""The defaults that scripts/guide/paper.md states in its column "here" are those of the code."""

from corpora import ROOT
from small import SIZES

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
    assert stated("clipping") == stated("attention biases") == "none"
    assert (args.max_grad_norm, config.attention_bias) == (0, False)
    # "as in the paper": dropout only of sub-layers and embeddings, one matrix, sines, and its schedule
    assert (config.dropout, config.attention_dropout, config.activation_dropout) == (0.1, 0, 0)
    assert (config.tie_word_embeddings, config.position_embedding) == (True, "sinusoidal")
    assert (args.lr_scheduler_type, args.learning_rate) == ("noam", 1.0)
    # "as tensor2tensor", not normal
    assert config.initializer_range is None
    assert (ModelArguments().tokenizer_model, DataArguments().clean) == ("bpe", True)
