"""The paper's learning-rate schedule (section 5.3, equation 3)."""

from functools import partial

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR


def noam(step: int, d_model: int, warmup_steps: int, factor: float = 1.0) -> float:
    """factor * d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5): the learning rate of the `step`-th update.

    It rises linearly for `warmup_steps` updates, to factor / sqrt(d_model * warmup_steps), then falls as
    1 / sqrt(step).

    Raises:
        ValueError: for a step or warm-up below 1, since steps count from 1.
    """
    if step < 1 or warmup_steps < 1:
        raise ValueError(f"Steps count from 1 and the warm-up lasts at least one, got step {step}, {warmup_steps}.")
    return factor * d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)


def _lr_lambda(updates_done: int, d_model: int, warmup_steps: int) -> float:
    return noam(updates_done + 1, d_model, warmup_steps)


def get_noam_schedule(optimizer: Optimizer, d_model: int, warmup_steps: int) -> LambdaLR:
    """`noam` as a torch scheduler; the optimizer's own learning rate is its factor, 1.0 in the paper."""
    return LambdaLR(optimizer, partial(_lr_lambda, d_model=d_model, warmup_steps=warmup_steps))
