"""`Seq2SeqTrainer` with the paper's training (section 5): batches by tokens, the Noam schedule, label smoothing."""

import copy
import shutil
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import DynamoBackend
from safetensors import SafetensorError
from torch.utils.data import DataLoader
from transformers import EarlyStoppingCallback, IntervalStrategy
from transformers.integrations import TensorBoardCallback
from transformers.trainer_utils import sort_checkpoints
from transformers.utils import ModelOutput, logging

from ..data.batching import MaxTokensBatchSampler, Seq2SeqCollator, as_rows, by_name, sized_rows
from ..errors import UserError, checking_settings
from ..files import STATE, move_into_place, replacing, replacing_files, write_failure
from ..loading import loading_errors
from ..model.configuration_vanilla_transformer import IGNORED_LABEL
from ..model.loss_vanilla_transformer import smoothed_cross_entropy
from ..model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from ..sharing import hub
from ..sharing.convert import MARIAN, check_equivalent
from .arguments import NOAM, NOAM_FACTOR, VanillaTransformerTrainingArguments, check_reporters
from .checkpoints import UNFINISHED, write_checksums
from .compilation import choose_compilation, compiled, is_compiled
from .device import choose_attention, choose_precision, prepare_device
from .ema import MovingAverage
from .failures import UpdateGuard, reason_for
from .progress import OverfittingNotice, ResumedState, RunCurve, TrainingMeter, close_bars
from .schedule import get_noam_schedule
from .sharding import check_saved_form, is_sharded, keep_in_float32, restore_name
from .two_passes import cut_embeddings, r_drop_loss, simcut_loss
from .validation import ValidatingTrainer

logger = logging.get_logger(__name__)

_LEAST_FACTOR = 0.01  # on the noam schedule; less is a learning rate meant for another one


def check_model(model: Any) -> None:
    """Check that this trainer can train a model, which may be compiled and have an adapter.

    Raises:
        ValueError: if it is of another class, whose loss would be computed wrongly.
    """
    base = getattr(model, "_orig_mod", model)
    base = base.get_base_model() if hasattr(base, "get_base_model") else base
    # By name: the class of a model that was loaded with its own code is another one
    names = [kind.__name__ for kind in type(base).__mro__]
    if VanillaTransformerForConditionalGeneration.__name__ not in names:
        raise UserError(
            f"VanillaTransformerTrainer cannot train a {names[0]}: use transformers' Seq2SeqTrainer, or convert a "
            "MarianMT model with `vanilla-transformer convert`."
        )


class VanillaTransformerTrainer(ValidatingTrainer):
    """Train a model as described in section 5 of the paper; used like `Seq2SeqTrainer`.

    Args:
        args: `VanillaTransformerTrainingArguments`.
        train_dataset, eval_dataset: rows of "input_ids" and "labels" (lists of ids ending in `</s>`, not padded), as
            returned by `data.cleaning.tokenize_pairs`. Several validation sets are given as a dictionary; the name of
            each then becomes part of its metrics: "eval_news_bleu".
        processing_class: the tokenizer, which is saved with the model and needed for BLEU in validation (`eval_bleu`).

    Raises:
        ValueError: for a `metric_for_best_model` that validation does not report, or flags that exclude each other.
    """

    def __init__(self, model=None, args=None, data_collator=None, *more, **kwargs):
        args = args or VanillaTransformerTrainingArguments()
        if not isinstance(args, VanillaTransformerTrainingArguments):
            raise UserError(f"args must be VanillaTransformerTrainingArguments, got {type(args).__name__}.")
        check_reporters(args)
        prepare_device(args)
        if model is not None:
            check_model(model)
        choose_precision(model, args)
        choose_compilation(args)
        if model is not None:
            choose_attention(model, args)
        with checking_settings():
            super().__init__(model, args, data_collator, *more, **kwargs)
        for name in ("r_drop_alpha", "simcut_alpha"):
            if getattr(args, name) and self.compute_loss_func:
                raise UserError(f"{name} has no effect with compute_loss_func: set only one of them.")
        # compute_loss applies it, and predictions have a loss without it
        self.label_smoother = None
        if self.eval_dataset is not None:
            self.args = self._name_metric()
        if data_collator is None:
            self.data_collator = self._default_collator()
        self._configure_accelerator()

        self._sampler: MaxTokensBatchSampler | None = None
        self._mean_log_probs = {}
        self.meter = TrainingMeter(self.accelerator)
        self.guard = UpdateGuard(self.accelerator, self.processing_class)
        self.average = MovingAverage(args.ema_decay) if args.ema_decay else None
        patience = args.early_stopping_patience
        early_stopping = None if patience is None else EarlyStoppingCallback(patience)
        self.resumed_state = ResumedState(early_stopping)
        notice = OverfittingNotice()
        for callback in (self.meter, self.guard, self.average, early_stopping, self.resumed_state, notice):
            if callback is not None:
                self.add_callback(callback)
        if "tensorboard" in (args.report_to or ()):
            # The first is that of `report_to`, before those of the caller
            self.pop_callback(TensorBoardCallback)
            self.add_callback(RunCurve())

    def _name_metric(self) -> VanillaTransformerTrainingArguments:
        """Check that validation reports `metric_for_best_model`, and return the arguments with its full name.

        If none of several validation sets is named, the metric is that of the first. The metrics of `compute_metrics`
        or of an overridden `evaluate` are not known in advance and so not checked.

        Raises:
            ValueError: if validation does not report the metric.
        """
        args = self.args
        metric = str(args.metric_for_best_model)
        prefixes = [f"{name}_" if name else "" for name in by_name(self.eval_dataset)]
        reported = [prefix + name for prefix in prefixes for name in args.metrics()]
        if prefixes and metric not in reported and metric in args.metrics():
            metric = prefixes[0] + metric
            # A copy, because the caller may use the same arguments for another trainer
            args = copy.copy(args)
            args.metric_for_best_model = metric
        known = not self.compute_metrics and type(self).evaluate is ValidatingTrainer.evaluate
        if known and metric not in reported:
            raise UserError(f"metric_for_best_model must be one of {', '.join(reported)}, got {metric!r}.")
        return args

    def _default_collator(self) -> Seq2SeqCollator:
        """Return the collator for the model, whether it was given or `model_init` has returned it."""
        config = self.model.config
        round_to = config.max_position_embeddings if self.args.device.type == "cuda" else 0
        return Seq2SeqCollator(config.pad_token_id, config.decoder_start_token_id, round_to, self.args.max_tokens)

    def _configure_accelerator(self) -> None:
        """Set what accelerate has no flag for.

        Raises:
            ValueError: for flags that exclude each other.
        """
        args = self.args
        if args.device.type == "cuda" and args.dataloader_pin_memory:
            # Otherwise each copy of a batch to the GPU waits for the last update
            self.accelerator.dataloader_config.non_blocking = True
        if self.is_fsdp_enabled:
            plugin = self.accelerator.state.fsdp_plugin
            check_saved_form(plugin)
            if self.accelerator.is_fsdp2 and args.bf16:
                keep_in_float32(plugin)
        # It would compile the whole model, for which batches have too many shapes
        self.accelerator.state.dynamo_plugin.backend = DynamoBackend.NO
        if args.ema_decay and (self.is_fsdp_enabled or self.is_deepspeed_enabled):
            raise UserError("--ema_decay cannot be used with FSDP or DeepSpeed, which shard the weights.")

    def call_model_init(self, trial=None):
        # a model of transformers, or an adapter around one
        model: Any = super().call_model_init(trial)
        check_model(model)
        choose_attention(model, self.args)
        return model

    def train(self, *args, **kwargs):
        """Train as `Seq2SeqTrainer.train` does, once the validation text is known to be usable."""
        if self.eval_dataset is not None and self.args.eval_strategy != IntervalStrategy.NO:
            for dataset in by_name(self.eval_dataset).values():
                sized_rows(dataset)
        # of what holds until training ends
        with ExitStack() as self._training:
            self._training.callback(self.guard.restore_signals)
            self._training.callback(close_bars, self.callback_handler.callbacks)
            return super().train(*args, **kwargs)

    def _prepare_for_training(self, *args, **kwargs):
        """Create the optimizer and the schedule, and wrap the model, all of which check settings."""
        if is_compiled(self.args):
            # before FSDP2 shards the layers, whose hooks must run
            self._training.enter_context(compiled(self.model, self.args))
        with checking_settings():
            return super()._prepare_for_training(*args, **kwargs)

    def _run_epoch(self, *args, **kwargs):
        """Train for an epoch, unless the run has resumed after its last update, which the training loop overlooks."""
        # transformers also does this, but after a resume it does not find the sampler inside accelerate's wrappers
        if self._sampler is not None:
            self._sampler.set_epoch(kwargs["epoch"])
        if self.state.global_step < self.state.max_steps:
            super()._run_epoch(*args, **kwargs)
        else:
            self.control.should_training_stop = True

    def get_train_dataloader(self) -> DataLoader:
        """Return batches of at most `max_tokens` tokens per side, which accelerate shards over the processes."""
        rows = as_rows(self.train_dataset)
        if rows is None:
            pairs = self.args.train_batch_size
            logger.warning(f"The training set is a stream: a batch has {pairs} pairs of any length.")
            return super().get_train_dataloader()
        readers = max(1, self.args.dataloader_num_workers)
        self._sampler = rows.sampler(self.args.max_tokens, self.args.batch_seed, readers)
        # A stream's rows are whole batches, different ones on each process, so there is nothing to shard
        if self._sampler is None:
            return self._loader(rows, batch_size=None)
        return self.accelerator.prepare(self._loader(rows, batch_sampler=self._sampler))

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None):
        """Create the Noam schedule, or the schedule of transformers named by `lr_scheduler_type`."""
        self._notice_learning_rate()
        if self.args.lr_scheduler_type != NOAM:
            try:
                return super().create_scheduler(num_training_steps, optimizer)
            except TypeError as error:
                raise UserError(f"lr_scheduler_kwargs do not match the schedule: {error}.") from error
        if self.lr_scheduler is None:
            optimizer = optimizer or self.optimizer
            assert optimizer is not None
            warmup_steps = self.args.get_warmup_steps(num_training_steps)
            self.lr_scheduler = get_noam_schedule(optimizer, self.model.config.d_model, warmup_steps)
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def _notice_learning_rate(self) -> None:
        """Warn of a learning rate that is meant for another schedule, as in arguments that were copied."""
        rate = self.args.learning_rate or 0.0
        is_noam = self.args.lr_scheduler_type == NOAM
        if is_noam and 0 < rate < _LEAST_FACTOR:
            logger.warning(
                f"learning_rate={rate:g} is a factor on the noam schedule, so the model hardly changes. For a peak of "
                "that height, set lr_scheduler_type='inverse_sqrt' or another schedule."
            )
        elif not is_noam and rate == NOAM_FACTOR:
            logger.warning(
                f"learning_rate={rate:g}, the default factor on the noam schedule, is the peak of this one. If it was "
                "copied with other arguments, set learning_rate too."
            )

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """Return the cross-entropy per real target token: smoothed in training, plain in evaluation.

        `num_items_in_batch` is the number of real target tokens in the whole update, over all its batches and
        processes, so that one batch of 8 pairs and 8 accumulated batches of 1 have the same gradient. With R-Drop or
        SimCut, the model runs twice. A `compute_loss_func` replaces all of this, smoothing included.
        """
        if "labels" not in inputs:
            raise UserError(f'Training needs "labels" in each batch, which has only {", ".join(inputs)}.')
        labels = inputs["labels"]
        inputs = {name: value for name, value in inputs.items() if name != "labels"}
        if inputs.keys().isdisjoint(("decoder_input_ids", "decoder_inputs_embeds")):
            # A collator that does not know the model leaves it to the model to shift the labels
            inputs["decoder_input_ids"] = self.model.prepare_decoder_input_ids_from_labels(labels)
        tokens = labels.ne(IGNORED_LABEL).sum()
        # Labels may all be ignored
        items = tokens.clamp(min=1) if num_items_in_batch is None else num_items_in_batch
        smoothing = self.args.label_smoothing_factor if model.training else 0.0
        pad_token_id = self.model.config.pad_token_id
        cross_entropy = None
        if self.compute_loss_func is not None:
            outputs = model(**inputs, use_cache=False)
            loss = self.compute_loss_func(outputs, labels, num_items_in_batch=items)
        elif model.training and (self.args.r_drop_alpha or self.args.simcut_alpha):
            outputs, loss, cross_entropy = self._run_twice(model, inputs, labels)
        elif return_outputs:
            # the outputs include the logits, which the model leaves out if it computes the loss
            outputs = model(**inputs, use_cache=False)
            loss = smoothed_cross_entropy(outputs.logits, labels, smoothing, pad_token_id)
        else:
            outputs = model(**inputs, labels=labels, smoothing=smoothing, num_items_in_batch=1)
            # divided by 1, so the sum over tokens
            loss = outputs.loss
            # a method that a user has put in place of the model's forward may return none
            cross_entropy = outputs.get("cross_entropy")

        if self.compute_loss_func is None:
            # one of the user's own is already divided
            loss = loss / items
        if num_items_in_batch is not None and self.args.average_tokens_across_devices:
            # The count is of all processes, but DDP averages gradients over them instead of adding them up
            loss = loss * self.accelerator.num_processes
        if model.training:
            self.guard.record_loss(loss.detach(), labels)
            self.meter.add(cross_entropy, tokens)
        return (loss, outputs) if return_outputs else loss

    def _run_twice(self, model, inputs, labels) -> tuple[ModelOutput, torch.Tensor, torch.Tensor]:
        """Return the outputs of two passes in training, with the loss and the cross-entropy of R-Drop or of SimCut."""
        args = self.args
        # One pass over 2 B rows is faster than two passes, and each half of the rows has its own dropout
        twice = {name: torch.cat((value, value)) for name, value in inputs.items()}
        smoothing = (args.label_smoothing_factor, self.model.config.pad_token_id)
        if args.r_drop_alpha:
            outputs = model(**twice, use_cache=False)
            return outputs, *r_drop_loss(outputs.logits, labels, args.r_drop_alpha, *smoothing)
        if embedded := inputs.keys() & {"inputs_embeds", "decoder_inputs_embeds", "encoder_outputs"}:
            raise UserError(f"SimCut cuts tokens, but a batch has {', '.join(sorted(embedded))}: give ids instead.")
        with cut_embeddings(self.model, args.simcut_p):
            outputs = model(**twice, use_cache=False)
        return outputs, *simcut_loss(outputs.logits, labels, args.simcut_alpha, *smoothing)

    def training_step(self, *args, **kwargs) -> torch.Tensor:
        return self.guard.last_finite(super().training_step(*args, **kwargs))

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log training metrics with the loss without smoothing, its perplexity, and the speed of all processes.

        `tokens_per_second` counts real target tokens, and `seconds` those of the whole run.
        """
        if "loss" in logs:
            self.guard.report()
            logs |= self.meter.read()
        super().log(logs, start_time)

    def init_hf_repo(self, *args, **kwargs) -> None:
        """Create the repository before training starts, so that a missing token or permission is reported early.

        Raises:
            OSError: if that fails, saying why.
            ValueError: if the model cannot be uploaded in the format that was asked for.
        """
        if self.args.hub_format == MARIAN:
            check_equivalent(self.accelerator.unwrap_model(self.model).config)
        with hub.hub_errors(str(self.args.hub_model_id or self.args.output_dir)):
            super().init_hf_repo(*args, **kwargs)

    def push_to_hub(self, commit_message=None, blocking=True, token=None, revision=None, private=None, **kwargs):
        """Upload the model, its tokenizer and this package's card, and return the address of the repository.

        Raises:
            OSError: if the upload fails, saying why; the model is already saved in the output folder.
        """
        if self.hub_model_id is None:
            self.init_hf_repo(token=token, private=private)
        self.save_model(_internal_call=True)
        if not self.is_world_process_zero():
            return None
        folder = str(self.args.output_dir)
        commit = {"commit_message": commit_message, "revision": revision or self.args.hub_revision}
        details = hub.CardDetails(format=self.args.hub_format)
        return hub.push(folder, str(self.hub_model_id), details, token=token or self.args.hub_token, **commit)

    def _save_checkpoint(self, model, trial):
        """Write a checkpoint to a temporary folder and then move it into place, so that each named one is complete.

        The best checkpoint is kept in addition to the newest `save_total_limit`, so that these can all be averaged.
        """
        self.guard.report()
        folder = Path(self._get_output_dir(trial))
        checkpoint = folder / f"checkpoint-{self.state.global_step}"
        best = folder / f"checkpoint-{self.state.best_global_step}"
        output_dir = self.args.output_dir
        if self.args.should_save:
            # What a killed run has left would become part of this checkpoint
            shutil.rmtree(folder / UNFINISHED, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        try:
            # The folder in which transformers writes; in a hyperparameter search, it adds that of the trial
            self.args.output_dir = str(folder / UNFINISHED)
            unfinished = Path(self._get_output_dir(trial), checkpoint.name)
            super()._save_checkpoint(model, trial)
            # transformers looked in the temporary folder; none exists if it was validated between two checkpoints
            exists = best == checkpoint or best.is_dir()
            self.state.best_model_checkpoint = str(best) if exists else None
            # Every process writes its random state, and the checksums must be of all files
            self.accelerator.wait_for_everyone()
            if self.args.should_save:
                self.state.save_to_json(str(unfinished / STATE))
                if self.average:
                    self.average.save(unfinished)
                write_checksums(unfinished)
                # a damaged one of the same name
                shutil.rmtree(checkpoint, ignore_errors=True)
                move_into_place({unfinished: checkpoint})
        except (OSError, RuntimeError, SafetensorError) as error:
            if reason_for(error):
                # a process was lost meanwhile, or memory has run out
                raise
            reason = write_failure(error) or error
            raise OSError(f"Cannot write {checkpoint}: {reason}. Earlier checkpoints are intact.") from error
        finally:
            self.args.output_dir = output_dir
            if self.args.should_save:
                shutil.rmtree(folder / UNFINISHED, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        # transformers has counted only the temporary folder. It would count the best checkpoint within the limit, and
        # take a damaged one with a higher number for the newest
        if self.args.should_save and self.args.save_total_limit:
            others = [Path(path) for path in sort_checkpoints(str(folder)) if Path(path) not in (checkpoint, best)]
            surplus = len(others) + (checkpoint != best) - self.args.save_total_limit
            for other in others[: max(0, surplus)]:
                shutil.rmtree(other, ignore_errors=True)

    def _finalize_training(self, *args, **kwargs):
        # With a limit of one, transformers would delete all checkpoints but the best, and so the one from which a run
        # that was stopped resumes
        limit = self.args.save_total_limit
        self.args.save_total_limit = None
        try:
            return super()._finalize_training(*args, **kwargs)
        finally:
            self.args.save_total_limit = limit

    def _issue_warnings_after_load(self, load_result):
        """Warn of weights that a checkpoint lacks, unless they are tied to one that it has."""
        tied = self.accelerator.unwrap_model(self.model).all_tied_weights_keys
        load_result.missing_keys[:] = [key for key in load_result.missing_keys if key not in tied]
        super()._issue_warnings_after_load(load_result)

    def _load_from_checkpoint(self, resume_from_checkpoint, model=None):
        with loading_errors(str(resume_from_checkpoint)):
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_rng_state(self, checkpoint):
        with loading_errors(str(checkpoint)):
            super()._load_rng_state(checkpoint)

    def _load_optimizer_and_scheduler(self, checkpoint):
        """Load the state as transformers does; a file that would run code, or is damaged, is an `OSError`."""
        with loading_errors(str(checkpoint)):
            super()._load_optimizer_and_scheduler(checkpoint)
            # Only called in a run that resumes; in others, the average starts when training begins
            if self.average:
                self.average.start(self.accelerator.unwrap_model(self.model), checkpoint)

    def _save(self, output_dir: str | None = None, state_dict=None):
        """Save the model without transformers' pickled copy of the arguments: shared folders contain no pickles."""
        folder = Path(output_dir or str(self.args.output_dir))
        if is_sharded(model := self.accelerator.unwrap_model(self.model)):
            restore_name(model)
        # A process that does not save only takes part in gathering sharded weights
        with replacing_files(folder) if self.args.should_save else nullcontext(folder) as unfinished:
            super()._save(str(unfinished), state_dict)
            (unfinished / "training_args.bin").unlink(missing_ok=True)

    def save_state(self) -> None:
        """Save the state of the run as transformers does, but atomically."""
        if self.is_world_process_zero():
            with replacing(Path(str(self.args.output_dir), STATE)) as unfinished:
                self.state.save_to_json(str(unfinished))
