"""Answers to lesson 7, and wrong answers that its checks reject."""

from collections.abc import Callable

import torch


def greedy(model, source, length):
    """Return the `length` words of greedy search, without the start token. *Shape:* source (1, S) to (length,)."""
    words = torch.tensor([[1]])
    for _ in range(length):
        logits = model(input_ids=source, decoder_input_ids=words).logits
        words = torch.cat((words, logits[:, -1:].argmax(-1)), 1)
    return words[0, 1:]


def beam_search(model, source, beams, length):
    """Return the `length` words of the best beam, without the start token. *Shape:* source (1, S) to (length,)."""
    sentences = torch.tensor([[1]])
    scores = torch.zeros(1)
    for _ in range(length):
        sources = source.expand(len(sentences), -1)
        logits = model(input_ids=sources, decoder_input_ids=sentences).logits[:, -1]
        # (beams, V): each beam's score and the next word's
        candidates = scores[:, None] + logits.log_softmax(-1)
        scores, index = candidates.flatten().topk(beams)
        beam = index // logits.shape[1]
        word = index % logits.shape[1]
        sentences = torch.cat((sentences[beam], word[:, None]), 1)
    return sentences[0, 1:]


def length_penalised_score(log_probability, length, alpha):
    """Return the score of a sentence by its log-probability and its length |Y|."""
    return log_probability / ((5 + length) / 6) ** alpha


def feeds_back_the_last_word(model, source, length):
    words = torch.tensor([[1]])
    for _ in range(length):
        logits = model(input_ids=source, decoder_input_ids=words[:, -1:]).logits
        words = torch.cat((words, logits[:, -1:].argmax(-1)), 1)
    return words[0, 1:]


def with_start_token(model, source, length):
    return torch.cat((torch.tensor([1]), greedy(model, source, length)))


def forgets_earlier_words(model, source, beams, length):
    sentences = torch.tensor([[1]])
    for _ in range(length):
        logits = model(input_ids=source.expand(len(sentences), -1), decoder_input_ids=sentences).logits[:, -1]
        # the scores of earlier words are not added
        index = logits.log_softmax(-1).flatten().topk(beams).indices
        words = (index % logits.shape[1])[:, None]
        sentences = torch.cat((sentences[index // logits.shape[1]], words), 1)
    return sentences[0, 1:]


def begins_with_equal_beams(model, source, beams, length):
    sentences = torch.ones(beams, 1, dtype=torch.long)
    scores = torch.zeros(beams)
    for _ in range(length):
        logits = model(input_ids=source.expand(beams, -1), decoder_input_ids=sentences).logits[:, -1]
        # the best word of each beam
        best = logits.log_softmax(-1).max(-1)
        scores = scores + best.values
        sentences = torch.cat((sentences, best.indices[:, None]), 1)
    return sentences[scores.argmax(), 1:]


def reads_the_first_row(model, source, length):
    words = torch.tensor([[1]])
    for _ in range(length):
        logits = model(input_ids=source, decoder_input_ids=words).logits
        words = torch.cat((words, logits[:, :1].argmax(-1)), 1)
    return words[0, 1:]


# for each exercise, wrong answers by words of the message that rejects them
WRONG_ANSWERS: dict[str, dict[str, Callable]] = {
    "greedy": {
        "only the last word": feeds_back_the_last_word,
        "one word too many": with_start_token,
        "first row": reads_the_first_row,
    },
    "beam_search": {
        "equal beams": begins_with_equal_beams,
        "rank the candidates of all beams": forgets_earlier_words,
    },
    "length_penalised_score": {
        "another formula": lambda value, length, alpha: value / length**alpha,
        "Divide by it": lambda value, length, alpha: value * ((5 + length) / 6) ** alpha,
        "alpha multiplies": lambda value, length, alpha: value / ((5 + length) / 6 * alpha),
        "parentheses": lambda value, length, alpha: value / (5 + length / 6) ** alpha,
        "start token is counted": lambda value, length, alpha: value / ((6 + length) / 6) ** alpha,
    },
}
