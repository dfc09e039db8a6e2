# %% [markdown]
# # Lesson 7: decoding
#
# The model gives a probability to every next word. Decoding chooses. You will write greedy search, beam search and the
# length penalty, and compare them with `generate()`. About 60 minutes; the cells themselves need a few seconds.

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
import itertools

import torch
from checks import lesson_7
from decoding_model import random_model

from hf_vanilla_transformer.model.generation_vanilla_transformer import gnmt_length_penalty

torch.set_grad_enabled(False)
torch.set_printoptions(precision=3, sci_mode=False)
model = random_model()
source = torch.tensor([[5, 9, 3, 7]])

# %% [markdown]
# The model is random and small: a vocabulary of 12, in which 0 is padding, 1 the start token and 2 the end token. It
# never writes these three, so every output has the length that we ask for. That is enough to test a search: it must
# find what *this* model finds probable, sense or nonsense.
#
# The decoder's input is the start token and all words so far; the last row of logits predicts the next word:

# %%
prefix = torch.tensor([[1, 4, 8]])
logits = model(input_ids=source, decoder_input_ids=prefix).logits
print("logits", tuple(logits.shape), " probabilities of the next word", logits[0, -1].softmax(-1))

# %% [markdown]
# ## Exercise 1: greedy search
#
# Take the most probable next word, append it, repeat. Feed back *all* words so far: the decoder attends to them. (A
# common mistake is to feed back only the last word: the output is the same token again and again, as many as the
# source has, where a translator would go on until the end token. The package feeds back only the last word, too, but
# keeps the keys and values of the earlier words in a cache: the same result, faster.)


# %% tags=["exercise"]
def greedy(model, source, length):
    """Return the `length` words of greedy search, without the start token. *Shape:* source (1, S) to (length,)."""
    ...


# %% tags=["check"]
lesson_7.check_greedy(greedy)

# %% [markdown]
# ## Greedy is not optimal
#
# The probability of a sentence is the product of the probabilities of its words; we add their logarithms. Here are the
# most probable of all 9 x 9 x 9 = 729 sentences of three words, and the one that greedy search finds:


# %%
def log_probability(words):
    """Return log P(words | source). *Shape:* (N, length) to (N,)."""
    inputs = torch.cat((torch.ones(len(words), 1, dtype=torch.long), words[:, :-1]), 1)
    logits = model(input_ids=source.expand(len(words), -1), decoder_input_ids=inputs).logits
    return logits.log_softmax(-1).gather(2, words[..., None])[..., 0].sum(1)


everything = torch.tensor(list(itertools.product(range(3, 12), repeat=3)))
scores = log_probability(everything)
found = model.generate(source, num_beams=1, max_new_tokens=3)[:, 1:]
print(f"the most probable: {everything[scores.argmax()].tolist()} {scores.max():.3f}")
print(f"greedy's:          {found[0].tolist()} {log_probability(found).item():.3f}")

# %% [markdown]
# ## Exercise 2: beam search
#
# Keep the `beams` best sentences so far. Extend each by every word; of all these, keep the `beams` best by the *sum*
# of their log-probabilities. Choose among the candidates of all beams together: two may come from the same beam, and
# none from another. Begin with a single beam that holds only the start token. (Our model never writes the end token,
# so no beam ends early.)


# %% tags=["exercise"]
def beam_search(model, source, beams, length):
    """Return the `length` words of the best beam, without the start token. *Shape:* source (1, S) to (length,)."""
    ...


# %% tags=["check"]
lesson_7.check_beam_search(beam_search)

# %%
for beams in (1, 2, 4, 9):
    found = model.generate(source, num_beams=beams, max_new_tokens=3)[:, 1:]
    print(f"{beams} beams: {found[0].tolist()}, log-probability {log_probability(found).item():.3f}")

# %% [markdown]
# ## Exercise 3: the length penalty
#
# Sentences of different length are hard to compare: each further word makes a sentence less probable, so that the
# search prefers short ones. The paper divides the log-probability by a penalty, as Wu et al. (2016) do:
#
#     score(Y) = log P(Y | X) / lp(Y),   lp(Y) = ((5 + |Y|) / 6)^alpha,   alpha = 0.6
#
# |Y| counts the end token, but not the start token. (The penalty of `generate()` is usually `|Y|^alpha`, another
# formula; the package's models use the paper's.)


# %% tags=["exercise"]
def length_penalised_score(log_probability, length, alpha):
    """Return the score of a sentence by its log-probability and its length |Y|."""
    ...


# %% tags=["check"]
lesson_7.check_length_penalised_score(length_penalised_score)

# %% [markdown]
# Log-probabilities are negative: a larger divisor brings the score nearer to 0, and favours the longer sentence.

# %%
candidates = {"a short one": (-4.0, 4), "a long one": (-5.0, 9)}
for alpha in (0.0, 0.6, 1.0):
    scores = {name: value / gnmt_length_penalty(length, alpha) for name, (value, length) in candidates.items()}
    print(f"alpha {alpha}: best is {max(scores, key=scores.__getitem__)}", {n: round(s, 2) for n, s in scores.items()})

# %% [markdown]
# The paper uses 4 beams, alpha 0.6, and outputs at most 50 tokens longer than the input. It does not sample. These are
# the defaults of the package's models:

# %%
settings = model.generation_config
print(f"num_beams {settings.num_beams}, length_penalty {settings.length_penalty}")

# %% [markdown]
# ## What to remember
#
# - Feed back the whole prefix. Add log-probabilities; do not multiply probabilities, which underflow.
# - Beam search compares candidates of all beams; with enough beams, it is exhaustive.
# - Compare sentences of different length by a penalty, and know which formula your library uses.
