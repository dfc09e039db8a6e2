"""Train one Transformer to copy and another to reverse sentences of 12 integers: the smallest complete example.

python scripts/study/train_copy.py

A plain PyTorch training loop with the model, Adam with the Noam schedule, label smoothing and greedy decoding.
The vocabulary has 11 tokens: padding 0, start 1, end 2, and the integers 3 to 10.
"""

import argparse
import sys
import time

import torch
from tqdm import trange

from hf_vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from hf_vanilla_transformer.model.loss_vanilla_transformer import smoothed_cross_entropy
from hf_vanilla_transformer.training.schedule import get_noam_schedule

PAD, START, END, VOCAB, LENGTH = 0, 1, 2, 11, 12
TASKS = {"copy": lambda sentences: sentences, "reverse": lambda sentences: sentences.flip(1)}


def batch(task: str, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random source and target sentences, both (size, 13): 12 integers and the end token."""
    sentences, end = torch.randint(END + 1, VOCAB, (size, LENGTH)), torch.full((size, 1), END)
    return torch.cat((sentences, end), 1), torch.cat((TASKS[task](sentences), end), 1)


def train(task: str, steps: int) -> VanillaTransformerForConditionalGeneration:
    """Return a small model trained on new random sentences in each of `steps` updates."""
    # Dropout keeps the gradients from vanishing once a task is learned; without it, Adam then makes the loss jump
    config = VanillaTransformerConfig(
        vocab_size=VOCAB, d_model=64, num_encoder_layers=2, num_decoder_layers=2, num_heads=4, d_ff=128, dropout=0.1
    )
    model = VanillaTransformerForConditionalGeneration(config).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.15, betas=(0.9, 0.98), eps=1e-9)
    schedule = get_noam_schedule(optimizer, config.d_model, warmup_steps=200)
    progress = trange(steps, desc=task, file=sys.stderr)
    for _ in progress:
        source, target = batch(task, 64)
        decoder_input = model.prepare_decoder_input_ids_from_labels(target)  # start token, then the target
        logits = model(input_ids=source, decoder_input_ids=decoder_input).logits
        loss = smoothed_cross_entropy(logits, target, smoothing=0.1, pad_token_id=PAD) / target.numel()
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        progress.set_postfix(loss=f"{loss.item():.3f}", refresh=False)
    return model.eval()


def exact_matches(model: VanillaTransformerForConditionalGeneration, task: str, size: int = 500) -> float:
    """Return the share of new sentences that greedy decoding gets entirely right."""
    source, target = batch(task, size)
    output = model.generate(source, num_beams=1, max_new_tokens=LENGTH + 1)[:, 1:]  # without the start token
    print(f"{task}: {source[0, :-1].tolist()} -> {output[0, :-1].tolist()}")
    if output.shape != target.shape:
        output = torch.nn.functional.pad(output, (0, target.shape[1] - output.shape[1]), value=PAD)
    return (output == target).all(1).float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1500, help="updates for each task (default: 1500)")
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    for task in TASKS:
        start = time.perf_counter()
        model = train(task, steps)
        print(f"{task}: {exact_matches(model, task):.1%} exact matches, {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
