"""Bring the state of a resumed run in line with flags that may have changed since its checkpoint."""

import math
from pathlib import Path

from transformers import EarlyStoppingCallback, TrainerCallback, TrainerState, TrainingArguments

from ..files import JsonObject


class ResumedState(TrainerCallback):
    """Apply the flags to the state in a checkpoint, where transformers would keep the former ones.

    The intervals of logging, validation and saving are those of the flags. If another metric has been chosen, the best
    validation so far is found again in the log. Early stopping counts the validations since the best one, and may be
    new.

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
        metric = f"eval_{str(args.metric_for_best_model).removeprefix('eval_')}"
        validations = [log for log in state.log_history if metric in log]
        best = {"step": state.best_global_step, metric: state.best_metric}
        if not any(best.items() <= log.items() for log in validations):
            self._find_best(validations, metric, args, state)
        if self._early_stopping is not None:
            worse = sum(log["step"] > (state.best_global_step or 0) for log in validations)
            self._early_stopping.early_stopping_patience_counter = worse
            state.stateful_callbacks.setdefault("EarlyStoppingCallback", self._early_stopping.state())

    def _find_best(
        self, validations: list[JsonObject], metric: str, args: TrainingArguments, state: TrainerState
    ) -> None:
        """Set the best metric of a state, and the checkpoint of the update that reached it."""
        folder = Path(str(args.output_dir))
        if args.load_best_model_at_end:
            # only of updates whose weights exist
            validations = [log for log in validations if (folder / f"checkpoint-{log['step']}").is_dir()]
        validations = [log for log in validations if not math.isnan(log[metric])]
        choose = max if args.greater_is_better else min
        best = choose(validations, key=lambda log: log[metric], default={})
        state.best_metric = best.get(metric)
        state.best_global_step = best.get("step")
        checkpoint = folder / f"checkpoint-{state.best_global_step}"
        state.best_model_checkpoint = str(checkpoint) if checkpoint.is_dir() else None
