# %% [markdown]
# # Lesson 1: embeddings and positions
#
#     x = E[token] * sqrt(d_model) + PE(position)
#
# You will turn tokens into vectors, build the table of sinusoids, first in a loop and then without one, and show why a
# step along the sentence is a rotation. About 45 minutes; the cells themselves need a few seconds.
#
# The lessons point out *common mistakes*: claims and code that are wrong in popular write-ups of the paper.

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
import math

import matplotlib.pyplot as plt
import torch
from checks import lesson_1

from hf_vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from hf_vanilla_transformer.model.layers_vanilla_transformer import sinusoids

torch.manual_seed(0)
torch.set_printoptions(precision=3, sci_mode=False)

# %% [markdown]
# ## From numbers to vectors
#
# A token is a number. As a one-hot vector, it is as wide as the vocabulary and equally far from every other, so there
# is no meaning in it, although some write-ups say so. The embedding matrix E (vocabulary, d_model) makes it short and
# dense. E is learned, so that words that are used alike can get similar rows. Multiplying a one-hot vector by E
# selects a row, so nobody builds the one-hot vector: `E[token]` is the same, and `nn.Embedding` does just that.

# %%
matrix = torch.randn(100, 8)
tokens = torch.tensor([3, 4, 24])
one_hot = torch.nn.functional.one_hot(tokens, 100).float()
print("one-hot @ E equals E[tokens]:", torch.equal(one_hot @ matrix, matrix[tokens]))

# %% [markdown]
# The paper uses *one* matrix three times: for the encoder's input, the decoder's input and, transposed, the output
# projection. It needs one vocabulary for both languages. A common mistake is to skip it as a mere trick: without it,
# the base model has 60 % more parameters:

# %%
for tied in (True, False):
    config = VanillaTransformerConfig(vocab_size=37_000, tie_word_embeddings=tied)
    with torch.device("meta"):
        model = VanillaTransformerForConditionalGeneration(config)
    print(f"tied: {tied!s:5}  {model.num_parameters() / 1e6:5.1f} million parameters")

# %% [markdown]
# ## Exercise 1: scaled embeddings
#
# "In the embedding layers, we multiply those weights by sqrt(d_model)" (section 3.4).


# %% tags=["exercise"]
def embed(tokens, matrix):
    """Return the scaled embeddings. *Shape:* tokens (B, T), matrix (V, d_model) to (B, T, d_model)."""
    ...


# %% tags=["check"]
lesson_1.check_embed(embed)

# %% [markdown]
# **Why?** The matrix is also the output projection: with entries of standard deviation `1/sqrt(d_model)`, the logits
# begin with variance 1. But a row then has a length of about 1, while a row of sinusoids has `sqrt(d_model / 2)`,
# since `sin^2 + cos^2 = 1` in each pair. Unscaled, the position drowns the word:

# %%
d_model = 512
words = torch.randn(50, d_model) * d_model**-0.5
table = sinusoids(50, d_model).float()
print(f"length of a row: embedding {words.norm(dim=1).mean():.1f}, sinusoids {table.norm(dim=1).mean():.1f}")
for name, factor in (("unscaled", 1.0), ("scaled by sqrt(d_model)", d_model**0.5)):
    same_word = torch.cosine_similarity(factor * words[0] + table[0], factor * words[0] + table[49], dim=0)
    same_place = torch.cosine_similarity(factor * words[0] + table[0], factor * words[1] + table[0], dim=0)
    print(f"{name}: similarity of a word at two places {same_word:.2f}, of two words at one place {same_place:.2f}")

# %% [markdown]
# ## Positions
#
#     PE(pos, 2i)     = sin(pos / 10000^(2i/d_model))
#     PE(pos, 2i + 1) = cos(pos / 10000^(2i/d_model))
#
# Attention has no order: without positions, a sentence is a bag of words (lesson 9 tests it). So each position gets a
# vector of its own, as wide as the embedding, which is *added*. (The number of the position would be a poor choice: it
# grows without limit, while sinusoids stay between -1 and 1.) The index i counts pairs of columns, and not single
# columns: it runs to `d_model / 2`, and both columns of a pair have one frequency.
#
# Two common mistakes: to count `i` in steps of two *and* write `2 * i` in the exponent, and to give the odd columns a
# different frequency from the even ones. Their pictures look alike, which is why they spread:

# %%
steps = torch.arange(0, 128, 2)
paper = torch.arange(100)[:, None] / 10000 ** (steps / 128)
doubled = torch.arange(100)[:, None] / 10000 ** (2 * steps / 128)
figure, axes = plt.subplots(1, 2, figsize=(10, 3.5), layout="constrained")
for axis, (title, angle) in zip(axes, {"the paper's": paper, "doubled exponent": doubled}.items(), strict=True):
    axis.imshow(torch.stack((angle.sin(), angle.cos()), -1).flatten(1).numpy(), aspect="auto", cmap="RdBu")
    axis.set(title=title, xlabel="column", ylabel="position")
still = ((doubled[99] - doubled[0]) < 0.1).float().mean()
print(f"With the doubled exponent, {still:.0%} of the pairs hardly move within 100 positions: they carry no position.")

# %% [markdown]
# ## Exercise 2: the table, without a loop
#
# This is the loop. Write the same without one: outer products do it. The package uses float64 for the angles, because
# in float32, the angles of late positions lose their fraction; float64 is asked for here, too.


# %%
def positions_by_loop(length, d_model):
    table = torch.zeros(length, d_model, dtype=torch.float64)
    for position in range(length):
        for i in range(d_model // 2):
            angle = position / 10000 ** (2 * i / d_model)
            table[position, 2 * i] = math.sin(angle)
            table[position, 2 * i + 1] = math.cos(angle)
    return table


print("the loop agrees with the package:", torch.allclose(positions_by_loop(50, 16), sinusoids(50, 16)))


# %% tags=["exercise"]
def positions(length, d_model):
    """Return the table of sinusoids, without a loop. *Shape:* (length, d_model), float64."""
    ...


# %% tags=["check"]
lesson_1.check_positions(positions)

# %% [markdown]
# The table is not learned, so in torch it is a *buffer* and not a parameter. The state dict does not hold parameters
# only, as is often said. It holds buffers, too, unless they are registered with `persistent=False`, like the package's
# table:

# %%
layer = torch.nn.Module()
layer.register_buffer("saved", sinusoids(4, 8))
layer.register_buffer("not_saved", sinusoids(4, 8), persistent=False)
print("parameters:", list(layer.parameters()), " state dict:", list(layer.state_dict()))

# %% [markdown]
# ## A step is a rotation
#
#     sin(a + b) = sin(a) cos(b) + cos(a) sin(b)
#     cos(a + b) = cos(a) cos(b) - sin(a) sin(b)
#
# So a shift by k turns each pair of columns by the angle `k / 10000^(2i/d_model)`, the same at every position. A
# linear layer can learn it: that is the paper's reason for sinusoids. (With a frequency for each column, it is not
# true.)
#
# ## Exercise 3: the rotation


# %% tags=["exercise"]
def shift_matrix(k, d_model):
    """Return the matrix M for which PE(pos) @ M = PE(pos + k), PE(pos) being a row. *Shape:* (d_model, d_model)."""
    ...


# %% tags=["check"]
lesson_1.check_shift_matrix(shift_matrix)

# %% [markdown]
# It follows that the dot product of two positions depends on their distance alone:

# %%
table = sinusoids(200, 128)
products = table @ table.T
figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
for position in (50, 100):
    axis.plot((torch.arange(200) - position).numpy(), products[position].numpy(), label=f"from position {position}")
axis.set(xlabel="distance", ylabel="dot product")
axis.legend()
print("PE(10).PE(15) =", products[10, 15].item(), " PE(90).PE(95) =", products[90, 95].item())
print("all positions differ:", len(torch.unique(table, dim=0)) == 200)

# %% [markdown]
# ## What to remember
#
# - One matrix, three uses; scaled at the inputs only, so that words and positions have similar lengths.
# - A pair of columns has one frequency, and a shift by k rotates each pair.
# - Positions are added, need no parameters, and exist for any length. (Learned ones do as well: the paper's row E.)
