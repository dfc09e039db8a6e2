"""The command line `vanilla-transformer`: train, average, evaluate, translate, export, push and demo.

Each verb imports what it needs when it runs. Results go to stdout, everything else to stderr. Exit status: 0 on
success, 2 for wrong use, 1 for failure with one clear line.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Any

from . import __version__

LINES_AT_A_TIME = 2000  # translate sorts and batches no more lines at once than this


class UsageError(Exception):
    """Wrong use of the command line: exit status 2."""


def say(*words: Any) -> None:
    """Prints for people, on stderr."""
    print(*words, file=sys.stderr, flush=True)


def train(argv: Sequence[str]) -> None:
    """`vanilla-transformer train`: parallel text in, a model folder out."""
    from .training import parse_arguments, run_train

    run_train(*parse_arguments(argv))


def _load(folder: str, backend: str) -> tuple[Any, Any]:
    """The model and tokenizer saved in `folder`, or on the Hub under that name, on the best device there is."""
    import torch
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    from .export import export_format, load_export
    from .tokenizer import check_tokenizer

    if backend != "torch":
        exported = load_export(folder, backend)
        return exported, exported.tokenizer

    if export_format(folder):
        raise UsageError(f"{folder} is an export: give --backend {export_format(folder)}.")
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")
    try:
        model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    except OSError as error:
        raise OSError(f"Cannot load a model and its tokenizer from {folder}: {error}") from error
    check_tokenizer(tokenizer, model.config)
    return model.to(device), tokenizer


def _generate_kwargs(args: argparse.Namespace) -> dict[str, Any]:
    names = ("num_beams", "length_penalty")
    return {name: getattr(args, name) for name in names if getattr(args, name) is not None}


def evaluate(args: argparse.Namespace) -> None:
    """`vanilla-transformer evaluate`: one JSON object on stdout."""
    from tqdm import tqdm

    from .evaluation import evaluate_translations
    from .translation import translate as translate_sentences

    model, tokenizer = _load(args.model, args.backend)
    unseen: list[int] = []
    text = "built-in phrases"
    if not (args.test_file or args.dataset_name):
        from .phrases import splits

        languages = model.config.source_lang, model.config.target_lang
        if sorted(map(str, languages)) != ["de", "en"]:
            raise UsageError("The built-in phrases are English and German: give --test_file for other languages.")
        phrases = splits()["test"]
        sources, references = ([getattr(phrase, language) for phrase in phrases] for language in languages)
        unseen = [i for i, phrase in enumerate(phrases) if phrase.unseen]
    else:
        from .data import load_hub_pairs, load_pairs

        source_lang, target_lang = args.source_lang or model.config.source_lang, args.target_lang
        target_lang = target_lang or model.config.target_lang
        if source_lang is None or target_lang is None:
            raise UsageError("The model does not say its languages: give --source_lang and --target_lang.")
        if args.test_file:
            pairs, text = load_pairs(args.test_file, source_lang, target_lang), Path(args.test_file).name
        else:
            name, split = args.dataset_name, args.split
            text = f"{Path(name).name if Path(name).exists() else name}, {split}"
            pairs = load_hub_pairs(name, args.dataset_config_name, source_lang, target_lang, (split,))[split]
        sources, references = ([text or "" for text in pairs[name]] for name in ("source", "target"))
    start = time.perf_counter()
    with tqdm(total=len(sources), desc="Translating", unit=" sentences", file=sys.stderr) as bar:
        translations = translate_sentences(
            model, tokenizer, sources, args.max_tokens, progress=bar.update, **_generate_kwargs(args)
        )
    seconds = time.perf_counter() - start

    def score(indices: Iterable[int]) -> dict[str, Any]:
        chosen = list(indices)
        scores = evaluate_translations(
            [translations[i] for i in chosen], [references[i] for i in chosen], args.bleu_tokenize
        )
        return {**scores, "sentences": len(chosen)}

    result = {**score(range(len(sources))), "text": text, "seconds": round(seconds, 2)}
    if unseen:
        result["unseen_combinations"] = score(unseen)
    print(json.dumps(result, indent=2))


def _chunks(lines: Iterable[str]) -> Iterator[list[str]]:
    """Lines without their ends: as many as have come by now, but at least one and at most `LINES_AT_A_TIME`."""
    waiting: Queue[str | BaseException | None] = Queue(LINES_AT_A_TIME)

    def read() -> None:
        try:
            for line in lines:
                waiting.put(line.rstrip("\r\n"))
            waiting.put(None)
        except BaseException as error:  # for whoever asks for the next line
            waiting.put(error)

    Thread(target=read, daemon=True).start()
    item: str | BaseException | None = ""
    while item is not None:
        chunk: list[str] = []
        item = waiting.get()
        while isinstance(item, str):
            chunk.append(item)
            if len(chunk) == LINES_AT_A_TIME or waiting.empty():
                break
            item = waiting.get()
        if chunk:
            yield chunk
        if isinstance(item, BaseException):
            raise item


def translate(args: argparse.Namespace) -> None:
    """`vanilla-transformer translate`: one line in, one line out, in order."""
    from tqdm import tqdm

    from .translation import translate as translate_sentences

    model, tokenizer = _load(args.model, args.backend)
    source: Any = sys.stdin
    source.reconfigure(encoding="utf-8", newline="\n")
    with tqdm(desc="Translating", unit=" sentences", file=sys.stderr, disable=sys.stdin.isatty()) as bar:
        for lines in _chunks(source):
            translations = translate_sentences(
                model, tokenizer, lines, args.max_tokens, progress=bar.update, **_generate_kwargs(args)
            )
            for translation in translations:
                print(" ".join(translation.splitlines()))  # a line break in the output would shift all that follow
            sys.stdout.flush()


def average(args: argparse.Namespace) -> None:
    """`vanilla-transformer average`: the mean of a run's last checkpoints, as a model folder."""
    from .checkpoints import average_checkpoints, checkpoint_folders
    from .hub import record_average

    folders = checkpoint_folders(args.run)
    if len(folders) < args.last:
        raise ValueError(f"{args.run} has {len(folders)} checkpoints, fewer than {args.last}.")
    chosen = folders[-args.last :]
    average_checkpoints(chosen, args.output_dir)
    record_average(args.run, args.output_dir, args.last)
    say(f"The mean of {', '.join(folder.name for folder in chosen)} is in {args.output_dir}")


def export(args: argparse.Namespace) -> None:
    """`vanilla-transformer export`: a model for another runtime."""
    from .export import export_ctranslate2, export_onnx

    if args.format == "ctranslate2":
        export_ctranslate2(args.model, args.output_dir, args.quantization or "float32")
    elif args.quantization:
        raise UsageError("--quantization is for --format ctranslate2.")
    else:
        export_onnx(args.model, args.output_dir)
    say(f"{args.output_dir} has the model for {args.format}; its README.md says how to run it")


def push(args: argparse.Namespace) -> None:
    """`vanilla-transformer push`: the model with its card to the Hub; its address on stdout."""
    from .hub import push, push_space, read_scores

    scores = read_scores(args.scores) if args.scores else None
    print(push(args.model, args.repo_id, args.private or None, license=args.license, scores=scores))
    if args.space:
        print(push_space(args.repo_id, args.private or None))


def demo(args: argparse.Namespace) -> None:
    """`vanilla-transformer demo`: a page in the browser, until Ctrl-C."""
    from .demo import build_page

    page = build_page(args.model)
    page.launch(server_name=args.host, server_port=args.port)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="vanilla-transformer",
        description="Train, evaluate and use the original Transformer (2017).",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    verbs.add_parser("train", help="train a model on parallel text, or go on training one", add_help=False)

    decoding = argparse.ArgumentParser(add_help=False)
    decoding.add_argument("model", metavar="MODEL", help="folder of a trained model, or its name on the Hub")
    decoding.add_argument(
        "--backend", default="torch", choices=["torch", "ctranslate2", "onnx"], help="what runs the model"
    )
    decoding.add_argument("--num_beams", type=_positive, help="beam size (default: the model's, 4 in the paper)")
    decoding.add_argument("--length_penalty", type=float, help="alpha (default: the model's, 0.6 in the paper)")
    decoding.add_argument("--max_tokens", type=_positive, default=2048, help="tokens of a batch (default: 2048)")

    verb = verbs.add_parser("evaluate", parents=[decoding], help="score a model: BLEU, chrF and TER as JSON")
    text = verb.add_mutually_exclusive_group()
    text.add_argument(
        "--test_file",
        metavar="P",
        help="a .jsonl, .tsv, .csv or .parquet file, or a Moses prefix: P.en and P.de (default: the held-out phrases)",
    )
    text.add_argument("--dataset_name", help="a data set of the Hub instead")
    verb.add_argument("--dataset_config_name", help="its configuration")
    verb.add_argument("--split", default="test", help="its split (default: test)")
    verb.add_argument("--source_lang", help="default: the language saved with the model")
    verb.add_argument("--target_lang", help="default: the language saved with the model")
    verb.add_argument("--bleu_tokenize", default="13a", choices=["13a", "none", "intl", "char", "zh", "ja-mecab"])
    verb.set_defaults(act=evaluate)

    verb = verbs.add_parser("translate", parents=[decoding], help="translate stdin to stdout, line by line")
    verb.set_defaults(act=translate)

    verb = verbs.add_parser("export", help="write a model for a faster runtime")
    verb.add_argument("model", metavar="MODEL", help="folder of a trained model, or its name on the Hub")
    verb.add_argument("output_dir", metavar="OUT", help="a new folder")
    verb.add_argument("--format", required=True, choices=["ctranslate2", "onnx"])
    verb.add_argument("--quantization", help="CTranslate2's: int8, float16, ... (default: float32)")
    verb.set_defaults(act=export)

    verb = verbs.add_parser("push", help="upload a trained model, its tokenizer and its card to the Hub")
    verb.add_argument("model", metavar="D", help="folder of a trained model")
    verb.add_argument("repo_id", metavar="REPOSITORY", help="your-name/your-model; made if it is not there")
    verb.add_argument("--scores", metavar="FILE", help="what `evaluate` printed, for the card")
    verb.add_argument("--license", help="of the model, for the card, such as apache-2.0")
    verb.add_argument("--private", action="store_true", help="a new repository is private")
    verb.add_argument("--space", action="store_true", help="also make a Space, the page that `demo` shows")
    verb.set_defaults(act=push)

    verb = verbs.add_parser("demo", help="a page in the browser: translate, n-best, attention")
    verb.add_argument("model", metavar="MODEL", help="folder of a trained model, or its name on the Hub")
    verb.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1, this machine)")
    verb.add_argument("--port", type=_positive, help="default: the first free one from 7860")
    verb.set_defaults(act=demo)

    verb = verbs.add_parser("average", help="average the last checkpoints of a training run into one model")
    verb.add_argument("run", metavar="D", help="the output folder of the training run")
    verb.add_argument("--last", type=_positive, default=5, help="checkpoints to average (default: 5, as in the paper)")
    verb.add_argument("--output_dir", required=True, help="folder for the averaged model")
    verb.set_defaults(act=average)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb; gives the exit status."""
    argv = sys.argv[1:] if argv is None else argv
    parser = _parser()
    try:
        if argv and argv[0] == "train":
            train(argv[1:])
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
        say("vanilla-transformer:", " ".join(str(error).split()))
        return 1
    except KeyboardInterrupt:
        say("vanilla-transformer: interrupted")
        return 130
    return 0
