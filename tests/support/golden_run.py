"""The losses of 100 updates of a fixed run, which only a change of what is learned may change.

python tests/support/golden_run.py     # records them for the kind of device of this machine, in fixtures/

On a CPU, all is in float64: processors round differently, but after 100 updates the losses still agree to many digits,
so that any other difference shows. On a GPU, training is as usual, in float32.
"""

import json
import tempfile
from pathlib import Path

import torch
from transformers.trainer_callback import PrinterCallback

from hf_vanilla_transformer import (
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerTrainer,
    VanillaTransformerTrainingArguments,
)
from hf_vanilla_transformer.data.phrases import splits

FILE = Path(__file__).parents[1] / "fixtures" / "golden_losses.json"
UPDATES = 100


def recorded() -> dict[str, list[float]]:
    """Return the recorded losses by type of device."""
    return json.loads(FILE.read_text())


def phrases() -> tuple[list[dict[str, list[int]]], int]:
    """Return built-in phrases as ids, a number for each word so that no tokenizer matters, and how many ids exist."""
    pairs = [(phrase.en, phrase.de) for phrase in splits()["train"][:600]]
    words = sorted({word for pair in pairs for side in pair for word in side.split()})
    ids = {word: i for i, word in enumerate(words, 4)}
    rows = [[[ids[word] for word in side.split()] + [2] for side in pair] for pair in pairs]
    return [{"input_ids": source, "labels": target} for source, target in rows], len(ids) + 4


def golden_losses(device: str, **settings: object) -> list[float]:
    """Return the losses of the run on a device; `settings` change its training."""
    rows, vocab_size = phrases()
    losses: list[float] = []

    class Recording(VanillaTransformerTrainer):
        def training_step(self, *args, **kwargs):
            loss = super().training_step(*args, **kwargs)
            losses.append(loss.item())
            return loss

    sizes = {"d_model": 32, "d_ff": 64, "num_heads": 4, "num_encoder_layers": 2, "num_decoder_layers": 2}
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64 if device == "cpu" else before)
    try:
        torch.manual_seed(0)
        model = VanillaTransformerForConditionalGeneration(VanillaTransformerConfig(vocab_size=vocab_size, **sizes))
        with tempfile.TemporaryDirectory() as folder:
            fixed = {"use_cpu": device == "cpu", "max_steps": UPDATES, "max_tokens": 200, "warmup_steps": 40}
            unseen = {"save_strategy": "no", "disable_tqdm": True, "report_to": "none", "eval_bleu": False}
            args = VanillaTransformerTrainingArguments(folder, **{**fixed, **unseen, **settings})
            trainer = Recording(model, args, train_dataset=rows)
            trainer.remove_callback(PrinterCallback)
            trainer.train()
    finally:
        torch.set_default_dtype(before)
    return losses


if __name__ == "__main__":
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    everything = {**(recorded() if FILE.exists() else {}), kind: [float(f"{x:.12g}") for x in golden_losses(kind)]}
    FILE.write_text(json.dumps(everything, indent=0) + "\n")
