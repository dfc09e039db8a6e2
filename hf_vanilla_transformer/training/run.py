"""Train a model from text to a saved folder, or resume the run in that folder, as `vanilla-transformer train`."""

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from pathlib import Path

import torch
from accelerate.utils import gather_object
from transformers import IntervalStrategy, PreTrainedTokenizerBase, set_seed

from ..data.tokenizer import check_tokenizer, follow_tokenizer, save_tokenizer, vocabulary_size
from ..errors import UserError
from ..files import SETTINGS, STATE, check_folder, locking, read_json, replacing, weight_files
from ..flags import Decides, Settings
from ..loading import load_model, load_tokenizer
from ..model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from ..sharing.card import write_card, write_record
from .arguments import PROCESSES, TEXT, VALIDATION, Recipe, check_reporters, decided_by, meaning
from .checkpoints import checkpoint_folders, find_fault, newest_checkpoint
from .progress import ShortWarmupNotice, print_lines
from .recipes import write_settings
from .record import VERSIONS, training_record
from .text import TokenizedText, all_tags, prepared_folder, read_contents, tokenize_text
from .trainer import VanillaTransformerTrainer

_AVERAGED = 5  # checkpoints, as in the paper
_DIGESTS = (TEXT, VALIDATION)  # of texts, known once these have been read


@contextmanager
def one_run(folder: str | Path) -> Iterator[None]:
    """Lock `folder` for a single run, as `locking`.

    Raises:
        ValueError: if another run is using the folder, or it is a file.
    """
    folder = Path(folder)
    check_folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    busy = f"Another run is using {folder}; wait until it ends or choose another folder."
    try:
        with locking(folder / "run.lock", busy):
            yield
    finally:
        # A run that was refused leaves no trace; a folder that is not empty is not removed
        with suppress(OSError):
            folder.rmdir()


def run_train(recipe: Recipe) -> VanillaTransformerTrainer | None:
    """Train a model and save it with its tokenizer in the output folder, or resume the run in that folder.

    The folder's `settings.yaml` identifies its run. Returns None for a finished run, which is left unchanged.

    Raises:
        ValueError: for data or settings that cannot be used, saying which and why; the folder is left unchanged.
    """
    # The main process locks the folder for all, since each of them would be refused by the lock of another
    lock = one_run(recipe.folder) if recipe.args.process_index == 0 else nullcontext()
    # Trackers print to stdout, which is for results
    with lock, redirect_stdout(sys.stderr):
        check_reporters(recipe.args)
        set_seed(recipe.args.seed)
        return _Run(recipe).train()


class _Run:
    """A training run, with the settings that are recorded in its folder."""

    def __init__(self, recipe: Recipe):
        self.recipe = recipe
        self.args = recipe.args
        self.folder = recipe.folder
        self.pretrained = recipe.model.model_name_or_path
        self.settings = dict(recipe.settings)

    def train(self) -> VanillaTransformerTrainer | None:
        """Train until the end or SIGTERM; return None if the run was already finished."""
        recorded = self.recipe.recorded
        if recorded and renames_text(recorded, self.settings):
            self.settings |= read_contents(self.recipe.data)
        resumes = check_same_run(recorded, self.settings, self.folder)
        finished = resumes and not self.args.resume_from_checkpoint and self._is_finished()
        checkpoint = None if finished else self._find_checkpoint(resumes)
        self._check_shared("finished" if finished else Path(checkpoint).name if checkpoint else "no checkpoint")
        if finished:
            self._report(
                f"The run in {self.folder} is finished; there is nothing left to do. {more_text(self.folder)}"
            )
            return None
        if resumes and not checkpoint:
            self._check_restart()

        text = self._read_text(checkpoint, resumes)
        trainer = self._build_trainer(text)
        if checkpoint:
            self._report(f"Resuming from {checkpoint}")
        trainer.train(resume_from_checkpoint=checkpoint)
        updates = trainer.state.global_step
        # SIGTERM during the last update leaves nothing to resume
        if trainer.guard.stopped and updates < trainer.state.max_steps:
            without = " without --resume_from_checkpoint" if self.args.resume_from_checkpoint else ""
            self._report(f"Stopped by SIGTERM after {updates:,} updates; run the same command{without} to resume.")
        else:
            self._finish(trainer, text)
        return trainer

    def _report(self, message: str) -> None:
        if self.args.process_index == 0:
            print(message, file=sys.stderr, flush=True)

    def _is_finished(self) -> bool:
        """Return whether the run has saved a model of the requested number of updates or epochs."""
        if not weight_files(Path(self.folder)):
            return False
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
            is_own = resumes and Path(requested).resolve().parent == Path(self.folder).resolve()
            fault = find_fault(Path(requested)) if is_own else f"it is no checkpoint of a run in {self.folder}"
            if fault:
                start = f"To start another run from its weights, give --model_name_or_path {requested}"
                raise UserError(f"--resume_from_checkpoint {requested}: {fault}. {start}.")
            return requested
        newest = newest_checkpoint(self.folder, self._report) if resumes else None
        return str(newest) if newest else None

    def _check_restart(self) -> None:
        """Check that a run without a checkpoint, which starts again, has no model that it would overwrite.

        Raises:
            ValueError: if it has one.
        """
        if weight_files(Path(self.folder)):
            raise UserError(
                f"{self.folder} holds the model of this run but no checkpoint, so the run cannot be resumed, and its "
                "model is left unchanged. To train it further, start a run from its weights: "
                f"--model_name_or_path {self.folder} --output_dir ANOTHER."
            )
        self._report(f"The run in {self.folder} has no checkpoint: it starts again from update 0")

    def _check_shared(self, state: str) -> None:
        """Check that all processes see the same state of the run: one that differs would wait for the others forever.

        Raises:
            ValueError: if they do not.
        """
        states = sorted(set(gather_object([state])))
        if len(states) > 1:
            raise UserError(
                f"The processes of this run find different states in {self.folder}: {', '.join(states)}. All machines "
                "must share --output_dir."
            )

    def _read_text(self, checkpoint: str | None, resumes: bool) -> TokenizedText:
        """Read and tokenise the text, with the tokenizer of the run, of its text or of the model it starts from.

        Raises:
            ValueError: for flags that have no effect, text without what they need, or other text than the run's.
        """
        recorded = self.recipe.recorded
        data = self.recipe.data
        model = self.recipe.model
        prepared = prepared_folder(data)
        # A checkpoint has its own tokenizer, too, but the flags are those with which it was learned
        origin = prepared or model.tokenizer_name or self.pretrained
        if origin and (model.tokenizer_model, model.normalization) != ("bpe", "none"):
            raise UserError(f"--tokenizer_model and --normalization have no effect: {origin} has its own tokenizer.")

        # A run has saved its tokenizer, which must not change even if its origin has
        path = self._intact_tokenizer(checkpoint) if resumes else origin
        text = tokenize_text(self.recipe, self.folder, path, self._report)
        if path and not resumes:
            self._check_vocabulary(text.tokenizer, path)
        if text.validation is None:
            if self.args.early_stopping_patience is not None:
                names = ", ".join(data.dataset_name or [])
                raise UserError(f"{names} has no validation split, which early stopping needs.")
            self.args.eval_strategy = IntervalStrategy.NO
        self.settings |= text.contents
        # again, now that the digests of the text are known
        check_same_run(recorded, self.settings, self.folder)
        return text

    def _intact_tokenizer(self, checkpoint: str | None) -> str:
        """Return the folder with the tokenizer of a run that resumes: its own, or a checkpoint if that is damaged."""
        if checkpoint:
            try:
                load_tokenizer(self.folder)
            except OSError:
                self._report(f"The tokenizer in {self.folder} is damaged; restoring it from {Path(checkpoint).name}")
                return checkpoint
        return self.folder

    def _build_trainer(self, text: TokenizedText) -> VanillaTransformerTrainer:
        """Build or load the model, and record the settings of the run in its folder."""
        args = self.args
        model = self._build_model(text.tokenizer)
        rows = {"train_dataset": text.train, "eval_dataset": text.validation}
        # asked before the trainer exists, which makes these choices
        chosen = args.undecided()
        trainer = VanillaTransformerTrainer(model, args, processing_class=text.tokenizer, **rows)
        trainer.add_callback(ShortWarmupNotice())
        print_lines(trainer)
        self.settings |= {name: getattr(args, name) for name in chosen}
        for choice in filter(None, map(args.describe_choice, chosen)):
            self._report(choice)
        if recorded := self.recipe.recorded:
            trainer.resumed_state.has_new_validation = not compare_validations(recorded, self.settings)
        if args.process_index == 0:
            # One from this folder is not saved again: another process may be reading it
            if text.tokenizer.name_or_path != self.folder:
                save_tokenizer(text.tokenizer, self.folder)
            comment = f"The resolved settings of this run, as a recipe ({VERSIONS})"
            write_settings(self.settings, self.folder, comment)
        return trainer

    def _build_model(self, tokenizer: PreTrainedTokenizerBase) -> VanillaTransformerForConditionalGeneration:
        """Return a new model for the tokenizer, or the pretrained one."""
        config = self.recipe.config
        if self.pretrained:
            # Half precision would lose small updates, above all those of a moving average
            model = load_model(self.pretrained, config=config, dtype=torch.float32)
            self._add_embeddings(model, tokenizer)
        else:
            follow_tokenizer(config, tokenizer)
            model = VanillaTransformerForConditionalGeneration(config)
        check_tokenizer(tokenizer, config)
        model.generation_config.update(**self.recipe.model.overrides(vars(model.generation_config)))
        size = f"{model.num_parameters():,} parameters and a vocabulary of {len(tokenizer):,} tokens"
        self._report(f"The model has {size}")
        return model

    def _check_vocabulary(self, tokenizer: PreTrainedTokenizerBase, path: str) -> None:
        """Check that the tokenizer at `path` has the tokens of --tokenizer_name and of the pretrained model.

        Raises:
            ValueError: if it does not.
        """
        named = self.recipe.model.tokenizer_name
        for name in {self.pretrained, named} - {None, path}:
            try:
                expected = load_tokenizer(str(name)).get_vocab()
            except OSError:
                if name == self.pretrained:
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
        config = self.recipe.config
        size = model.config.vocab_size
        vocabulary = tokenizer.get_vocab()
        new = [tag for tag in all_tags(config, self.recipe.data) if vocabulary[tag] >= size]
        # A tokenizer with other tokens beyond the model's is refused later, by check_tokenizer
        if new and vocabulary_size(tokenizer) == size + len(new):
            model.resize_token_embeddings(size + len(new))
            config.vocab_size = size + len(new)
            self._report(f"Added the tags {' '.join(new)} to {self.pretrained}")

    def _finish(self, trainer: VanillaTransformerTrainer, text: TokenizedText) -> None:
        """Save the model with its card, report the best metric, and upload the model if requested."""
        trainer.save_model(_internal_call=True)
        record = training_record(trainer, self.settings, self.recipe, text)
        if self.args.process_index == 0:
            write_record(self.folder, record)
            write_card(self.folder)
            # With the `doubtful_score` of the translations that the record scores
            with replacing(Path(self.folder, "config.json")) as unfinished:
                trainer.model.config.to_json_file(unfinished)
        self._report_best(trainer)
        if self.args.push_to_hub:
            self._report(f"Uploaded to {trainer.push_to_hub()}")
        # Last, since it marks the run as finished: if anything above fails, the same command tries it again
        trainer.save_state()

    def _report_best(self, trainer: VanillaTransformerTrainer) -> None:
        """Report which update the saved model is of, and which one was best in validation."""
        state = trainer.state
        metric = trainer.args.metric_for_best_model
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
        self._report(f"Use it with: vanilla-transformer translate {shlex.quote(self.folder)} < FILE")
        last = min(len(checkpoint_folders(self.folder)), _AVERAGED)
        # a moving average is one already
        if last > 1 and not trainer.average:
            words = shlex.join([self.folder, "--output_dir", f"{self.folder.rstrip('/')}-average"])
            advice = f"vanilla-transformer average {words} --last {last}"
            self._report(f"The average of its last {last} checkpoints is often better: {advice}")


def check_same_run(before: Settings | None, settings: Settings, folder: str) -> bool:
    """Return True if `folder` holds a run with these settings, which can be resumed, and False if it holds no run.

    Args:
        before: the settings that the run has recorded, if there is one.

    Raises:
        ValueError: if it holds a run with different settings, or a model without a run. Nothing in it is changed.
    """
    if before is None:
        if Path(folder, "config.json").exists() or checkpoint_folders(folder):
            raise UserError(f"{folder} already holds a model; choose another --output_dir.")
        return False
    changes = {
        name: change
        for name, change in differences(before, settings).items()
        if decided_by(name, settings) in (Decides.SIZES, Decides.LEARNING)
    }
    if changes:
        launch = f" Launch it with `torchrun --nproc_per_node {before[PROCESSES]}`." if PROCESSES in changes else ""
        text = f" {more_text(folder)}" if any(meaning(name).content == TEXT for name in changes) else ""
        raise UserError(
            f"{folder} holds a run with different settings: {'; '.join(changes.values())}.{launch} Choose another "
            f"--output_dir, or use the settings in {Path(folder, SETTINGS)} to resume that run.{text}"
        )
    return True


def differences(before: Settings, settings: Settings) -> dict[str, str]:
    """Describe each setting that has changed.

    The same text under another name is no change. Text that has not been read yet is taken to be the same.
    """
    now = {**{name: before[name] for name in _DIGESTS if name in before}, **settings}
    same = {name for name in _DIGESTS if name in before and before[name] == now[name]}
    changes: dict[str, str] = {}
    for name in {**before, **now}:
        known = meaning(name)
        if before.get(name) == now.get(name) or known.content in same or not known.recorded:
            continue
        # A digest says nothing to the user
        values = "has changed" if name in _DIGESTS else f"was {before.get(name)}, now {now.get(name)}"
        changes[name] = f"{name} {values}"
    return changes


def compare_validations(before: Settings, settings: Settings) -> bool:
    """Return whether the validations of a run before and after a change of its settings are comparable."""
    return all(decided_by(name, settings) is not Decides.SCORES for name in differences(before, settings))


def renames_text(before: Settings, settings: Settings) -> bool:
    """Return whether the training text of a run now has another name."""
    names = {name for name in {**before, **settings} if meaning(name).content == TEXT} - {TEXT}
    return any(before.get(name) != settings.get(name) for name in names)


def more_text(folder: str) -> str:
    """Return how to continue the run in a folder with more text than it was trained on."""
    start = f"--model_name_or_path {folder} --train_file OLD NEW --output_dir ANOTHER"
    return f"To continue with more text, start a run from its model: {start}."
