"""What each verb of the command line does; `cli` reads its flags.

Each verb imports what it needs when it runs. Results go to stdout, everything else to stderr.
"""

import argparse
import io
import json
import math
import socket
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Any, NamedTuple

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


def tune(argv: Sequence[str]) -> None:
    """`vanilla-transformer tune`: better settings, and which mattered."""
    from .tuning import run_tune

    run_tune(argv, say)


def _load(folders: Sequence[str], backend: str = "torch") -> tuple[Any, Any]:
    """The model and tokenizer saved in a folder, or on the Hub under that name; of several folders the ensemble."""
    if len(folders) == 1:
        return _load_one(folders[0], backend)
    from .ensemble import Ensemble

    if backend != "torch":
        raise UsageError("Several models translate together under --backend torch only.")
    loaded = [_load_one(folder, backend) for folder in folders]
    models, tokenizers = zip(*loaded, strict=True)
    for folder, tokenizer in zip(folders, tokenizers, strict=True):
        if tokenizer.get_vocab() != tokenizers[0].get_vocab():
            raise ValueError(f"{folders[0]} and {folder} have other vocabularies; an ensemble needs one.")
    _same_languages(dict(zip(folders, models, strict=True)))
    return Ensemble(models), tokenizers[0]


def _load_one(folder: str, backend: str) -> tuple[Any, Any]:
    """One model with its tokenizer, on the best device there is."""
    import torch
    from transformers import AutoTokenizer

    from .export import export_format, load_export
    from .loading import load, load_model
    from .tokenizer import check_tokenizer

    if backend != "torch":
        exported = load_export(folder, backend)
        return exported, exported.tokenizer

    if export_format(folder):
        raise UsageError(
            f"{folder} is an export, which evaluate and translate run with --backend {export_format(folder)}; compare "
            "takes a file of what translate printed."
        )
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")
    model, tokenizer = load_model(folder), load(AutoTokenizer, folder)
    check_tokenizer(tokenizer, model.config)
    return model.to(device), tokenizer


def _generate_kwargs(args: argparse.Namespace) -> dict[str, Any]:
    names = ("num_beams", "length_penalty")
    return {name: getattr(args, name) for name in names if getattr(args, name) is not None}


class TestText(NamedTuple):
    """Sources and references; with the built-in phrases, which of them hold combinations that training never shows."""

    name: str
    sources: list[str]
    references: list[str]
    unseen: list[int]


def _read_test(args: argparse.Namespace, languages: tuple[str | None, str | None]) -> TestText:
    """The text that the flags name; `languages` are the model's."""
    source_lang, target_lang = args.source_lang or languages[0], args.target_lang or languages[1]
    if source_lang is None or target_lang is None:
        raise UsageError("The model does not say its languages: give --source_lang and --target_lang.")
    if not (args.test_file or args.dataset_name):
        from .phrases import splits

        if {source_lang, target_lang} != {"de", "en"}:
            raise UsageError("The built-in phrases are English and German: give --test_file for other languages.")
        phrases = splits()["test"]
        sources, references = (
            [getattr(phrase, language) for phrase in phrases] for language in (source_lang, target_lang)
        )
        return TestText(
            "built-in phrases", sources, references, [i for i, phrase in enumerate(phrases) if phrase.unseen]
        )
    from .data import load_hub_pairs, load_pairs

    if args.test_file:
        pairs, text = load_pairs(args.test_file, source_lang, target_lang), Path(args.test_file).name
    else:
        name, split = args.dataset_name, args.split
        text = f"{Path(name).name if Path(name).exists() else name}, {split}"
        pairs = load_hub_pairs(name, args.dataset_config_name, source_lang, target_lang, (split,))[split]
    sources, references = ([text or "" for text in pairs[name]] for name in ("source", "target"))
    return TestText(text, sources, references, [])


def _languages(model: Any) -> tuple[str | None, str | None]:
    return model.config.source_lang, model.config.target_lang


def _same_languages(models: dict[str, Any]) -> tuple[str | None, str | None]:
    """What all of them translate from and to; nobody knows where there is none."""
    languages = {name: _languages(model) for name, model in models.items()}
    if len(set(languages.values())) > 1:
        each = "; ".join(f"{name}: {source} to {target}" for name, (source, target) in languages.items())
        raise ValueError(f"The models translate other languages: {each}.")
    return next(iter(languages.values()), (None, None))


def _translate(model: Any, tokenizer: Any, sources: list[str], args: argparse.Namespace) -> list[str]:
    from tqdm import tqdm

    from .translation import translate as translate_sentences

    with tqdm(total=len(sources), desc="Translating", unit=" sentences", file=sys.stderr) as bar:
        return translate_sentences(
            model, tokenizer, sources, args.max_tokens, progress=bar.update, **_generate_kwargs(args)
        )


def evaluate(args: argparse.Namespace) -> None:
    """`vanilla-transformer evaluate`: one JSON object on stdout."""
    from .evaluation import check_tokenization, evaluate_translations

    check_tokenization(args.bleu_tokenize)
    model, tokenizer = _load(args.model, args.backend)
    text, sources, references, unseen = _read_test(args, _languages(model))
    start = time.perf_counter()
    translations = _translate(model, tokenizer, sources, args)
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
    """The lines: as many as have come by now, but at least one and at most `LINES_AT_A_TIME`."""
    waiting: Queue[str | BaseException | None] = Queue(LINES_AT_A_TIME)

    def read() -> None:
        try:
            for line in lines:
                waiting.put(line)
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


def _standard_input() -> Any:
    """Return a second reader of stdin's bytes.

    The interpreter closes that of `sys.stdin` when it exits, and aborts if a thread is still waiting in it.
    """
    try:
        return open(sys.stdin.fileno(), "rb", closefd=False)
    except io.UnsupportedOperation:  # no file of the system, as in a test
        return sys.stdin.buffer


def translate(args: argparse.Namespace) -> None:
    """`vanilla-transformer translate`: one line in, one line out, in order."""
    from tqdm import tqdm

    from .data import decode_lines
    from .translation import translate as translate_sentences

    if sys.stdin is None:
        raise OSError("Standard input is closed: give the text as < FILE.")
    model, tokenizer = _load(args.model, args.backend)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")  # whatever the terminal's own: the text may have any letters
    with tqdm(desc="Translating", unit=" sentences", file=sys.stderr, disable=sys.stdin.isatty()) as bar:
        for lines in _chunks(decode_lines(_standard_input(), "standard input")):
            translations = translate_sentences(
                model, tokenizer, lines, args.max_tokens, progress=bar.update, **_generate_kwargs(args)
            )
            for translation in translations:
                print(" ".join(translation.splitlines()))  # a line break in the output would shift all that follow
            sys.stdout.flush()


def score(args: argparse.Namespace) -> None:
    """`vanilla-transformer score`: how likely each given translation is, one JSON object a pair on stdout."""
    from tqdm import tqdm

    from .comparison import score_translations

    model, tokenizer = _load(args.model)
    _, sources, targets, _ = _read_test(args, _languages(model))
    with tqdm(total=len(sources), desc="Scoring", unit=" pairs", file=sys.stderr) as bar:
        results = score_translations(model, tokenizer, sources, targets, args.max_tokens, progress=bar.update)
    for log_probability, tokens in results:
        row = {
            "log_probability": log_probability,
            "tokens": tokens,
            "perplexity": _perplexity(log_probability, tokens),
        }
        print(json.dumps(row))
    total, tokens = (sum(column) for column in zip(*results, strict=True))
    say(
        f"{len(results):,} pairs, {tokens:,} tokens: log-probability {total:.2f} nats, perplexity "
        f"{_perplexity(total, tokens):.4f} a token"
    )


def _perplexity(log_probability: float, tokens: int) -> float:
    return math.exp(min(-log_probability / tokens, 700.0))


def compare(args: argparse.Namespace) -> None:
    """`vanilla-transformer compare`: two models, or files of their translations; one JSON object on stdout."""
    from .comparison import compare_translations
    from .data import read_lines
    from .evaluation import check_tokenization

    check_tokenization(args.bleu_tokenize)
    systems = (args.a, args.b)
    files = {name: list(read_lines(name)) for name in systems if Path(name).is_file()}
    models = {name: _load([name]) for name in systems if name not in files}
    _, sources, references, _ = _read_test(args, _same_languages({name: pair[0] for name, pair in models.items()}))
    for name, lines in files.items():  # before the others are translated
        if len(lines) != len(sources):
            raise ValueError(f"{name} has {len(lines)} translations of {len(sources)} lines.")
    translations: dict[str, Sequence[str]] = {}
    for side, name in zip("AB", systems, strict=True):
        translations[f"{side}: {name}"] = files[name] if name in files else _translate(*models[name], sources, args)
    print(json.dumps(compare_translations(sources, references, translations, args.bleu_tokenize), indent=2))


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


def plot(args: argparse.Namespace) -> None:
    """`vanilla-transformer plot`: a picture, PNG or SVG by the name of the file."""
    from . import plots

    if args.kind == "positions":
        figure = plots.positions(args.d_model, args.positions)
    elif args.kind == "noam":
        figure = plots.noam_curves(args.curves, args.steps)
    elif args.kind == "masks":
        figure = plots.masks(args.lengths)
    elif args.kind == "attention":
        from .demo import Explorer

        explorer = Explorer(args.model)
        target = explorer.translate(args.sentence, 4, 0.6)[0][2]
        attention = explorer.attention(args.sentence, target)
        figure = plots.attention_heads(**attention, layer=args.layer)
    elif args.kind == "training":
        names = [Path(run).name for run in args.runs]
        if len(set(names)) < len(names):
            names = args.runs
        figure = plots.training_curves({name: plots.read_log(run) for name, run in zip(names, args.runs, strict=True)})
    else:
        figure = plots.ablation(json.loads(Path(args.results).read_text(encoding="utf-8")))
    plots.save(figure, args.output)
    say(f"The picture is in {args.output}")


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

    try:  # Gradio would try for most of a minute
        host = args.host.removeprefix("[").removesuffix("]")
        family, *_, address = socket.getaddrinfo(host, args.port or 0, type=socket.SOCK_STREAM)[0]
        with socket.create_server(address[:2], family=family):
            pass
    except OSError as error:
        raise OSError(f"Cannot listen on {args.host}, port {args.port or 'any'}: {error.strerror or error}.") from None
    page = build_page(args.model)
    page.launch(server_name=f"[{host}]" if ":" in host else host, server_port=args.port)
