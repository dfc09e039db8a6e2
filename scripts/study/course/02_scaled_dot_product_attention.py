# %% [markdown]
# # Lesson 2: scaled dot-product attention
#
#     Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V
#
# You will write this equation, see why it divides by `sqrt(d_k)`, and compare your function with the one that the
# package's model calls. About 45 minutes; the cells themselves need a few seconds.

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
from checks import lesson_2

from hf_vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from hf_vanilla_transformer.model.layers_vanilla_transformer import eager_attention_forward

torch.manual_seed(0)
torch.set_printoptions(precision=3, sci_mode=False)

# %% [markdown]
# ## A dictionary that answers every question
#
# A Python dictionary returns a value only if the query *is* one of its keys. Attention compares the query with every
# key, turns the similarities into weights that sum to 1, and returns the weighted mean of the values. So there is an
# answer to every query, and it has a gradient.
#
# Below, a query similar to one key returns nearly its value. A query of zeros is equally similar to all keys, and
# returns the plain mean of the values, the same one whatever the keys are.

# %%
keys = torch.eye(3)
values = torch.tensor([[10.0], [20.0], [30.0]])
for query in (torch.tensor([0.0, 9.0, 0.0]), torch.tensor([0.0, 2.0, 2.0]), torch.zeros(3)):
    weights = (keys @ query).softmax(-1)
    print(f"query {query.tolist()}: weights {weights.numpy().round(3)}, answer {(weights @ values).item():.2f}")

# %% [markdown]
# Where do query, key and value come from?
#
# | attention | query | key and value |
# |---|---|---|
# | in the encoder | previous encoder layer | previous encoder layer |
# | in the decoder | previous decoder layer | previous decoder layer, without later positions (lesson 3) |
# | from decoder to encoder | previous decoder layer | the **output** of the encoder (a common mistake: its input) |
#
# The query belongs to the word that looks, the keys to the words that it looks at (they are often exchanged). In
# recurrent models, attention went from decoder to encoder: the query was the decoder's state at one step, and the
# encoder's states were both keys and values. That relates words of two sentences. Self-attention relates the words of
# one: in "The animal didn't cross the street because it was too tired", the word "it" can attend to "animal". Whether
# it does depends on the projections, which are learned.
#
# Each is projected by a matrix of its own first: `Q = x W^Q`, `K = x W^K`, `V = x W^V`. In self-attention, all three
# come from the same `x`, but they are not equal, as is often said. Key and query need the same width `d_k`; there are
# as many values as keys; the width `d_v` of the values is free.
#
# ## Why divide by the square root of d_k?
#
# Let the components of q and k be independent with mean 0 and variance 1. Each product `q_i k_i` has variance 1, so
# their sum `q . k` has variance `d_k`. (It is not exactly normally distributed, only nearly so for large `d_k`.)

# %%
widths = [2, 8, 32, 128, 512]
for d_k in widths:
    query, key = torch.randn(2, 10_000, d_k)
    products = (query * key).sum(-1)
    print(f"d_k {d_k:3}: variance of q.k {products.var():6.1f}, of q.k / sqrt(d_k) {(products / d_k**0.5).var():.2f}")

# %% [markdown]
# Large scores make the softmax choose one key. Where it has chosen, its gradient vanishes, and nothing can be learned:

# %%
figure, axes = plt.subplots(1, 2, figsize=(10, 3.5), layout="constrained")
for label, exponent in (("with 1/sqrt(d_k)", -0.5), ("without", 0.0)):
    largest = []
    gradients = []
    for d_k in widths:
        query, key = torch.randn(200, 1, d_k), torch.randn(200, 10, d_k)
        weights = (query @ key.transpose(1, 2) * d_k**exponent).softmax(-1)
        largest.append(weights.amax(-1).mean())
        # the derivatives of the softmax: w_i (1 - w_i) on its diagonal
        gradients.append((weights * (1 - weights)).sum(-1).mean())
    axes[0].plot(widths, largest, marker="o", label=label)
    axes[1].plot(widths, gradients, marker="o", label=label)
for axis, name in zip(axes, ("largest of 10 weights", "trace of the softmax's gradient"), strict=True):
    axis.set(xscale="log", xlabel="d_k", ylabel=name, ylim=(0, 1))
    axis.legend()

# %% [markdown]
# ## Exercise 1: the scores
#
# Shapes: B sentences, h heads, T queries, S keys.


# %% tags=["exercise"]
def scaled_scores(query, key):
    """Return Q K^T / sqrt(d_k). *Shape:* (B, h, T, d_k) and (B, h, S, d_k) to (B, h, T, S)."""
    ...


# %% tags=["check"]
lesson_2.check_scaled_scores(scaled_scores)

# %% [markdown]
# ## Exercise 2: attention
#
# Write all of the equation: scores, softmax over the keys, weighted mean of the values.
#
# Mind the order, because the write-ups on the web differ: it is the *scores* that are divided, before the softmax, and
# not the result; and in the softmax's denominator, the sum runs over all keys j: `exp(q.k_i) / sum_j exp(q.k_j)`. A
# formula that ends before V gives only the weights.


# %% tags=["exercise"]
def attention(query, key, value):
    """Return softmax(Q K^T / sqrt(d_k)) V.

    *Shape:* (B, h, T, d_k), (B, h, S, d_k) and (B, h, S, d_v) to (B, h, T, d_v).
    """
    ...


# %% tags=["check"]
lesson_2.check_attention(attention)

# %% [markdown]
# The package's model computes the same. In lesson 5, you will replace its attention by yours; here it is as it
# comes. (`project_key_value` projects the states and splits them into heads: see lesson 3.)

# %%
config = VanillaTransformerConfig(vocab_size=100, d_model=64, num_heads=4, d_ff=128, dropout=0.0)
model = VanillaTransformerForConditionalGeneration(config).eval()
layer = model.model.encoder.layers[0].self_attn
with torch.no_grad():
    states = torch.randn(1, 6, 64)
    query = layer.q_proj(states).view(1, 6, 4, 16).transpose(1, 2)
    key, value = layer.project_key_value(states)
    _, weights = eager_attention_forward(layer, query, key, value, None, layer.scaling)
print(f"the package divides by {1 / layer.scaling:.0f} = sqrt({layer.d_k}); the weights of head 1, one row per query:")
print(weights[0, 0])

# %% [markdown]
# **Does each word attend most to itself?** A common mistake is that a vector's product with itself is always the
# largest one. It is not: a longer vector in a similar direction wins, `q . k = |q| |k| cos`. And the scores are
# products of *different* projections of the two words, so that the model can learn whether a word attends to itself.

# %%
short, long = torch.tensor([1.0, 0.0]), torch.tensor([3.0, 1.0])
print(f"short.short = {short @ short:.0f}, short.long = {short @ long:.0f}")
share = (weights.argmax(-1) == torch.arange(6)).float().mean()
print(f"In the untrained model above, {share:.0%} of the queries attend most to their own position.")

# %% [markdown]
# ## Three kinds of score
#
# Others had compared a query with a key before (Bahdanau et al. 2014, Luong et al. 2015):
#
# | name | score |
# |---|---|
# | dot product | `q . k`, so both have the same width |
# | general, or bilinear | `q^T W k`; the Transformer's `(x W^Q) . (y W^K)` is one with `W = W^Q (W^K)^T` |
# | additive, or concat | `v . tanh(W_q q + W_k k)`: a small network with one hidden layer |
#
# The paper reports that without scaling, additive attention is better for large `d_k`; with scaling the dot product is
# as good, and much faster, because it is one matrix product. The additive score needs a tensor (T, S, hidden).
#
# ## Exercise 3: additive attention


# %% tags=["exercise"]
def additive_scores(query, key, w_query, w_key, v):
    """Return v . tanh(W_q q + W_k k) for every pair of a query and a key.

    *Shape:* query (T, d), key (S, d), w_query and w_key (d, hidden), v (hidden,) to (T, S).
    """
    ...


# %% tags=["check"]
lesson_2.check_additive_scores(additive_scores)

# %%
width = 256
query, key = torch.randn(1000, width), torch.randn(1000, width)
w_query, w_key = torch.randn(2, width, width) / width**0.5
v = torch.randn(width) / width**0.5
additive = (torch.tanh((query @ w_query)[:100, None] + (key @ w_key)[None, :100]) @ v).var()
print(
    f"variance of the scores for d_k {width}: dot product {(query * key).sum(-1).var():.0f}, additive {additive:.2f}"
)
print(f"numbers in memory for 1000 x 1000 scores: dot product {1000**2:,}, additive {1000**2 * width:,}")

# %% [markdown]
# The additive score stays small whatever `d_k` is, because tanh is at most 1. That is why it did not need the scaling.
#
# ## Exercise 4: a head of your own design
#
# Choose a query and keys by hand. There are 5 positions, and position i has the key `keys[i]`. Return one query for
# each position, so that position i attends to position i - 1 with a weight of at least 0.99 (the first one may attend
# to any). The weights are those of exercise 2, with the scores divided by `sqrt(16)`. Trained models have such heads.


# %% tags=["exercise"]
def previous_word_queries(keys):
    """Return queries that attend to the previous position. *Shape:* keys (5, 16), orthonormal rows, to (5, 16)."""
    ...


# %% tags=["check"]
lesson_2.check_previous_word_queries(previous_word_queries)

# %% [markdown]
# ## What to remember
#
# - Attention is a weighted mean of values; the weights are a softmax over the keys, one row per query.
# - The variance of `q . k` is `d_k`; dividing by `sqrt(d_k)` keeps the softmax away from where its gradient vanishes.
# - The dot product is a choice among several scores. It is the one that is a single matrix product.
