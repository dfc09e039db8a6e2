"""Search for better hyperparameters with Optuna."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import torch

from ...data.batching import by_name, check_fits
from ...errors import UserError
from ...files import JsonObject, import_extra, write_failure, write_whole
from ...flags import Settings
from ...training.arguments import FACTS
from ...training.recipes import write_settings
from ...training.run import differences
from .experiment import Experiment, TuneArguments, TuningTrainer

if TYPE_CHECKING:
    from optuna import Study, Trial

EVALUATIONS = 4  # per trial; after each of them the trial may be pruned


def _trial_length(experiment: Experiment, max_tokens: int) -> Settings:
    """Return how many updates a trial takes, so that all see the same number of tokens, and when it is evaluated."""
    tokens = experiment.settings["max_tokens"] * experiment.settings["max_steps"]
    eval_steps = max(1, round(tokens / max_tokens / EVALUATIONS))
    return {"max_steps": EVALUATIONS * eval_steps, "eval_steps": eval_steps}


class _SearchTrainer(TuningTrainer):
    """Report the evaluations of a trial by their number, because trials differ in their number of updates."""

    def _report_to_hp_search(self, trial, step, metrics):
        # the pruner compares trials at equal steps
        super()._report_to_hp_search(trial, round(EVALUATIONS * step / self.args.max_steps), metrics)


def hyperparameter_search(experiment: Experiment, folder: Path, tuning: TuneArguments) -> str:
    """Search over factor, warm-up, dropout, label smoothing and batch size; the first trial uses the given settings.

    The study is stored as `study.db` in `folder`, so running the same command again resumes it. The results are
    `best.yaml`, the best trial as a recipe, and `trials.json`, all trials with the importance of each setting.

    Returns:
        A Markdown table.

    Raises:
        ImportError: if Optuna is not installed.
        ValueError: if the folder holds a study with different settings, a sentence is longer than a batch, or no trial
            finished.
    """
    optuna = import_extra("optuna", "tune")
    args = experiment.args
    storage: Settings = {"study_name": "vanilla-transformer", "storage": f"sqlite:///{folder / 'study.db'}"}
    study = _open_study(optuna, experiment, folder, storage)
    args.eval_strategy = "steps"
    # a resumed study must not draw the same settings again
    seed = args.seed + len(study.trials)
    sampler = optuna.samplers.TPESampler if tuning.method == "bayesian" else optuna.samplers.RandomSampler
    # Failed trials have no value and are repeated; pruned ones have one.
    done = [trial for trial in study.trials if trial.state.is_finished() and trial.value is not None]
    if len(done) < tuning.trials:
        trainer = experiment.trainer(_SearchTrainer)
        # of several texts, the first one's
        metric = trainer.args.metric_for_best_model
        try:
            trainer.hyperparameter_search(
                hp_space=_search_space(experiment),
                compute_objective=lambda metrics: metrics[f"eval_{metric}"],
                n_trials=tuning.trials - len(done),
                direction=study.direction.name.lower(),
                backend="optuna",
                sampler=sampler(seed=seed),
                pruner=optuna.pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=1),
                timeout=None if tuning.minutes is None else 60 * tuning.minutes,
                # settings with which training diverges or does not fit are a result, not the end of the search
                catch=(ArithmeticError, torch.OutOfMemoryError),
                load_if_exists=True,
                **storage,
            )
        except KeyboardInterrupt:
            # run the interrupted trial first when the study is resumed
            if study.trials[-1].state == optuna.trial.TrialState.FAIL:
                study.enqueue_trial(study.trials[-1].params)
            raise
        except ValueError as error:
            if str(error) != "Record does not exist.":
                # Optuna's message if no trial completed
                raise
            raise UserError("No trial finished: try a lower --learning_rate or --max_tokens.") from None
    return _write_results(optuna, optuna.load_study(**storage), experiment, folder)


def _open_study(optuna: ModuleType, experiment: Experiment, folder: Path, storage: Settings) -> "Study":
    """Create a study, or open the one in the folder and queue its killed trials again.

    Raises:
        OSError: if the file of the study is damaged.
        ValueError: if the study in the folder has different settings.
    """
    args = experiment.args
    direction = "maximize" if args.greater_is_better else "minimize"
    # a study may be moved, and its recipes are for other folders
    settings = {
        name: value for name, value in experiment.settings.items() if name not in ("output_dir", "disable_tqdm")
    }
    try:
        study = optuna.create_study(direction=direction, load_if_exists=True, **storage)
        changed = differences(study.user_attrs.get("settings", settings), settings)
        study.get_trials()
    except Exception as error:
        if write_failure(error):
            # explained by the caller
            raise
        # SQLite, SQLAlchemy and Optuna each have errors of their own for a damaged file
        raise OSError(f"Cannot read {folder / 'study.db'}: {error}; choose another --output_dir.") from error
    if changed:
        changes = "; ".join(changed.values())
        raise UserError(f"{folder} holds a study with different settings: {changes}. Choose another --output_dir.")
    study.set_user_attr("settings", settings)
    if not study.trials:
        study.enqueue_trial(
            {
                "learning_rate": args.learning_rate,
                "warmup_steps": int(args.warmup_steps),
                "dropout": experiment.config.dropout,
                "label_smoothing_factor": args.label_smoothing_factor,
                "max_tokens": args.max_tokens,
            }
        )
    for trial in study.get_trials(states=(optuna.trial.TrialState.RUNNING,)):
        # its process was killed
        study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
        study.enqueue_trial(trial.params)
    return study


def _search_space(experiment: Experiment) -> Callable[["Trial"], Settings]:
    """Return the space around the given settings, except dropout, which `Experiment.model` sets on the config."""
    args = experiment.args
    # set by the arguments' __post_init__
    assert args.learning_rate is not None
    rate = args.learning_rate
    warmup = int(args.warmup_steps)
    splits = [experiment.text.train, *by_name(experiment.text.validation).values()]
    lengths = [np.maximum(*split.lengths) for split in splits]
    for split in lengths:
        check_fits(split, args.max_tokens)
    longest = max(split.max() for split in lengths)
    # large enough for the longest sentence
    sizes = [size for size in (args.max_tokens // 2, args.max_tokens, 2 * args.max_tokens) if size >= longest]

    def suggest(trial: "Trial") -> Settings:
        # a factor of four to either side, on a logarithmic scale: both act by their ratio
        params: Settings = {
            "learning_rate": trial.suggest_float("learning_rate", rate / 4, rate * 4, log=True),
            "warmup_steps": trial.suggest_int("warmup_steps", max(1, warmup // 4), warmup * 4, log=True),
            "label_smoothing_factor": trial.suggest_float("label_smoothing_factor", 0.0, 0.3),
            "max_tokens": trial.suggest_categorical("max_tokens", sizes),
        }
        return {**params, **_trial_length(experiment, params["max_tokens"])}

    return suggest


def _write_results(optuna: ModuleType, study: "Study", experiment: Experiment, folder: Path) -> str:
    """Write `best.yaml` and `trials.json`, and return the Markdown table."""
    best = study.best_trial
    complete = optuna.trial.TrialState.COMPLETE
    length = _trial_length(experiment, best.params["max_tokens"])
    # the vocabulary may be smaller than requested, if the text is small
    fixed = {"save_steps": length["eval_steps"], "eval_strategy": "steps", "vocab_size": experiment.config.vocab_size}
    settings = {**study.user_attrs["settings"], **best.params, **length, **fixed}
    # the recipe works with any number of processes and any text
    settings = {name: value for name, value in settings.items() if name not in FACTS}
    measure = f"validation {experiment.args.metric_for_best_model}"
    write_settings(settings, str(folder), f"Trial {best.number}: {measure} {best.value:.4f}", "best.yaml")
    importances: dict[str, float] = {}
    # PED-ANOVA compares the best trials with the others, so it needs a few that differ
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
    experiment.report(f"The best trial is {best.number}; its recipe is in {folder / 'best.yaml'}")
    return _table(result)


def _table(result: JsonObject) -> str:
    """Return a Markdown table of the trials, best first, pruned and failed ones last, followed by the importances."""
    names = [name for name in result["trials"][0] if name not in ("number", "state", "value")]
    sign = 1 if result["direction"] == "minimize" else -1

    def rank(trial: JsonObject) -> tuple[bool, float]:
        return trial["state"] != "complete", sign * (trial["value"] if trial["value"] is not None else math.inf)

    lines = [f"| trial | {result['measure']} | {' | '.join(names)} |", "|---" * (2 + len(names)) + "|"]
    for trial in sorted(result["trials"], key=rank):
        value = "failed" if trial["value"] is None else f"{trial['value']:.4f}"
        pruned = " (pruned)" if trial["state"] == "pruned" else ""
        cells = [f"{trial[name]:.3g}" if isinstance(trial[name], float) else str(trial[name]) for name in names]
        lines.append(f"| {trial['number']} | {value}{pruned} | {' | '.join(cells)} |")
    if result["importances"]:
        shares = (f"{name} {share:.0%}" for name, share in result["importances"].items())
        lines.append(f"\nParameter importance: {', '.join(shares)}")
    return "\n".join(lines)
