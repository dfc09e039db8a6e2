# %% [markdown]
# # Lesson 9: find the bug
#
# A wrong Transformer trains. Its loss falls, nothing crashes, and it ends a little worse than it should. So bugs are
# found by experiments: a question to which the right model has a known answer. Here are twelve broken models, each
# with one mistake from well-known write-ups and repositories. You will write three experiments, use nine that
# are given, and find out which model has which mistake. About 90 minutes; the cells themselves need a few seconds.

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
import torch
from broken_models import broken, healthy  # read that file afterwards: it holds the answers
from checks import lesson_9

torch.set_grad_enabled(False)
torch.set_printoptions(precision=3, sci_mode=False)
SOURCE = torch.tensor([[5, 9, 23, 7, 31, 12]])
TARGET = torch.tensor([[1, 8, 40, 17, 6]])

# %% [markdown]
# `healthy()` is a right model with random weights: most experiments need no training. `broken(3)` is broken model 3,
# with the same weights otherwise. In every model, padding is token 0.
#
# | fault | an experiment that shows it |
# |---|---|
# | no causal mask | a later word of the target changes earlier outputs |
# | padding visible to the encoder | padding changes the encoder's states |
# | padding visible to cross-attention | padding changes the logits, though not the encoder's states |
# | scores not scaled | the weights are further from uniform than in the healthy model |
# | heads split by view alone | the future and padding leak, and yet `weights_of_the_future` is 0 |
# | one projection for all heads | all heads have equal weights |
# | no positions | a reversed sentence has the same states, reversed |
# | doubled exponent in the positions | the slowest sine is too slow |
# | softmax in the model | every row of the logits sums to 1 |
# | pre-norm encoder | the encoder's states do not have variance 1 |
# | dropout in evaluation | two equal runs differ |
# | target not shifted | given labels, the first output depends on the first label, and the future does not leak |
#
# ## Exercise 1: does the future leak?
#
# Change one word of the target and compare the logits of the positions before it. The model is called as
# `model(input_ids=SOURCE, decoder_input_ids=TARGET).logits`, of shape (1, 5, vocabulary). Return one number, the
# largest absolute difference; so in exercises 2 and 3.


# %% tags=["exercise"]
def future_leaks(model):
    """Return how much a change of a later word of the target changes the logits before it; 0 if the model is right."""
    ...


# %% tags=["check"]
lesson_9.check_future_leaks(future_leaks)

# %% [markdown]
# ## Exercise 2: does padding leak?
#
# Translations must not depend on how sentences are batched. Add padding after the words of the source, and tell the
# model where it is: pass an `attention_mask` with 1 at words and 0 at padding.


# %% tags=["exercise"]
def padding_leaks(model):
    """Return how much padding of the source changes the logits; 0 if the model is right."""
    ...


# %% tags=["check"]
lesson_9.check_padding_leaks(padding_leaks)

# %% [markdown]
# ## Exercise 3: does the order matter?
#
# Without positions, attention is a bag of words: a reversed sentence gives the same states in reversed order. Use
# `model.model.encoder(input_ids=...).last_hidden_state`.


# %% tags=["exercise"]
def order_matters(model):
    """Return how much the states of the encoder change if the sentence is reversed; 0 if no word knows its place."""
    ...


# %% tags=["check"]
lesson_9.check_order_matters(order_matters)

# %% [markdown]
# ## More experiments


# %%
def log_weight_spread(model):
    """Return the standard deviation of the log of the encoder's weights over the keys: that of the scores."""
    weights = model(input_ids=SOURCE, decoder_input_ids=TARGET, output_attentions=True).encoder_attentions[0]
    return weights.log().std(-1).mean()


def head_difference(model):
    """Return how much the weights of the encoder's heads differ."""
    weights = model(input_ids=SOURCE, decoder_input_ids=TARGET, output_attentions=True).encoder_attentions[0]
    return (weights - weights[:, :1]).abs().max()


def weights_of_the_future(model):
    """Return the largest weight above the diagonal of the decoder's self-attention."""
    weights = model(input_ids=SOURCE, decoder_input_ids=TARGET, output_attentions=True).decoder_attentions[0]
    return weights.triu(1).max()


def encoder_padding(model):
    """Return how much padding changes the encoder's states."""
    padded = torch.cat((SOURCE, torch.zeros(1, 4, dtype=torch.long)), 1)
    after = model.model.encoder(input_ids=padded, attention_mask=(padded != 0).long()).last_hidden_state
    return (after[:, :6] - model.model.encoder(input_ids=SOURCE).last_hidden_state).abs().max()


def slowest_angle(model):
    """Return the sine in the last pair of columns at position 10: that column has the longest wave."""
    return model.model.encoder.embed_positions(0, 11)[10, -2]


def sum_of_logits(model):
    """Return the mean sum of a row of the logits."""
    return model(input_ids=SOURCE, decoder_input_ids=TARGET).logits.sum(-1).mean()


def state_variance(model):
    """Return the mean variance of an encoder state."""
    return model.model.encoder(input_ids=SOURCE).last_hidden_state.var(-1, correction=0).mean()


def chance(model):
    """Return the difference of two equal runs."""
    runs = [model(input_ids=SOURCE, decoder_input_ids=TARGET).logits for _ in range(2)]
    return (runs[0] - runs[1]).abs().max()


def first_label_leaks(model):
    """Return how much the first label changes the first output."""
    changed = TARGET.clone()
    changed[0, 0] = 30
    runs = [model(input_ids=SOURCE, labels=labels).logits[:, 0] for labels in (TARGET, changed)]
    return (runs[0] - runs[1]).abs().max()


EXPERIMENTS = [
    log_weight_spread,
    head_difference,
    weights_of_the_future,
    encoder_padding,
    slowest_angle,
    sum_of_logits,
    state_variance,
    chance,
    first_label_leaks,
]


def report(model):
    """Print the results of the given experiments for a model beside those of the healthy one."""
    for experiment in EXPERIMENTS:
        print(
            f"{experiment.__name__:22} {float(experiment(model)):9.5f}   healthy {float(experiment(healthy())):9.5f}"
        )


report(broken(1))

# %% [markdown]
# Add your own three experiments to the list, once they work: `EXPERIMENTS += [future_leaks, padding_leaks,
# order_matters]`. Then examine all twelve models.
#
# Begin with `chance`: while it is not 0, no other difference means anything. And one fault can disturb several
# experiments; the table says what tells them apart.
#
# ## Exercise 4: the diagnosis
#
# Return a dictionary such as `{1: "no positions", 2: ...}`, in the words of the table's first column.


# %% tags=["exercise"]
def diagnosis():
    """Return the fault of each model, as the table names it, by the number of the model."""
    ...


# %% tags=["check"]
lesson_9.check_diagnosis(diagnosis)

# %% [markdown]
# ## Bugs that no experiment on shapes finds
#
# Popular write-ups of the paper contain most of these faults, and more: a layer norm with `std + eps` (lesson 4),
# greedy decoding that feeds back only the last word (lesson 7), a decoder whose self-attention reads the encoder's
# output, so that the words of the target never see each other, and whose residual adds the value instead of the query.
# Some of their code cannot run: `forward` is indented into `__init__`, where nobody finds it, a table changes its
# shape in the loop that fills it, `d_model / h` is used where a shape needs `//`, and there is no `torch.unit8`.
# `tests/test_common_mistakes.py` tests for common mistakes that do run: read it as a catalogue.
#
# ## What to remember
#
# - Ask a question to which a right model has a known answer: the future, the padding, the order, two equal runs.
# - One experiment seldom decides. Two that disagree often do.
# - Random weights are enough for most bugs. Training hides them: the model learns around them.
