"""Compare the result of an exercise with the right one and with the results of common mistakes."""

from collections.abc import Mapping
from typing import Any

import torch


class CheckError(AssertionError):
    """An exercise is not solved yet. A notebook shows the message alone, without a traceback through the checks."""

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython prints instead of a traceback, which would show the solution."""
        return [str(self)]


def require(condition: Any, message: str) -> None:
    """Raise `CheckError` with the message unless the condition holds."""
    if not condition:
        raise CheckError(message)


def require_result(name: str, result: Any) -> None:
    """Raise `CheckError` if an exercise was not done yet."""
    require(result is not None, f"{name} returns nothing yet: replace its dots by your code.")


def close(result: torch.Tensor, expected: torch.Tensor) -> bool:
    """Return whether two tensors have the same shape and differ by rounding errors only."""
    return result.shape == expected.shape and torch.allclose(result, expected, rtol=1e-4, atol=1e-6)


def compare(name: str, result: Any, expected: Any, mistakes: Mapping[str, Any]) -> None:
    """Say what is wrong with the result of the exercise `name`, or nothing if it is right.

    Args:
        mistakes: results of common mistakes, by the message that explains each.

    Raises:
        CheckError: if the result is not the expected one.
    """
    require_result(name, result)
    if isinstance(result, tuple) and not isinstance(expected, tuple):
        raise CheckError(f"{name} returns a tuple of {len(result)}: return the result alone.")
    result = torch.as_tensor(result, dtype=torch.float64)
    expected = torch.as_tensor(expected, dtype=torch.float64)
    if close(result, expected):
        return
    for message, mistake in mistakes.items():
        require(not close(result, torch.as_tensor(mistake, dtype=torch.float64)), f"{name}: {message}")
    require(
        result.shape == expected.shape,
        f"{name} returns the shape {tuple(result.shape)}, expected {tuple(expected.shape)}.",
    )
    require(expected.dim(), f"{name} is {result:.6g}, expected {expected:.6g}.")
    difference = (result - expected).abs()
    # NaN counts as the largest difference
    index = tuple(int(i) for i in torch.unravel_index(difference.nan_to_num(torch.inf).argmax(), difference.shape))
    raise CheckError(
        f"{name} has the right shape but wrong values: at {index} it is {result[index]:.4f}, "
        f"expected {expected[index]:.4f}."
    )
