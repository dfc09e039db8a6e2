"""Damage the folders that the verbs read, at random, and check how each verb ends.

python tests/support/damaged_folders.py --cases 1000 --seed 0

A verb must end with status 0, 1 or 2, without a traceback, with one error line if it fails, within 20 seconds. Each
case runs in a forked process, with a limit on its memory.
"""

import argparse
import json
import os
import pickle
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
sys.path.insert(0, str(Path(__file__).parent))

import torch
import yaml
from small import model_flags
from transformers import logging

from hf_vanilla_transformer import (
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    train_tokenizer,
)
from hf_vanilla_transformer.cli import main
from hf_vanilla_transformer.training.checkpoints import CHECKSUMS, write_checksums

SECONDS = 20  # for a case
MEMORY = 4 << 30  # bytes that a case may allocate
SMALL = [
    *model_flags(d_model=8, d_ff=8),
    *("--vocab_size", "280", "--max_tokens", "64", "--disable_tqdm", "true"),
]
SHORT = ["--max_steps", "2", "--logging_steps", "1"]
TEXT = ["--test_file", "text"]
TRAIN = ["train", *SMALL, *SHORT]
TUNE = ["tune", *SMALL, "--max_steps", "4", "--train_file", "text", "--validation_file", "text.jsonl"]
LANGUAGES = ["--source_lang", "en", "--target_lang", "de"]
PREPARE = ["prepare", "text", *LANGUAGES, "--tokenizer_name", "model", "--shard_pairs", "20", "--workers", "1"]
TRANSLATE = ["translate", "model", "--input_files", "text.en", "--shard_lines", "20", "--workers", "1"]
TRANSLATED = ["translate", "model", "--input_files", "text.en", "--output_format", "jsonl", "--workers", "1"]
# slow to import, so once for all cases
MODULES = ("ctranslate2", "gradio", "matplotlib.figure", "onnxruntime", "onnxscript", "optuna", "peft", "uvicorn")


class Command(NamedTuple):
    """A command line, and the files and folders that it reads."""

    words: list[str]
    reads: tuple[str, ...]


COMMANDS = {
    "evaluate": Command(["evaluate", "model", *TEXT, "--num_beams", "1"], ("model", "text.en")),
    "evaluate two": Command(["evaluate", "model", "model", *TEXT, "--num_beams", "1"], ("model",)),
    "evaluate JSON lines": Command(
        ["evaluate", "model", "--test_file", "text.jsonl", "--num_beams", "2"], ("model", "text.jsonl")
    ),
    "score": Command(["score", "model", *TEXT], ("model", "text.de")),
    "compare": Command(["compare", "model", "output.txt", *TEXT, "--num_beams", "1"], ("model", "output.txt")),
    "translate": Command(["translate", "model", "--num_beams", "1"], ("model",)),
    "translate with shards": Command(["translate", "sharded"], ("sharded",)),
    "translate with an ensemble": Command(["translate", "model", "sharded"], ("model", "sharded")),
    "translate with an adapter": Command(["translate", "adapter"], ("adapter", "model")),
    "train": Command(
        [*TRAIN, "--train_file", "text", "--validation_file", "text.jsonl", "--output_dir", "new"],
        ("text.en", "text.de", "text.jsonl"),
    ),
    "train by recipe": Command(
        ["train", "recipe.yaml", *SMALL[2:], *SHORT, "--train_file", "text", "--output_dir", "new"], ("recipe.yaml",)
    ),
    "fine-tune": Command(
        ["train", *SHORT, "--model_name_or_path", "model", "--train_file", "text", "--output_dir", "new"], ("model",)
    ),
    "resume": Command([*TRAIN, "--train_file", "text", "--output_dir", "run", "--max_steps", "3"], ("run",)),
    "train on shards": Command([*TRAIN, "--train_file", "shards", "--output_dir", "new"], ("shards",)),
    "stream shards": Command([*TRAIN, "--train_file", "shards", "--streaming", "--output_dir", "new"], ("shards",)),
    "train on translations": Command([*TRAIN, "--train_file", "jsonl", "--output_dir", "new"], ("jsonl",)),
    "tune": Command([*TUNE, "--trials", "1", "--output_dir", "new"], ("text.en",)),
    "tune again": Command([*TUNE, "--trials", "2", "--output_dir", "tuned"], ("tuned",)),
    "average": Command(["average", "run", "--last", "2", "--output_dir", "new"], ("run",)),
    "convert to Marian": Command(["convert", "model", "new", "--to", "marian"], ("model",)),
    "convert from Marian": Command(["convert", "marian", "new"], ("marian",)),
    "export": Command(["export", "model", "new", "--format", "ctranslate2"], ("model",)),
    "push": Command(["push", "model", "me/model", "--scores", "scores.json"], ("model", "scores.json")),
    "push a run": Command(["push", "run", "me/model"], ("run",)),
    "plot training": Command(["plot", "training", "run", "--output", "new.svg"], ("run",)),
    "plot attention": Command(["plot", "attention", "model", "--sentence", "a", "--output", "new.svg"], ("model",)),
    "translate an export": Command(["translate", "exported", "--backend", "ctranslate2"], ("exported",)),
    "translate an ONNX export": Command(["translate", "onnx", "--backend", "onnx"], ("onnx",)),
    "demo": Command(["demo", "model"], ("model",)),
    "serve": Command(["serve", "model", "--api_key_file", "keys"], ("model", "keys")),
    "prepare": Command([*PREPARE, "--output_dir", "new"], ("text.en", "text.de", "model")),
    "prepare again": Command([*PREPARE, "--output_dir", "shards"], ("shards",)),
    "prepare the rest": Command([*PREPARE, "--output_dir", "half_shards"], ("half_shards",)),
    "translate the rest": Command([*TRANSLATE, "--output_dir", "half_translated"], ("half_translated",)),
    "translate files": Command([*TRANSLATE, "--output_dir", "new"], ("text.en", "model")),
    "translate files again": Command([*TRANSLATE, "--output_dir", "translated"], ("translated",)),
}


def create() -> None:
    """Write all files and folders that the commands read, undamaged, into the current folder."""
    # as many as a stream of shards can read in a second to fill its buffer
    places = [f"{place} {way}" for place in ("here", "there", "far", "near") for way in "abcdefghij"]
    english = [f"a dog runs {place} ." for place in places]
    german = [f"ein hund rennt {place} ." for place in places]
    for name, lines in (("text.en", english), ("text.de", german), ("output.txt", german)):
        Path(name).write_text("".join(f"{line}\n" for line in lines))
    rows = [{"en": en, "de": de} for en, de in zip(english, german, strict=True)]
    Path("text.jsonl").write_text("".join(json.dumps({"translation": row}) + "\n" for row in rows))
    Path("table.csv").write_text("en,de\n" + "".join(f"{row['en']},{row['de']}\n" for row in rows))
    Path("empty.jsonl").write_text("\n")
    Path("keys").write_text("one\ntwo\n")
    Path("recipe.yaml").write_text("preset: tiny\nmax_steps: 1\nlogging_steps: 1\n")
    scores = {"bleu": 1.0, "chrf": 2.0, "ter": 3.0, "text": "t", "sentences": 4}
    scores["signatures"] = {"bleu": "a", "chrf": "b", "ter": "c"}
    Path("scores.json").write_text(json.dumps(scores))
    Path("ablation.json").write_text(json.dumps({row: {"bleu": 1.0, "perplexity": 2.0} for row in ("base", "A1")}))

    tokenizer = train_tokenizer((english + german) * 3, 280)
    sizes = {"d_model": 8, "num_heads": 2, "d_ff": 8, "num_encoder_layers": 1, "num_decoder_layers": 1}
    config = VanillaTransformerConfig(vocab_size=len(tokenizer), source_lang="en", target_lang="de", **sizes)
    model = VanillaTransformerForConditionalGeneration(config)
    for name, shard_size in (("model", "1GB"), ("sharded", "4KB")):
        model.save_pretrained(name, max_shard_size=shard_size)
        tokenizer.save_pretrained(name)
    for words in (
        [*TRAIN, "--train_file", "text", "--save_steps", "1", "--output_dir", "run"],
        [*TUNE, "--trials", "1", "--output_dir", "tuned"],
        [*PREPARE, "--output_dir", "shards"],
        [*TRANSLATE, "--output_dir", "translated"],
        [*TRANSLATED, "--output_dir", "jsonl"],
        [*PREPARE, "--task", "0", "--tasks", "2", "--output_dir", "half_shards"],
        [*TRANSLATE, "--task", "0", "--tasks", "2", "--output_dir", "half_translated"],
        ["convert", "model", "marian", "--to", "marian"],
        ["export", "model", "exported", "--format", "ctranslate2"],
        ["export", "model", "onnx", "--format", "onnx"],
    ):
        assert main(words) == 0, words
    _create_adapter(model, tokenizer)


def _create_adapter(model: VanillaTransformerForConditionalGeneration, tokenizer: Any) -> None:
    from peft import LoraConfig, get_peft_model

    model.config._name_or_path = model.name_or_path = "model"
    adapted = get_peft_model(model, LoraConfig(target_modules=["q_proj"], task_type="SEQ_2_SEQ_LM"))
    adapted.save_pretrained("adapter")
    tokenizer.save_pretrained("adapter")


SIZES = (10**6, 10**8, 10**12, 2**31, 2**63, 2**64, -1, 0, 1, 2, 7)
VALUES: tuple[object, ...] = (
    *SIZES,
    *(1e308, float("nan"), float("inf"), -0.5, None, True, False, "", "x", "en-de", "../../etc/passwd", "/dev/zero"),
    *("kernels-community/flash-attn", "é\ud800", "x" * 10**5, [], {}, ["en"], [[1]], {"x": 1}, [10**9], {"0": {}}),
)
# Values under keys that a document may lack
ADDED: dict[str, tuple[tuple[str, object], ...]] = {
    "config.json": (
        *(("_attn_implementation", "kernels-community/flash-attn"), ("attn_implementation", "someone/kernel")),
        *(("quantization_config", {"quant_method": "bitsandbytes"}), ("dtype", "float8"), ("language_pairs", ["en"])),
        *(
            ("auto_map", {"AutoConfig": "code.Config"}),
            ("model_type", "bert"),
            ("num_beams", 10**6),
            ("use_bfloat16", 3),
        ),
        *(("output_attentions", True), ("return_dict", False), ("id2label", {"x": 1}), ("num_labels", 10**9)),
        *(("is_encoder_decoder", False), ("position_embedding", "learned"), ("tie_word_embeddings", False)),
        *(("max_position_embeddings", 10**8), ("num_encoder_layers", 10**6), ("num_decoder_layers", 10**6)),
    ),
    "generation_config.json": (
        *(("num_beams", 10**6), ("max_length", 10**9), ("max_new_tokens", 10**9), ("min_length", 10**9)),
        *(("min_new_tokens", 10**6), ("num_return_sequences", 10**6), ("suppress_tokens", "x"), ("bad_words_ids", 3)),
        *(("cache_implementation", "x"), ("do_sample", True), ("forced_bos_token_id", 10**9), ("top_k", -3)),
        *(("watermarking_config", 3), ("compile_config", {"x": 1}), ("stop_strings", "x"), ("temperature", "x")),
        *(("no_repeat_ngram_size", "x"), ("exponential_decay_length_penalty", [1]), ("num_beam_groups", 7)),
        *(("assistant_early_exit", 1), ("prompt_lookup_num_tokens", 10**6), ("max_time", "x")),
        *(("early_stopping", "x"), ("decoder_start_token_id", 10**9), ("pad_token_id", -1), ("eos_token_id", [10**9])),
    ),
    "tokenizer_config.json": (
        *(("model_max_length", "x"), ("tokenizer_class", "x"), ("auto_map", {"AutoTokenizer": ["c.T", "c.T"]})),
        *(("padding_side", 3), ("added_tokens_decoder", {"1000000000": {"content": "x"}}), ("model_max_length", -1)),
        *(("eos_token", 3), ("chat_template", 3), ("model_input_names", "x"), ("tokenizer_file", "/dev/zero")),
    ),
    "tokenizer.json": (
        *(("padding", {"strategy": {"Fixed": 10**12}, "direction": "Right", "pad_id": 0, "pad_type_id": 0}),),
        *(("truncation", {"max_length": 0, "strategy": "LongestFirst", "stride": 9, "direction": "Right"}),),
        *(("normalizer", None), ("pre_tokenizer", {"type": "Whitespace"}), ("decoder", None)),
    ),
    "adapter_config.json": (("base_model_name_or_path", "adapter"), ("base_model_name_or_path", 3), ("r", 10**9)),
    "model.safetensors.index.json": (("weight_map", {"model.shared.weight": "../model/model.safetensors"}),),
}


def _nested(levels: int, kind: str = "[") -> str:
    return "[" * levels + "]" * levels if kind == "[" else '{"x":' * levels + "1" + "}" * levels


def _places(document: object) -> Iterator[tuple[Any, Any]]:
    """Yield each container of a document with each of its keys or indices."""
    if isinstance(document, (dict, list)):
        for key in list(document) if isinstance(document, dict) else range(len(document)):
            yield document, key
            yield from _places(document[key])


def _change_document(document: Any, name: str, rng: random.Random) -> bytes:
    """Replace or add a value of a document, and return it as JSON."""
    places = list(_places(document))
    added = ADDED.get(name)
    if added and isinstance(document, dict) and rng.random() < 0.5:
        key, value = rng.choice(added)
        document[key] = value
    elif places:
        container, key = rng.choice(places)
        old = container[key]
        container[key] = rng.choice(VALUES)
        if isinstance(old, (int, float)) and rng.random() < 0.5:
            container[key] = rng.choice(SIZES)
    text = json.dumps(document)
    if rng.random() < 0.15:
        deep = _nested(rng.choice((90, 400, 900, 5000, 100_000)), rng.choice("[{"))
        text = deep if rng.random() < 0.3 or not text.startswith("{") else f'{{"deep": {deep}, {text[1:]}'
    return text.encode("utf-8", "surrogatepass")


class _Payload:
    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return os.system, ("touch /tmp/code-of-a-damaged-folder-has-run",)


_BOMB = "".join(f"x{i}: &x{i} [{', '.join([f'*x{i - 1}' if i else 'a'] * 9)}]\n" for i in range(30)).encode()


def _change_content(file: Path, rng: random.Random) -> bytes:
    """Return content for a file that is what its name says, with an absurd value."""
    content = file.read_bytes()
    # a file may have been damaged before
    with suppress(ValueError, yaml.YAMLError, RecursionError):
        if file.suffix == ".json":
            return _change_document(json.loads(content), file.name, rng)
        # the values of a bomb are too many to choose one
        if file.suffix == ".yaml" and _BOMB not in content:
            document = yaml.safe_load(content)
            deep = f"\ndeep: {_nested(rng.choice((90, 400, 5000)))}\n".encode()
            return rng.choice((*[_change_document(document, file.name, rng)] * 3, content + _BOMB, content + deep))
        if file.suffix == ".safetensors":
            size = int.from_bytes(content[:8], "little")
            header = _change_document(json.loads(content[8 : 8 + size]), file.name, rng)
            return len(header).to_bytes(8, "little") + header + content[8 + size :]
    if file.suffix in (".pt", ".pth", ".bin"):
        if rng.random() < 0.5:
            return pickle.dumps(_Payload())
        torch.save(rng.choice(({"x": 1}, [], torch.zeros(3), {"state": {}, "param_groups": []}, _Payload())), file)
        return file.read_bytes()
    return content[: len(content) // 2] + bytes(rng.randrange(256) for _ in range(20)) + content[len(content) // 2 :]


def _replace_by_link(file: Path, rng: random.Random) -> None:
    file.unlink()
    file.symlink_to(rng.choice(("nowhere", file.name, "..", "/dev/null", "../text.en", "../model/config.json")))


def damage(target: Path, rng: random.Random) -> str:
    """Damage the file `target`, or one file in the folder `target`, and return a description of the damage."""
    files = sorted(file for file in target.rglob("*") if file.is_file()) if target.is_dir() else [target]
    files = [file for file in files if file.is_file() and file.suffix != ".py"]
    if not files:
        return "nothing"
    # as often as the many shards, documents are chosen, in which most can be wrong
    documents = [file for file in files if file.suffix in (".json", ".yaml")]
    file = rng.choice(documents if documents and rng.random() < 0.5 else files)
    content = file.read_bytes()
    how = rng.choice(("cut", "flip", "remove", "bytes", *["value"] * 6, "delete", "empty", "folder", "link"))
    if how == "cut":
        file.write_bytes(content[: rng.randrange(len(content) + 1)])
    elif how in ("flip", "remove") and content:
        changed = bytearray(content)
        for _ in range(rng.randrange(1, 8)):
            at = rng.randrange(len(changed)) if changed else 0
            changed[at : at + 1] = bytes([rng.randrange(256)]) if how == "flip" else b""
        file.write_bytes(changed)
    elif how == "bytes":
        file.write_bytes(rng.randbytes(rng.randrange(60)))
    elif how == "value":
        file.write_bytes(_change_content(file, rng))
    elif how in ("delete", "folder"):
        file.unlink()
        if how == "folder":
            file.mkdir()
    elif how == "link":
        _replace_by_link(file, rng)
    else:
        file.write_bytes(b"")
    # Otherwise all damage to a checkpoint is found by its checksums
    if (file.parent / CHECKSUMS).is_file() and file.name != CHECKSUMS and rng.random() < 0.7:
        with suppress(OSError):
            (file.parent / CHECKSUMS).unlink()
            write_checksums(file.parent)
    return f"{how} {file.relative_to(target.parent)}"


def without_servers() -> None:
    """Let `demo` and `serve` return as soon as their model is loaded."""
    import gradio

    from hf_vanilla_transformer.plugins.serving import process

    gradio.Blocks.launch = lambda *args, **kwargs: None
    process.serve_until_stopped = lambda *args: None


def in_child(action: Callable[[], int], seconds: int, log: Path) -> tuple[int, float, str]:
    """Run an action in a forked process, and return its exit status, the seconds it took, and its stderr.

    The status is negative after a signal: -14 if it took too long.
    """
    start = time.monotonic()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        status = 99
        try:
            signal.alarm(seconds)
            for number, name in ((1, f"{log}.out"), (2, str(log))):
                os.dup2(os.open(name, os.O_CREAT | os.O_WRONLY), number)
            status = action()
        except SystemExit as stop:
            status = stop.code if isinstance(stop.code, int) else 98
        except BaseException:
            traceback.print_exc()
        finally:
            with suppress(BaseException):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), time.monotonic() - start, log.read_text("utf-8", "replace")


def fault(status: int, stderr: str) -> str | None:
    """Return what is wrong with the end of a verb, or None if it is a proper one."""
    if status not in (0, 1, 2):
        return f"status {status}" if status != -signal.SIGALRM else "took too long"
    if "Traceback" in stderr:
        return "traceback"
    errors = [line for line in stderr.splitlines() if line.startswith("vanilla-transformer")]
    return None if len(errors) == (status != 0) else f"{len(errors)} error lines with status {status}"


class Case(NamedTuple):
    """The end of a damaged case."""

    command: str
    damages: list[str]
    status: int
    seconds: float
    fault: str | None
    stderr: str


def run_case(undamaged: Path, place: Path, number: int, seed: int) -> Case:
    """Damage copies of the folders that a command reads, chosen by `seed` and `number`, and run it."""
    rng = random.Random(f"{seed} {number}")
    name = sorted(COMMANDS)[number % len(COMMANDS)]
    words, reads = COMMANDS[name]
    folder = place / f"case-{number}"
    shutil.copytree(undamaged, folder)
    damages = [damage(folder / rng.choice(reads), rng) for _ in range(rng.choice((1, 1, 1, 2)))]

    def run() -> int:
        import datasets

        os.chdir(folder)
        Path("stdin").write_text("a dog runs .\n\ntwo men\n")
        sys.stdin = Path("stdin").open(encoding="utf-8")  # noqa: SIM115
        datasets.config.HF_DATASETS_CACHE = folder / "cache"
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
        return main(words)

    status, seconds, stderr = in_child(run, SECONDS, place / f"case-{number}.log")
    # a folder may have been replaced by one that cannot be listed
    shutil.rmtree(folder, ignore_errors=True)
    return Case(name, damages, status, seconds, fault(status, stderr), stderr)


def prepare_folders(place: Path, undamaged: Path | None) -> Path:
    """Return a folder with everything the commands read, by default created in a process of its own."""
    logging.set_verbosity_error()
    without_servers()
    for module in MODULES:
        import_module(module)
    for verb in ("trainer", "run"):
        import_module(f"hf_vanilla_transformer.training.{verb}")
    modules = (
        "plugins.demo.gradio_page",
        "plugins.serving.process",
        "plugins.study.hyperparameter_search",
        "plugins.corpus.preparation",
    )
    for module in modules:
        import_module(f"hf_vanilla_transformer.{module}")

    if undamaged is not None:
        return undamaged
    undamaged = place / "undamaged"
    undamaged.mkdir()

    def write() -> int:
        os.chdir(undamaged)
        create()
        return 0

    status, _, stderr = in_child(write, 600, place / "create.log")
    assert status == 0, stderr
    return undamaged


def sweep(cases: range, seed: int, place: Path, undamaged: Path | None = None) -> Iterator[Case]:
    """Yield the result of each case."""
    undamaged = prepare_folders(place, undamaged)
    for number in cases:
        yield run_case(undamaged, place, number, seed)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="number of the first case, to repeat one")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--undamaged", type=Path, help="folder that `create` has written")
    flags = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as scratch:
        for case in sweep(range(flags.first, flags.first + flags.cases), flags.seed, Path(scratch), flags.undamaged):
            if case.fault:
                number = flags.first + len(results)
                print(
                    f"case {number}: {case.command}, {case.damages}: {case.fault}\n{case.stderr[-2500:]}", flush=True
                )
            results.append(case)
    slowest = max(results, key=lambda case: case.seconds)
    print(f"{len(results)} cases with seed {flags.seed}: {sum(bool(case.fault) for case in results)} failures")
    print(f"status: {dict(sorted(Counter(case.status for case in results).items()))}")
    print(f"slowest: {slowest.seconds:.1f} s, {slowest.command}, {slowest.damages}")
    sys.exit(any(case.fault for case in results))
