"""Find usable learning rates with a learning-rate range test (Smith 2017).

python scripts/study/range_test.py --train_file data/train --validation_file data/val --max_steps 200 \\
  --output_dir runs/range

Raise the learning rate at every update without the schedule, then train with several factors on the schedule. It takes
the flags and recipes of `vanilla-transformer train`, writes `range.json` and `range.png` into the output folder, and
prints a table.
"""

import json
import math
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch.optim.lr_scheduler import LambdaLR
from transformers import TrainerCallback

from hf_vanilla_transformer import noam
from hf_vanilla_transformer.commands.console import say
from hf_vanilla_transformer.files import JsonObject, write_whole
from hf_vanilla_transformer.plugins.study.experiment import Experiment, TuningTrainer, run_experiment
from hf_vanilla_transformer.plugins.study.plots import line_style, new_figure, save
from hf_vanilla_transformer.training.recipes import parse_arguments

FACTORS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)  # multiples of --learning_rate, the factor on the schedule
LOWEST = 1e-6  # learning rates
HIGHEST = 1.0
DIVERGED = 2.0  # nats above the lowest smoothed loss


def _ramp(updates_done: int, updates: int) -> float:
    """Return the learning rate, which rises exponentially from `LOWEST` to `HIGHEST`."""
    return LOWEST * (HIGHEST / LOWEST) ** (updates_done / max(updates - 1, 1))


class _RangeTrainer(TuningTrainer):
    """Raise the learning rate after each update instead of following the schedule."""

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None):
        optimizer = optimizer or self.optimizer
        assert optimizer is not None
        # a LambdaLR multiplies the initial rate, so that of the ramp must be 1
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] = 1.0
        self.lr_scheduler = LambdaLR(optimizer, partial(_ramp, updates=num_training_steps))
        self._created_lr_scheduler = True
        return self.lr_scheduler


class _StopWhenDiverged(TrainerCallback):
    """Record (rate, loss, smoothed loss) of each update, and stop training once the loss diverges."""

    def __init__(self):
        self.rows: list[tuple[float, float, float]] = []

    def on_log(self, args, state, control, logs=None, **kwargs):
        if not logs or "loss" not in logs:
            return
        loss = logs["loss"]
        # the loss of single batches is too noisy to tell where it falls fastest
        smoothed = loss if not self.rows else 0.9 * self.rows[-1][2] + 0.1 * loss
        self.rows.append((_ramp(state.global_step - 1, state.max_steps), loss, smoothed))
        if not math.isfinite(smoothed) or smoothed > min(row[2] for row in self.rows) + DIVERGED:
            control.should_training_stop = True


def range_test(experiment: Experiment, folder: Path) -> str:
    """Raise the learning rate without the schedule, then measure validation loss for several factors on the schedule.

    Write `range.json` and `range.png` into `folder`.

    Returns:
        A Markdown table.

    Raises:
        ValueError: if there are fewer than 20 updates.
    """
    updates = experiment.args.max_steps
    if updates < 20:
        raise ValueError("A range test needs at least 20 updates: pass a larger --max_steps.")
    off = _schedule_off(experiment)
    on = _schedule_on(experiment)
    result = {"updates": updates, "schedule_off": off, "schedule_on": on}
    write_whole(folder / "range.json", json.dumps(result, indent=2) + "\n")
    save(learning_rates(result), str(folder / "range.png"))
    lines = [f"Schedule off: the loss falls fastest at {off['steepest']:.2g} and is lowest at {off['lowest']:.2g}."]
    lines += ["", "| factor | peak rate | validation loss |", "|---|---|---|"]
    for row in on:
        loss = "diverged" if row["eval_loss"] is None else f"{row['eval_loss']:.4f}"
        lines.append(f"| {row['factor']:g} | {row['peak_rate']:.2e} | {loss} |")
    return "\n".join(lines)


def _schedule_off(experiment: Experiment) -> JsonObject:
    """Train once with a rising rate.

    Returns:
        The rates and smoothed losses of all updates, the rate of the steepest fall and the rate of the lowest loss.
    """
    args = experiment.args
    logging_steps = args.logging_steps
    args.eval_strategy = "no"
    # for the recorder, which needs each loss
    args.logging_steps = 1
    experiment.report(f"Schedule off: {args.max_steps} updates with learning rates from {LOWEST:g} to {HIGHEST:g}")
    trainer = experiment.trainer(_RangeTrainer)
    recorder = _StopWhenDiverged()
    trainer.add_callback(recorder)
    trainer.train()
    args.logging_steps = logging_steps
    rates = [rate for rate, _, _ in recorder.rows]
    losses = [smoothed for _, _, smoothed in recorder.rows]
    lowest = min(range(len(losses)), key=losses.__getitem__)
    # only before the lowest loss: after it, the loss falls again only by chance
    falls = [losses[i] - losses[i + 1] for i in range(max(lowest, 1))]
    steepest = rates[max(range(len(falls)), key=falls.__getitem__)]
    return {"rates": rates, "smoothed_losses": losses, "steepest": steepest, "lowest": rates[lowest]}


def _schedule_on(experiment: Experiment) -> list[JsonObject]:
    """Train once for each of `FACTORS`, and return each factor with its peak rate and validation loss."""
    args = experiment.args
    rows = []
    # only the loss is compared
    args.eval_bleu = False
    args.metric_for_best_model = "loss"
    base = args.learning_rate
    warmup = int(args.warmup_steps)
    # set by the arguments' __post_init__
    assert base is not None
    for factor in (base * multiple for multiple in FACTORS):
        args.learning_rate = factor
        experiment.report(f"Schedule on: {args.max_steps} updates with factor {factor:g}")
        trainer = experiment.trainer(TuningTrainer)
        try:
            trainer.train()
            metrics = trainer.evaluate()
            loss = next(value for name, value in metrics.items() if name.endswith("_loss"))  # of the first text
        except ArithmeticError:
            # the trainer ends a run that diverges
            loss = math.inf
        peak = noam(min(args.max_steps, warmup), experiment.config.d_model, warmup, factor)
        rows.append({"factor": factor, "peak_rate": peak, "eval_loss": loss if math.isfinite(loss) else None})
    args.learning_rate = base
    return rows


def learning_rates(result: JsonObject) -> "Figure":
    """Plot a range test: the loss by learning rate without the schedule, and the validation loss by factor with it."""
    figure = new_figure(11, 4)
    left, right = figure.subplots(1, 2)
    off = result["schedule_off"]
    on = [row for row in result["schedule_on"] if row["eval_loss"] is not None]  # None if it diverged
    left.plot(off["rates"], off["smoothed_losses"], **line_style(0))
    for i, (name, rate) in enumerate((("steepest fall", off["steepest"]), ("lowest loss", off["lowest"])), start=1):
        left.axvline(rate, label=f"{name}: {rate:.2g}", **line_style(i))
    left.set(xscale="log", xlabel="learning rate", ylabel="training loss, smoothed", title="schedule off")
    left.legend()
    right.plot([row["factor"] for row in on], [row["eval_loss"] for row in on], marker="o", **line_style(0))
    right.set(xscale="log", xlabel="factor on the schedule", ylabel="validation loss")
    right.set_title(f"schedule on, {result['updates']:,} updates each")
    return figure


def main(argv: Sequence[str] | None = None) -> None:
    description = "Find usable learning rates: raise the rate without the schedule, then try factors on the schedule."
    try:
        (recipe,) = parse_arguments(sys.argv[1:] if argv is None else argv, "range_test.py", description)
        run_experiment(range_test, recipe, say)
    except KeyboardInterrupt:
        sys.exit(130)
    except (ValueError, ImportError, ArithmeticError, OSError) as error:
        sys.exit(f"range_test.py: {error}")


if __name__ == "__main__":
    main()
