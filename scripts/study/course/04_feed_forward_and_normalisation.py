# %% [markdown]
# # Lesson 4: feed-forward networks and normalisation
#
#     FFN(x) = max(0, x W1 + b1) W2 + b2
#     layer output = LayerNorm(x + Dropout(Sublayer(x)))
#
# You will write the feed-forward network, a layer norm that agrees with torch's, and the sub-layer around both. About
# 45 minutes; the cells themselves need a few seconds.

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
import matplotlib.pyplot as plt
import torch
from checks import lesson_4
from torch import nn
from torch.nn import functional as F

from hf_vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration

torch.manual_seed(0)
torch.set_printoptions(precision=3, sci_mode=False)

# %% [markdown]
# ## Exercise 1: the feed-forward network
#
# Two linear layers with biases and a ReLU between them, applied to every position alone. The hidden layer is wider:
# d_ff = 2048 for d_model = 512. All positions share the weights; every layer of the stack has its own. No residual in
# here: the layer around it adds it. (A common mistake is to add it in both places.)


# %% tags=["exercise"]
def feed_forward(x, w1, b1, w2, b2):
    """Return max(0, x W1 + b1) W2 + b2. *Shape:* x (B, T, d_model), w1 (d_model, d_ff), w2 (d_ff, d_model)."""
    ...


# %% tags=["check"]
lesson_4.check_feed_forward(feed_forward)

# %% [markdown]
# "Another way of describing this is as two convolutions with kernel size 1" (section 3.3). The package's layer and a
# convolution with its weights:

# %%
config = VanillaTransformerConfig(vocab_size=50, d_model=32, num_heads=4, d_ff=64, dropout=0.0)
model = VanillaTransformerForConditionalGeneration(config).eval()
layer = model.model.encoder.layers[0]
x = torch.randn(2, 7, 32)
with torch.no_grad():
    # a convolution has (B, channels, T), and weights (out, in, width 1)
    hidden = F.conv1d(x.transpose(1, 2), layer.fc1.weight[..., None], layer.fc1.bias).relu()
    convolved = F.conv1d(hidden, layer.fc2.weight[..., None], layer.fc2.bias).transpose(1, 2)
    print("two convolutions equal the package's layer:", torch.allclose(convolved, layer.feed_forward(x), atol=1e-6))
    moved = x.clone()
    moved[:, 3] += 1
    changes = (layer.feed_forward(moved) - layer.feed_forward(x)).abs().amax((0, 2))
print("position 3 changed; the outputs change by", changes)

# %% [markdown]
# ## Exercise 2: layer norm
#
#     LayerNorm(x) = (x - mean) / sqrt(var + eps) * weight + bias
#
# Mean and variance are over the columns of one position. The variance is the mean of the squared differences (torch's
# `var` divides by one less, unless `correction=0`). Weight and bias have one number per column, learned, the same at
# all positions: 2 d_model parameters, not 2. (A common mistake is to apply them to each sentence as a whole.)
#
# Three common mistakes: `std + eps`; the standard deviation that divides by n - 1; and the bias inside the
# denominator. With bias 0 and many columns, none shows.


# %% tags=["exercise"]
def layer_norm(x, weight, bias, eps):
    """Return the layer norm over the last dimension. *Shape:* x (..., d_model), weight and bias (d_model,)."""
    ...


# %% tags=["check"]
lesson_4.check_layer_norm(layer_norm)

# %% [markdown]
# The result has mean 0 and variance 1. That does not make it normally distributed: a shape with two humps keeps them.
#
# ## Why not batch norm?
#
# Batch norm takes mean and variance of each *column* over the batch. For sentences of different length, that means:
# the result for a sentence depends on the other sentences, and on how much padding there is. Here is one sentence,
# alone and in a batch with a longer one:

# %%
short, long = torch.randn(1, 3, 32), 2 * torch.randn(1, 9, 32) + 1
padded = torch.cat((F.pad(short, (0, 0, 0, 6)), long))
for name, norm in (("layer norm", nn.LayerNorm(32)), ("batch norm", nn.BatchNorm1d(32))):

    def apply(x, norm=norm):
        return norm(x) if isinstance(norm, nn.LayerNorm) else norm(x.transpose(1, 2)).transpose(1, 2)

    with torch.no_grad():
        difference = (apply(padded)[:1, :3] - apply(short)).abs().max()
    print(f"{name}: the sentence's outputs differ by up to {difference:.2f} between alone and batched")

# %% [markdown]
# In evaluation, batch norm uses averages from training, which fit neither. Layer norm treats every position alone, in
# training as in evaluation. (Their places differ, too: batch norm usually stands before an activation function, the
# paper's layer norm after an addition.)
#
# ## Exercise 3: the sub-layer
#
# The paper: dropout "to the output of each sub-layer, before it is added to the sub-layer input and normalized".
# Common mistakes are to drop out after the norm, and to normalise before the sub-layer.
#
# The paper also applies dropout to the sums of embeddings and positions, in both stacks (where some code creates a
# dropout and never applies it). Others add it to the attention weights and after the ReLU. The paper mentions neither,
# but later versions of its authors' code have both: `attention_dropout` and `activation_dropout` in the package, 0 by
# default.


# %% tags=["exercise"]
def sublayer_connection(x, sublayer, norm, dropout):
    """Return the post-norm output; `sublayer`, `norm` and `dropout` are functions of a tensor. *Shape:* as x."""
    ...


# %% tags=["check"]
lesson_4.check_sublayer_connection(sublayer_connection)

# %% [markdown]
# ## What residuals do
#
# `x + F(x)` has the derivative `1 + F'(x)`. That gradients then cannot vanish is a common mistake. They vanish less:
# here is the gradient's size at the input of 12 layers of width 32, with and without residuals, and with post-norm,
# which scales the 1 down at every layer, and pre-norm, which does not.


# %%
def gradient_at_the_input(kind, depth=12):
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32)) for _ in range(depth)]
    norm = nn.LayerNorm(32)
    x = states = torch.randn(8, 32, requires_grad=True)
    for block in blocks:
        if kind == "no residual":
            states = block(states)
        elif kind == "residual":
            states = states + block(states)
        elif kind == "post-norm":
            states = norm(states + block(states))
        else:
            states = states + block(norm(states))
    (states * torch.randn(8, 32)).mean().backward()
    assert x.grad is not None
    return x.grad.norm().item(), states.var().item()


for kind in ("no residual", "residual", "post-norm", "pre-norm"):
    gradient, variance = gradient_at_the_input(kind)
    print(f"{kind:12} gradient at the input {gradient:.1e}, variance of the output {variance:.1e}")

# %% [markdown]
# **Post-norm or pre-norm?** The paper's is post-norm: normalise after the addition. Pictures often show another order,
# norm first, as most later models have it: that is easier to train without warm-up when deep, but its states grow from
# layer to layer, and need one more norm at the end. The states of a model of 6 layers, untrained:

# %%
deep = VanillaTransformerForConditionalGeneration(
    VanillaTransformerConfig(vocab_size=50, d_model=32, num_heads=4)
).eval()
states = torch.randn(1, 10, 32)
post, pre = [states], [states]
with torch.no_grad():
    for layer in deep.model.encoder.layers:
        post.append(layer(post[-1], None))
        middle = pre[-1] + layer.self_attn(layer.self_attn_layer_norm(pre[-1]))[0]
        pre.append(middle + layer.feed_forward(layer.final_layer_norm(middle)))
figure, axis = plt.subplots(figsize=(5, 3), layout="constrained")
for name, outputs in (("post-norm", post), ("pre-norm", pre)):
    axis.plot([output.var(-1).mean().item() for output in outputs], marker="o", label=name)
axis.set(xlabel="layer", ylabel="variance of a state")
axis.legend()

# %% [markdown]
# ## What to remember
#
# - The feed-forward network sees one position; attention is the only part in which positions meet.
# - Layer norm: over the columns of one position, biased variance, eps inside the root, weight and bias outside.
# - `LayerNorm(x + Dropout(Sublayer(x)))`: one addition, one norm, dropout before both.
