"""TensorBoard's events: one curve for a run, however often it was resumed."""

from pathlib import Path

from transformers.integrations import TensorBoardCallback


class RunEvents(TensorBoardCallback):
    """Write the events of a run to one folder, and take back those after the checkpoint from which it resumes."""

    def __init__(self):
        super().__init__()
        self._purge_step: int | None = None

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
