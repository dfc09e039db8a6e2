"""Measure Table 1 of the paper: the cost of each type of layer against length n and width d (section 4).

python scripts/benchmarks/complexity.py [--output complexity.png]     # 5 minutes

Each layer runs a forward pass. Exponents are least-squares slopes of log time against log n and log d, once for n far
above d and once for n far below d, printed beside the paper's. "self-attention" is what Table 1 counts,
softmax(Q K^T) V with 4 n^2 d operations; "attention sub-layer" is the model's own attention with one head, whose four
projections add 8 n d^2. Exits 0 only if every exponent is within 0.35 of the paper's.
"""

import argparse
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from measuring import describe_machine, log, peak_memory_increase
from torch import nn
from torch.utils.benchmark import Timer

from hf_vanilla_transformer import VanillaTransformerConfig
from hf_vanilla_transformer.model.layers_vanilla_transformer import VanillaTransformerAttention
from hf_vanilla_transformer.plugins.study import plots

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KERNEL_SIZE = 3  # of the convolution, k in its path length log_k(n)
# sequences per batch: with one, the n calls of a recurrent layer and the packing of weights would dominate the time
BATCH_SIZES = {"LSTM": 32, "GRU": 32, "convolution": 8}
TABLE_1 = {  # exponents of n and d, sequential operations, longest path
    "self-attention": (2, 1, "1", "1"),
    "LSTM": (1, 2, "n", "n"),
    "GRU": (1, 2, "n", "n"),
    "convolution": (1, 2, "1", "log_k(n)"),
}
# ((lengths, width), (widths, length)) for n at least four times d (ABOVE) and d at least four times n (BELOW)
Regime = dict[str, tuple[tuple[tuple[int, ...], int], tuple[tuple[int, ...], int]]]
ABOVE: Regime = {
    "self-attention": (((2048, 4096, 8192), 256), ((512, 1024, 2048), 8192)),
    "LSTM": (((1024, 2048, 4096), 256), ((384, 512, 768), 3072)),
    "GRU": (((1024, 2048, 4096), 256), ((384, 512, 768), 3072)),
    "convolution": (((1024, 2048, 4096), 256), ((256, 512, 1024), 4096)),
}
BELOW: Regime = {
    "self-attention": (((128, 256, 512), 2048), ((1024, 2048, 4096), 256)),
    "LSTM": (((32, 64, 128), 512), ((256, 384, 512), 64)),
    "GRU": (((32, 64, 128), 512), ((256, 384, 512), 64)),
    "convolution": (((64, 128, 256), 1024), ((512, 1024, 2048), 128)),
}
CROSSOVER_WIDTH = 512


def forward_pass(kind: str, n: int, d: int) -> Callable[[], object]:
    """Return a function that runs a layer of width d once over n positions."""
    states = torch.randn(BATCH_SIZES.get(kind, 1), n, d)
    if kind == "self-attention":
        queries, keys, values = states[0], torch.randn(n, d), torch.randn(n, d)
        return lambda: ((queries / math.sqrt(d)) @ keys.T).softmax(-1) @ values
    if kind == "attention sub-layer":
        config = VanillaTransformerConfig(d_model=d, num_heads=1)
        config._attn_implementation = "eager"
        attention = VanillaTransformerAttention(config, layer_idx=0).eval()
        return lambda: attention(states)
    if kind == "convolution":
        convolution, columns = nn.Conv1d(d, d, KERNEL_SIZE, padding="same"), states.mT.contiguous()
        return lambda: convolution(columns)
    recurrent = getattr(nn, kind)(d, d, batch_first=True)
    return lambda: recurrent(states)


def measure_seconds(kind: str, n: int, d: int) -> float:
    """Return the seconds of a forward pass per sequence.

    This is the minimum, because other load on the machine only adds time, on one thread, because several need time to
    wake up.
    """
    timer = Timer("forward()", globals={"forward": forward_pass(kind, n, d)}, num_threads=1)
    return min(timer.blocked_autorange(min_run_time=0.7).times) / BATCH_SIZES.get(kind, 1)


def measure_memory(kind: str, n: int, d: int) -> float:
    """Return the peak megabytes of a forward pass per sequence, beyond weights and input."""
    return peak_memory_increase(forward_pass(kind, n, d)) / BATCH_SIZES.get(kind, 1)


def fit_exponent(sizes: Sequence[int], measures: Sequence[float]) -> float:
    """Return the exponent b of measure = a * size^b, by least squares on the logarithms."""
    x, y = (torch.tensor(values, dtype=torch.float64).log() for values in (sizes, measures))
    return (((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum()).item()


def measure_exponents(kind: str, regime: Regime) -> tuple[float, float]:
    """Return the exponents of n and of d in the time of a layer."""
    (lengths, d), (widths, n) = regime[kind]
    of_n = fit_exponent(lengths, [measure_seconds(kind, length, d) for length in lengths])
    of_d = fit_exponent(widths, [measure_seconds(kind, n, width) for width in widths])
    log(f"{kind}: n^{of_n:.2f} at d {d}, d^{of_d:.2f} at n {n}")
    return of_n, of_d


def crossover(lengths: Sequence[int], ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    """Return the length from which `ours` costs more than `theirs`, interpolated between logarithms; None if never."""
    gaps = [math.log(a / b) for a, b in zip(ours, theirs, strict=True)]
    for i in range(len(gaps) - 1):
        if gaps[i] <= 0 < gaps[i + 1]:
            share = -gaps[i] / (gaps[i + 1] - gaps[i])
            return math.exp(math.log(lengths[i]) * (1 - share) + math.log(lengths[i + 1]) * share)
    return None


def print_exponents() -> float:
    """Print the measured exponents beside the paper's and return the largest deviation."""
    print("| layer | paper | n above d | n below d | sequential operations | longest path | MB at n 4096, d 256 |")
    print("|---|---|---|---|---|---|---|")
    worst = 0.0
    for kind, (of_n, of_d, steps, path) in TABLE_1.items():
        above, below = measure_exponents(kind, ABOVE), measure_exponents(kind, BELOW)
        for measured in (above, below):
            worst = max(worst, abs(measured[0] - of_n), abs(measured[1] - of_d))
        cells = [f"n^{n:.2f} d^{d:.2f}" for n, d in (above, below)]
        print(
            f"| {kind} | n^{of_n} d^{of_d} | {cells[0]} | {cells[1]} | O({steps}) | O({path}) "
            f"| {measure_memory(kind, 4096, 256):.0f} |",
            flush=True,
        )
    print(f"\nLargest deviation from the paper's exponents: {worst:.2f}.")
    return worst


def print_crossovers() -> tuple[list[int], dict[str, list[float]]]:
    """Print where self-attention becomes more expensive than other layers; return lengths and seconds per sequence."""
    d = CROSSOVER_WIDTH
    lengths = [d // 8, d // 4, d // 2, d, 2 * d, 4 * d, 8 * d]
    times = {kind: [measure_seconds(kind, n, d) for n in lengths] for kind in (*TABLE_1, "attention sub-layer")}
    print(f"\nd = {d}, milliseconds per sequence:\n\n| n | {' | '.join(times)} |\n{'|---' * (1 + len(times))}|")
    for i, n in enumerate(lengths):
        print(f"| {n} | {' | '.join(f'{1000 * column[i]:.2f}' for column in times.values())} |")
    print()
    for kind in ("LSTM", "GRU", "convolution"):
        at = crossover(lengths, times["self-attention"], times[kind])
        where = "beyond the lengths above" if at is None else f"at n = {at:.0f} = {at / d:.2f} d"
        print(f"Self-attention becomes more expensive than {kind} {where}.")
    return lengths, times


def plot_times(lengths: Sequence[int], seconds: Mapping[str, Sequence[float]], d_model: int) -> "Figure":
    """Plot the time of one layer of each type by sequence length n, and mark n = d.

    Args:
        lengths: sequence lengths n.
        seconds: layer type to the seconds per sequence at each length.
        d_model: width d of the layers.
    """
    figure = plots.new_figure(8, 5)
    axes = figure.add_subplot()
    for i, (kind, times) in enumerate(seconds.items()):
        axes.plot(lengths, [1000 * time for time in times], label=kind, marker=".", **plots.line_style(i))
    axes.axvline(d_model, color="gray", linewidth=0.8, label=f"n = d = {d_model}")
    axes.set(xscale="log", yscale="log", xlabel="length n", ylabel="milliseconds per sequence")
    axes.set_xticks(lengths, [str(length) for length in lengths])
    axes.minorticks_off()
    axes.legend()
    return figure


@torch.inference_mode()
def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", metavar="FILE", help="also draw the times, as .png or .svg")
    args = parser.parse_args()
    if args.output:
        plots.save(plots.new_figure(1, 1), args.output)  # fail now, not after 5 minutes, if it cannot be written
    torch.manual_seed(0)
    print(f"{describe_machine()}; on one thread\n")
    worst = print_exponents()
    lengths, times = print_crossovers()
    if args.output:
        plots.save(plot_times(lengths, times, CROSSOVER_WIDTH), args.output)
    return int(worst > 0.35)


if __name__ == "__main__":
    sys.exit(main())
