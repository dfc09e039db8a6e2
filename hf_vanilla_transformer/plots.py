"""Pictures, with matplotlib (the extra `plots`)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from matplotlib.figure import Figure

_INCHES_A_TOKEN = 0.32


def attention_map(
    weights: "torch.Tensor", queries: Sequence[str], keys: Sequence[str], title: str, of: tuple[str, str]
) -> "Figure":
    """A heat map of one head's attention: a row for each query, which sums to 1 over the keys.

    Args:
        weights: (queries, keys), section 3.2.1's softmax.
        of: what queries and keys are, for the axes.

    Raises:
        ImportError: where matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError('matplotlib is not installed: pip install "hf-vanilla-transformer[plots]".') from error
    height, width = (max(3.0, 1.6 + _INCHES_A_TOKEN * len(tokens)) for tokens in (queries, keys))
    figure = Figure(figsize=(width + 0.8, height), layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(weights.numpy(), cmap="viridis", vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(range(len(keys)), keys, rotation=90)
    axes.set_yticks(range(len(queries)), queries)
    axes.set_xlabel(of[1])
    axes.set_ylabel(of[0])
    axes.set_title(title)
    figure.colorbar(image, ax=axes, label="attention")
    return figure
