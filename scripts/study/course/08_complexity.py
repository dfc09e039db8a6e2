# %% [markdown]
# # Lesson 8: complexity
#
# The paper's Table 1 compares layers by their operations, by the operations that must wait for each other, and by the
# length of the path between two words. You will compute it, measure it, put a recurrent network beside it, and compute
# the training cost of Table 2. About 45 minutes; the cells themselves need about ten seconds on two cores.

# %% tags=["install"]
# Only on Colab: put a clone of the project into /content first. Elsewhere, install it as its README says.
import os
import subprocess
import sys

if "google.colab" in sys.modules:
    os.chdir("/content/hf_vanilla_transformer")
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", ".[plots]"], check=True)
    os.chdir("scripts/study/course")

# %%
import time

import matplotlib.pyplot as plt
import torch
from checks import lesson_8
from torch import nn

from hf_vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration

torch.manual_seed(0)
torch.set_grad_enabled(False)

# %% [markdown]
# ## A recurrent network in two directions
#
# A recurrent network reads word after word; its state at word t knows the words *before* t. (One seed says: only
# those after it. It is the other way round.) A second network that reads backwards knows the words after t. Side by
# side, they know all: a bidirectional network. Its output is twice as wide.

# %%
recurrent = nn.LSTM(8, 8, batch_first=True, bidirectional=True)
x = torch.randn(1, 6, 8)
changed = x.clone()
changed[0, 3] += 1
moved = (recurrent(changed)[0] - recurrent(x)[0]).abs()[0]
print("output", tuple(recurrent(x)[0].shape))
for name, half in (("forwards", moved[:, :8]), ("backwards", moved[:, 8:])):
    print(f"word 4 changed; {name:9} the states move by {half.amax(1).numpy().round(4)}")

# %% [markdown]
# The change fades with the distance, as it passes through one step per word. In self-attention, every word is one step
# from every other, so that a far word can count as much as a near one.
#
# ## Exercise 1: the operations of Table 1
#
# Count multiplications, for n words and width d. Leave out the projections, as the table does:
#
# - self-attention: n queries times n keys, each product d long;
# - recurrence: n steps, each a (d x d) matrix times a vector;
# - convolution of width k: n positions, each k matrices (d x d) times a vector.


# %% tags=["exercise"]
def operations(kind, n, d, k):
    """Return the multiplications of a layer; kind is "self-attention", "recurrent" or "convolution"."""
    ...


# %% tags=["check"]
lesson_8.check_operations(operations)

# %% [markdown]
# So self-attention needs fewer operations where n < d, as in sentences: n is 30 and d is 512.
#
# ## Exercise 2: sequential steps and paths
#
# - *Sequential operations*: how many must wait for each other, with as many processors as you like.
# - *Maximum path length*: how many layers or steps a signal passes between the first word and the last. In a stack of
#   convolutions of width k, without gaps, each layer reaches k - 1 words further, so (n - 1) / (k - 1), rounded up.
#
# Count a recurrent network's path from the first word to the last as n steps. (Table 1 gives `log_k(n)` for a
# convolution, which holds if its layers have gaps that grow from layer to layer: dilated ones.)


# %% tags=["exercise"]
def steps_and_path(kind, n, k):
    """Return (sequential operations of a layer, maximum path length) for one of the three kinds."""
    ...


# %% tags=["check"]
lesson_8.check_steps_and_path(steps_and_path)

# %% [markdown]
# ## Measured
#
# A layer of the package's model, without its feed-forward network, beside an LSTM of the same width, by the number of
# words. The quadratic term shows only when n is larger than d: before that, the projections take most of the time.
# `scripts/benchmarks/complexity.py` measures more, and memory too.


# %%
def seconds(function, x):
    """Return the time of the fastest of three calls."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        function(x)
        times.append(time.perf_counter() - start)
    return min(times)


d = 64
config = VanillaTransformerConfig(vocab_size=50, d_model=d, num_heads=4, dropout=0.0)
attention = VanillaTransformerForConditionalGeneration(config).model.encoder.layers[0].self_attn.eval()
recurrent = nn.LSTM(d, d, batch_first=True)
lengths = [32, 128, 512, 1024]
figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
for name, layer in (("self-attention", attention), ("LSTM", recurrent)):
    times = [seconds(layer, torch.randn(1, n, d)) for n in lengths]
    axis.plot(lengths, [1000 * value for value in times], marker="o", label=name)
axis.set(xscale="log", yscale="log", xlabel="words", ylabel="milliseconds")
axis.legend()

# %% [markdown]
# Memory, too: to learn, a layer keeps what it computed. For self-attention these are h n^2 weights, for a recurrence n
# states. Doubling the words makes four times as many weights:

# %%
for n in (512, 1024):
    print(f"{n} words: {4 * n * n:>9,} weights of 4 heads, {n * d:>6,} numbers of a recurrent network's states")

# %% [markdown]
# ## Exercise 3: the training cost of Table 2
#
# "We estimate the number of floating point operations by multiplying the training time, the number of GPUs used, and
# an estimate of the sustained single-precision floating-point capacity of each GPU": 9.5 TFLOPS for a P100. The base
# model trained for 12 hours on 8 of them, the big one for 3.5 days. Compute both.


# %% tags=["exercise"]
def training_flops(hours, gpus, tflops):
    """Return the floating point operations of a training run."""
    ...


# %% tags=["check"]
lesson_8.check_training_flops(training_flops)

# %%
quality = {"GNMT + RL": (24.6, 2.3e19), "ConvS2S": (25.16, 9.6e18), "MoE": (26.03, 2.0e19)}
quality |= {"Transformer (base)": (27.3, 3.3e18), "Transformer (big)": (28.4, 2.3e19)}
figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
for name, (bleu, flops) in quality.items():
    axis.plot(flops, bleu, "o")
    axis.annotate(name, (flops, bleu), xytext=(4, 4), textcoords="offset points")
axis.set(xscale="log", xlabel="training FLOPs", ylabel="BLEU, WMT 2014 English-German", xlim=(2e18, 1e20))

# %% [markdown]
# That is the claim of Table 2: the base model beats all earlier ones at a fraction of their cost. Another estimate
# comes from the model: about 6 operations per parameter and token, forwards and backwards. A source token passes
# the encoder and a target token the decoder, so a pair of tokens passes about all 65 million parameters once. There
# were 100,000 updates of about 25,000 pairs:

# %%
print(f"needed: {6 * 65e6 * 100_000 * 25_000:.1e} operations; available: {12 * 3600 * 8 * 9.5e12:.1e}")

# %% [markdown]
# So about a third of what the GPUs could do was the model's arithmetic.
#
# ## What to remember
#
# - n^2 d against n d^2: self-attention needs fewer operations for n < d, but more memory for long texts.
# - Its sequential steps and its paths are constant; those of a recurrence grow with n.
# - An estimate of FLOPs needs its method beside it.
