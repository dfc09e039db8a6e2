"""Train a model from text to a saved folder: `vanilla-transformer train` and `accelerate launch scripts/train.py`."""

import shutil
import sys
from contextlib import nullcontext
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from accelerate.utils import gather_object
from transformers import IntervalStrategy, PreTrainedTokenizerBase, TrainerCallback, set_seed

from ..data.languages import not_languages
from ..data.tokenizer import check_tokenizer, fingerprint, follow_tokenizer, save_tokenizer, vocabulary_size
from ..errors import UserError
from ..files import STATE, model_files, read_json, replacing_files
from ..flags import Decides, Part
from ..model.loading import load_config, load_model, load_tokenizer
from ..model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from ..model.text_rules_vanilla_transformer import Directions
from ..sharing.card import write_card, write_record
from .arguments import (
    AUTO,
    TEXT,
    DataArguments,
    ModelArguments,
    ResolvedFlags,
    VanillaTransformerTrainingArguments,
    check_reporters,
    meaning,
    short_warmup,
)
from .checkpoints import find_fault, newest_checkpoint
from .ema import AVERAGE
from .progress import print_lines
from .record import example_sentence, training_record, versions
from .safeguards import explain_failures, one_run
from .settings import (
    PAIRS,
    check_continues,
    check_same_run,
    compare_validations,
    more_text,
    recorded_settings,
    renames_text,
    resolve_config,
    run_settings,
    write_settings,
)
from .text import TokenizedText, all_tags, prepared_folder, read_contents, tokenize_text
from .trainer import VanillaTransformerTrainer


class _ReportShortWarmup(TrainerCallback):
    """Report a run that will end during the warm-up, once transformers has counted the updates of its epochs."""

    def on_train_begin(self, args, state, control, **kwargs):
        if state.is_world_process_zero and (advice := short_warmup(args, state.max_steps)):
            print(advice, file=sys.stderr, flush=True)


def run_train(
    model: ModelArguments, data: DataArguments, args: VanillaTransformerTrainingArguments
) -> VanillaTransformerTrainer | None:
    """Train a model and save it with its tokenizer in `args.output_dir`, or resume the run in that folder.

    The folder's `settings.yaml` identifies its run. Returns None for a finished run, which is left unchanged.

    Raises:
        ValueError: for data or settings that cannot be used, saying which and why; the folder is left unchanged.
    """
    # The main process locks the folder for all, since each of them would be refused by the lock of another
    with one_run(str(args.output_dir)) if args.process_index == 0 else nullcontext(), explain_failures():
        check_reporters(args)
        set_seed(args.seed)
        config, data = resolve_config(model, data)
        return _Run(model, data, args, config).train()


@dataclass
class _Run(ResolvedFlags):
    """A training run, with the settings that are recorded in its folder."""

    def __post_init__(self):
        self.folder = str(self.args.output_dir)
        self.args.keep_precision(recorded_settings(self.folder))
        self.settings = run_settings(self)

    def train(self) -> VanillaTransformerTrainer | None:
        """Train until the end or SIGTERM; return None if the run was already finished."""
        requested = self.args.resume_from_checkpoint
        if renames_text(recorded_settings(self.folder) or {}, self.settings):
            self.settings |= read_contents(self.data)
        resumes = check_same_run(self.settings, self.folder)
        finished = resumes and not requested and self._is_finished()
        checkpoint = None if finished else self._find_checkpoint(resumes)
        # Before the other processes read these files: they wait for this one below
        if resumes and checkpoint and not requested and self.args.process_index == 0:
            self._restore_tokenizer(Path(checkpoint))

        # A process that resumed from another checkpoint than the rest would wait for them forever
        state = "finished" if finished else Path(checkpoint).name if checkpoint else "no checkpoint"
        states = sorted(set(gather_object([state])))
        if len(states) > 1:
            raise UserError(
                f"The processes of this run find different states in {self.folder}: {', '.join(states)}. All machines "
                "must share --output_dir."
            )
        if finished:
            self._report(
                f"The run in {self.folder} is finished; there is nothing left to do. {more_text(self.folder)}"
            )
            return None

        if message := not_languages(language for pair in Directions(self.config).pairs for language in pair):
            self._report(message)
        text = self._read_text(checkpoint, resumes)
        trainer = self._build_trainer(text)
        if checkpoint:
            self._report(f"Resuming from {checkpoint}")
        trainer.train(resume_from_checkpoint=checkpoint)
        updates = trainer.state.global_step
        # SIGTERM during the last update leaves nothing to resume
        if trainer.safeguards.stopped and updates < trainer.state.max_steps:
            without = " without --resume_from_checkpoint" if requested else ""
            self._report(f"Stopped by SIGTERM after {updates:,} updates; run the same command{without} to resume.")
        else:
            self._finish(trainer, text)
        return trainer

    def _report(self, message: str) -> None:
        if self.args.process_index == 0:
            print(message, file=sys.stderr, flush=True)

    def _is_finished(self) -> bool:
        """Return whether the run has completed the requested number of updates or epochs."""
        name = "max_steps" if self.args.max_steps > 0 else "num_train_epochs"
        try:
            return read_json(Path(self.folder, STATE))[name] >= getattr(self.args, name)
        except (OSError, ValueError, TypeError, LookupError):
            # missing or damaged: rely on the checkpoints
            return False

    def _find_checkpoint(self, resumes: bool) -> str | None:
        """Return the checkpoint to resume from: the one given by the flag, else the newest intact one of the run.

        Raises:
            ValueError: if training cannot resume from it.
        """
        if requested := self.args.resume_from_checkpoint:
            if fault := find_fault(Path(requested)):
                raise UserError(f"--resume_from_checkpoint {requested}: {fault}.")
            return requested
        newest = newest_checkpoint(self.folder, self._report) if resumes else None
        return str(newest) if newest else None

    def _restore_tokenizer(self, checkpoint: Path) -> None:
        """Restore the tokenizer and configuration from an intact checkpoint, if the run's own cannot be loaded."""
        try:
            load_tokenizer(self.folder)
        except OSError:
            self._report(f"The tokenizer in {self.folder} is damaged; restoring it from {checkpoint.name}")
            with replacing_files(self.folder) as unfinished:
                for file in model_files(checkpoint).values():
                    shutil.copyfile(file, unfinished / file.name)

    def _read_text(self, checkpoint: str | None, resumes: bool) -> TokenizedText:
        """Read and tokenise the text, with the tokenizer of the run, of its text or of the model it starts from.

        Raises:
            ValueError: for flags that have no effect, or text without what they need.
        """
        data = self.data
        prepared = prepared_folder(data)
        if data.streaming and not prepared:
            raise UserError("--streaming reads a folder made by `prepare`; give one as --train_file.")
        # A checkpoint has its own tokenizer, too, but the flags are those with which it was learned
        given = prepared or self.model.tokenizer_name or self.model.model_name_or_path
        if given and (self.model.tokenizer_model, self.model.normalization) != ("bpe", "none"):
            raise UserError(f"--tokenizer_model and --normalization have no effect: {given} has its own tokenizer.")

        path = prepared or self.model.tokenizer_name or checkpoint or self.model.model_name_or_path
        # A run that resumes has saved its tokenizer, which must not change even if its origin has
        text = tokenize_text(self, self.folder if resumes else path, self._report)
        if path and not resumes:
            self._check_vocabulary(text.tokenizer, path)
        if text.validation is None:
            if self.args.early_stopping_patience is not None:
                names = ", ".join(data.dataset_name or [])
                raise UserError(f"{names} has no validation split, which early stopping needs.")
            self.args.eval_strategy = IntervalStrategy.NO
        self.settings |= {PAIRS: text.num_pairs, **text.contents}
        return text

    def _build_trainer(self, text: TokenizedText) -> VanillaTransformerTrainer:
        """Build or load the model, and record the settings of the run in its folder.

        Raises:
            ValueError: if the run began with other text.
        """
        args = self.args
        model = self._build_model(text.tokenizer)
        rows = {"train_dataset": text.train, "eval_dataset": text.validation}
        chooses = args.bf16 == AUTO
        trainer = VanillaTransformerTrainer(model, args, processing_class=text.tokenizer, **rows)
        trainer.add_callback(_ReportShortWarmup())
        print_lines(trainer)
        if chooses:
            self.settings |= {"bf16": args.bf16}
            self._report(f"--bf16 auto: training in {'bfloat16' if args.bf16 else 'float32'}")
        before = recorded_settings(self.folder) or {}
        changed = [name for name in (PAIRS, TEXT) if before.get(name, self.settings[name]) != self.settings[name]]
        if changed:
            found = "other text, which had as many sentence pairs"
            if PAIRS in changed:
                found = f"{before[PAIRS]:,} sentence pairs, but its text now has {text.num_pairs:,}"
            raise UserError(
                f"{self.folder} was trained on {found}. Restore the text, or choose another --output_dir. "
                f"{more_text(self.folder)}"
            )
        trainer.resumed_state.has_new_validation = bool(before) and not compare_validations(before, self.settings)
        if args.process_index == 0:
            # One from this folder is not saved again: another process may be reading it
            if text.tokenizer.name_or_path != self.folder:
                save_tokenizer(text.tokenizer, self.folder)
            comment = f"The resolved settings of this run, as a recipe ({versions()})"
            write_settings(self.settings, self.folder, comment)
        return trainer

    def _build_model(self, tokenizer: PreTrainedTokenizerBase) -> VanillaTransformerForConditionalGeneration:
        """Return a new model for the tokenizer, or the pretrained one."""
        if pretrained := self.model.model_name_or_path:
            # Half precision would lose small updates, above all those of a moving average
            model = load_model(pretrained, config=self.config, dtype=torch.float32)
            self._add_embeddings(model, tokenizer)
        else:
            follow_tokenizer(self.config, tokenizer)
            model = VanillaTransformerForConditionalGeneration(self.config)
        check_tokenizer(tokenizer, self.config)
        if self.args.resume_from_checkpoint:
            self._check_checkpoint(self.args.resume_from_checkpoint, tokenizer)
        model.generation_config.update(**self.model.overrides(Part.GENERATION_CONFIG))
        size = f"{model.num_parameters():,} parameters and a vocabulary of {len(tokenizer):,} tokens"
        self._report(f"The model has {size}")
        return model

    def _check_vocabulary(self, tokenizer: PreTrainedTokenizerBase, path: str) -> None:
        """Check that the tokenizer at `path` has the tokens of --tokenizer_name and of the pretrained model.

        Raises:
            ValueError: if it does not.
        """
        pretrained = self.model.model_name_or_path
        named = self.model.tokenizer_name
        for name in {pretrained, named} - {None, path}:
            try:
                expected = load_tokenizer(str(name)).get_vocab()
            except OSError:
                if name == pretrained:
                    # it may have been saved without a tokenizer
                    continue
                raise
            if not expected.items() <= tokenizer.get_vocab().items():
                advice = "omit --tokenizer_name" if path == named else f"prepare the text with --tokenizer_name {name}"
                raise UserError(f"{path} and {name} have different vocabularies: {advice}.")

    def _add_embeddings(
        self, model: VanillaTransformerForConditionalGeneration, tokenizer: PreTrainedTokenizerBase
    ) -> None:
        """Add rows to the embedding matrix of a pretrained model for the tags that it lacks."""
        size = model.config.vocab_size
        vocabulary = tokenizer.get_vocab()
        new = [tag for tag in all_tags(self.config, self.data) if vocabulary[tag] >= size]
        # A tokenizer with other tokens beyond the model's is refused later, by check_tokenizer
        if new and vocabulary_size(tokenizer) == size + len(new):
            model.resize_token_embeddings(size + len(new))
            self.config.vocab_size = size + len(new)
            self._report(f"Added the tags {' '.join(new)} to {self.model.model_name_or_path}")

    def _check_checkpoint(self, checkpoint: str, tokenizer: PreTrainedTokenizerBase) -> None:
        """Check that a checkpoint has this model's sizes and vocabulary, and its run the same batches and optimizer.

        Raises:
            ValueError: if it does not.
        """
        saved = load_config(checkpoint)
        where = f"--resume_from_checkpoint {checkpoint}"
        for name in (flag.name for flag in fields(ModelArguments)):
            value = getattr(saved, name, None)
            expected = getattr(self.config, name, None)
            if meaning(name).decides is Decides.SIZES and value != expected:
                raise UserError(f"{where}: its {name} is {value}, not {expected}.")
        if fingerprint(load_tokenizer(checkpoint)) != fingerprint(tokenizer):
            raise UserError(f"{where}: its vocabulary differs from that of this run.")
        # A checkpoint that was copied out of its run's folder has no settings to compare
        if before := recorded_settings(Path(checkpoint).parent):
            check_continues(before, self.settings, checkpoint)
        if self.args.ema_decay and not Path(checkpoint, AVERAGE).is_file():
            raise UserError(f"{where}: its run had no --ema_decay; omit the flag.")

    def _finish(self, trainer: VanillaTransformerTrainer, text: TokenizedText) -> None:
        """Save the model with its card, report the best metric, and upload the model if requested."""
        trainer.save_model(_internal_call=True)
        state = trainer.state
        record = training_record(trainer, self.settings, self, text)
        record["example"] = example_sentence(self.data, text)
        if self.args.process_index == 0:
            write_record(self.folder, record)
            write_card(self.folder)
        metric = str(trainer.args.metric_for_best_model).removeprefix("eval_")
        # Not state.best_global_step, which transformers leaves out if there are no checkpoints
        best = [log["step"] for log in state.log_history if log.get(f"eval_{metric}", "none") == state.best_metric]
        if best:
            self._report(f"Best {metric}: {state.best_metric:.4g}, after {best[0]:,} updates")
        # with load_best_model_at_end, transformers has loaded the best checkpoint
        updates = best[0] if best and trainer.args.load_best_model_at_end else state.global_step
        self._report(f"The model of update {updates:,}, its tokenizer and its card are in {self.folder}")
        kept = Path(self.folder, f"checkpoint-{best[0]}") if best else Path(self.folder)
        if best and best[0] != updates and kept.is_dir():
            self._report(f"The best one by validation is in {kept}")
            if trainer.average:
                self._report("Its moving average was validated, which --load_best_model_at_end makes the model")
        if self.args.push_to_hub:
            self._report(f"Uploaded to {trainer.push_to_hub()}")
        # Last, since it marks the run as finished: if anything above fails, the same command tries it again
        trainer.save_state()
