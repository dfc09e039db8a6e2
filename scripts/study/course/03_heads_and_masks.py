# %% [markdown]
# # Lesson 3: heads and masks
#
#     MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W^O
#
# You will split vectors into heads without mixing up words, build the masks of the encoder and the decoder, and apply
# them so that they work. About 60 minutes; the cells themselves need a few seconds.

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
from checks import lesson_3
from torch import nn

from hf_vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration

torch.manual_seed(0)
torch.set_printoptions(precision=2, sci_mode=False, linewidth=110)

# %% [markdown]
# ## Why several heads?
#
# One head has one weight per pair of words: one reason to look. Eight heads can look at eight words for eight
# reasons, such as who, when and where. The paper splits `d_model = 512` into h = 8 heads of `d_k = 64`. The heads run
# in parallel, but speed is not their purpose: together they cost as much as one head of width 512.
#
# `nn.Linear(512, 512)` computes all heads' projections at once. Its weight is (out, in), so it computes `x @
# weight.T`; its first 64 rows are head 1's `W^Q`. The paper writes no bias here, and the package has none. The outputs
# of the heads are put side by side, and `W^O` (8 * 64, 512) mixes them. Its result is as wide as the layer's input, or
# the two could not be added (lesson 4).

# %%
linear = nn.Linear(512, 32, bias=False)
x = torch.rand(4, 38, 512)
print(f"weight {tuple(linear.weight.shape)}, linear(x) {tuple(linear(x).shape)}")
# `==` would compare rounding errors too
print("the same as x @ weight.T:", torch.allclose(linear(x), x @ linear.weight.T, atol=1e-5))
# narrow(dim, start, length) is a slice that shares the memory of its tensor
head_1 = linear.weight.narrow(0, 0, 8)
print("narrow(0, 0, 8) is weight[:8]:", torch.equal(head_1, linear.weight[:8]))

# %% [markdown]
# ## Which product?
#
# After `view`, the queries have the shape (batch, 33 words, 8 heads, 64). A product of the last two dimensions is then
# 8 x 8: it compares the *heads* of one word with each other, and no word sees another. The heads must move in front of
# the words first:

# %%
query, key = torch.rand(2, 256, 33, 8, 64)
print("not moved: ", tuple((query @ key.transpose(2, 3)).shape))
print("moved:     ", tuple((query.transpose(1, 2) @ key.transpose(1, 2).transpose(2, 3)).shape))

# %% [markdown]
# The second is right, but not because its 8 x 33 x 33 = 8712 numbers hold more information than the 33 x 8 x 8 = 2112
# of the first, as is sometimes argued. The number of scores proves nothing (for sentences of 4 words, the wrong
# product has more). The reason is what the scores compare: attention is between words.
#
# The other mistake is `view(batch, 8, 33, 64)`, without `transpose`. It has the right shape, and no error tells you
# that its "head 1" holds pieces of the first words. Look at three words and two heads, each number being 10 *
# word + head:

# %%
words = torch.tensor([[[0, 1], [10, 11], [20, 21]]])  # (1 sentence, 3 words, 2 heads of width 1)
print("view, transpose: head 1 holds", words.view(1, 3, 2, 1).transpose(1, 2)[0, 0].flatten().tolist())
print("view only:       head 1 holds", words.view(1, 2, 3, 1)[0, 0].flatten().tolist())

# %% [markdown]
# ## Exercise 1: scores of all heads
#
# Keys may have another length S than queries: in the attention from decoder to encoder, they do. (A common mistake is
# to reshape the keys with the query's length, which works until the two sentences differ.)


# %% tags=["exercise"]
def head_scores(query, key, num_heads):
    """Return the scores of every head, scaled by 1/sqrt(d_k), where d_k = d_model / num_heads.

    *Shape:* query (B, T, d_model), key (B, S, d_model) to (B, num_heads, T, S).
    """
    ...


# %% tags=["check"]
lesson_3.check_head_scores(head_scores)

# %% [markdown]
# ## What breaks when heads share their weights
#
# A common mistake is to give all heads one small matrix of 64 x 64, applied to each head's 64 columns of the
# embedding. The shapes are right, and the parameters are 64 times fewer. But then head 1 can read only the first 64
# columns of its input. Here, with 4 heads of width 16, we change one column of the input and see which heads notice:

# %%
config = VanillaTransformerConfig(vocab_size=50, d_model=64, num_heads=4, d_ff=128, dropout=0.0)
model = VanillaTransformerForConditionalGeneration(config).eval()
model.set_attn_implementation("eager")
attention = model.model.encoder.layers[0].self_attn
states = torch.randn(1, 6, 64)
changed = states.clone()
changed[..., 0] += 1


def heads_that_notice():
    with torch.no_grad():
        difference = attention(states)[1] - attention(changed)[1]
    return [head + 1 for head in range(4) if difference[0, head].abs().max() > 1e-6]


print("own projections:    the heads that notice a change of column 0:", heads_that_notice())
small = torch.randn(16, 16) / 4
for projection in (attention.q_proj, attention.k_proj):
    projection.weight.data = torch.block_diag(small, small, small, small)
print("shared projections: the heads that notice a change of column 0:", heads_that_notice())
for projection in (attention.q_proj, attention.k_proj):
    projection.weight.data = torch.randn(16, 64).div(8).repeat(4, 1)
with torch.no_grad():
    weights = attention(states)[1][0]
print("one full projection, repeated: the heads differ by at most", (weights - weights[:1]).abs().max().item())

# %% [markdown]
# In the last line, all heads read all columns through the same matrix: they are four copies of one head.
#
# ## Masks
#
# `torch.triu` keeps the upper triangle of a matrix; `diagonal` says where it starts.

# %%
for diagonal in (0, 1, -1):
    print(f"triu, diagonal={diagonal}\n{torch.triu(torch.ones(5, 5, dtype=torch.int), diagonal=diagonal)}")

# %% [markdown]
# ## Exercise 2: the causal mask
#
# While training, the decoder reads the whole target at once, and predicts every word from the words before it. Because
# its input is the target *shifted right* by one position, position t may see the inputs up to t, itself included.
# Return True where attention is allowed. Use `torch.triu` or `torch.tril`.


# %% tags=["exercise"]
def causal_mask(length):
    """Return a boolean mask with one row per query, True at the keys that it may attend to. *Shape:* (T, T)."""
    ...


# %% tags=["check"]
lesson_3.check_causal_mask(causal_mask)

# %% [markdown]
# ## Exercise 3: padding, and both together
#
# Sentences of a batch are padded to one length. Padding hides *keys*: no query may attend to it. Leave the rows of
# padded queries as they are: their outputs are never used, and hiding them would leave rows without any allowed key,
# which have no softmax. Return booleans again, True where attention is allowed.


# %% tags=["exercise"]
def target_mask(tokens, pad):
    """Return the decoder's mask: causal, and without padding. *Shape:* (B, T) to (B, 1, T, T), the 1 for all heads."""
    ...


# %% tags=["check"]
lesson_3.check_target_mask(target_mask)

# %% [markdown]
# The masks as pictures; yellow is allowed. The encoder has the first, the decoder the third, and the attention from
# decoder to encoder the first again, with the target's rows: it needs the source's padding mask too.

# %%
tokens = torch.tensor([[2, 2, 2, 2, 1, 1, 1]])
padding = (tokens != 1)[:, None].expand(1, 7, 7)[0]
causal = torch.ones(7, 7).triu(1) == 0
figure, axes = plt.subplots(1, 3, figsize=(9, 3), layout="constrained")
for axis, (title, mask) in zip(
    axes, {"padding": padding, "causal": causal, "both": padding & causal}.items(), strict=True
):
    axis.imshow(mask.numpy(), vmin=0, vmax=1)
    axis.set(title=title, xlabel="key", ylabel="query")

# %% [markdown]
# ## Exercise 4: masked weights
#
# Hide a key by a score so low that its weight becomes exactly 0. (Section 3.2.3 of the paper says so: "masking out
# (setting to -inf)".) The mask is True where attention is allowed. Return the weights after the softmax. Three traps:
#
# - What does True mean? If masks are 1 where attention is hidden, but the attention hides where the mask is 0, words
#   see only the padding and the future. That is a common mistake.
# - `scores.masked_fill(...)` returns a new tensor; `masked_fill_` changes the old one.
# - A row may have no allowed key at all, as in an empty sentence. It must not become NaN: use the lowest *finite*
#   number, `torch.finfo(scores.dtype).min`, and not `-inf`. A number such as -1e9 does not exist in float16: it
#   overflows to `-inf`, or torch refuses it.


# %% tags=["exercise"]
def masked_weights(scores, mask):
    """Return the softmax over the allowed keys.

    *Shape:* scores (B, h, T, S), mask (B, 1, T, S) to (B, h, T, S).
    """
    ...


# %% tags=["check"]
lesson_3.check_masked_weights(masked_weights)

# %% [markdown]
# Others set the *weights* of hidden keys to 0 and normalise the rows again. In exact arithmetic that is the same,
# since both are `exp(score) / (sum of the allowed exp(scores))`. An example, a row of the causal mask:

# %%
scores = torch.tensor([3.5, 3.62, 1.0])
after = scores.softmax(-1) * torch.tensor([1, 1, 0])
before = scores.masked_fill(torch.tensor([False, False, True]), torch.finfo(torch.float32).min).softmax(-1)
print("zeroed and normalised again:", after / after.sum(), " masked before:", before)
# another example, with a score of -1e9, which is low enough in float32
print("2 of 4 hidden:", torch.tensor([3.5, 2.9, 1, 1]).masked_fill(torch.arange(4) >= 2, -1e9).softmax(-1))
print("-1e9 in float16:", torch.tensor(-1e9).half().item())

# %% [markdown]
# **A mask for each head, in which order?** Some code merges batch and heads into one dimension of B * h. In
# `scores.flatten(0, 1)`, the h heads of sentence 1 come first. `mask.repeat(h, 1, 1)` has all *sentences* first, so
# heads get the mask of another sentence. `repeat_interleave(h, 0)` is right; not merging is simpler, as (B, 1, T, S)
# fits.

# %%
sentence = torch.tensor([1, 2])
print(
    "scores belong to sentences",
    sentence.repeat_interleave(3).tolist(),
    "| repeat(3) gives",
    sentence.repeat(3).tolist(),
)

# %% [markdown]
# Does it work in the model? If the masks are right, changing a later word changes no earlier output, and padding
# changes nothing at all:

# %%
model = VanillaTransformerForConditionalGeneration(config).eval()
source, target = torch.randint(3, 50, (1, 6)), torch.randint(3, 50, (1, 5))
with torch.no_grad():
    logits = model(input_ids=source, decoder_input_ids=target).logits
    later = target.clone()
    later[0, 3] = 7
    moved = (model(input_ids=source, decoder_input_ids=later).logits - logits)[0].abs().amax(-1)
    padded = torch.cat((source, torch.zeros(1, 3, dtype=torch.long)), 1)
    mask = (padded != 0).long()
    difference = model(input_ids=padded, attention_mask=mask, decoder_input_ids=target).logits - logits
print("word 4 changed; the outputs of the 5 positions move by", moved)
print(f"source padded by 3; the outputs move by at most {difference.abs().max():.1e}")

# %% [markdown]
# ## What to remember
#
# - `view(B, T, h, d_k).transpose(1, 2)`: split the columns, then move the heads in front of the words.
# - Every head has its own matrices, over all columns of the input.
# - Masks hide keys, before the softmax, with a finite number: padding in both stacks *and* between them, the future
#   only in the decoder.
