# %% [markdown]
# # Lesson 6: training
#
# You will write the learning-rate schedule, the smoothed loss and accumulated gradients, and compare them with the
# package's. Then: overfit a batch first, find a learning rate by a range test, and search at random. About 60 minutes;
# the cells themselves need about half a minute on two cores.

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
import random

import matplotlib.pyplot as plt
import torch
from checks import lesson_6
from torch.nn import functional as F

from hf_vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration, noam

torch.manual_seed(0)
torch.set_printoptions(precision=3, sci_mode=False)

# %% [markdown]
# ## Exercise 1: the learning rate
#
#     lr = d_model^-0.5 * min(step^-0.5, step * warmup^-1.5)
#
# It rises for `warmup` updates and then falls in proportion to one over the root of the step. Steps count from 1: the
# formula divides by zero at step 0. The optimiser of the paper is Adam with beta_1 0.9, beta_2 0.98 and epsilon 1e-9.


# %% tags=["exercise"]
def learning_rate(step, d_model, warmup):
    """Return the learning rate of an update; the first update is step 1."""
    ...


# %% tags=["check"]
lesson_6.check_learning_rate(learning_rate)

# %%
steps = range(1, 1001)
figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
for d_model, warmup in ((512, 200), (512, 400), (256, 200)):
    axis.plot(steps, [noam(step, d_model, warmup) for step in steps], label=f"d_model {d_model}, warm-up {warmup}")
axis.set(xlabel="step", ylabel="learning rate")
axis.legend()

# %% [markdown]
# Why warm up? Not because gradients are large at first, which is a common mistake. In Adam, their size cancels out: an
# update is about `lr * mean / root of the mean square` of the latest gradients. But at first these are means of very
# few gradients, so that the direction is almost random, and post-norm models are especially sensitive to large early
# steps. A small learning rate lets the means settle.
#
# ## Cross-entropy
#
# `F.cross_entropy(prediction, label)` takes logits first, and the index of the label second. It applies the softmax
# itself: a softmax in the model, as in one of the write-ups, is one too many. Here are the losses if all labels are
# right, all wrong, or two of three right:

# %%
logits = torch.tensor([[0.1, 0.3, 7.3], [33, 5, 1], [4, 10, 0.1]])
for labels in ([2, 0, 1], [0, 2, 2], [2, 0, 2]):
    print(labels, f"sum of the losses {F.cross_entropy(logits, torch.tensor(labels), reduction='sum'):.4f}")
print(
    f"with one softmax too many, right labels: {F.cross_entropy(logits.softmax(-1), torch.tensor([2, 0, 1])):.4f} each"
)

# %% [markdown]
# ## Exercise 2: label smoothing
#
# The target is no longer 1 for the label and 0 elsewhere:
#
#     q(label) = 1 - eps + eps / (V - 1),   q(other) = eps / (V - 1),   q(padding token) = 0
#     loss = -sum_k q(k) log p(k), summed over the positions that are not padding
#
# where p is the softmax of the logits. So eps is spread over the V - 1 tokens that can follow at all, the label among
# them: q sums to 1.


# %% tags=["exercise"]
def smoothed_loss(logits, labels, smoothing):
    """Return the sum of the smoothed losses; token 0 is padding, and positions that are padding are labelled -100.

    *Shape:* logits (N, V), labels (N,), smoothing (eps) a number, to a number.
    """
    ...


# %% tags=["check"]
lesson_6.check_smoothed_loss(smoothed_loss)

# %% [markdown]
# ## Exercise 3: gradient accumulation
#
# If a large batch does not fit into memory, split it, and add up the gradients of its parts before the update. One of
# the write-ups says that a large batch is still better. Done right, it is the *same*, but for the random numbers of
# dropout, as layer normalisation never mixes sentences. As it is often done, with the mean of the parts' mean losses,
# it is not: parts have different numbers of tokens. Return the loss of the whole batch instead.


# %% tags=["exercise"]
def accumulated_loss(sums, tokens):
    """Return the mean loss per token of the whole batch, from each part's sum of losses and number of tokens.

    *Shape:* sums (parts,), tokens (parts,) to a number.
    """
    ...


# %% tags=["check"]
lesson_6.check_accumulated_loss(accumulated_loss)

# %% [markdown]
# ## Overfit one batch first
#
# Before you train on everything, train on one batch. A correct model drives its loss (without smoothing) to almost 0
# in a minute. If the loss does not move, suspect the initialisation or the gradients; if it jumps, the learning rate;
# if it stops at a high value, the model or the labels. Only then use all data, and a validation text to tell
# overfitting from underfitting: more dropout or label smoothing works against the first.


# %%
def copy_batch(size, generator):
    rows = torch.randint(3, 11, (size, 6), generator=generator)
    return torch.cat((rows, torch.full((size, 1), 2)), 1)


def train(rates, seed=0, same_batch=False):
    """Train a small model to copy, with one update per learning rate, and return the losses."""
    torch.manual_seed(seed)
    config = VanillaTransformerConfig(
        vocab_size=11, d_model=32, num_heads=2, d_ff=64, num_encoder_layers=1, num_decoder_layers=1, dropout=0.0
    )
    model = VanillaTransformerForConditionalGeneration(config).train()
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9)
    generator = torch.Generator().manual_seed(seed)
    rows = copy_batch(16, generator)
    losses = []
    for rate in rates:
        optimizer.param_groups[0]["lr"] = rate
        loss = model(input_ids=rows, labels=rows).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if not same_batch:
            rows = copy_batch(16, generator)
    return losses


losses = train([3e-3] * 150, same_batch=True)
print(f"one batch of 16 sentences: loss {losses[0]:.2f} at first, {losses[-1]:.4f} after 150 updates")

# %% [markdown]
# ## A range test
#
# First without a schedule: raise the learning rate at every update, and see where the loss falls and where it
# explodes. Choose a peak well below the explosion, and only then use the schedule. `scripts/study/range_test.py` does
# this for a real model.

# %%
rates = [1e-5 * 10 ** (5 * i / 149) for i in range(150)]
losses = train(rates)
figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
axis.plot(rates, losses)
axis.set(xscale="log", xlabel="learning rate", ylabel="loss", ylim=(0, 5))
print(f"the lowest loss is at the rate {rates[min(range(150), key=losses.__getitem__)]:.1e}")

# %% [markdown]
# ## Random search, and not a grid
#
# Often one setting matters, most of all the learning rate and the batch size, and another does not. A grid of 3 x 3
# tries three values of the one that matters; nine random trials try nine. Learning rates are drawn uniformly on the
# *logarithmic* scale, in the range of the grid. Here the second setting does nothing.

# %%
chance = random.Random(0)
grid = [(rate, other) for rate in (1e-4, 1e-3, 1e-2) for other in (1, 2, 3)]
trials = [(10 ** chance.uniform(-4, -2), chance.uniform(1, 3)) for _ in range(9)]
for name, settings in (("grid", grid), ("random", trials)):
    found = {rate: train([rate] * 60)[-1] for rate in {rate for rate, _ in settings}}
    best = min(found, key=found.__getitem__)
    print(f"{name:6} tries {len(found)} learning rates; the best is {best:.1e}, with the loss {found[best]:.2f}")

# %% [markdown]
# **How sure is that?** Before you believe a difference between settings, train each with several random seeds. (Equal
# random seeds do not give equal numbers on other hardware.) Models from different random seeds make different errors:
# the mean of their probabilities, an *ensemble*, is usually better than each of them. A gain of 2 to 3 percent is
# sometimes promised, but nothing guarantees it. The package has `Ensemble` for translation.

# %%
print("the last loss with three random seeds:", [round(train([3e-3] * 100, seed)[-1], 2) for seed in range(3)])
generator = torch.Generator().manual_seed(0)
classes = torch.randint(0, 5, (400,), generator=generator)
votes = [F.one_hot(classes, 5) + torch.randn(400, 5, generator=generator) for _ in range(3)]
errors = [F.cross_entropy(vote, classes).item() for vote in votes]
mean = torch.stack([vote.softmax(-1) for vote in votes]).mean(0)
print("losses of three noisy models:", [round(error, 2) for error in errors])
print(f"loss of their ensemble: {F.nll_loss(mean.log(), classes):.2f}")

# %% [markdown]
# ## What to remember
#
# - Rates rise linearly to `1/sqrt(d_model * warmup)`, then fall; step 1 is the first.
# - Smoothing gives nothing to padding; padded positions do not count; means are per token.
# - First overfit one batch, then find the learning rate, then search the other settings at random, with more than one
#   random seed. One validation text is enough if resources are short (no cross-validation), and established libraries
#   save you from the bugs of lesson 9.
