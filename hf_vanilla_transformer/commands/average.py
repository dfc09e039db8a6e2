"""`vanilla-transformer average`: average the last checkpoints of a training run into one model."""

import argparse

from .console import say
from .flags import positive

HELP = "average the last checkpoints of a training run into one model"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `average`."""
    parser.add_argument("run", metavar="D", help="the output folder of the training run")
    parser.add_argument(
        "--last", type=positive, default=5, help="checkpoints to average (default: 5, as in the paper)"
    )
    parser.add_argument("--output_dir", required=True, help="folder for the averaged model")


def run(args: argparse.Namespace) -> None:
    """Write the mean of the last checkpoints as a model folder."""
    from ..sharing.card import record_average
    from ..training.checkpoints import average_checkpoints, checkpoint_folders

    folders = checkpoint_folders(args.run)
    if len(folders) < args.last:
        raise ValueError(f"{args.run} has {len(folders)} checkpoints, fewer than {args.last}.")
    chosen = folders[-args.last :]
    average_checkpoints(chosen, args.output_dir)
    record_average(args.run, args.output_dir, args.last)
    say(f"The mean of {', '.join(folder.name for folder in chosen)} is in {args.output_dir}")
