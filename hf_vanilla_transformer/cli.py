"""The command line `vanilla-transformer`: its verbs and their flags.

Exit status: 0 on success, 2 for wrong use, 1 for failure with one clear line.
"""

import argparse
import math
import os
import sys
from collections.abc import Sequence

from . import __version__, commands
from .commands import UsageError, say

PRINTING = ("evaluate", "compare", "score", "translate", "push", "tune")  # verbs whose results go to stdout


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"must be a finite number, got {number}")
    return number


def _curve(text: str) -> tuple[int, int]:
    width, _, warmup = text.partition(":")
    try:
        return _positive(width), _positive(warmup)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be like 512:4000, got {text!r}") from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="vanilla-transformer",
        description="Train, evaluate and use the original Transformer (2017).",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    verbs.add_parser("train", help="train a model on parallel text, or go on training one", add_help=False)
    verbs.add_parser("tune", help="look for better training settings", add_help=False)

    one_model = argparse.ArgumentParser(add_help=False)
    one_model.add_argument("model", metavar="MODEL", help="folder of a trained model, or its name on the Hub")
    models = argparse.ArgumentParser(add_help=False)
    models.add_argument(
        "model", metavar="MODEL", nargs="+", help="folder of a trained model, or its name on the Hub; several vote"
    )
    backend = argparse.ArgumentParser(add_help=False)
    backend.add_argument(
        "--backend", default="torch", choices=["torch", "ctranslate2", "onnx"], help="what runs the model"
    )
    batches = argparse.ArgumentParser(add_help=False)
    batches.add_argument("--max_tokens", type=_positive, default=2048, help="tokens of a batch (default: 2048)")
    decoding = argparse.ArgumentParser(add_help=False, parents=[batches])
    decoding.add_argument("--num_beams", type=_positive, help="beam size (default: the model's, 4 in the paper)")
    decoding.add_argument("--length_penalty", type=_finite, help="alpha (default: the model's, 0.6 in the paper)")

    test = argparse.ArgumentParser(add_help=False)
    text = test.add_mutually_exclusive_group()
    text.add_argument(
        "--test_file",
        metavar="P",
        help="a .jsonl, .tsv, .csv or .parquet file, or a Moses prefix: P.en and P.de (default: the held-out phrases)",
    )
    text.add_argument("--dataset_name", help="a data set of the Hub instead")
    test.add_argument("--dataset_config_name", help="its configuration")
    test.add_argument("--split", default="test", help="its split (default: test)")
    test.add_argument("--source_lang", help="default: the language saved with the model")
    test.add_argument("--target_lang", help="default: the language saved with the model")
    bleu = argparse.ArgumentParser(add_help=False)
    bleu.add_argument("--bleu_tokenize", default="13a", choices=["13a", "none", "intl", "char", "zh", "ja-mecab"])

    verb = verbs.add_parser(
        "evaluate", parents=[models, backend, decoding, test, bleu], help="score a model: BLEU, chrF and TER as JSON"
    )
    verb.set_defaults(act=commands.evaluate)

    verb = verbs.add_parser(
        "compare", parents=[decoding, test, bleu], help="two models on one text: intervals, significance, examples"
    )
    verb.add_argument("a", metavar="A", help="a model, or a file of its translations, one a line")
    verb.add_argument("b", metavar="B", help="another")
    verb.set_defaults(act=commands.compare)

    verb = verbs.add_parser(
        "score", parents=[models, batches, test], help="log-probability and perplexity of given translations"
    )
    verb.set_defaults(act=commands.score)

    verb = verbs.add_parser(
        "translate", parents=[models, backend, decoding], help="translate stdin to stdout line by line"
    )
    verb.set_defaults(act=commands.translate)

    verb = verbs.add_parser("export", parents=[one_model], help="write a model for a faster runtime")
    verb.add_argument("output_dir", metavar="OUT", help="a new folder")
    verb.add_argument("--format", required=True, choices=["ctranslate2", "onnx"])
    verb.add_argument("--quantization", help="CTranslate2's: int8, float16, ... (default: float32)")
    verb.set_defaults(act=commands.export)

    verb = verbs.add_parser("push", help="upload a trained model, its tokenizer and its card to the Hub")
    verb.add_argument("model", metavar="D", help="folder of a trained model")
    verb.add_argument("repo_id", metavar="REPOSITORY", help="your-name/your-model; made if it is not there")
    verb.add_argument("--scores", metavar="FILE", help="what `evaluate` printed, for the card")
    verb.add_argument("--license", help="of the model, for the card, such as apache-2.0")
    verb.add_argument("--private", action="store_true", help="a new repository is private")
    verb.add_argument("--space", action="store_true", help="also make a Space, the page that `demo` shows")
    verb.set_defaults(act=commands.push)

    verb = verbs.add_parser("demo", parents=[one_model], help="a page in the browser: translate, n-best, attention")
    verb.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1, this machine)")
    verb.add_argument("--port", type=_positive, help="default: the first free one from 7860")
    verb.set_defaults(act=commands.demo)

    verb = verbs.add_parser("plot", help="a picture, as PNG or SVG")
    kinds = verb.add_subparsers(dest="kind", required=True, metavar="KIND")
    output = argparse.ArgumentParser(add_help=False)
    output.add_argument("--output", required=True, metavar="FILE", help="a file that ends in .png or .svg")
    kind = kinds.add_parser("positions", parents=[output], help="sinusoids, and their dot products by distance")
    kind.add_argument("--d_model", type=_positive, default=512, help="default: 512")
    kind.add_argument("--positions", type=_positive, default=100, help="default: 100")
    kind = kinds.add_parser("noam", parents=[output], help="the learning rate by update")
    kind.add_argument(
        "--curves",
        nargs="+",
        type=_curve,
        metavar="WIDTH:WARMUP",
        default=[(512, 4000), (512, 8000), (256, 4000), (1024, 4000)],
        help="d_model and warm-up of each (default: 512:4000 512:8000 256:4000 1024:4000)",
    )
    kind.add_argument("--steps", type=_positive, default=20_000, help="default: 20000")
    kind = kinds.add_parser("masks", parents=[output], help="padding, causal and combined masks")
    kind.add_argument("--lengths", nargs="+", type=_positive, default=[8, 5, 3], help="of the sentences of a batch")
    kind = kinds.add_parser("attention", parents=[one_model, output], help="every head of one layer on a sentence")
    kind.add_argument("--sentence", required=True, help="to translate")
    kind.add_argument("--layer", type=int, default=-1, help="counted from 0, or from the last, which is -1 (default)")
    kind = kinds.add_parser("training", parents=[output], help="loss, perplexity and BLEU of runs, from their logs")
    kind.add_argument("runs", metavar="RUN", nargs="+", help="the output folder of a training run")
    kind = kinds.add_parser("table3", parents=[output], help="rows of Table 3, from scripts/ablate.py")
    kind.add_argument("results", metavar="FILE", help="ablation.json")
    verb.set_defaults(act=commands.plot)

    verb = verbs.add_parser("average", help="average the last checkpoints of a training run into one model")
    verb.add_argument("run", metavar="D", help="the output folder of the training run")
    verb.add_argument("--last", type=_positive, default=5, help="checkpoints to average (default: 5, as in the paper)")
    verb.add_argument("--output_dir", required=True, help="folder for the averaged model")
    verb.set_defaults(act=commands.average)
    return parser


def _one_line(error: Exception) -> str:
    text = str(error)
    if "Original Traceback (most recent call last)" in text:  # of a process that reads data
        last = text.strip().splitlines()[-1]
        text = last.partition(": ")[2] or last
    return " ".join(text.split())


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb; gives the exit status."""
    argv = sys.argv[1:] if argv is None else argv
    parser = _parser()
    if sys.stderr is None:  # closed by the caller: print() would then write messages to stdout, among the results
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    try:
        if sys.stdout is None and argv and argv[0] in PRINTING:
            raise OSError("Standard output is closed, so results would be lost: give > /dev/null to do without them.")
        if argv and argv[0] in ("train", "tune"):  # these two have the Trainer's flags
            getattr(commands, argv[0])(argv[1:])
        else:
            args = parser.parse_args(argv)
            args.act(args)
    except UsageError as error:
        say(f"vanilla-transformer: {error}")
        return 2
    except BrokenPipeError:  # whoever read the output has gone, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ValueError, OSError, ImportError, ArithmeticError) as error:
        say("vanilla-transformer:", _one_line(error))
        return 1
    except (RuntimeError, MemoryError) as error:
        from .safeguards import reason_for

        reason = reason_for(error)
        if reason is None:
            raise
        say("vanilla-transformer:", reason)
        return 1
    except KeyboardInterrupt:
        say("vanilla-transformer: interrupted")
        return 130
    return 0
