"""`vanilla-transformer push`: upload a trained model, its tokenizer and its model card to the Hub."""

import argparse

HELP = "upload a trained model, its tokenizer and its model card to the Hub"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `push`."""
    parser.add_argument("model", metavar="D", help="folder of a trained model")
    parser.add_argument(
        "repo_id",
        metavar="REPOSITORY",
        help="name of the repository, as in your-name/your-model; created if it does not exist",
    )
    parser.add_argument("--scores", metavar="FILE", help="output of `evaluate`, to include in the model card")
    parser.add_argument("--license", help="licence of the model for its card, such as apache-2.0")
    parser.add_argument("--private", action="store_true", help="create the repository as private")
    parser.add_argument("--space", action="store_true", help="also create a Space with the web page of `demo`")


def run(args: argparse.Namespace) -> None:
    """Upload the model and print its URL to stdout."""
    from ..files import import_extra
    from ..sharing.card import CardDetails, read_scores
    from ..sharing.hub import push, push_space

    if args.space:
        import_extra("gradio", "demo")  # before the model is uploaded
    details = CardDetails(license=args.license, scores=read_scores(args.scores) if args.scores else None)
    print(push(args.model, args.repo_id, details, args.private or None))
    if args.space:
        print(push_space(args.repo_id, args.private or None))
