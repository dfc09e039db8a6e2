"""`Seq2SeqTrainer` with the paper's training (section 5): batches by tokens, the Noam schedule, label smoothing."""

import copy
import logging
import math
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from safetensors import SafetensorError
from torch.utils.data import DataLoader
from tqdm import tqdm
from transformers import EarlyStoppingCallback, EvalPrediction, Seq2SeqTrainer, TrainerCallback
from transformers.debug_utils import DebugOption
from transformers.trainer_callback import ProgressCallback
from transformers.trainer_utils import denumpify_detensorize, rotate_checkpoints

from . import hub
from .arguments import NOAM, VanillaTransformerTrainingArguments, check_batch_size, check_evaluation
from .batching import IGNORED_LABEL, MaxTokensBatchSampler, Seq2SeqCollator, batches_by_length, pad
from .checkpoints import STATE, UNFINISHED, write_checksums
from .ema import MovingAverage
from .evaluation import Bleu, evaluate_translations
from .loss import smoothed_cross_entropy, symmetric_divergence
from .safeguards import Safeguards
from .schedule import get_noam_schedule
from .shards import ShardStream
from .translation import translate_ids

logger = logging.getLogger(__name__)


class _SetEpoch(TrainerCallback):
    """Tells the batch sampler its epoch: accelerate's wrappers hide it from `Trainer` after a resume."""

    def __init__(self, sampler: MaxTokensBatchSampler):
        self.sampler = sampler

    def on_epoch_begin(self, args, state, control, **kwargs):
        self.sampler.set_epoch(int(state.epoch or 0))


@contextmanager
def _without_wrapper(model: torch.nn.Module) -> Iterator[None]:
    """Take off the `forward` that accelerate puts on a model for mixed precision, which keeps fast decoding away."""
    original = vars(model).get("_original_forward")
    if original is None:
        yield
        return
    wrapper = vars(model).pop("forward")
    if getattr(original, "__func__", None) is not type(model).forward:
        model.forward = original
    try:
        yield
    finally:
        model.forward = wrapper


class TrainingSpeed(TrainerCallback):
    """Real target tokens a second, and the seconds of the whole run; validation and checkpoints do not count."""

    def __init__(self):
        self.tokens: int | torch.Tensor = 0
        self.total_seconds = 0.0  # with those before a resume, as the log has them
        self._seconds = 0.0
        self._since = 0.0

    def tokens_per_second(self) -> float:
        """The rate since the last call."""
        rate = float(self.tokens) / self._seconds if self._seconds else 0.0
        self.tokens, self._seconds = 0, 0.0
        return rate

    def on_step_end(self, args, state, control, **kwargs):
        now = time.perf_counter()
        self._seconds += now - self._since
        self.total_seconds += now - self._since
        self._since = now

    def _restart(self, args, state, control, **kwargs):
        self._since = time.perf_counter()

    on_evaluate = on_save = _restart

    def on_train_begin(self, args, state, control, **kwargs):
        self._restart(args, state, control)
        self.total_seconds = max((log.get("seconds", 0.0) for log in state.log_history), default=0.0)


class _ProgressBar(ProgressCallback):
    """transformers' progress bar, with the last logged loss and speed beside it."""

    def on_log(self, args, state, control, logs=None, **kwargs):
        super().on_log(args, state, control, logs=logs, **kwargs)
        if self.training_bar is not None and logs and "tokens_per_second" in logs:
            self.training_bar.set_postfix(loss=logs["loss"], tokens_per_second=logs["tokens_per_second"])


def _use_one_device(args: Any) -> None:
    """Train on one of several visible GPUs where no launcher has started a process for each.

    `Trainer` would wrap the model in `DataParallel`, which torch advises against.
    """
    if args.n_gpu > 1:
        logger.warning(
            f"{args.n_gpu} GPUs are visible, but one process trains on one: launch with `torchrun --nproc_per_node "
            f"{args.n_gpu}` to use them all, or choose one by CUDA_VISIBLE_DEVICES."
        )
        args._n_gpu = 1


def _read_by_debugger(model: Any, args: Any) -> None:
    """Give `model` an attention whose masks are numbers where transformers' debugger will look at them."""
    if DebugOption.UNDERFLOW_OVERFLOW in args.debug:
        model.set_attn_implementation("eager")


class VanillaTransformerTrainer(Seq2SeqTrainer):
    """Trains as section 5 of the paper says; used like `Seq2SeqTrainer`.

    Args:
        args: `VanillaTransformerTrainingArguments`.
        train_dataset, eval_dataset: rows of "input_ids" and "labels" (lists of ids ending in `</s>`, not padded), as
            `data.tokenize_pairs` makes them. Several validation sets are a dictionary of their names, which then are
            part of the names of the metrics: "eval_news_bleu".
        processing_class: the tokenizer, saved with the model; BLEU in validation (`eval_bleu`) needs it.

    Raises:
        ValueError: for arguments that would change nothing, or a `metric_for_best_model` that there will not be.
    """

    args: VanillaTransformerTrainingArguments
    model: Any
    processing_class: Any

    def __init__(self, model=None, args=None, data_collator=None, **kwargs):
        if data_collator is None and model is not None:
            data_collator = Seq2SeqCollator(model.config.pad_token_id, model.config.decoder_start_token_id)
        if args is not None:
            _use_one_device(args)
            if isinstance(train := kwargs.get("train_dataset"), ShardStream) or hasattr(train, "__len__"):
                check_batch_size(args)
            if kwargs.get("eval_dataset") is not None:
                check_evaluation(args)
                args = self._with_metric(args, kwargs["eval_dataset"], kwargs.get("compute_metrics"))
            if model is not None:
                _read_by_debugger(model, args)
        super().__init__(model, args, data_collator, **kwargs)
        self._saving = False
        self.speed = TrainingSpeed()
        self.add_callback(self.speed)
        self.safeguards = Safeguards(self.accelerator, self.processing_class)
        self.add_callback(self.safeguards)
        self.average = MovingAverage(self.args.ema_decay) if self.args.ema_decay else None
        if self.average:
            if self.is_fsdp_enabled or self.is_deepspeed_enabled:
                raise ValueError("--ema_decay needs whole weights on every process: not with FSDP or DeepSpeed.")
            self.add_callback(self.average)
        if self.pop_callback(ProgressCallback) is not None:
            self.add_callback(_ProgressBar)
        if self.args.early_stopping_patience is not None:
            self.add_callback(EarlyStoppingCallback(self.args.early_stopping_patience))

    def _with_metric(self, args: Any, eval_dataset: Any, compute_metrics: Any) -> Any:
        """Return `args`, whose `metric_for_best_model` validation will report.

        Of several validation sets the first decides unless one is named. What `compute_metrics` or an `evaluate` of a
        subclass reports is known only to them.

        Raises:
            ValueError: if it will not.
        """
        metric, names = args.metric_for_best_model.removeprefix("eval_"), args.metrics()
        if isinstance(eval_dataset, dict):
            if metric in names and eval_dataset:
                args = copy.copy(args)  # the caller may use them for another trainer
                metric = args.metric_for_best_model = f"{next(iter(eval_dataset))}_{metric}"
            names = [f"{part}_{name}" for part in eval_dataset for name in names]
        known = not compute_metrics and type(self).evaluate is VanillaTransformerTrainer.evaluate
        if known and metric not in names:
            raise ValueError(f"metric_for_best_model must be one of {', '.join(names)}, got {metric!r}.")
        return args

    def call_model_init(self, trial=None):
        model = super().call_model_init(trial)
        _read_by_debugger(model, self.args)
        return model

    def train(self, *args, **kwargs):
        """As transformers' own; afterwards SIGTERM means what it meant before, also when training fails."""
        try:
            return super().train(*args, **kwargs)
        finally:
            self.safeguards.restore_signals()

    def _lengths(self, dataset: Any) -> tuple[Sequence[int], Sequence[int]]:
        """The tokens of each pair's source and target."""
        if "source_length" in getattr(dataset, "column_names", ()):
            return dataset["source_length"][:], dataset["target_length"][:]
        sources, targets = zip(*((len(row["input_ids"]), len(row["labels"])) for row in dataset), strict=True)
        return sources, targets

    def get_train_dataloader(self) -> DataLoader:
        """Batches of at most `max_tokens` tokens a side, sharded over the processes by accelerate."""
        settings: dict[str, Any] = {
            "collate_fn": self.data_collator,
            "num_workers": self.args.dataloader_num_workers,
            "pin_memory": self.args.dataloader_pin_memory and self.args.device.type != "cpu",
            "persistent_workers": self.args.dataloader_persistent_workers,
            "prefetch_factor": self.args.dataloader_prefetch_factor,
        }
        for name in ("multiprocessing_context", "in_order"):  # flags of newer releases of transformers
            if (value := getattr(self.args, f"dataloader_{name}", None)) is not None:
                settings[name] = value
        if isinstance(self.train_dataset, ShardStream):  # whole batches already, other ones on each process
            self.train_dataset.check_readers(max(1, self.args.dataloader_num_workers))
            return DataLoader(self.train_dataset, batch_size=None, **settings)
        if not hasattr(self.train_dataset, "__len__"):
            return super().get_train_dataloader()
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        sampler = MaxTokensBatchSampler(*self._lengths(self.train_dataset), self.args.max_tokens, seed=seed)
        self.remove_callback(_SetEpoch)
        self.add_callback(_SetEpoch(sampler))
        dataset: Any = self.train_dataset
        return self.accelerator.prepare(DataLoader(dataset, batch_sampler=sampler, **settings))

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None):
        """The Noam schedule, or transformers' own by its name."""
        if self.args.lr_scheduler_type != NOAM:
            try:
                return super().create_scheduler(num_training_steps, optimizer)
            except TypeError as error:
                raise ValueError(f"lr_scheduler_kwargs do not fit the schedule: {error}.") from error
        if self.lr_scheduler is None:
            optimizer = optimizer or self.optimizer
            assert optimizer is not None
            self.lr_scheduler = get_noam_schedule(
                optimizer, self.model.config.d_model, self.args.get_warmup_steps(num_training_steps)
            )
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """Smoothed cross-entropy a real target token in training, the plain one in evaluation.

        `num_items_in_batch` are the real target tokens of the whole update, over all its batches and processes, so
        that one batch of 8 and 8 accumulated batches of 1 give the same gradient. With R-Drop it is half of equation 4
        of arXiv:2106.14448: the mean of two passes under different dropout, and alpha / 2 times how far they differ.
        """
        labels, inputs = inputs["labels"], {name: value for name, value in inputs.items() if name != "labels"}
        smoothing, r_drop = self.args.label_smoothing_factor, self.args.r_drop_alpha
        if not model.training:
            smoothing = r_drop = 0.0
        if not r_drop:
            outputs = model(**inputs)
            loss = smoothed_cross_entropy(outputs.logits, labels, smoothing, self.model.config.pad_token_id)
        else:
            outputs = model(**{name: torch.cat((value, value)) for name, value in inputs.items()})
            twice, (first, second) = torch.cat((labels, labels)), outputs.logits.chunk(2)
            loss = smoothed_cross_entropy(outputs.logits, twice, smoothing, self.model.config.pad_token_id)
            loss = (loss + r_drop * symmetric_divergence(first, second, labels)) / 2
        if num_items_in_batch is None:
            loss = loss / labels.ne(IGNORED_LABEL).sum()
        else:
            num_items_in_batch = torch.as_tensor(num_items_in_batch).flatten()[0]  # DataParallel wants one per GPU
            loss = loss / num_items_in_batch
            if self.args.average_tokens_across_devices:
                loss = loss * self.accelerator.num_processes  # DDP takes the mean over processes
            if model.training:
                self.safeguards.look_at(loss.detach(), labels)
                self.speed.tokens += num_items_in_batch / self.current_gradient_accumulation_steps
        return (loss, outputs) if return_outputs else loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Adds real target tokens a second, over all processes, and the run's seconds to what training reports."""
        if "loss" in logs:
            logs["tokens_per_second"] = round(self.speed.tokens_per_second(), 1)
            logs["seconds"] = round(self.speed.total_seconds, 1)
        super().log(logs, start_time)

    def evaluate(  # type: ignore[override]
        self, eval_dataset=None, ignore_keys=None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Cross-entropy a real target token in nats, unsmoothed, its exponential, the perplexity, and BLEU.

        Every sentence counts once, whatever the number of processes; one longer than `max_tokens` is a batch of its
        own. Several sets are evaluated one by one, each under its own name. BLEU is that of this package's own
        decoding with the model's settings, but for `generation_num_beams`. `compute_metrics` gets the same
        translations, as token ids padded with -100, and the labels.
        """
        start = time.perf_counter()
        dataset: Any = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(dataset, str):
            sets: Any = self.eval_dataset
            dataset = sets[dataset]
        if dataset is None:
            raise ValueError("There is nothing to evaluate on: give an eval_dataset.")
        if isinstance(dataset, dict):
            metrics: dict[str, Any] = {}
            for name, part in dataset.items():
                metrics |= self.evaluate(part, ignore_keys, f"{metric_key_prefix}_{name}")
            return metrics
        if self.args.eval_bleu and self.processing_class is None:
            raise ValueError("BLEU in validation needs the tokenizer: give processing_class, or eval_bleu=False.")
        batches = batches_by_length(*self._lengths(dataset), self.args.max_tokens)
        loader = DataLoader(
            dataset,
            batch_sampler=batches[self.accelerator.process_index :: self.accelerator.num_processes],
            collate_fn=self.data_collator,
            num_workers=self.args.dataloader_num_workers,
            multiprocessing_context=getattr(self.args, "dataloader_multiprocessing_context", None),
        )
        model = self._validated_model()
        was_training = model.training
        model.eval()
        totals = torch.zeros(2, dtype=torch.float32 if self.args.device.type == "mps" else torch.float64)
        totals = totals.to(self.args.device)
        with torch.no_grad():
            for batch in loader:
                inputs = self._prepare_inputs(batch)
                tokens = inputs["labels"].ne(IGNORED_LABEL).sum()
                with self.compute_loss_context_manager():
                    loss = self.compute_loss(model, inputs)
                totals += torch.stack((loss * tokens, tokens)).to(totals)
        model.train(was_training)
        loss_sum, tokens = self.accelerator.reduce(totals).tolist()
        loss = loss_sum / tokens
        metrics = {
            f"{metric_key_prefix}_loss": loss,
            f"{metric_key_prefix}_perplexity": math.exp(min(loss, 700.0)),
        }
        if self.args.eval_bleu or self.compute_metrics:
            beams = self.args.generation_num_beams
            outputs, labels = self._translate_ids(model, dataset, **({} if beams is None else {"num_beams": beams}))
            if self.args.eval_bleu:
                metrics[f"{metric_key_prefix}_bleu"] = self._bleu(outputs, labels)
            if self.compute_metrics:
                arrays = (pad(rows, IGNORED_LABEL).numpy() for rows in (outputs, labels))
                own = denumpify_detensorize(self.compute_metrics(EvalPrediction(*arrays)))
                prefix = f"{metric_key_prefix}_"
                metrics |= {f"{prefix}{name.removeprefix(prefix)}": value for name, value in own.items()}
        metrics[f"{metric_key_prefix}_runtime"] = round(time.perf_counter() - start, 3)
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _validated_model(self) -> torch.nn.Module:
        if self.average and self.average.model:
            return self.average.model
        return self.accelerator.unwrap_model(self.model)

    def _bleu(self, outputs: list[list[int]], labels: list[list[int]]) -> float:
        predictions, references = self._texts(outputs, labels)
        tokenize = self.args.bleu_tokenize
        return Bleu().compute(predictions=predictions, references=references, tokenize=tokenize)["bleu"]

    def score(self) -> dict[str, Any]:
        """BLEU, chrF and TER of the validation text with the model's own decoding, as `evaluate` prints them."""
        if isinstance(self.eval_dataset, dict):
            raise ValueError("There are several validation sets: score one with `vanilla-transformer evaluate`.")
        predictions, references = self._texts(*self._translate_ids(self._validated_model(), self.eval_dataset))
        scores = evaluate_translations(predictions, references, self.args.bleu_tokenize)
        return {"text": "validation text", "sentences": len(predictions), **scores}

    def _translate_ids(self, model: Any, dataset: Any, **settings: Any) -> tuple[list[list[int]], list[list[int]]]:
        """The data set's translations and labels in its order, on every process; each translates its share."""
        processes = self.accelerator.num_processes
        mine = range(self.accelerator.process_index, len(dataset), processes)
        sources, labels = ([dataset[i][name] for i in mine] for name in ("input_ids", "labels"))
        hidden = self.args.disable_tqdm or not self.accelerator.is_local_main_process
        with (
            self.compute_loss_context_manager(),
            _without_wrapper(model),
            tqdm(total=len(mine), desc="Validating", unit=" sentences", leave=False, disable=hidden) as bar,
        ):
            outputs = translate_ids(model, sources, progress=bar.update, **settings)
        rows = list(zip(mine, outputs, labels, strict=True))
        if processes > 1:
            rows = sorted(gather_object(rows), key=itemgetter(0))
        _, outputs, labels = map(list, zip(*rows, strict=True))
        return outputs, labels

    def _texts(self, *sides: list[list[int]]) -> list[list[str]]:
        return [self.processing_class.batch_decode(ids, skip_special_tokens=True) for ids in sides]

    def init_hf_repo(self, *args, **kwargs) -> None:
        """Before training starts, so that a missing token or permission is known then."""
        with hub.explained(str(self.args.hub_model_id or self.args.output_dir)):
            super().init_hf_repo(*args, **kwargs)

    def push_to_hub(self, commit_message=None, blocking=True, token=None, revision=None, private=None, **kwargs):
        """Uploads the model, its tokenizer and this package's card; gives the address.

        Raises:
            OSError: if that fails, saying what is missing; the model is saved in the output folder before.
        """
        if self.hub_model_id is None:
            self.init_hf_repo(token=token, private=private)
        self.save_model(_internal_call=True)
        if self.is_world_process_zero():
            return hub.push(
                str(self.args.output_dir),
                str(self.hub_model_id),
                token=token or self.args.hub_token,
                revision=revision or self.args.hub_revision,
                commit_message=commit_message,
            )
        return None

    def _get_output_dir(self, trial) -> str:
        folder = super()._get_output_dir(trial)
        return str(Path(folder, UNFINISHED)) if self._saving else folder

    def _save_checkpoint(self, model, trial):
        """Writes a checkpoint under another name and then gives it its own, so that what bears a name is whole.

        Keeps the best checkpoint beside the newest `save_total_limit`, so that these can be averaged.
        """
        folder, name = Path(self._get_output_dir(trial)), f"checkpoint-{self.state.global_step}"
        unfinished, best = folder / UNFINISHED / name, self.state.best_global_step
        self._saving = True
        try:
            super()._save_checkpoint(model, trial)
            if best:
                self.state.best_model_checkpoint = str(folder / f"checkpoint-{best}")
            self.accelerator.wait_for_everyone()
            if self.args.should_save:
                self.state.save_to_json(str(unfinished / STATE))
                if self.average:
                    self.average.save(unfinished)
                write_checksums(unfinished)
                shutil.rmtree(folder / name, ignore_errors=True)  # a damaged one from before
                unfinished.replace(folder / name)
        except Exception as error:
            raise OSError(f"Cannot write {folder / name}: {error}. The checkpoints before it are whole.") from error
        finally:
            self._saving = False
            if self.args.should_save:
                shutil.rmtree(folder / UNFINISHED, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        if self.args.should_save and self.args.save_total_limit:
            limit = self.args.save_total_limit + bool(best)
            rotate_checkpoints(str(folder), limit, self.state.best_model_checkpoint)

    def _load_optimizer_and_scheduler(self, checkpoint):
        super()._load_optimizer_and_scheduler(checkpoint)
        if self.average:
            self.average.start(self.accelerator.unwrap_model(self.model), checkpoint)

    def _save(self, output_dir: str | None = None, state_dict=None):
        """Leaves out transformers' pickled copy of the arguments: what may be shared holds no pickles."""
        folder = Path(output_dir or str(self.args.output_dir))
        try:
            super()._save(output_dir, state_dict)
        except SafetensorError as error:  # what safetensors makes of a full disk
            raise OSError(f"Cannot write the model to {folder}: {error}") from error
        (folder / "training_args.bin").unlink(missing_ok=True)
