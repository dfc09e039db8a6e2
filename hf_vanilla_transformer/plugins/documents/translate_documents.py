"""`vanilla-transformer translate --output_dir`: translate documents into a folder, or an HTML page on stdin."""

import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ...commands import translate
from ...commands.console import UsageError, print_in_utf8, say
from ...commands.models import report_problems, resolve_languages
from ...commands.shared_flags import GlossaryFlags
from ...commands.translate import TranslateFlags, open_standard_input
from ...errors import UserError
from ...files import check_folder, replacing
from ...flags import option
from .. import DOCUMENTS, find, load

if TYPE_CHECKING:
    from ...inference.translator import Translation, Translator

ENDINGS = tuple(f".{name}" for name in find(DOCUMENTS))  # of the files of which a plugin knows the texts
_NO_TEXT = "no text to translate was found; text in pictures is not read"
_MAX_DOUBTS = 10  # doubtful translations of a document that are quoted
_QUOTED = 100  # characters of each


@dataclass(kw_only=True)
class TranslateDocumentsArguments(TranslateFlags):
    """The flags of `translate` for documents.

    Args:
        output_dir: folder for the translated documents
        format: html for a page on stdin, whose tags are kept
    """

    model: list[str] = option(
        metavar="MODEL_OR_DOCUMENT",
        positional=True,
        help="folder of a trained model or its name on the Hub, several for an ensemble; then documents: "
        f"{' '.join(ENDINGS)}",
    )
    output_dir: str | None = option(None)
    format: str = option("text", choices=("text", "html"))

    documents: list[str] = field(default_factory=list, init=False)

    def __post_init__(self):
        GlossaryFlags.__post_init__(self)
        # no name of a model ends like that of a document, but a folder may
        self.documents = [
            name for name in self.model if Path(name).suffix.lower() in ENDINGS and not Path(name).is_dir()
        ]
        self.model = [name for name in self.model if name not in self.documents]
        if not self.model:
            raise UserError("Name the model before the documents.")
        for name in self.model:
            if Path(name).is_file():
                raise UserError(f"{name} is neither a model nor a document of these: {' '.join(ENDINGS)}.")
        for name in self.documents:
            if not Path(name).is_file():
                raise UserError(f"There is no document {name}: check its path.")
        if self.format == "html" and self.output_dir:
            raise UserError("--format html is for standard input.")
        if bool(self.documents) != bool(self.output_dir):
            kinds = " ".join(ENDINGS)
            advice = "without them, stdin is translated"
            raise UserError(f"Documents ({kinds}) and --output_dir belong together; {advice}.")


def run(args: TranslateDocumentsArguments) -> None:
    """Translate documents into a folder, and print the path of each translation; or a page from stdin to stdout."""
    from tqdm import tqdm

    if args.format == "html":
        _translate_page(args)
        return
    if not args.output_dir:
        translate.run(args)
        return
    settings = args.settings()
    check_folder(args.output_dir)
    outputs = [Path(args.output_dir, Path(name).name) for name in args.documents]
    if len({path.resolve() for path in [*map(Path, args.documents), *outputs]}) < 2 * len(outputs):
        raise UsageError("Documents need different names, and an --output_dir that is not their own folder.")
    # all of them, so that a damaged one is reported before the model is loaded
    contents = [Path(name).read_bytes() for name in args.documents]
    formats = [load(DOCUMENTS, Path(name).suffix.lower().removeprefix(".")) for name in args.documents]
    documents = list(zip(args.documents, formats, outputs, contents, strict=True))
    texts = [format.texts_of(content, name) for name, format, _, content in documents]
    translator = args.load(args.model, args.dtype)
    _, target = resolve_languages(translator, args)
    settings |= args.glossary_settings(translator)
    Path(args.output_dir).mkdir(parents=True, exist_ok=True)
    # of sentences in each batch
    counts: list[int] = []
    with tqdm(desc="Translating", unit=" sentences", file=sys.stderr) as bar:

        def advance(count: int) -> None:
            counts.append(count)
            bar.update(count)

        settings |= {"progress": advance, "scores": _wants_scores(translator, args)}
        for (name, format, output, content), parts in zip(documents, texts, strict=True):
            counts.clear()
            translations = translator.translate_documents(parts, format.document, **settings)
            with replacing(output) as unfinished:
                unfinished.write_bytes(format.with_texts(content, name, [part.text for part in translations], target))
            problems = [f"not translated: {part.problem}" for part in translations if part.problem]
            for problem in [*problems, *_doubts(translations)] if counts else [_NO_TEXT]:
                # above the bar
                bar.write(f"{name}: {problem}", file=sys.stderr)
            print(output)


def _translate_page(args: TranslateDocumentsArguments) -> None:
    """Translate a page from stdin to stdout."""
    settings = args.settings()
    page = open_standard_input()
    translator = args.load(args.model, args.dtype)
    # before stdin is read, so that a wrong language is reported even if nothing arrives there
    resolve_languages(translator, args)
    settings |= args.glossary_settings(translator)
    print_in_utf8()
    texts = load(DOCUMENTS, "html").texts_of(page.read(), "standard input")
    counts: list[int] = []
    settings |= {"progress": counts.append, "scores": _wants_scores(translator, args)}
    (translation,) = translator.translate_html(texts, **settings)
    print(translation.text, end="")
    if not counts:
        say(f"standard input: {_NO_TEXT}")
    report_problems([translation], "standard input")
    for doubt in _doubts([translation]):
        say(f"standard input: {doubt}")


def _wants_scores(translator: "Translator", args: TranslateFlags) -> bool:
    """Return whether scores are needed to find doubtful translations; what is sampled has none."""
    return translator.knows_doubt and not args.do_sample


def _doubts(translations: Sequence["Translation"]) -> list[str]:
    """Return lines that quote the doubtful translations of a document, and count those beyond the first few."""
    sentences = [sentence for translation in translations for sentence in translation.doubtful]
    lines = [f"doubtful: {textwrap.shorten(sentence, _QUOTED, placeholder='...')}" for sentence in sentences]
    more = len(lines) - _MAX_DOUBTS
    return lines if more <= 0 else [*lines[:_MAX_DOUBTS], f"doubtful: {more:,} more sentences"]
