"""The paper's learning-rate schedule (section 5.3, equation 3)."""

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR


def noam(step: int, d_model: int, warmup_steps: int, factor: float = 1.0) -> float:
    """Return the learning rate of update number `step`.

    It is factor * d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5): it rises linearly for `warmup_steps`
    updates, to factor / sqrt(d_model * warmup_steps), and then falls in proportion to 1 / sqrt(step).

    Raises:
        ValueError: if `step` or `warmup_steps` is below 1; steps count from 1.
    """
    if step < 1 or warmup_steps < 1:
        raise ValueError(f"Steps count from 1 and warmup_steps must be at least 1, got {step} and {warmup_steps}.")
    return factor * d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)


def get_noam_schedule(optimizer: Optimizer, d_model: int, warmup_steps: int) -> LambdaLR:
    """Return `noam` as a torch scheduler; its factor is the optimizer's learning rate, 1.0 in the paper."""
    return LambdaLR(optimizer, lambda updates_done: noam(updates_done + 1, d_model, warmup_steps))


def factor_with_same_peak(factor: float, warmup: float, new_warmup: float) -> float:
    """Return the factor that keeps the peak of `noam`, factor / sqrt(d_model * warmup), if the warm-up changes."""
    return factor * (new_warmup / warmup) ** 0.5
