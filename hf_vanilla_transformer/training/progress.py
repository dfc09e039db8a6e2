"""The progress of a training run: what it measures, its log after a resume, its lines, its curve, and advice on it."""

import math
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

import torch
from accelerate.accelerator import Accelerator
from tqdm import tqdm
from transformers import EarlyStoppingCallback, PrinterCallback, Trainer, TrainerCallback
from transformers.integrations import TensorBoardCallback
from transformers.trainer import DEFAULT_PROGRESS_CALLBACK

from ..inference.metrics import perplexity
from .arguments import NOAM, VanillaTransformerTrainingArguments
from .schedule import factor_with_same_peak

# The columns of the lines that training prints, with their widths; a validation has its name in place of the last two
COLUMNS = {"update": 10, "loss": 10, "perplexity": 10, "BLEU": 6, "target tokens/s": 15, "time left": 10}
MAX_WIDTH = 79
_SCHEDULES_WITHOUT_WARMUP = ("constant", "reduce_lr_on_plateau", "greedy")
_LOSS = "Loss in nats per target token, without label smoothing:"

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
        for key, value in entry.items():
            if key.startswith("eval_") and key.endswith("perplexity"):
                # Trainer writes eval_NAME_perplexity if there are several validation texts, else eval_perplexity
                prefix = key.removesuffix("perplexity")
                name = prefix.removeprefix("eval_").rstrip("_")
                yield Validation(int(entry["step"]), name, value, entry.get(f"{prefix}bleu"))


def overfitting(log: Sequence[Mapping[str, float]]) -> tuple[Validation, Validation] | None:
    """Return the best and the last validation of a run that overfits, or None.

    It does if the validation perplexity is well above its lowest value, while the training loss has not risen since,
    as it would if training diverged. With several validation texts, the first counts.
    """
    of_all_texts = list(validations(log))
    own = [one for one in of_all_texts if one.text == of_all_texts[0].text and not math.isnan(one.perplexity)]
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
        best_and_last = overfitting(state.log_history)
        # Once for each best validation, because those after it are mostly worse still
        if best_and_last is None or best_and_last[0] == self._told:
            return
        best, last = best_and_last
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


class ResumedState(TrainerCallback):
    """Apply the flags to the state in a checkpoint, where transformers would keep the former ones.

    The intervals of logging, validation and saving are those of the flags. The best validation so far is found again
    in the log, since another metric may have been chosen. Early stopping counts the validations since the best one,
    and may be new.

    Args:
        early_stopping: the callback that stops training, if there is one.

    Attributes:
        has_new_validation: whether the validation text, its tokenisation or the decoding has changed, so that the
            scores logged earlier are no longer comparable.
    """

    def __init__(self, early_stopping: EarlyStoppingCallback | None):
        self._early_stopping = early_stopping
        self.has_new_validation = False

    def on_train_begin(self, args, state, control, **kwargs):
        state.compute_steps(args, state.max_steps)
        if self.has_new_validation:
            state.log_history = [log for log in state.log_history if not any(name.startswith("eval_") for name in log)]
        metric = f"eval_{args.metric_for_best_model}"
        validations = [log for log in state.log_history if metric in log]
        folder = Path(args.output_dir)
        candidates = [log for log in validations if not math.isnan(log[metric])]
        if args.load_best_model_at_end:
            # only updates whose weights exist
            candidates = [log for log in candidates if (folder / f"checkpoint-{log['step']}").is_dir()]
        choose = max if args.greater_is_better else min
        best: Mapping[str, float] = choose(candidates, key=lambda log: log[metric], default={})
        state.best_metric = best.get(metric)
        state.best_global_step = best.get("step")
        checkpoint = folder / f"checkpoint-{state.best_global_step}"
        state.best_model_checkpoint = str(checkpoint) if checkpoint.is_dir() else None
        if self._early_stopping is not None:
            worse = sum(log["step"] > (state.best_global_step or 0) for log in validations)
            self._early_stopping.early_stopping_patience_counter = worse
            state.stateful_callbacks.setdefault("EarlyStoppingCallback", self._early_stopping.state())


def short_warmup(args: VanillaTransformerTrainingArguments, updates: int) -> str:
    """Return the advice for a run that ends during the warm-up, or "" for any other."""
    has_warmup = args.lr_scheduler_type not in _SCHEDULES_WITHOUT_WARMUP
    if not has_warmup or updates >= args.get_warmup_steps(updates):
        return ""
    warmup = max(1, updates // 4)
    advice = f"--warmup_steps {warmup}"
    if args.lr_scheduler_type == NOAM:
        assert args.learning_rate is not None  # set by __post_init__
        factor = factor_with_same_peak(args.learning_rate, args.warmup_steps, warmup)
        advice += f" --learning_rate {factor:.2g}, which keeps the peak of the learning rate"
    # The settings of this run are in its folder by now, and may not change there
    return f"Training ends during the warm-up of {args.warmup_steps:g} updates: try {advice}, in another --output_dir."


class ShortWarmupNotice(TrainerCallback):
    """Report a run that will end during the warm-up, once transformers has counted the updates of its epochs."""

    def on_train_begin(self, args, state, control, **kwargs):
        if state.is_world_process_zero and (advice := short_warmup(args, state.max_steps)):
            print(advice, file=sys.stderr, flush=True)


class RunCurve(TensorBoardCallback):
    """Write TensorBoard's events of a run to one folder: one curve, however often the run was resumed.

    The events after the checkpoint from which it resumes are taken back.
    """

    _purge_step: int | None = None

    def on_train_begin(self, args, state, control, **kwargs):
        # TensorBoard hides what earlier files of the folder hold from this update on
        self._purge_step = None if state.is_hyper_param_search else state.global_step + 1
        if self.logging_dir is None:
            self.logging_dir = str(Path(args.output_dir, "runs"))
        super().on_train_begin(args, state, control, **kwargs)
        # A later evaluation writes to another file, and takes nothing back
        self._purge_step = None

    def _init_summary_writer(self, args):
        self.tb_writer = self._SummaryWriter(log_dir=self.logging_dir, purge_step=self._purge_step)


def print_lines(trainer: Trainer) -> None:
    """Have a trainer print lines for people, in place of transformers' dictionaries and its bar."""
    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(DEFAULT_PROGRESS_CALLBACK)
    trainer.add_callback(ProgressLines())


def training_line(logs: Mapping[str, float], updates: int, seconds_left: float) -> str:
    """Return the line for the metrics that the trainer logs while it trains."""
    return _in_columns(
        f"{updates:,}",
        _number(logs.get("unsmoothed_loss"), 3),
        _number(logs.get("perplexity"), 2),
        "",
        _number(logs.get("tokens_per_second"), 0),
        tqdm.format_interval(seconds_left),
    )


def validation_lines(logs: Mapping[str, float], updates: int) -> Iterator[str]:
    """Yield a line for each validation text among the metrics of a validation."""
    for validation in validations([{**logs, "step": updates}]):
        name = validation.text
        prefix = f"eval_{name}_" if name else "eval_"
        label = f"validation, {name}" if name else "validation"
        if untranslated := logs.get(f"{prefix}untranslated"):
            label = f"{untranslated:,} not translated, {label}"
        numbers = (logs.get(f"{prefix}loss"), 3), (validation.perplexity, 2), (validation.bleu, 2)
        scores = [_number(value, digits) for value, digits in numbers]
        line = f"{_in_columns(f'{updates:,}', *scores)}  {label}"
        yield line if len(line) <= MAX_WIDTH else f"{line[: MAX_WIDTH - 3]}..."


def _in_columns(*cells: str) -> str:
    return "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, COLUMNS.values(), strict=False))


def _number(value: float | None, digits: int) -> str:
    """Return a number with at most 10 characters, or nothing if there is none."""
    if value is None:
        return ""
    text = f"{value:,.{digits}f}"
    return text if len(text) <= 10 else f"{value:.2e}"


def close_bars(callbacks: Iterable[TrainerCallback]) -> None:
    """Close the bars that callbacks, also transformers' own, leave open when training ends with an error.

    tqdm would draw the bars of later runs of the process below them.
    """
    for callback in callbacks:
        for name in ("training_bar", "prediction_bar"):
            bar = getattr(callback, name, None)
            if isinstance(bar, tqdm):
                bar.close()


class ProgressLines(TrainerCallback):
    """Print one line to stderr for each log, in columns; in a terminal, draw a bar below them while training runs.

    The logs themselves stay as they are, in `log_history` and for trackers.
    """

    def __init__(self):
        self.training_bar = tqdm(disable=True)
        self._has_header = False
        self._first_update = 0
        self._start = 0.0

    def on_train_begin(self, args, state, control, **kwargs):
        # None: only in a terminal
        hidden = args.disable_tqdm or not state.is_world_process_zero or None
        bar = {"unit": " updates", "dynamic_ncols": True, "leave": False, "disable": hidden}
        self.training_bar = tqdm(total=state.max_steps, initial=state.global_step, **bar)
        self._has_header = False
        self._first_update = state.global_step
        self._start = time.perf_counter()

    def on_step_end(self, args, state, control, **kwargs):
        self.training_bar.update(state.global_step - self.training_bar.n)

    def on_train_end(self, args, state, control, **kwargs):
        self.training_bar.close()

    def on_log(self, args, state, control, logs=None, **kwargs):
        lines = [*validation_lines(logs, state.global_step)]
        if "loss" in logs:
            # with the time for validation and checkpoints, of this launch
            seconds = (time.perf_counter() - self._start) / max(state.global_step - self._first_update, 1)
            left = seconds * (state.max_steps - state.global_step)
            lines.append(training_line(logs, state.global_step, left))
        if not lines or not state.is_world_process_zero:
            return
        if not self._has_header:
            self._has_header = True
            lines = [_LOSS, _in_columns(*COLUMNS), *lines]
        # print would break a progress bar
        tqdm.write("\n".join(lines), file=sys.stderr)


class TrainingMeter(TrainerCallback):
    """Measure the loss without label smoothing, and the speed without validation and checkpoints.

    Both are of all processes since the last reading.

    Attributes:
        total_seconds: seconds of training, including those before a resume, which are read from the log.
    """

    def __init__(self, accelerator: Accelerator):
        self._accelerator = accelerator
        # Nats, the tokens that they are of, and all tokens: on the device, because reading them in each update would
        # wait for a GPU
        self._sums = torch.zeros(3, device=accelerator.device)
        self._seconds = 0.0
        self._last_step = 0.0
        self.total_seconds = 0.0

    def add(self, nats: torch.Tensor | None, tokens: torch.Tensor) -> None:
        """Add the real target tokens of a batch, and the sum of their cross-entropy if it is known and finite."""
        nats = torch.full((), math.nan, device=tokens.device) if nats is None else nats
        counted = torch.where(nats.isfinite(), torch.stack((nats, tokens)), 0.0)
        self._sums += torch.cat((counted, tokens[None]))

    def read(self) -> dict[str, float]:
        """Return what to log, and start again; the loss is left out if none was added."""
        nats, counted, tokens = self._accelerator.reduce(self._sums).tolist()
        speed = tokens / self._seconds if self._seconds else 0.0
        self._sums = torch.zeros_like(self._sums)
        self._seconds = 0.0
        loss = {"unsmoothed_loss": nats / counted, "perplexity": perplexity(nats / counted)} if counted else {}
        return {**loss, "tokens_per_second": round(speed, 1), "seconds": round(self.total_seconds, 1)}

    def on_step_end(self, args, state, control, **kwargs):
        now = time.perf_counter()
        self._seconds += now - self._last_step
        self.total_seconds += now - self._last_step
        self._last_step = now

    def _restart_clock(self, args, state, control, **kwargs):
        self._last_step = time.perf_counter()

    # transformers validates and saves after on_step_end, so what these took is not counted in the next step
    on_evaluate = on_save = _restart_clock

    def on_train_begin(self, args, state, control, **kwargs):
        self._restart_clock(args, state, control)
        # A resumed run starts with a new callback, but its state holds the log of the checkpoint
        self.total_seconds = max((log.get("seconds", 0.0) for log in state.log_history), default=0.0)
