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
from pathlib import Path

if "google.colab" in sys.modules:
    [course] = Path("/content").glob("*/scripts/study/course")  # whatever the clone is called
    os.chdir(course)
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "../../..[plots]"], check=True)

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
# A recurrent network reads word after word; its state at word t depends on word t and the words *before* it. (Not on
# those after it, which is a common mistake.) The states of a second network, which reads backwards, depend on the
# words after t. Side by side, the two know all words: a bidirectional network. Its output is twice as wide.

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
# Count multiplications, for n words and vectors of width d. The table gives orders of magnitude, so it leaves out the
# projections and constant factors; do the same, and count only:
#
# - self-attention: n queries times n keys, each product d long (not the weights times the values: that is a factor of
#   2);
# - recurrence: n steps, each a (d x d) matrix times a vector;
# - convolution of width k: n positions, each k matrices (d x d) times a vector.


# %% tags=["exercise"]
def operations(kind, n, d, k):
    """Return the number of multiplications of a layer; kind is "self-attention", "recurrent" or "convolution"."""
    ...


# %% tags=["check"]
lesson_8.check_operations(operations)

# %% [markdown]
# So self-attention needs fewer operations than recurrence if n < d, as in most sentences: n is about 30, and d is 512.
#
# ## Exercise 2: sequential steps and paths
#
# - *Sequential operations*: how many operations of one layer must run one after the other, with as many processors as
#   you like. A step of a recurrence is one operation, and so is everything that can run at once.
# - *Maximum path length*: how many layers or steps a signal passes from the first word to the last. Count n steps for
#   a recurrence. For convolutions, count the layers of a stack in which each output sees its own word and the k - 1
#   words before it: each layer reaches k - 1 words further, and a fraction of a layer counts as a whole one.
#
# Return numbers, not orders. (For convolutions, Table 1 gives `log_k(n)`, which holds if the layers are *dilated*:
# with gaps between the words that they see, which grow from layer to layer. Without gaps, the paper says n / k.)


# %% tags=["exercise"]
def steps_and_path(kind, n, k):
    """Return (sequential operations of a layer, maximum path length) for one of the three kinds."""
    ...


# %% tags=["check"]
lesson_8.check_steps_and_path(steps_and_path)

# %% [markdown]
# ## Measured
#
# The time of a self-attention layer of the package's model and of an LSTM of the same width, by the number of words.
# The quadratic term shows only when n is larger than d: before that, the projections take most of the time.
# `scripts/benchmarks/complexity.py` measures more, including memory.


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
# Memory matters, too: in training, a layer keeps its results for the backward pass. For self-attention with h heads
# these are h n^2 weights, for a recurrence n states of width d. Twice as many words make four times as many weights:

# %%
for n in (512, 1024):
    print(f"{n} words: {4 * n * n:>9,} weights of 4 heads, {n * d:>6,} numbers in the states of a recurrent network")

# %% [markdown]
# ## Exercise 3: the training cost of Table 2
#
# "We estimate the number of floating point operations used to train a model by multiplying the training time, the
# number of GPUs used, and an estimate of the sustained single-precision floating-point capacity of each GPU": 9.5
# TFLOPS for a P100, where 1 TFLOPS is 10^12 operations per second. The base model was trained for 12 hours on 8 of
# them, the big one for 3.5 days. The check computes both with your function.


# %% tags=["exercise"]
def training_flops(hours, gpus, tflops):
    """Return the number of floating point operations of a training run, with `tflops` TFLOPS per GPU."""
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
# That is the claim of Table 2: the base model beats all earlier ones at a fraction of their cost. The model itself
# gives another estimate: about 6 operations per parameter and token, 2 forwards and 4 backwards. A source token passes
# through the encoder and a target token through the decoder, so that a source token and a target token together pass
# through nearly all 65 million parameters once. There were 100,000 updates with about 25,000 tokens of each:

# %%
print(f"needed: {6 * 65e6 * 100_000 * 25_000:.1e} operations; available: {12 * 3600 * 8 * 9.5e12:.1e}")

# %% [markdown]
# So the arithmetic of the model took about 30 % of what the GPUs could do.
#
# ## What to remember
#
# - n^2 d against n d^2: self-attention needs fewer operations for n < d, but more memory for long texts.
# - Its sequential steps and its paths are constant; those of a recurrence grow with n.
# - An estimate of FLOPs means little without its method.
