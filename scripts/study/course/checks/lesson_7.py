"""Checks of lesson 7: decoding."""

from collections.abc import Callable

import torch
from decoding_model import random_model

from hf_vanilla_transformer.model.generation_vanilla_transformer import gnmt_length_penalty

from .comparing import CheckError, compare, require, require_result

SOURCES = torch.tensor([[5, 9, 3, 7], [4, 4, 10, 6], [11, 3, 8, 5], [7, 6, 5, 4]])
LENGTH = 6


def _generate(model, source: torch.Tensor, beams: int) -> torch.Tensor:
    """Return the words of the package's own search, without the start token."""
    return model.generate(source, num_beams=beams, max_new_tokens=LENGTH)[0, 1:]


def _log_probability(model, source: torch.Tensor, words: torch.Tensor) -> float:
    inputs = torch.cat((torch.tensor([1]), words[:-1]))[None]
    log_probs = model(input_ids=source, decoder_input_ids=inputs).logits[0].log_softmax(-1)
    return log_probs.gather(1, words[:, None]).sum().item()


def _from_last_word(model, source: torch.Tensor) -> torch.Tensor:
    """Return what greedy search finds if it feeds back only the last word."""
    words = [1]
    for _ in range(LENGTH):
        logits = model(input_ids=source, decoder_input_ids=torch.tensor([words[-1:]])).logits
        words.append(int(logits[0, -1].argmax()))
    return torch.tensor(words[1:])


def _from_first_row(model, source: torch.Tensor) -> torch.Tensor:
    """Return what a search finds that reads the first row of logits instead of the last."""
    words = [1]
    for _ in range(LENGTH):
        words.append(int(model(input_ids=source, decoder_input_ids=torch.tensor([words])).logits[0, 0].argmax()))
    return torch.tensor(words[1:])


@torch.no_grad()
def check_greedy(answer: Callable) -> None:
    model = random_model()
    for row in SOURCES:
        source = row[None]
        words = answer(model, source, LENGTH)
        require_result("greedy", words)
        words = torch.as_tensor(words)
        require(
            words.shape != (LENGTH + 1,),
            "greedy returns one word too many: leave out the start token.",
        )
        mistakes = {
            "only the last word is fed back. Give the decoder all words so far, and the start token.": (
                _from_last_word(model, source)
            ),
            "the first row of the logits is read at every step. The next word is in the last row.": (
                _from_first_row(model, source)
            ),
        }
        compare("greedy", words, _generate(model, source, 1), mistakes)
    print("greedy is correct: it agrees with generate(num_beams=1).")


@torch.no_grad()
def check_beam_search(answer: Callable) -> None:
    model = random_model()
    for row in SOURCES:
        source = row[None]
        for beams in (1, 3, 5):
            words = answer(model, source, beams, LENGTH)
            require_result("beam_search", words)
            words = torch.as_tensor(words)
            require(
                words.shape == (LENGTH,),
                f"beam_search returns the shape {tuple(words.shape)}, expected ({LENGTH},): the best beam, without "
                "the start token.",
            )
            expected = _generate(model, source, beams)
            if torch.equal(words, expected):
                continue
            found, best = (_log_probability(model, source, sentence) for sentence in (words, expected))
            message = f"beam_search finds {words.tolist()} with {beams} beams, of log-probability {found:.3f}, "
            require(
                not torch.equal(words, _generate(model, source, 1)),
                message + "which is what greedy search finds: keep several candidates at every step, and begin with "
                "one beam, since equal beams have equal candidates.",
            )
            require(
                found > best,
                message + f"but {expected.tolist()} has {best:.3f}: rank the candidates of all beams together, by "
                "the sum of the log-probabilities of all their words.",
            )
            raise CheckError(
                message + f"more than the {beams} best candidates of each step lead to: keep no more and no others."
            )
    print("beam_search is correct: it agrees with generate().")


def check_length_penalised_score(answer: Callable) -> None:
    values = [(-4.0, 4, 0.6), (-5.0, 9, 0.6), (-5.0, 9, 0.3), (-2.0, 1, 1.0)]
    result = [answer(*value) for value in values]
    require_result("length_penalised_score", result[0])
    mistakes = {
        "multiplied by the penalty. Divide by it.": [v * gnmt_length_penalty(n, alpha) for v, n, alpha in values],
        "divided by |Y|^alpha, which is another formula. The paper's is ((5 + |Y|) / 6)^alpha.": [
            v / n**alpha for v, n, alpha in values
        ],
        "alpha has no effect: it is the exponent.": [v / gnmt_length_penalty(n, 1.0) for v, n, _ in values],
        "alpha multiplies the fraction. It is the exponent.": [
            v / (gnmt_length_penalty(n, 1.0) * alpha) for v, n, alpha in values
        ],
        "5 + |Y| / 6 is not (5 + |Y|) / 6: parentheses are missing.": [
            v / (5 + n / 6) ** alpha for v, n, alpha in values
        ],
        "the start token is counted. |Y| is used as it is given.": [
            v / gnmt_length_penalty(n + 1, alpha) for v, n, alpha in values
        ],
    }
    compare("length_penalised_score", result, [v / gnmt_length_penalty(n, alpha) for v, n, alpha in values], mistakes)
    print("length_penalised_score is correct.")
