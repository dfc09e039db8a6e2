"""`vanilla-transformer convert`: convert a MarianMT model such as OPUS-MT's, or a model to MarianMT."""

from dataclasses import dataclass

from ..files import MODEL_TYPES
from ..flags import Flags, option
from .console import say


@dataclass(kw_only=True)
class ConvertArguments(Flags):
    """The flags of `convert`.

    Args:
        model: folder of the model, or its name on the Hub
        output_dir: folder for the converted model; must be new or empty
        to: class of the converted model
        source_lang: language of the sources, if the MarianMT model does not name it
        target_lang: language of the targets, if the MarianMT model does not name it
    """

    model: str = option(metavar="SOURCE", positional=True)
    output_dir: str = option(metavar="OUT", positional=True)
    to: str = option(MODEL_TYPES[0], choices=MODEL_TYPES)
    source_lang: str | None = option(None)
    target_lang: str | None = option(None)


def run(args: ConvertArguments) -> None:
    """Convert the model and write it as a model folder."""
    from ..model.text_rules_vanilla_transformer import Directions
    from ..sharing.card import conversion
    from ..sharing.convert import from_pretrained

    model, _ = from_pretrained(args.model, args.output_dir, args.to, args.source_lang, args.target_lang)
    directions = Directions(model.config)
    languages = f" ({directions})" if directions.pairs else ""
    say(f"Wrote the converted model{languages} to {args.output_dir}")
    origin = conversion(args.output_dir)
    if origin and not origin["converted_license"]:
        say(f"The licence of {origin['converted']} is unknown: look it up, and name it with `push --license`")
