"""`vanilla-transformer push`: upload a trained model, its tokenizer and its model card to the Hub."""

from dataclasses import dataclass

from ..errors import UserError
from ..files import MODEL_TYPES
from ..flags import Flags, option


@dataclass(kw_only=True)
class PushArguments(Flags):
    """The flags of `push`.

    Args:
        model: folder of a trained model
        repo_id: name of the repository, as in your-name/your-model; created if it does not exist
        scores: output of `evaluate`, to include in the model card
        license: licence of the model for its card, such as apache-2.0
        private: create the repository as private
        format: class of the uploaded model: marian for a copy as MarianMT, which transformers loads without code
        space: also create a Space with the web page of `demo`
        endpoint: also upload a handler.py, with which an inference endpoint serves the model
    """

    model: str = option(metavar="D", positional=True)
    repo_id: str = option(metavar="REPOSITORY", positional=True)
    scores: str | None = option(None, metavar="FILE")
    license: str | None = option(None)
    private: bool = option(False)
    format: str = option(MODEL_TYPES[0], choices=MODEL_TYPES)
    space: bool = option(False)
    endpoint: bool = option(False)

    def __post_init__(self):
        if self.format == "marian" and (self.space or self.endpoint):
            flag = "--space" if self.space else "--endpoint"
            raise UserError(f"{flag} needs a model of this package, not a copy as MarianMT.")


def run(args: PushArguments) -> None:
    """Upload the model and print its URL to stdout."""
    from ..files import import_extra
    from ..plugins import VERBS, load
    from ..sharing.card import CardDetails, read_scores
    from ..sharing.hub import push

    # The Space has the page of the plugin `demo` and names its release of gradio: without them, nothing is uploaded
    if args.space:
        demo = load(VERBS, "demo")
        import_extra("gradio", "demo")
    scores = read_scores(args.scores) if args.scores else None
    details = CardDetails(license=args.license, scores=scores, format=args.format)
    # None and not False: an organisation may create private repositories by default
    print(push(args.model, args.repo_id, details, args.private or None, endpoint=args.endpoint))
    if args.space:
        print(demo.push_space(args.repo_id, args.private or None))
