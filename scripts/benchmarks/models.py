"""Compare models by the BLEU and the speed of their translations, with beam 4 and greedily.

python scripts/benchmarks/models.py data/multi30k/test_2016_flickr runs/best/model runs/fast --bleu_tokenize none

Each model translates the text (here from test_2016_flickr.en) in torch, in float32 and, where the processor has it
natively, in bfloat16, and as an export to CTranslate2 in int8, which runs in a process of its own. All take turns. The
medians are printed as a Markdown table, with their ratio to the speed of the first model with beam 4 in the same
format. Takes about 5 minutes for three models of the size of `tiny` on 2 cores.
"""

import argparse
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import sacrebleu
from decoding import SEARCHES, export_to_ctranslate2, in_formats
from measuring import describe_machine, log, time_interleaved
from transformers.utils import logging

from hf_vanilla_transformer import Translator
from hf_vanilla_transformer.data.formats import read_lines
from hf_vanilla_transformer.loading import load_model, load_tokenizer


def load(name: str, folder: str) -> dict[str, Translator]:
    """Return the translators of a model by "name | format"; the export to CTranslate2 is written to `folder`."""
    model, tokenizer = load_model(name).eval(), load_tokenizer(name)
    exports = export_to_ctranslate2(model, tokenizer, folder, ("int8",))
    runtimes: dict[str, Any] = {**in_formats("float32", model), **exports}
    # "float32 bfloat16" is the copy
    return {
        f"{name} | {label.removeprefix('float32 ')}": Translator(runtime, tokenizer)
        for label, runtime in runtimes.items()
    }


def measure(
    translators: dict[str, Translator], beams: int, lines: list[str], repeats: int
) -> tuple[dict[str, list[str]], dict[str, float]]:
    """Return the translations by each translator, and its sentences per second."""
    outputs: dict[str, list[str]] = {}

    def translate(name: str) -> None:
        outputs[name] = [each.text for each in translators[name].translate(lines, num_beams=beams)]

    seconds = time_interleaved(repeats, **{name: partial(translate, name) for name in translators})
    return outputs, {name: len(lines) / elapsed for name, elapsed in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", help="parallel text: the path of both files without their languages")
    parser.add_argument("models", nargs="+", metavar="MODEL", help="with the same pair of languages; the first is 1.0")
    parser.add_argument("--bleu_tokenize", default="13a", help="tokenisation of sacreBLEU (default: 13a)")
    parser.add_argument("--repeats", type=int, default=3, help="of each measurement (default: 3)")
    args = parser.parse_args()
    logging.set_verbosity_error()

    rows = ["| model | format | search | BLEU | sentences/s | ratio |", "|---|---|---|---|---|---|"]
    translators: dict[str, Translator] = {}
    first: dict[str, float] = {}  # speeds of the first model with beam 4, by format
    with tempfile.TemporaryDirectory() as root:
        for i, model in enumerate(args.models):
            translators |= load(model, str(Path(root, str(i))))
        source, target = next(iter(translators.values())).directions.pairs[0]
        lines, references = (list(read_lines(f"{args.text}.{language}")) for language in (source, target))
        for search, beams in SEARCHES.items():
            outputs, speeds = measure(translators, beams, lines, args.repeats)
            for name, speed in speeds.items():
                ratio = speed / first.setdefault(name.rpartition(" | ")[2], speed)
                bleu = sacrebleu.corpus_bleu(outputs[name], [references], tokenize=args.bleu_tokenize).score
                rows.append(f"| {name} | {search} | {bleu:.2f} | {speed:.0f} | {ratio:.2f} |")
                log(rows[-1])
    print(describe_machine(), "", *rows, sep="\n")


if __name__ == "__main__":
    main()
