# %% [markdown]
# # Attention Is All You Need, section by section
#
# Each part shows an equation of the paper, the lines of this package that implement it, and the numbers they compute
# on one small model, which is trained on the way. It takes under 3 minutes on 2 cores.
#
# Run it as a script with `python scripts/study/walkthrough.py`, or open it as a notebook: VS Code, PyCharm and Spyder
# know the `# %%` cells, and `jupytext --to ipynb` converts them.

# %%
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
    MaxTokensBatchSampler,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerTrainer,
    VanillaTransformerTrainingArguments,
    noam,
    paper_config,
    train_tokenizer,
    translate,
)
from hf_vanilla_transformer.data.phrases import splits
from hf_vanilla_transformer.model import layers_vanilla_transformer as layers
from hf_vanilla_transformer.model import loss_vanilla_transformer as loss
from hf_vanilla_transformer.model import modeling_vanilla_transformer as modeling
from hf_vanilla_transformer.model.generation_vanilla_transformer import gnmt_length_penalty


def section() -> None:
    """Print the Markdown above the calling cell, unless a notebook shows it."""
    frame = inspect.currentframe()
    if "__file__" not in globals() or frame is None or frame.f_back is None:
        return
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()[: frame.f_back.f_lineno]
    start = max(i for i, line in enumerate(lines) if line == "# %% [markdown]")
    cell = [line.removeprefix("#").removeprefix(" ") for line in lines[start + 1 :] if line.startswith("#")]
    print("\n" + "=" * 100, *(line for line in cell if line != "%%"), "", sep="\n")


def code(function: Callable[..., Any], first: str, last: str | None = None) -> None:
    """Print the lines of `function` from the one that contains `first` to the one that contains `last`."""
    function = inspect.unwrap(function)
    lines, start = inspect.getsourcelines(function)
    begin = next(i for i, line in enumerate(lines) if first in line)
    end = begin if last is None else next(i for i, line in enumerate(lines) if i >= begin and last in line)
    print(f"{Path(inspect.getfile(function)).name}, line {start + begin}:")
    print(textwrap.indent(textwrap.dedent("".join(lines[begin : end + 1])), "    "))


def show(name: str, tensor: torch.Tensor) -> None:
    """Print a tensor's shape, and its first rows and columns."""
    corner = tensor[tuple(0 for _ in tensor.shape[:-2])] if tensor.dim() > 2 else tensor
    corner = corner[:6, :8] if corner.dim() == 2 else corner[:8]
    cut = corner.numel() < tensor.numel()
    print(f"{name} {tuple(tensor.shape)}{', its first part' if cut else ''}:\n{re.sub('tensor', '', str(corner))}\n")


torch.manual_seed(0)
torch.set_printoptions(precision=3, sci_mode=False, linewidth=110)

# %% [markdown]
# ## 5.1 Training data and batching
#
# One byte-pair encoding serves both languages. Batches hold sentence pairs of similar length, and are limited by their
# number of tokens.

# %%
section()
phrases = splits()
english, german = ([getattr(phrase, side) for phrase in phrases["train"][:8000]] for side in ("en", "de"))
tokenizer = train_tokenizer(english + german, vocab_size=1200)
print(f"{english[0]!r}\n{tokenizer.convert_ids_to_tokens(tokenizer(english[0])['input_ids'])}\n")
rows = [
    {"input_ids": source, "labels": target}
    for source, target in zip(tokenizer(english)["input_ids"], tokenizer(german)["input_ids"], strict=True)
]
code(MaxTokensBatchSampler._sort, "longest = np.maximum(")
lengths = [[len(row[side]) for row in rows] for side in ("input_ids", "labels")]
batch = next(iter(MaxTokensBatchSampler(lengths[0], lengths[1], 128)))
print(f"The lengths in a batch of at most 128 tokens per side: {[(lengths[0][i], lengths[1][i]) for i in batch]}")

# %% [markdown]
# ## 3.4 Embeddings
#
#     x = E[token] * sqrt(d_model)
#
# One matrix E serves both inputs and, transposed, the output projection.

# %%
section()
config = paper_config(
    "tiny", vocab_size=len(tokenizer), d_model=64, d_ff=128, num_encoder_layers=2, num_decoder_layers=2, dropout=0.0
)
model = VanillaTransformerForConditionalGeneration(config).eval()
model.set_attn_implementation("eager")  # the implementation that returns its weights
inputs = tokenizer([english[0], english[1]], return_tensors="pt", padding=True)
ids, mask = inputs["input_ids"], inputs["attention_mask"]
code(modeling.VanillaTransformerStack.token_embeddings, "inputs_embeds = self", "return")
with torch.no_grad():
    embeddings = model.model.encoder.token_embeddings(ids, None)
show("embeddings", embeddings)
shared = model.model.shared.weight
tied = all(weight is shared for weight in (model.lm_head.weight, model.model.decoder.embed_tokens.weight))
print(f"The output projection and the decoder's embeddings are the same matrix: {tied}")

# %% [markdown]
# ## 3.5 Positional encoding
#
#     PE(pos, 2i)     = sin(pos / 10000^(2i/d_model))
#     PE(pos, 2i + 1) = cos(pos / 10000^(2i/d_model))

# %%
section()
code(layers.sinusoids, "position =", "return")
show("positions", layers.sinusoids(8, config.d_model))

# %% [markdown]
# ## 3.2.1 Scaled dot-product attention
#
#     Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V

# %%
section()
code(layers.eager_attention_forward, "scores = torch.matmul", "return")
attention = model.model.encoder.layers[0].self_attn
with torch.no_grad():
    states = model.model.encoder.add_positions(embeddings)
    query = attention.q_proj(states).view(*states.shape[:2], config.num_heads, config.d_k).transpose(1, 2)
    key, value = attention.project_key_value(states)
    _, weights = layers.eager_attention_forward(attention, query, key, value, None, attention.scaling)
show("weights of head 1, one row per query", weights)
print(f"each row sums to {weights.sum(-1).mean():.3f}")

# %% [markdown]
# ## 3.2.2 Multi-head attention
#
#     MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W^O

# %%
section()
code(layers.VanillaTransformerAttention.forward, "return self.out_proj")
print(f"h = {config.num_heads} heads of d_k = {config.d_k}\n")
with torch.no_grad():
    show("output", attention(states)[0])

# %% [markdown]
# ## 3.2.3 Masks
#
# Padding is hidden from every query, and later positions from the decoder's.

# %%
section()
code(modeling.VanillaTransformerEncoder.forward, "mask = padding_mask")
code(modeling.VanillaTransformerDecoder.forward, "causal_mask = create_causal_mask", "        )\n")
with torch.no_grad():
    outputs = model(input_ids=ids, attention_mask=mask, decoder_input_ids=ids, output_attentions=True)
shorter = mask.sum(-1).argmin()
print(f"Sentence {shorter} of the batch has {mask[shorter].sum()} tokens, padded to {mask.shape[1]}.")
show("the encoder's weights for it, last columns", outputs.encoder_attentions[0][shorter, 0, :, -8:])
show("the decoder's weights, causal", outputs.decoder_attentions[0])

# %% [markdown]
# ## 3.3 Feed-forward networks
#
#     FFN(x) = max(0, x W1 + b1) W2 + b2

# %%
section()
layer = model.model.encoder.layers[0]
code(layers.VanillaTransformerLayer.feed_forward, "return")
with torch.no_grad():
    hidden = layer.activation_fn(layer.fc1(states))
print(f"{(hidden == 0).float().mean():.0%} of the {config.d_ff} inner values are cut off at 0.")

# %% [markdown]
# ## 3.1 Residual connections and post-norm
#
#     LayerNorm(x + Sublayer(x))

# %%
section()
code(layers.VanillaTransformerLayer.add_and_norm, "return")
with torch.no_grad():
    after = layer.add_and_norm(states, layer.feed_forward(states), layer.final_layer_norm)
show("after", after)
mean, variance = after.mean(-1).abs().max(), after.var(-1, correction=0).mean()
print(f"Each position has mean {mean:.4f} and variance {variance:.4f}.")

# %% [markdown]
# ## 5.4 Label smoothing
#
#     q(k) = (1 - eps) [k is the label] + eps / (V - 1), but 0 for padding
#     loss = -sum_k q(k) log p(k)

# %%
section()
code(loss.cross_entropies, "log_probs = ")
code(loss.cross_entropies_of, "plain = ", "losses = (1 - smoothing)")
print("Five tokens, one of them padding; the logit of the label rises, the others stay 0:\n")
label = torch.tensor([1])
for logit in (0.0, 2.0, 4.0, 8.0, 16.0):
    logits = torch.tensor([[0.0, logit, 0.0, 0.0, 0.0]])
    plain, smoothed = (loss.smoothed_cross_entropy(logits, label, eps, 0).item() for eps in (0.0, 0.1))
    print(f"logit {logit:4.0f}: loss {plain:.3f} without smoothing, {smoothed:.3f} with eps 0.1")
print("\nWithout smoothing the most confident guess is the best; with it, too much confidence costs.")

# %% [markdown]
# ## 5.3 Optimiser
#
#     lr = d_model^-0.5 * min(step^-0.5, step * warmup^-1.5)
#
# Adam with beta_1 0.9, beta_2 0.98 and epsilon 1e-9.

# %%
section()
code(noam, "return factor")
for step in (1, 2000, 4000, 100_000):
    print(f"base, step {step:>7,}: {noam(step, 512, 4000):.2e}")

# %% [markdown]
# ## 5 Training
#
# Teacher forcing: the decoder reads the target shifted by one position, and predicts it.

# %%
section()
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

# %% [markdown]
# ## 6.1 Beam search
#
#     score(Y) = log P(Y | X) / lp(Y),   lp(Y) = ((5 + |Y|) / 6)^alpha,   alpha = 0.6
#
# Translations have at most the length of the input plus 50.

# %%
section()
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
    penalty = gnmt_length_penalty(length, 0.6)
    text = tokenizer.decode(row, skip_special_tokens=True)
    print(f"    {score:.3f} = {score * penalty:.3f} / {penalty:.3f}  {text}")
print("\nMore sentences that were not in the training data:")
held_out = [phrase.en for phrase in phrases["test"][1:5]]
for source, translation in zip(held_out, translate(model, tokenizer, held_out), strict=True):
    print(f"    {source}\n    {translation}")

# %% [markdown]
# ## 4 Why self-attention
#
# Operations per layer: self-attention n^2 d, recurrence n d^2, convolution k n d^2.
# `python scripts/benchmarks/complexity.py` measures them.

# %%
section()
share, others = 0.1 / (config.vocab_size - 1), config.vocab_size - 2
lowest = math.exp(-(0.9 + share) * math.log(0.9 + share) - others * share * math.log(share))
perplexity = math.exp(trainer.state.log_history[-2]["loss"])
print(f"Training perplexity with smoothed labels: {perplexity:.2f} at the end; the lowest possible is {lowest:.2f}.")
