"""A walk through "Attention Is All You Need": each equation, the lines of code that are it, and what they compute.

python scripts/study/walkthrough.py     # under 3 minutes on 2 cores, on the built-in phrases

Every number printed comes from the lines shown above it, on one small model that is trained on the way.
"""

import argparse
import inspect
import math
import re
import tempfile
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from hf_vanilla_transformer import (
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerTrainer,
    VanillaTransformerTrainingArguments,
    loss,
    noam,
    paper_config,
    train_tokenizer,
    translate,
)
from hf_vanilla_transformer.data.batching import MaxTokensBatchSampler
from hf_vanilla_transformer.data.phrases import splits
from hf_vanilla_transformer.model import layers_vanilla_transformer as layers
from hf_vanilla_transformer.model import modeling_vanilla_transformer as modeling
from hf_vanilla_transformer.model.generation_vanilla_transformer import gnmt_length_penalty


def section(title: str, equation: str, words: str = "") -> None:
    print(f"\n{'=' * 100}\n{title}\n\n    {equation}\n" + (f"\n{words}\n" if words else ""))


def code(function: Callable[..., Any], first: str, last: str | None = None) -> None:
    """Prints the lines of `function` from the one that holds `first` to the one that holds `last`, and where."""
    function = inspect.unwrap(function)
    lines, start = inspect.getsourcelines(function)
    begin = next(i for i, line in enumerate(lines) if first in line)
    end = begin if last is None else next(i for i, line in enumerate(lines) if i >= begin and last in line)
    print(f"{Path(inspect.getfile(function)).name}, line {start + begin}:")
    print(textwrap.indent(textwrap.dedent("".join(lines[begin : end + 1])), "    "))


def show(name: str, tensor: torch.Tensor) -> None:
    """A tensor's shape, and its first rows and columns."""
    corner = tensor[tuple(0 for _ in tensor.shape[:-2])] if tensor.dim() > 2 else tensor
    corner = corner[:6, :8] if corner.dim() == 2 else corner[:8]
    cut = corner.numel() < tensor.numel()
    print(f"{name} {tuple(tensor.shape)}{', the first of it' if cut else ''}:\n{re.sub('tensor', '', str(corner))}\n")


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    torch.manual_seed(0)
    torch.set_printoptions(precision=3, sci_mode=False, linewidth=110)
    phrases = splits(train=8000, validation=50, test=50)
    english, german = ([getattr(phrase, side) for phrase in phrases["train"]] for side in ("en", "de"))

    section("5.1 Training data", "one byte-pair encoding for both languages; batches by length, of so many tokens")
    tokenizer = train_tokenizer(english + german, vocab_size=1200)
    print(f"{english[0]!r}\n{tokenizer.convert_ids_to_tokens(tokenizer(english[0])['input_ids'])}\n")
    rows = [
        {"input_ids": source, "labels": target}
        for source, target in zip(tokenizer(english)["input_ids"], tokenizer(german)["input_ids"], strict=True)
    ]
    code(MaxTokensBatchSampler.__init__, "longest = np.maximum(source, target)")
    lengths = [[len(row[side]) for row in rows] for side in ("input_ids", "labels")]
    batch = next(iter(MaxTokensBatchSampler(lengths[0], lengths[1], 128)))
    print(f"a batch of at most 128 tokens a side, its lengths: {[(lengths[0][i], lengths[1][i]) for i in batch]}")

    config = paper_config(
        "tiny",
        vocab_size=len(tokenizer),
        d_model=64,
        d_ff=128,
        num_encoder_layers=2,
        num_decoder_layers=2,
        dropout=0.0,
    )
    model = VanillaTransformerForConditionalGeneration(config).eval()
    model.set_attn_implementation("eager")  # the one that shows its weights
    inputs = tokenizer([english[0], english[1]], return_tensors="pt", padding=True)
    ids, real = inputs["input_ids"], inputs["attention_mask"]

    with torch.no_grad():
        section("3.4 Embeddings", "x = E[token] * sqrt(d_model)", "One matrix E for both inputs and the output.")
        code(modeling.VanillaTransformerStack.token_embeddings, "inputs_embeds = self", "return")
        embeddings = model.model.encoder.token_embeddings(ids, None)
        show("embeddings", embeddings)
        shared = model.model.shared.weight
        tied = all(w is shared for w in (model.lm_head.weight, model.model.decoder.embed_tokens.weight))
        print(f"the output projection and the decoder's embeddings are the same matrix: {tied}")

        section(
            "3.5 Positional encoding", "PE(pos, 2i) = sin(pos / 10000^(2i/d_model)), PE(pos, 2i+1) = cos(the same)"
        )
        code(layers.sinusoids, "position =", "return")
        show("positions", layers.sinusoids(8, config.d_model))
        states = model.model.encoder.add_positions(embeddings)

        section("3.2.1 Scaled dot-product attention", "Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V")
        code(layers.eager_attention_forward, "scores = torch.matmul", "return")
        attention = model.model.encoder.layers[0].self_attn
        query = attention.q_proj(states).view(*states.shape[:2], config.num_heads, config.d_k).transpose(1, 2)
        key, value = attention.project_key_value(states)
        _, weights = layers.eager_attention_forward(attention, query, key, value, None, attention.scaling)
        show("weights of head 1, a row for each query", weights)
        print(f"each row sums to {weights.sum(-1).mean():.3f}")

        section("3.2.2 Multi-head attention", "MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W^O")
        code(layers.VanillaTransformerAttention.forward, "return self.out_proj")
        print(f"h = {config.num_heads} heads of d_k = {config.d_k}\n")
        show("output", attention(states)[0])

        section("3.2.3 Masks", "padding is hidden from all, and what comes later from the decoder")
        code(modeling.VanillaTransformerEncoder.forward, "mask = create_bidirectional_mask")
        code(modeling.VanillaTransformerDecoder.forward, "causal_mask = create_causal_mask", "        )\n")
        outputs = model(input_ids=ids, attention_mask=real, decoder_input_ids=ids, output_attentions=True)
        shorter = real.sum(-1).argmin()
        print(f"sentence {shorter} of the batch has {real[shorter].sum()} of {real.shape[1]} tokens")
        show("the encoder's weights there, the last columns", outputs.encoder_attentions[0][shorter, 0, :, -8:])
        show("the decoder's, causal", outputs.decoder_attentions[0])

        section("3.3 Feed-forward networks", "FFN(x) = max(0, x W1 + b1) W2 + b2")
        layer = model.model.encoder.layers[0]
        code(layers.VanillaTransformerLayer.feed_forward, "return")
        hidden = layer.activation_fn(layer.fc1(states))
        print(f"{(hidden == 0).float().mean():.0%} of the {config.d_ff} inner values are cut off at 0\n")

        section("3.1 Residual connections and post-norm", "LayerNorm(x + Sublayer(x))")
        code(layers.VanillaTransformerLayer.add_and_norm, "return")
        after = layer.add_and_norm(states, layer.feed_forward(states), layer.final_layer_norm)
        show("after", after)
        print(
            f"mean {after.mean(-1).abs().max():.4f} and variance {after.var(-1, correction=0).mean():.4f} a position"
        )

    section(
        "5.4 Label smoothing",
        "q(k) = (1 - eps) [k is the label] + eps / (V - 1), but 0 for padding; loss = -sum q(k) log p(k)",
    )
    code(loss.SmoothedCrossEntropy.forward, "share = smoothing", "loss -= share")
    print("five tokens, one of them padding; the logit of the right one rises, the others stay 0:\n")
    for logit in (0.0, 2.0, 4.0, 8.0, 16.0):
        losses = [
            loss.smoothed_cross_entropy(
                torch.tensor([[0.0, logit, 0.0, 0.0, 0.0]]), torch.tensor([1]), smoothing, 0
            ).item()
            for smoothing in (0.0, 0.1)
        ]
        print(f"logit {logit:4.0f}: loss {losses[0]:.3f} without smoothing, {losses[1]:.3f} with eps 0.1")
    print("\nWithout it the surest guess is the best one; with it too sure a guess costs again.")

    section("5.3 Optimiser", "lr = d_model^-0.5 * min(step^-0.5, step * warmup^-1.5)", "Adam, 0.9, 0.98, 1e-9.")
    code(noam, "return factor")
    for step in (1, 2000, 4000, 100_000):
        print(f"base, step {step:>7,}: {noam(step, 512, 4000):.2e}")

    section("5 Training", "teacher forcing: the decoder reads the target one position late")
    code(modeling.shift_right, "shifted = labels.roll", "return")
    with tempfile.TemporaryDirectory() as folder:
        arguments = VanillaTransformerTrainingArguments(
            folder,
            max_tokens=512,
            max_steps=1500,
            warmup_steps=200,
            logging_steps=150,
            eval_strategy="no",
            save_strategy="no",
            use_cpu=True,
        )
        trainer = VanillaTransformerTrainer(model, arguments, train_dataset=rows, processing_class=tokenizer)
        trainer.train()
    section(
        "6.1 Beam search", "score(Y) = log P(Y | X) / lp(Y), lp(Y) = ((5 + |Y|) / 6)^0.6", "At most input length + 50."
    )
    code(gnmt_length_penalty, "return")
    model.eval()
    sentence, reference = phrases["test"][0].en, phrases["test"][0].de
    outputs = model.generate(
        **tokenizer(sentence, return_tensors="pt"),
        num_beams=4,
        num_return_sequences=4,
        return_dict_in_generate=True,
        output_scores=True,
    )
    print(f"{sentence}  (reference: {reference})")
    for score, row in zip(outputs.sequences_scores, outputs.sequences, strict=True):
        length = int((row > 2).sum()) + 1
        total = score * gnmt_length_penalty(length, 0.6)
        text = tokenizer.decode(row, skip_special_tokens=True)
        print(f"    score {score:.3f} = {total:.3f} / {gnmt_length_penalty(length, 0.6):.3f}  {text}")
    held_out = phrases["test"][1:5]
    print("\nmore that training never showed:")
    for phrase, translation in zip(held_out, translate(model, tokenizer, [p.en for p in held_out]), strict=True):
        print(f"    {phrase.en}\n    {translation}")

    section("4 Why self-attention", "self-attention n^2 d, recurrent n d^2, convolutional k n d^2")
    print("python scripts/benchmarks/complexity.py measures them.")
    perplexity = math.exp(trainer.state.log_history[-2]["loss"])
    print(
        f"\nThe end: training perplexity with smoothed labels {perplexity:.2f}, lowest possible {floor(config):.2f}."
    )


def floor(config: Any) -> float:
    """The perplexity of smoothed labels that knows every next word."""
    share, others = 0.1 / (config.vocab_size - 1), config.vocab_size - 2
    return math.exp(-(0.9 + share) * math.log(0.9 + share) - others * share * math.log(share))


if __name__ == "__main__":
    main()
