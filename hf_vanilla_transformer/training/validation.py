"""Validate a model during training: cross-entropy, perplexity, and BLEU of its translations."""

import copy
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any

import torch
from accelerate.utils import gather_object
from torch.utils.data import DataLoader
from tqdm import tqdm
from transformers import EvalPrediction, PreTrainedTokenizerBase, Seq2SeqTrainer
from transformers.trainer_pt_utils import nested_numpify
from transformers.trainer_utils import denumpify_detensorize, speed_metrics

from ..data.batching import Rows, Seq2SeqCollator, batches_by_length, by_name, pad, sized_rows, unpadded
from ..data.workers import prepare_data_worker
from ..errors import UserError, checking_settings
from ..inference.metrics import bleu, doubtful_score, evaluate_translations, perplexity
from ..inference.translator import Translator
from ..model.configuration_vanilla_transformer import IGNORED_LABEL
from ..model.graphs_vanilla_transformer import forget_graphs
from ..model.loss_vanilla_transformer import smoothed_cross_entropy
from ..model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from .arguments import VanillaTransformerTrainingArguments
from .ema import MovingAverage
from .sharding import unsharded

_Pairs = Sequence[Mapping[str, list[int]]]


def _without_wrapper(model: VanillaTransformerForConditionalGeneration) -> VanillaTransformerForConditionalGeneration:
    """Return the model without the `forward` that accelerate wraps for mixed precision, but with the same weights.

    The fast search runs only if calling the model runs nothing but its class's `forward`.
    """
    original = vars(model).get("_original_forward")
    if original is None:
        return model
    # A shallow copy, because training needs the wrapper again
    plain = copy.copy(model)
    del plain.forward
    # A method that a user has put in place of the class's still counts
    if getattr(original, "__func__", None) is not type(model).forward:
        plain.forward = original
    return plain


class ValidatingTrainer(Seq2SeqTrainer):
    """`Seq2SeqTrainer` that validates in batches by tokens and translates with this package's fast search."""

    args: VanillaTransformerTrainingArguments
    model: VanillaTransformerForConditionalGeneration
    processing_class: PreTrainedTokenizerBase  # None is allowed where nothing is translated
    average: MovingAverage | None
    # of the latest translations of each validation text
    _mean_log_probs: dict[str, list[float]]

    # layers that are compiled for training would be compiled again
    @torch.compiler.set_stance("force_eager")
    def evaluate(
        self, eval_dataset=None, ignore_keys=None, metric_key_prefix: str = "eval", **gen_kwargs
    ) -> dict[str, float]:
        """Return the unsmoothed cross-entropy in nats per real target token, its exponential (perplexity) and BLEU.

        Every pair counts exactly once, for any number of processes; one longer than `max_tokens` forms its own batch.
        Several datasets are evaluated one after the other, each under its own name. BLEU is computed on translations
        with the model's decoding settings, except for `generation_num_beams` and `gen_kwargs`, those of `generate`.

        With `compute_loss_func`, the loss is the mean of its values, each weighted by the tokens of its batch.
        `compute_metrics` receives the translations, as token ids padded with -100, and the labels. With
        `preprocess_logits_for_metrics`, it receives what that makes of the logits for the labels, or of the
        translations if `predict_with_generate` is set.

        Raises:
            ValueError: if there is no dataset, one has no length, or there is no tokenizer for BLEU.
        """
        start = time.time()
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(dataset, str):
            name = dataset
            dataset = by_name(self.eval_dataset).get(name)
            if dataset is None:
                raise UserError(f"There is no dataset {name!r} in eval_dataset.")
        if dataset is None:
            raise UserError("There is no dataset to evaluate: give an eval_dataset.")
        sets = by_name(dataset)
        if set(sets) != {""}:
            metrics: dict[str, float] = {}
            for name, part in sets.items():
                metrics |= self.evaluate(part, ignore_keys, f"{metric_key_prefix}_{name}", **gen_kwargs)
            return metrics

        # Checked here, because computing the loss of a large text first would waste minutes
        if self.args.eval_bleu and self.processing_class is None:
            raise UserError("BLEU in validation needs a tokenizer: give processing_class, or set eval_bleu=False.")
        model = self._validated_model()
        metrics = self._losses(model, sets[""]) | self._translation_metrics(model, sets[""], gen_kwargs)
        if self._wants_logits():
            # its loss is a mean of batches
            metrics = {**self._logits_metrics(model, sets[""], ignore_keys, metric_key_prefix), **metrics}
        prefix = f"{metric_key_prefix}_"
        # `compute_metrics` may return names with or without the prefix, as with Trainer
        metrics = {f"{prefix}{name.removeprefix(prefix)}": value for name, value in metrics.items()}
        metrics |= speed_metrics(metric_key_prefix, start, len(sets[""]))
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _wants_logits(self) -> bool:
        """Return whether `compute_metrics` receives something made of logits, and not of translations."""
        has_functions = self.compute_metrics is not None and self.preprocess_logits_for_metrics is not None
        return has_functions and not self.args.predict_with_generate

    def prediction_step(self, *args, **kwargs):
        """Predict a batch as `Seq2SeqTrainer` does, but keep the decoding settings, to which it adds its defaults."""
        settings = self.model.generation_config
        before = copy.deepcopy(vars(settings))
        try:
            return super().prediction_step(*args, **kwargs)
        finally:
            # in place, because a model and its adapter share the object
            vars(settings).clear()
            vars(settings).update(before)

    def _loader(self, rows: Rows, **batches) -> DataLoader:
        """Return a loader set up by the flags --dataloader_*; `batches` are more arguments of `DataLoader`."""
        flags = {name: value for name, value in vars(self.args).items() if name.startswith("dataloader_")}
        given = {name.removeprefix("dataloader_"): value for name, value in flags.items() if value is not None}
        # Memory is pinned only for copies to a GPU; without one, torch would warn
        given["pin_memory"] &= self.args.device.type != "cpu"
        collator = self.data_collator
        if not isinstance(collator, Seq2SeqCollator):
            # One of transformers cannot pad columns of text
            collator = self._get_collator_with_removed_columns(collator)
        given |= {"collate_fn": collator, "worker_init_fn": prepare_data_worker}
        with checking_settings():
            return DataLoader(rows, **given, **batches)

    def _validated_model(self) -> VanillaTransformerForConditionalGeneration:
        if self.average and hasattr(self.average, "model"):
            return self.average.model
        return unsharded(self.accelerator.unwrap_model(self.model))

    def _losses(self, model: torch.nn.Module, dataset: _Pairs) -> dict[str, float]:
        """Return the loss and the perplexity, from means over the real target tokens of all processes."""
        rows = sized_rows(dataset)
        batches = batches_by_length(*rows.lengths, self.args.max_tokens)
        # Not sharded by accelerate, which repeats batches so that all processes have the same number
        own = batches[self.accelerator.process_index :: self.accelerator.num_processes]
        was_training = model.training
        model.eval()
        # A sum over millions of tokens needs float64, which MPS lacks
        totals = torch.zeros(3, dtype=torch.float32 if self.args.device.type == "mps" else torch.float64)
        totals = totals.to(self.args.device)
        with torch.no_grad():
            for batch in self._loader(rows, batch_sampler=own):
                inputs = self._prepare_inputs(batch)
                with self.compute_loss_context_manager():
                    totals += self._batch_losses(model, inputs).to(totals)
        model.train(was_training)
        loss_sum, nats, tokens = self.accelerator.reduce(totals)
        # tensors: without a token, both are NaN, as with transformers
        return {"loss": (loss_sum / tokens).item(), "perplexity": perplexity((nats / tokens).item())}

    def _batch_losses(self, model: torch.nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
        """Return the loss and the cross-entropy of a batch, summed over its real target tokens, and these, (3,)."""
        labels = inputs["labels"]
        tokens = labels.ne(IGNORED_LABEL).sum()
        # a tuple only with return_outputs
        loss: Any
        if self.compute_loss_func is None:
            loss = self.compute_loss(model, inputs)
            nats = loss * tokens
        else:
            # The perplexity is not that of the user's own loss
            loss, outputs = self.compute_loss(model, inputs, return_outputs=True)
            nats = smoothed_cross_entropy(outputs.logits, labels, 0.0, self.model.config.pad_token_id)
        # The sum over the batch's tokens again, so that every token of the text has the same weight
        return torch.stack((loss * tokens, nats, tokens))

    def _translation_metrics(
        self, model: VanillaTransformerForConditionalGeneration, dataset: _Pairs, gen_kwargs: Mapping[str, object]
    ) -> dict[str, float]:
        """Translate the dataset if its BLEU or `compute_metrics` needs it, and return these metrics."""
        metrics: dict[str, float] = {}
        if self.args.eval_bleu or (self.compute_metrics and not self._wants_logits()):
            given = {name: value for name, value in gen_kwargs.items() if value is not None}
            beams = self.args.generation_num_beams
            settings = given if beams is None else {"num_beams": beams, **given}
            usual = {"num_beams": beams, "max_length": self.args.generation_max_length}
            outputs, labels = self._translate_ids(model, dataset, given.items() <= usual.items(), **settings)
            if untranslated := sum(not output for output in outputs):
                # more tokens than the model has positions
                metrics["untranslated"] = untranslated
            self._check_use_of_source(outputs, labels)
            if self.args.eval_bleu:
                texts, reference_texts = self._decode(outputs, labels)
                metrics["bleu"] = bleu(self.args.bleu_tokenize).corpus_score(texts, [reference_texts]).score
            if self.compute_metrics and not self._wants_logits():
                predictions, references = (pad(rows, IGNORED_LABEL) for rows in (outputs, labels))
                if self.preprocess_logits_for_metrics:
                    predictions = self.preprocess_logits_for_metrics(predictions, references)
                # NumPy scalars would fail later, when the state of the run is saved as JSON
                arrays = nested_numpify((predictions, references))
                metrics |= denumpify_detensorize(self.compute_metrics(EvalPrediction(*arrays)))
        return metrics

    def _logits_metrics(
        self, model: VanillaTransformerForConditionalGeneration, dataset: Any, ignore_keys, prefix: str
    ) -> dict[str, float]:
        """Return the metrics that `Seq2SeqTrainer` computes from the logits of a model."""
        trained = self.model
        # which may be replaced by its moving average
        self.model = model
        try:
            loader = self.get_eval_dataloader(dataset)
            return self.evaluation_loop(loader, "Evaluation", None, ignore_keys, prefix).metrics or {}
        finally:
            self.model = trained

    def _check_use_of_source(self, outputs: list[list[int]], labels: list[list[int]]) -> None:
        """Report during training that nearly all translations are the same sentence, unless their references are."""
        updates = self.state.global_step
        different = len(set(map(tuple, outputs)))
        # Some sentences that take turns say as little about the source as a single one
        if not updates or 10 * different > len(set(map(tuple, labels))) or not self.is_world_process_zero():
            return
        counts = f"distinct translations of {len(outputs):,} validation sentences: {different:,}"
        advice = (
            "This is normal during the warm-up. If it lasts, check that the lines of both sides of the text "
            "correspond; otherwise train in another --output_dir with a lower --learning_rate, or on more text."
        )
        # print would break a progress bar
        tqdm.write(f"Update {updates:,}: {counts}; the model still ignores its source. {advice}", file=sys.stderr)

    def score(self) -> list[dict[str, object]]:
        """Return the scores of each validation text with the model's decoding settings, as `evaluate` does."""
        results: list[dict[str, object]] = []
        model = self._validated_model()
        for name, dataset in by_name(self.eval_dataset).items():
            predictions, references = self._decode(*self._translate_ids(model, dataset))
            scores = evaluate_translations(predictions, references, self.args.bleu_tokenize)
            text = f"validation text, {name}" if name else "validation text"
            results.append({"text": text, "sentences": len(predictions), **scores})
        return results

    def _translate_ids(
        self, model: VanillaTransformerForConditionalGeneration, dataset: _Pairs, is_usual: bool = True, **settings
    ) -> tuple[list[list[int]], list[list[int]]]:
        """Return the dataset's translations and labels in order, on every process; each process translates a share.

        Args:
            is_usual: whether the settings are those of this run's validations, whose scores the model keeps.
        """
        processes = self.accelerator.num_processes
        # Every n-th pair, so that a text in order of length is shared fairly
        mine = range(self.accelerator.process_index, len(dataset), processes)
        pairs = [unpadded(dataset[i]) for i in mine]
        # None: only in a terminal
        hidden = self.args.disable_tqdm or not self.accelerator.is_local_main_process or None
        with (
            self.compute_loss_context_manager(),
            tqdm(total=len(mine), desc="Validating", unit=" sentences", leave=False, disable=hidden) as bar,
        ):
            sources = [source for source, _ in pairs]
            plain = _without_wrapper(model)
            translator = Translator(plain, self.processing_class)
            # another pass would take the memory of all logits
            scores = is_usual and not translator.scores_take_a_pass(settings)
            translations = translator.translate_ids(sources, scores=scores, progress=bar.update, **settings)
            means = translator.mean_log_probs(translations, settings) if scores else [None] * len(translations)
            # training needs their memory; a moving average is never in training mode, which frees them
            forget_graphs(plain)
        outputs = [translation.hypotheses[0] if translation.hypotheses else [] for translation in translations]
        labels = [target for _, target in pairs]
        rows = list(zip(mine, outputs, labels, means, strict=True))
        if processes > 1:
            rows = sorted(gather_object(rows), key=itemgetter(0))
        if is_usual:
            self._set_doubtful_score(dataset, [mean for *_, mean in rows])
        return [output for _, output, *_ in rows], [reference for *_, reference, _ in rows]

    def _set_doubtful_score(self, dataset: _Pairs, means: list[float | None]) -> None:
        """Set the model's `doubtful_score` from its latest translations of the validation texts.

        Args:
            dataset: what has been translated; nothing changes unless it is a validation text of this trainer.
            means: the log-probability per token of each translation, None where there is none.
        """
        texts = self.eval_dataset if isinstance(self.eval_dataset, dict) else {"": self.eval_dataset}
        names = [name for name, text in texts.items() if text is dataset]
        for name in names:
            self._mean_log_probs[name] = [mean for mean in means if mean is not None]
        if names:
            self.model.config.doubtful_score = doubtful_score(list(chain(*self._mean_log_probs.values())))

    def _decode(self, *sides: list[list[int]]) -> list[list[str]]:
        return [self.processing_class.batch_decode(ids, skip_special_tokens=True) for ids in sides]
