"""`vanilla-transformer average`: average the last checkpoints of a training run into one model."""

from dataclasses import dataclass
from pathlib import Path

from ..errors import UserError
from ..flags import Flags, option, positive
from .console import say


@dataclass(kw_only=True)
class AverageArguments(Flags):
    """The flags of `average`.

    Args:
        run: output folder of the training run
        last: number of checkpoints to average, in the paper 5
        output_dir: folder for the averaged model
    """

    run: str = option(metavar="D", positional=True)
    last: int = option(5, parse=positive)
    output_dir: str = option()


def run(args: AverageArguments) -> None:
    """Average the last checkpoints and write the result as a model folder."""
    from ..files import MODEL, new_folder
    from ..sharing.card import record_average
    from ..training.checkpoints import checkpoint_folders, write_average

    folders = checkpoint_folders(args.run)
    if len(folders) < args.last:
        advice = "pass a smaller --last" if folders else "give the output folder of a training run"
        raise UserError(f"{args.run} has {len(folders)} checkpoints, fewer than {args.last}: {advice}.")

    chosen = folders[-args.last :]
    with new_folder(args.output_dir, MODEL) as output:
        write_average(chosen, output)
        _inherit_doubtful_score(Path(args.run), output)
        record_average(args.run, output, args.last)
    updates = [folder.name.rpartition("-")[2] for folder in chosen]
    say(f"Averaged {args.last} checkpoints, of updates {updates[0]} to {updates[-1]}, into {args.output_dir}")


def _inherit_doubtful_score(run: Path, average: Path) -> None:
    """Give an average the `doubtful_score` of its finished run, which is that of the model's own beam size."""
    from ..loading import load_config

    if (run / "config.json").is_file():
        config = load_config(str(average))
        config.doubtful_score = load_config(str(run)).doubtful_score
        config.to_json_file(average / "config.json")
