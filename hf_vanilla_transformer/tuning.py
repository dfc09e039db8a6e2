"""`vanilla-transformer tune`: which learning rates a model bears, and a search for better settings (extra `tune`)."""

import copy
import json
import math
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR
from transformers import TrainerCallback, set_seed

from . import plots
from .arguments import NOAM, DataArguments, ModelArguments, VanillaTransformerTrainingArguments, option
from .batching import Seq2SeqCollator
from .files import write_whole
from .modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from .recipes import PROCESSES, differences, write_settings
from .safeguards import explained, one_run
from .schedule import noam
from .shards import is_prepared
from .trainer import VanillaTransformerTrainer
from .training import parse_arguments, resolve, run_settings, tokenized

METHODS = ("bayesian", "random", "range")
FACTORS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)  # on the schedule, times --learning_rate
LOWEST, HIGHEST = 1e-6, 1.0  # rates of the range test
DIVERGED = 2.0  # nats above the lowest smoothed loss
DROPOUTS = (0.0, 0.5)
EVALUATIONS = 4  # of a trial, after each of which it may be given up


@dataclass
class TuneArguments:
    """How to look for better settings; all other flags are those of `train`, and say where the search starts."""

    _argument_group_name = "tuning"

    method: str = option("'bayesian' or 'random' search, or 'range' for a learning-rate range test.", "bayesian")
    trials: int = option("Trials of a search; those in the study file count.", 20)
    minutes: float | None = option("Begin no trial later than this many minutes after the start.")

    def __post_init__(self):
        if self.method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(METHODS)}, got {self.method!r}.")
        if self.trials < 1:
            raise ValueError(f"trials must be at least 1, got {self.trials}.")


def tune(
    tuning: TuneArguments,
    model: ModelArguments,
    data: DataArguments,
    args: VanillaTransformerTrainingArguments,
    report: Callable[[str], Any],
) -> None:
    """Runs what `tuning.method` says in `args.output_dir`; tables go to stdout, pictures and figures into the folder.

    Raises:
        ImportError: where optuna or matplotlib is missing.
        ValueError: for settings that cannot be tuned, saying why.
    """
    if args.world_size > 1:
        raise ValueError("tune runs in one process.")
    if model.model_name_or_path:
        raise ValueError("tune trains from nothing: leave out --model_name_or_path.")
    if args.lr_scheduler_type != NOAM:
        raise ValueError("tune knows the noam schedule only: leave out --lr_scheduler_type.")
    if args.resume_from_checkpoint:
        raise ValueError("tune trains from nothing: leave out --resume_from_checkpoint.")
    if data.streaming:
        raise ValueError("tune tries batches of several sizes: leave out --streaming.")
    if args.max_steps < 1:
        raise ValueError("tune compares trainings of equal length: give their updates as --max_steps.")
    assert args.output_dir is not None
    folder = Path(args.output_dir)
    plots.figure_class()  # what is missing is known before hours of training
    with one_run(folder), explained():
        bench = _Bench(model, data, args, report)
        with redirect_stdout(sys.stderr):  # where the Trainer's log goes
            table = range_test(bench, folder) if tuning.method == "range" else search(bench, folder, tuning)
    print(table)


class _Trainer(VanillaTransformerTrainer):
    """Trains for what there is to measure: SIGTERM leaves no checkpoint, and ends `tune` as Ctrl-C does."""

    def train(self, *args, **kwargs):
        result = super().train(*args, **kwargs)
        if self.safeguards.stopped:
            raise KeyboardInterrupt
        return result

    def _save_checkpoint(self, model, trial):
        pass


class _Bench:
    """The text, read and tokenised once, on which models are trained from nothing with other settings."""

    def __init__(self, model: ModelArguments, data: DataArguments, args: Any, report: Callable[[str], Any]):
        self.args, self.report = args, report
        self.measure = args.metric_for_best_model.removeprefix("eval_")
        self.config, data = resolve(model, data)
        self.settings = run_settings(self.config, model, data, args)
        named = data.train_file if is_prepared(data.train_file) else model.tokenizer_name
        with tempfile.TemporaryDirectory() as scratch:  # for the vocabulary: the folder may hold a model with its own
            elsewhere = copy.copy(args)
            elsewhere.output_dir = scratch
            self.tokenizer, self.tokens = tokenized(model, data, elsewhere, self.config, named, report)
        if "validation" not in self.tokens:
            raise ValueError("Settings are compared on a validation text: give --validation_file.")
        self.config.vocab_size = len(self.tokenizer)
        if args.warmup_steps > args.max_steps:
            report(f"Trainings end within their warm-up of {args.warmup_steps:g} updates: set --warmup_steps.")
        args.save_strategy, args.load_best_model_at_end, args.early_stopping_patience = "no", False, None

    def model(self, trial: Any = None) -> VanillaTransformerForConditionalGeneration:
        """A model of first weights, the same ones that `train` starts from with this seed."""
        if trial is not None:
            self.config.dropout = trial.suggest_float("dropout", *DROPOUTS)
        set_seed(self.args.seed)
        model = VanillaTransformerForConditionalGeneration(self.config)
        set_seed(self.args.seed)
        return model

    def trainer(self, kind: type[_Trainer] = _Trainer) -> Any:
        """A trainer that builds its model anew for every training."""
        return kind(
            None,
            self.args,
            Seq2SeqCollator(self.config.pad_token_id, self.config.decoder_start_token_id),
            model_init=self.model,
            train_dataset=self.tokens["train"],
            eval_dataset=self.tokens["validation"],
            processing_class=self.tokenizer,
        )


def _ramp(updates_done: int, updates: int) -> float:
    """From `LOWEST` to `HIGHEST` in equal steps of the logarithm."""
    return LOWEST * (HIGHEST / LOWEST) ** (updates_done / max(updates - 1, 1))


class _RangeTrainer(_Trainer):
    """Raises the learning rate at every update, with the schedule off."""

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None):
        optimizer = optimizer or self.optimizer
        assert optimizer is not None
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] = 1.0
        self.lr_scheduler = LambdaLR(optimizer, partial(_ramp, updates=num_training_steps))
        self._created_lr_scheduler = True
        return self.lr_scheduler


class _StopsWhenDiverged(TrainerCallback):
    """Keeps (rate, loss, smoothed loss) of every update, and ends training soon after the loss turns up."""

    def __init__(self):
        self.rows: list[tuple[float, float, float]] = []

    def on_log(self, args, state, control, logs=None, **kwargs):
        if not logs or "loss" not in logs:
            return
        loss = logs["loss"]
        smoothed = loss if not self.rows else 0.9 * self.rows[-1][2] + 0.1 * loss
        self.rows.append((_ramp(state.global_step - 1, state.max_steps), loss, smoothed))
        if not math.isfinite(smoothed) or smoothed > min(row[2] for row in self.rows) + DIVERGED:
            control.should_training_stop = True


def range_test(bench: _Bench, folder: Path) -> str:
    """The range test (Smith 2017) with the schedule off, then validation loss for several factors on the schedule.

    Writes `range.json` and `range.png` into `folder`, and gives a table.
    """
    args = bench.args
    updates, logging = args.max_steps, args.logging_steps
    if updates < 20:
        raise ValueError("A range test takes at least 20 updates: give --max_steps.")
    given = args.learning_rate
    args.eval_strategy, args.logging_steps = "no", 1
    bench.report(f"Schedule off: {updates} updates at rates from {LOWEST:g} to {HIGHEST:g}")
    trainer, watch = bench.trainer(_RangeTrainer), _StopsWhenDiverged()
    trainer.add_callback(watch)
    trainer.train()
    rates, _, losses = zip(*watch.rows, strict=True)
    lowest = min(range(len(losses)), key=losses.__getitem__)
    falls = [losses[i] - losses[i + 1] for i in range(max(lowest, 1))]
    steepest = rates[max(range(len(falls)), key=falls.__getitem__)]

    args.logging_steps = logging
    rows = []
    for factor in (given * factor for factor in FACTORS):
        args.learning_rate = factor
        bench.report(f"Schedule on: {updates} updates with a factor of {factor:g}")
        trainer = bench.trainer()
        try:
            trainer.train()
            loss = trainer.evaluate()["eval_loss"]
        except ArithmeticError:
            loss = math.inf
        warmup = int(args.warmup_steps)
        peak = noam(min(updates, warmup), bench.config.d_model, warmup, factor)
        rows.append({"factor": factor, "peak_rate": peak, "eval_loss": loss if math.isfinite(loss) else None})
    args.learning_rate = given
    off = {"rates": rates, "smoothed_losses": losses, "steepest": steepest, "lowest": rates[lowest]}
    result = {"updates": updates, "schedule_off": off, "schedule_on": rows}
    write_whole(folder / "range.json", json.dumps(result, indent=2) + "\n")
    plots.save(plots.learning_rates(result), str(folder / "range.png"))
    lines = [f"Schedule off: the loss falls fastest at {steepest:.2g} and is lowest at {rates[lowest]:.2g}.", ""]
    lines += ["| factor | peak rate | validation loss |", "|---|---|---|"]
    for row in rows:
        loss = "diverged" if row["eval_loss"] is None else f"{row['eval_loss']:.4f}"
        lines.append(f"| {row['factor']:g} | {row['peak_rate']:.2e} | {loss} |")
    return "\n".join(lines)


def _length(tokens: int, max_tokens: int) -> tuple[int, int]:
    """The updates of a trial that sees so many tokens, and those between its evaluations."""
    eval_steps = max(1, round(tokens / max_tokens / EVALUATIONS))
    return EVALUATIONS * eval_steps, eval_steps


class _SearchTrainer(_Trainer):
    """Trains every trial on as many tokens as the first, whatever the size of its batches."""

    tokens = 0  # of the updates that a trial may make, together

    def _hp_search_setup(self, trial):
        super()._hp_search_setup(trial)
        self.args.max_steps, self.args.eval_steps = _length(self.tokens, self.args.max_tokens)

    def _report_to_hp_search(self, trial, step, metrics):
        super()._report_to_hp_search(trial, round(EVALUATIONS * step / self.args.max_steps), metrics)


def search(bench: _Bench, folder: Path, tuning: TuneArguments) -> str:
    """Searches factor, warm-up, dropout, label smoothing and batch size with Optuna; the given settings go first.

    The study is `study.db` in `folder`, so that the same command goes on with it; `best.yaml` is the best trial as a
    recipe, `trials.json` all of them, `search.png` what mattered, and the value is a table.
    """
    try:
        import optuna
    except ImportError as error:
        raise ImportError('optuna is not installed: pip install "hf-vanilla-transformer[tune]".') from error
    args = bench.args
    first: dict[str, Any] = {
        "learning_rate": args.learning_rate,
        "warmup_steps": int(args.warmup_steps),
        "dropout": bench.config.dropout,
        "label_smoothing_factor": args.label_smoothing_factor,
        "max_tokens": args.max_tokens,
    }
    where: dict[str, Any] = {
        "study_name": "vanilla-transformer",
        "storage": f"sqlite:///{folder / 'study.db'}",
        "load_if_exists": True,
    }
    direction: Any = "maximize" if args.greater_is_better else "minimize"
    study = optuna.create_study(direction=direction, **where)
    same = {name: value for name, value in bench.settings.items() if name not in ("output_dir", "disable_tqdm")}
    changed = differences(study.user_attrs.get("settings", same), same)
    if changed:
        raise ValueError(
            f"{folder} holds a study that began from other settings: {'; '.join(changed.values())}. Choose another "
            "--output_dir."
        )
    study.set_user_attr("settings", same)
    if not study.trials:
        study.enqueue_trial(first)
    for trial in study.get_trials(states=(optuna.trial.TrialState.RUNNING,)):  # was cut off
        study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
        study.enqueue_trial(trial.params)

    longest = max(max(split[side]) for split in bench.tokens.values() for side in ("source_length", "target_length"))
    sizes = [size for size in (args.max_tokens // 2, args.max_tokens, 2 * args.max_tokens) if size >= longest]

    def space(trial: Any) -> dict[str, Any]:  # dropout is the model's
        rate, warmup = first["learning_rate"], first["warmup_steps"]
        return {
            "learning_rate": trial.suggest_float("learning_rate", rate / 4, rate * 4, log=True),
            "warmup_steps": trial.suggest_int("warmup_steps", max(1, warmup // 4), warmup * 4, log=True),
            "label_smoothing_factor": trial.suggest_float("label_smoothing_factor", 0.0, 0.3),
            "max_tokens": trial.suggest_categorical("max_tokens", sizes),
        }

    args.eval_strategy = "steps"
    seed = args.seed + len(study.trials)  # a study that goes on draws other settings than those it has
    sampler = optuna.samplers.TPESampler if tuning.method == "bayesian" else optuna.samplers.RandomSampler
    done = [trial for trial in study.trials if trial.state.is_finished() and trial.value is not None]
    if len(done) < tuning.trials:
        trainer = bench.trainer(_SearchTrainer)
        trainer.tokens = args.max_tokens * args.max_steps
        try:
            trainer.hyperparameter_search(
                hp_space=space,
                compute_objective=lambda metrics: metrics[f"eval_{bench.measure}"],
                n_trials=tuning.trials - len(done),
                direction=direction,
                backend="optuna",
                sampler=sampler(seed=seed),
                pruner=optuna.pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=1),
                timeout=None if tuning.minutes is None else 60 * tuning.minutes,
                catch=(ArithmeticError, torch.OutOfMemoryError),
                **where,
            )
        except KeyboardInterrupt:  # the trial under way is the first one the next time
            if study.trials[-1].state == optuna.trial.TrialState.FAIL:
                study.enqueue_trial(study.trials[-1].params)
            raise
        except ValueError as error:
            if str(error) != "Record does not exist.":  # Optuna's word for a study without a best trial
                raise
            raise ValueError("No trial came to its end: try a lower --learning_rate or --max_tokens.") from None
    return _conclude(
        optuna, optuna.load_study(study_name=where["study_name"], storage=where["storage"]), bench, folder
    )


def _conclude(optuna: Any, study: Any, bench: _Bench, folder: Path) -> str:
    """Writes what a study has found, in all the forms there are; gives the table."""
    best, complete = study.best_trial, optuna.trial.TrialState.COMPLETE
    tokens = bench.settings["max_tokens"] * bench.settings["max_steps"]
    max_steps, eval_steps = _length(tokens, best.params["max_tokens"])
    steps = {"max_steps": max_steps, "eval_steps": eval_steps, "save_steps": eval_steps, "eval_strategy": "steps"}
    vocabulary = {"vocab_size": bench.config.vocab_size}  # as large as the text allowed
    settings = {**study.user_attrs["settings"], **best.params, **steps, **vocabulary}
    settings.pop(PROCESSES, None)  # a recipe for any number
    measure = f"validation {bench.measure}"
    write_settings(settings, str(folder), f"Trial {best.number}: {measure} {best.value:.4f}", "best.yaml")
    importances: dict[str, float] = {}
    if len({trial.value for trial in study.trials if trial.state == complete}) > 3:
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
        importances = optuna.importance.get_param_importances(study, evaluator=evaluator)
    trials = [
        {"number": trial.number, "state": trial.state.name.lower(), "value": trial.value, **trial.params}
        for trial in study.trials
        if trial.params.keys() == best.params.keys()
    ]
    result = {"measure": measure, "direction": study.direction.name.lower(), "best": best.number}
    result |= {"importances": importances, "trials": trials}
    write_whole(folder / "trials.json", json.dumps(result, indent=2) + "\n")
    plots.save(plots.search(result), str(folder / "search.png"))
    bench.report(f"Trial {best.number} is best; {folder / 'best.yaml'} is its recipe")
    return _table(result)


def _table(result: dict[str, Any]) -> str:
    """The trials in Markdown, the best first, those given up last; what mattered in the last line."""
    names = [name for name in result["trials"][0] if name not in ("number", "state", "value")]
    sign = 1 if result["direction"] == "minimize" else -1

    def rank(trial: dict[str, Any]) -> tuple[bool, float]:
        return trial["state"] != "complete", sign * (trial["value"] if trial["value"] is not None else math.inf)

    lines = [f"| trial | {result['measure']} | {' | '.join(names)} |", "|---" * (2 + len(names)) + "|"]
    for trial in sorted(result["trials"], key=rank):
        value = "failed" if trial["value"] is None else f"{trial['value']:.4f}"
        given_up = " (given up early)" if trial["state"] == "pruned" else ""
        cells = [f"{trial[name]:.3g}" if isinstance(trial[name], float) else str(trial[name]) for name in names]
        lines.append(f"| {trial['number']} | {value}{given_up} | {' | '.join(cells)} |")
    if result["importances"]:
        shares = (f"{name} {share:.0%}" for name, share in result["importances"].items())
        lines.append(f"\nWhat mattered: {', '.join(shares)}")
    return "\n".join(lines)


def run_tune(argv: Sequence[str], report: Callable[[str], Any]) -> None:
    """`vanilla-transformer tune`."""
    model, data, args, tuning = parse_arguments(argv, "tune", "Look for better training settings.", TuneArguments)
    tune(tuning, model, data, args, report)
