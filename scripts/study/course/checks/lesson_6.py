"""Checks of lesson 6: training."""

from collections.abc import Callable

import torch
from torch.nn import functional as F

from hf_vanilla_transformer import noam
from hf_vanilla_transformer.model.loss_vanilla_transformer import smoothed_cross_entropy

from .comparing import compare, require_result


def check_learning_rate(answer: Callable) -> None:
    steps = torch.tensor([1.0, 2.0, 50.0, 200.0, 1000.0], dtype=torch.float64)
    require_result("learning_rate", answer(1, 512, 200))
    # in units of the peak, since the rates themselves are as small as the tolerance of a comparison
    peak = (512 * 200) ** -0.5
    result = [answer(int(step), 512, 200) / peak for step in steps]
    rise, fall = steps * 200**-1.5, steps**-0.5
    expected = [noam(int(step), 512, 200) / peak for step in steps]
    scale = 512**-0.5 / peak
    mistakes = {
        "the larger of the two terms is taken. It is the smaller one: min.": scale * torch.maximum(rise, fall),
        "d_model^-0.5 is missing: wider models take smaller steps.": torch.minimum(rise, fall) / peak,
        "it only rises: the term step^-0.5 is missing.": scale * rise,
        "it only falls: the term step * warmup^-1.5 is missing.": scale * fall,
        "step + 1 is used. The first update is step 1, so nothing needs to be added.": scale
        * torch.minimum((steps + 1) * 200**-1.5, (steps + 1) ** -0.5),
        "warmup has the exponent -0.5. With -1.5 the two terms meet at step = warmup.": scale
        * torch.minimum(steps * 200**-0.5, fall),
        "multiplied by the root of d_model. Divide by it.": torch.minimum(rise, fall) * 512**0.5 / peak,
    }
    compare("learning_rate", result, expected, mistakes)
    print("learning_rate is correct.")


def check_smoothed_loss(answer: Callable) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(6, 7, generator=generator)
    labels = torch.tensor([3, 4, -100, 5, 2, -100])
    log_probs = logits.log_softmax(-1)
    real = labels != -100
    one_hot = F.one_hot(labels.clamp(min=0), 7)
    target = 0.9 * one_hot + 0.1 / 6
    target[:, 0] = 0
    entropy = -(target * log_probs).sum(-1)
    without_label = torch.where(one_hot == 1, torch.tensor(0.9), torch.tensor(0.1 / 6))
    without_label[:, 0] = 0
    over_others = torch.where(one_hot == 1, torch.tensor(0.9), torch.tensor(0.1 / 5))
    over_others[:, 0] = 0
    padding_too = 0.9 * one_hot + 0.1 / 6
    with_padding = F.cross_entropy(logits, labels, reduction="sum", label_smoothing=0.1)
    mistakes = {
        "padding gets a share of eps, as in F.cross_entropy(label_smoothing=...). Nothing may predict padding: "
        "q(0) = 0.": with_padding,
        "padding gets eps / (V - 1) like every other token. Nothing may predict padding: q(0) = 0.": -(
            padding_too * log_probs
        )[real].sum(),
        "eps is spread over the V - 2 other tokens. The label gets a share, too: divide by V - 1.": -(
            over_others * log_probs
        )[real].sum(),
        "padded positions count. Leave out those labelled -100.": entropy.sum(),
        "there is no smoothing in it.": F.cross_entropy(logits, labels, reduction="sum"),
        "it is the mean. Return the sum.": entropy[real].mean(),
        "a softmax is applied twice. Apply it once, to logits.": -(target * log_probs.exp().log_softmax(-1))[
            real
        ].sum(),
        "the label does not get its own share of eps: q(label) = 1 - eps + eps / (V - 1).": -(
            without_label * log_probs
        )[real].sum(),
        "the sign is missing: log-probabilities are negative, and a loss is positive.": -entropy[real].sum(),
    }
    expected = smoothed_cross_entropy(logits, labels, 0.1, 0)
    compare("smoothed_loss", answer(logits.clone(), labels.clone(), 0.1), expected, mistakes)
    print("smoothed_loss is correct: it agrees with the package's.")


def check_accumulated_loss(answer: Callable) -> None:
    sums = torch.tensor([12.0, 1.0, 30.0])
    tokens = torch.tensor([6.0, 1.0, 10.0])
    mistakes = {
        "this is the mean of the means: a token in a short part counts more. Divide all losses by all tokens.": (
            sums / tokens
        ).mean(),
        "this is the sum of the means. Divide the sum of all losses by the number of all tokens.": (
            sums / tokens
        ).sum(),
        "divided by the number of parts. Divide by the number of tokens.": sums.mean(),
        "this is the sum. Divide it by the number of all tokens.": sums.sum(),
    }
    compare("accumulated_loss", answer(sums, tokens), sums.sum() / tokens.sum(), mistakes)
    print("accumulated_loss is correct.")
