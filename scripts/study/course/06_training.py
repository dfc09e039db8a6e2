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

if "google.colab" in sys.modules:
    os.chdir("/content/hf_vanilla_transformer")
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", ".[plots]"], check=True)
    os.chdir("scripts/study/course")

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
# It rises for `warmup` updates and then falls as one over the root of the step. Steps count from 1: at step 0, it
# divides by zero. Adam has beta_1 0.9, beta_2 0.98 and epsilon 1e-9.


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
# Why warm up? One seed says: the gradient is large at first. In Adam, the size of the gradient cancels out: an update
# is about `lr * mean / root of the mean square`. But those means are over very few gradients at first, so that the
# direction is nearly chance, and post-norm makes early large steps costly. Small steps first let the averages settle.
#
# ## Cross-entropy
#
# `F.cross_entropy(prediction, label)` takes logits first, and the index of the label second. It applies the softmax
# itself: a softmax in the model, as in one seed, is one too many. Right, wrong, and two of three right:

# %%
logits = torch.tensor([[0.1, 0.3, 7.3], [33, 5, 1], [4, 10, 0.1]])
for labels in ([2, 0, 1], [0, 2, 2], [2, 0, 2]):
    print(labels, f"sum of the losses {F.cross_entropy(logits, torch.tensor(labels), reduction='sum'):.4f}")
print(
    f"with a softmax too many, right labels: {F.cross_entropy(logits.softmax(-1), torch.tensor([2, 0, 1])):.4f} each"
)

# %% [markdown]
# ## Exercise 2: label smoothing
#
# The target is no longer 1 for the label and 0 elsewhere:
#
#     q(label) = 1 - eps + eps / (V - 1),   q(other) = eps / (V - 1),   q(padding token) = 0
#     loss = -sum_k q(k) log p(k), summed over the positions that are not padding
#
# So eps is spread over the V - 1 tokens that can follow at all, the label among them.


# %% tags=["exercise"]
def smoothed_loss(logits, labels, smoothing):
    """Return the sum of the smoothed losses; token 0 is padding, and positions labelled -100 do not count.

    *Shape:* logits (N, V), labels (N,) to a number.
    """
    ...


# %% tags=["check"]
lesson_6.check_smoothed_loss(smoothed_loss)

# %% [markdown]
# ## Exercise 3: gradient accumulation
#
# If a large batch does not fit, compute gradients of small ones and add them up. One seed reports that a large batch
# still is better. Done right, it is the *same*, as the layer norm never mixes sentences. Done as usual, with the mean
# of the means, it is not: sentences have different numbers of tokens. Return the right mean, given each part's sum of
# losses and number of tokens.


# %% tags=["exercise"]
def accumulated_loss(sums, tokens):
    """Return the mean loss per token over all parts, of which each has a sum of losses and a number of tokens."""
    ...


# %% tags=["check"]
lesson_6.check_accumulated_loss(accumulated_loss)

# %% [markdown]
# ## Overfit one batch first
#
# Before you train on everything, train on one batch. A right model drives its loss to 0 in a minute. If the loss does
# not move, suspect the initialisation or the gradients; if it jumps, the learning rate; if it stops high, the model
# or the labels. Only then add data, and then a validation text, which tells over- from underfitting.


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
# First without a schedule: raise the rate at every update, and see where the loss falls, and where it explodes. Take a
# rate below the explosion as the peak; then switch the schedule on. `scripts/study/range_test.py` does this for a real
# model.

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
# Often one setting matters and another does not. A grid of 3 x 3 tries three values of the one that matters; nine
# random trials try nine. The learning rate is drawn evenly on the *logarithmic* scale. Here the second setting does
# nothing.

# %%
chance = random.Random(0)
grid = [(rate, other) for rate in (1e-4, 1e-3, 1e-2) for other in (1, 2, 3)]
trials = [(10 ** chance.uniform(-4, -1.5), chance.uniform(1, 3)) for _ in range(9)]
for name, settings in (("grid", grid), ("random", trials)):
    found = {rate: train([rate] * 60)[-1] for rate in {rate for rate, _ in settings}}
    best = min(found, key=found.__getitem__)
    print(f"{name:6} tries {len(found)} learning rates; the best is {best:.1e}, with the loss {found[best]:.2f}")

# %% [markdown]
# **How sure is that?** Compare seeds, before you believe a difference of settings. (Equal seeds do not give equal
# numbers on other hardware.) Models of different seeds err differently: the mean of their probabilities, an ensemble,
# is better than most of them. One seed guarantees 2 to 3 %; nothing guarantees it. The package has `Ensemble` for
# translation.

# %%
print("the last loss of three seeds:", [round(train([3e-3] * 100, seed)[-1], 2) for seed in range(3)])
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
# - One batch first; then the rate; then the rest, at random, with more than one seed. A single validation text is
#   enough if resources are short, and known libraries save you from the bugs of lesson 9.
