# %% [markdown]
# # Lesson 5: your own attention inside the real model
#
# transformers lets you plug a function into a model by name: `AttentionInterface.register`. You will write one, train
# the package's model with it, on the copy task and on English-German phrases, and compare with the package's own.
# Then you will change it. About 60 minutes; the cells themselves need about half a minute on two cores.

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
from checks import lesson_5
from transformers import AttentionInterface

from hf_vanilla_transformer import (
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    train_tokenizer,
)
from hf_vanilla_transformer.data.phrases import splits
from hf_vanilla_transformer.training.schedule import get_noam_schedule

torch.manual_seed(0)
# 0 is padding and 1 the start token
END = 2

# %% [markdown]
# ## A task: copy a sentence of 6 integers
#
# To write word t, the decoder must find word t of the source: attending by position is enough.


# %%
def copy_batch(size):
    """Return random sentences of 6 integers and the end token: both source and target. *Shape:* (size, 7)."""
    return torch.cat((torch.randint(3, 11, (size, 6)), torch.full((size, 1), END)), 1)


def build(attention, vocab_size=11):
    """Return a small model that uses the attention function registered as `attention`."""
    torch.manual_seed(0)
    config = VanillaTransformerConfig(
        vocab_size=vocab_size,
        d_model=32,
        num_heads=2,
        d_ff=64,
        num_encoder_layers=1,
        num_decoder_layers=1,
        dropout=0.0,
    )
    model = VanillaTransformerForConditionalGeneration(config)
    model.set_attn_implementation(attention)
    return model.train()


def train(model, batches):
    """Train on batches of (source, attention mask, labels) with the schedule of lesson 6, and return the losses."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1.0, betas=(0.9, 0.98), eps=1e-9)
    schedule = get_noam_schedule(optimizer, model.config.d_model, warmup_steps=100)
    losses = []
    for source, mask, labels in batches:
        loss = model(input_ids=source, attention_mask=mask, labels=labels).loss
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def train_to_copy(attention, updates=300):
    """Return the losses of a training run on the copy task, and the share of new sentences copied exactly."""
    model = build(attention)
    losses = train(model, ((rows, None, rows) for rows in (copy_batch(32) for _ in range(updates))))
    rows = copy_batch(200)
    copied = model.eval().generate(rows, num_beams=1, min_new_tokens=6, max_new_tokens=6)
    return losses, (copied[:, 1:] == rows[:, :6]).all(1).float().mean().item()


# "eager" is the name of the package's own attention function
package_losses, package_share = train_to_copy("eager")
implementations = {"the package's": "eager"}
print(f"the package's attention: last loss {package_losses[-1]:.3f}, {package_share:.0%} copied exactly")

# %% [markdown]
# ## Exercise 1: an attention function
#
# The attention layer of the model, `module`, has projected, split and transposed for you, and projects the output of
# the heads afterwards. Note the shape of the output: heads *after* words again, so that they can be put side by side.
# `scaling` is the factor of the scores. `attention_mask` is added to them: it is 0 where attention is allowed, and the
# lowest finite number elsewhere; or it is None, if nothing is hidden. You may ignore `dropout`, which is 0 here, and
# `kwargs`.


# %% tags=["exercise"]
def student_attention(module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs):
    """Return the output of the heads and the weights.

    *Shape:* query (B, h, T, d_k), key (B, h, S, d_k), value (B, h, S, d_v), mask (B, 1, T, S) to output (B, T, h, d_v)
    and weights (B, h, T, S).
    """
    ...


# %% tags=["check"]
lesson_5.check_student_attention(student_attention)
AttentionInterface.register("course_student", student_attention)
losses, share = train_to_copy("course_student")
print(f"your attention: last loss {losses[-1]:.3f}, {share:.0%} copied exactly")
differences = [abs(loss - other) for loss, other in zip(losses, package_losses, strict=True)]
print("largest difference of a loss to the package's:", max(differences))
implementations["yours"] = "course_student"

# %% [markdown]
# The losses are equal but for rounding, since the random seed, the data and the computation are the same.
#
# ## Real sentences
#
# 2560 pairs of the English-German phrases that come with the package, once, in 40 updates. That is far from a
# translator (`bash scripts/quickstart.sh` trains one in minutes), but it shows that your function handles padding.

# %%
phrases = splits()["train"][:2560]
tokenizer = train_tokenizer([text for phrase in phrases for text in (phrase.en, phrase.de)], vocab_size=600)


def phrase_batches():
    for start in range(0, len(phrases), 64):
        rows = phrases[start : start + 64]
        source = tokenizer([row.en for row in rows], return_tensors="pt", padding=True)
        target = tokenizer([row.de for row in rows], return_tensors="pt", padding=True)
        # positions labelled -100 do not count in the loss
        labels = target["input_ids"].masked_fill(target["attention_mask"] == 0, -100)
        yield source["input_ids"], source["attention_mask"], labels


def train_on_phrases(attention):
    return train(build(attention, len(tokenizer)), phrase_batches())


figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
for (name, implementation), style in zip(implementations.items(), ("-", "--"), strict=False):
    axis.plot(train_on_phrases(implementation), style, label=name)
axis.set(xlabel="update", ylabel="loss", title="phrases")
axis.legend()

# %% [markdown]
# ## Exercise 2: change it
#
# A *local* attention looks only at nearby words. Write the mask that makes it so, with the same two values as
# `attention_mask`. Before you go on, guess: can the model copy if words see only their neighbours? Can it translate?


# %% tags=["exercise"]
def window_mask(length, width):
    """Return 0 where query and key are at most `width` apart, else the lowest finite float32.

    *Shape:* (length, length).
    """
    ...


# %% tags=["check"]
lesson_5.check_window_mask(window_mask)


def local_attention(module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs):
    """Attend to neighbours in self-attention, and to everything from decoder to encoder."""
    scores = query @ key.transpose(2, 3) * scaling
    if attention_mask is not None:
        scores = scores + attention_mask
    if module not in cross_attention:
        # not added: the sum of two lowest numbers is -inf
        scores = scores.masked_fill(window_mask(query.shape[2], 1) < 0, torch.finfo(scores.dtype).min)
    weights = scores.softmax(-1)
    return (weights @ value).transpose(1, 2), weights


model = build("eager")
cross_attention = {layer.encoder_attn for layer in model.model.decoder.layers}
AttentionInterface.register("course_local", local_attention)
model.set_attn_implementation("course_local")
losses = train(model, ((rows, None, rows) for rows in (copy_batch(32) for _ in range(300))))
print(f"copy task, every word sees only its neighbours in self-attention: last loss {losses[-1]:.3f}")

# %% [markdown]
# The model still learns to copy, a little later: what copying needs is the attention from decoder to encoder.
#
# ## What to remember
#
# - To replace the attention of a model, write one function of (module, query, key, value, mask, scaling), `register`
#   it, and call `set_attn_implementation`.
# - The output has the heads after the words; the mask is added before the softmax.
# - Same random seed, same data, same computation: the same loss. That is the strongest test of a re-implementation.
