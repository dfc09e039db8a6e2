"""What a layer of each type costs against length n and width d: Table 1 of the paper, measured (section 4).

python scripts/benchmarks/complexity.py [--output complexity.png]     # 5 minutes

Every layer runs forward. Exponents are least-squares slopes of log time against log n and log d, for n far above d and
far below it, beside the paper's. Self-attention is what Table 1 counts, softmax(Q K^T) V, 4 n^2 d operations;
"attention sub-layer" is the model's own with one head, whose four projections add 8 n d^2.
"""

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from measuring import machine, peak_during, say
from torch import nn
from torch.utils.benchmark import Timer

from hf_vanilla_transformer import VanillaTransformerConfig
from hf_vanilla_transformer.model.layers_vanilla_transformer import VanillaTransformerAttention
from hf_vanilla_transformer.study import plots

KERNEL = 3  # of the convolution; its path length is in the paper's column log_k(n)
# sequences at a time: with one, the n calls of a recurrent layer and the packing of weights would rule, not arithmetic
SEQUENCES = {"LSTM": 32, "GRU": 32, "convolution": 8}
TABLE_1 = {  # exponents of n and d, sequential operations, longest path
    "self-attention": (2, 1, "1", "1"),
    "LSTM": (1, 2, "n", "n"),
    "GRU": (1, 2, "n", "n"),
    "convolution": (1, 2, "1", "log_k(n)"),
}
# (lengths at the width), (widths at the length): n at least four times d, and d at least four times n
ABOVE = {
    "self-attention": (((2048, 4096, 8192), 256), ((512, 1024, 2048), 8192)),
    "LSTM": (((1024, 2048, 4096), 256), ((384, 512, 768), 3072)),
    "GRU": (((1024, 2048, 4096), 256), ((384, 512, 768), 3072)),
    "convolution": (((1024, 2048, 4096), 256), ((256, 512, 1024), 4096)),
}
BELOW = {
    "self-attention": (((128, 256, 512), 2048), ((1024, 2048, 4096), 256)),
    "LSTM": (((32, 64, 128), 512), ((256, 384, 512), 64)),
    "GRU": (((32, 64, 128), 512), ((256, 384, 512), 64)),
    "convolution": (((64, 128, 256), 1024), ((512, 1024, 2048), 128)),
}
CROSSING_WIDTH = 512


def layer(kind: str, n: int, d: int) -> Callable[[], Any]:
    """One forward pass of a layer of width d over n positions."""
    states = torch.randn(SEQUENCES.get(kind, 1), n, d)
    if kind == "self-attention":
        queries, keys, values = states[0], torch.randn(n, d), torch.randn(n, d)
        return lambda: ((queries / math.sqrt(d)) @ keys.T).softmax(-1) @ values
    if kind == "attention sub-layer":
        config = VanillaTransformerConfig(d_model=d, num_heads=1)
        config._attn_implementation = "eager"
        attention = VanillaTransformerAttention(config, layer_idx=0).eval()
        return lambda: attention(states)
    if kind == "convolution":
        convolution, columns = nn.Conv1d(d, d, KERNEL, padding="same"), states.mT.contiguous()
        return lambda: convolution(columns)
    recurrent = getattr(nn, kind)(d, d, batch_first=True)
    return lambda: recurrent(states)


def seconds(kind: str, n: int, d: int) -> float:
    """The least time of one sequence: what else the machine does only adds. One thread: more need time to wake up."""
    timer = Timer("act()", globals={"act": layer(kind, n, d)}, num_threads=1)
    return min(timer.blocked_autorange(min_run_time=0.7).times) / SEQUENCES.get(kind, 1)


def megabytes(kind: str, n: int, d: int) -> float:
    """What a pass needs at its peak beyond weights and input, for one sequence."""
    return peak_during(layer(kind, n, d)) / SEQUENCES.get(kind, 1)


def slope(sizes: Sequence[int], measures: Sequence[float]) -> float:
    """The exponent b of measure = a * size^b, by least squares on the logarithms."""
    x, y = (torch.tensor(values, dtype=torch.float64).log() for values in (sizes, measures))
    return (((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum()).item()


def exponents(kind: str, regime: dict[str, Any]) -> tuple[float, float]:
    """Of n and of d."""
    (lengths, d), (widths, n) = regime[kind]
    of_n = slope(lengths, [seconds(kind, length, d) for length in lengths])
    of_d = slope(widths, [seconds(kind, n, width) for width in widths])
    say(f"{kind}: n^{of_n:.2f} at d {d}, d^{of_d:.2f} at n {n}")
    return of_n, of_d


def crossing(lengths: Sequence[int], ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    """The length at which `ours` becomes dearer than `theirs`, between measured ones by the logarithms."""
    gaps = [math.log(a / b) for a, b in zip(ours, theirs, strict=True)]
    for i in range(len(gaps) - 1):
        if gaps[i] <= 0 < gaps[i + 1]:
            share = -gaps[i] / (gaps[i + 1] - gaps[i])
            return math.exp(math.log(lengths[i]) * (1 - share) + math.log(lengths[i + 1]) * share)
    return None


@torch.inference_mode()
def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", metavar="FILE", help="a picture, .png or .svg")
    args = parser.parse_args()
    if args.output:
        plots.save(plots.figure_class()(), args.output)  # what stands in its way is known before 5 minutes of work
    torch.manual_seed(0)
    print(f"{machine()}; on one thread\n")
    print("| layer | paper | n above d | n below d | sequential operations | longest path | MB at n 4096, d 256 |")
    print("|---|---|---|---|---|---|---|")
    worst = 0.0
    for kind, (of_n, of_d, steps, path) in TABLE_1.items():
        above, below = exponents(kind, ABOVE), exponents(kind, BELOW)
        for measured in (above, below):
            worst = max(worst, abs(measured[0] - of_n), abs(measured[1] - of_d))
        cells = [f"n^{n:.2f} d^{d:.2f}" for n, d in (above, below)]
        print(
            f"| {kind} | n^{of_n} d^{of_d} | {cells[0]} | {cells[1]} | O({steps}) | O({path}) "
            f"| {megabytes(kind, 4096, 256):.0f} |",
            flush=True,
        )
    print(f"\nFurthest from the paper's exponents: {worst:.2f}.")

    d = CROSSING_WIDTH
    lengths = [d // 8, d // 4, d // 2, d, 2 * d, 4 * d, 8 * d]
    times = {kind: [seconds(kind, n, d) for n in lengths] for kind in (*TABLE_1, "attention sub-layer")}
    print(f"\nd = {d}, milliseconds a sequence:\n\n| n | {' | '.join(times)} |\n{'|---' * (1 + len(times))}|")
    for i, n in enumerate(lengths):
        print(f"| {n} | {' | '.join(f'{1000 * column[i]:.2f}' for column in times.values())} |")
    print()
    for kind in ("LSTM", "GRU", "convolution"):
        at = crossing(lengths, times["self-attention"], times[kind])
        where = "beyond the lengths above" if at is None else f"at n = {at:.0f} = {at / d:.2f} d"
        print(f"Self-attention becomes dearer than {kind} {where}.")
    if args.output:
        plots.save(plots.costs(lengths, times, d), args.output)
    return int(worst > 0.35)


if __name__ == "__main__":
    sys.exit(main())
