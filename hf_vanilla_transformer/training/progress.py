"""Read the progress of a training run from its log: training loss, validations, overfitting."""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

import torch
from accelerate.accelerator import Accelerator
from tqdm import tqdm
from transformers import TrainerCallback

OVERFITTED = 1.05  # times the lowest validation perplexity, or an earlier loss; smaller rises may be chance


class Validation(NamedTuple):
    """The scores of one validation text after a number of updates."""

    updates: int
    text: str  # its name, if there are several
    perplexity: float
    bleu: float | None


def validations(log: Sequence[Mapping[str, float]]) -> Iterator[Validation]:
    """Yield the validations in the log of a run, in order: one for each text."""
    for entry in log:
        for key, perplexity in entry.items():
            if key.startswith("eval_") and key.endswith("perplexity"):
                # Trainer writes eval_NAME_perplexity if there are several validation texts, else eval_perplexity
                prefix = key.removesuffix("perplexity")
                name = prefix.removeprefix("eval_").rstrip("_")
                yield Validation(int(entry["step"]), name, perplexity, entry.get(f"{prefix}bleu"))


def overfitting(log: Sequence[Mapping[str, float]]) -> tuple[Validation, Validation] | None:
    """Return the best and the last validation of a run that overfits, or None.

    It does if the validation perplexity is well above its lowest value, while the training loss has not risen since,
    as it would if training diverged. With several validation texts, the first counts.
    """
    found = list(validations(log))
    own = [each for each in found if each.text == found[0].text and not math.isnan(each.perplexity)]
    if not own:
        return None
    best = min(own, key=attrgetter("perplexity"))
    losses = [entry["loss"] for entry in log if "loss" in entry and entry["step"] >= best.updates]
    diverges = bool(losses) and losses[-1] > OVERFITTED * losses[0]
    return None if diverges or own[-1].perplexity <= OVERFITTED * best.perplexity else (best, own[-1])


class OverfittingNotice(TrainerCallback):
    """Tell the user when a run begins to overfit."""

    def __init__(self):
        # the best validation in the last message
        self._told: Validation | None = None

    def on_evaluate(self, args, state, control, **kwargs):
        found = overfitting(state.log_history)
        # Once for each best validation, because those after it are mostly worse still
        if found is None or found[0] == self._told:
            return
        best, last = found
        self._told = best
        text = f" of {best.text}" if best.text else ""
        if state.is_world_process_zero:
            # print would break a progress bar
            tqdm.write(
                f"Overfitting: the validation perplexity{text} was lowest after {best.updates:,} updates, "
                f"{best.perplexity:,.2f}, and is {last.perplexity:,.2f} after {last.updates:,}. More text or more "
                "--dropout helps; --early_stopping_patience stops in time.",
                file=sys.stderr,
            )


class UnsmoothedLoss:
    """The cross-entropy of training without label smoothing, averaged over real target tokens on all processes."""

    def __init__(self, accelerator: Accelerator):
        self._accelerator = accelerator
        # Nats and tokens, on the device, because reading them in each update would wait for a GPU
        self._sums = torch.zeros(2, device=accelerator.device)

    def add(self, nats: torch.Tensor, tokens: torch.Tensor) -> None:
        """Add the sum over a batch's tokens, unless it is not finite."""
        self._sums += torch.where(nats.isfinite(), torch.stack((nats, tokens)), 0.0)

    def mean(self) -> float | None:
        """Return the mean in nats since the last call, or None if nothing was added."""
        nats, tokens = self._accelerator.reduce(self._sums).tolist()
        self._sums = torch.zeros_like(self._sums)
        return nats / tokens if tokens else None
