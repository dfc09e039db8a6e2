"""The commands and the Python code of the README and the guide, on small files."""

import contextlib
import io
import re
import shlex
import shutil
import sys
from pathlib import Path

import pyarrow as pa
import pytest
import torch
from corpora import ROOT
from guide_pages import PAGES, blocks, commands, prose, split_commands, write_documents
from import_files import write_xlsx
from opus_models import opus_model, write_opus_tokenizer
from small import SIZES, as_flags, write_moses

from hf_vanilla_transformer import VanillaTransformerForConditionalGeneration
from hf_vanilla_transformer.cli import main

# One sentence per combination of a subject and an object, in each language
SUBJECTS = [
    ("The man", "Der Mann", "L'homme"),
    ("The woman", "Die Frau", "La femme"),
    ("A child", "Ein Kind", "Un enfant"),
]
OBJECTS = [
    ("a book", "ein Buch", "un livre"),
    ("the car", "das Auto", "la voiture"),
    ("two dogs", "zwei Hunde", "deux chiens"),
]
EN = [f"{subject[0]} sees {seen[0]}." for subject in SUBJECTS for seen in OBJECTS]
DE = [f"{subject[1]} sieht {seen[1]}." for subject in SUBJECTS for seen in OBJECTS]
FR = [f"{subject[2]} voit {seen[2]}." for subject in SUBJECTS for seen in OBJECTS]

ALL_COMMANDS = [command for page in PAGES for command in commands(page)]

# How a command starts, and why it is not run here
NOT_RUN = {
    "git clone": "needs the network",
    "pip install": "needs a package index",
    "pip wheel": "tests/system/test_wheel.py builds it",
    "hf jobs": "needs the Hub; tests/system/test_wheel.py runs the script",
    "bash scripts/install.sh": "downloads; test_install.py runs it with an index on disk",
    "docker": "needs Docker",
    "bash scripts/get_multi30k.sh": "downloads; test_download_text.py runs it with a server of its own",
    "bash scripts/quickstart.sh": "takes minutes; CI runs it",
    "python scripts/build_model.py": "takes minutes; tests/scripts/test_build_model.py",
    "python scripts/study/range_test.py": "is a script; tests/plugins/study/test_range_test.py",
    "python scripts/benchmarks/attack.py": "takes a minute; tests/scripts/test_benchmarks.py",
    "python scripts/benchmarks/serving.py": "takes minutes, and needs LibreTranslate",
    "bash scripts/test.sh": "is what runs this test",
    "vanilla-transformer demo": "runs until Ctrl-C; tests/plugins/serving and tests/system open its page",
    "vanilla-transformer prepare --dataset_name": "needs the Hub",
    "vanilla-transformer push": "needs the Hub; tests/sharing/test_hub.py pushes to a server of its own",
    "vanilla-transformer export my-model my-model-onnx": "takes 12 s; tests/plugins/onnx/test_onnx.py",
    "vanilla-transformer translate my-model-onnx": "needs that export; tests/plugins/onnx/test_onnx.py",
    "vanilla-transformer serve": "runs until SIGTERM; tests/plugins/serving and tests/system open it",
    "vanilla-transformer export my-model my-model-half": "needs the page's plugin; tests/system/test_wheel.py",
    "vanilla-transformer translate my-model-half": "needs the page's plugin; tests/system/test_wheel.py",
    "vanilla-transformer size": "needs the page's plugin; tests/system/test_wheel.py",
    "curl": "needs the server; tests/plugins/serving/system/test_guide_of_serving.py",
}
# A program that starts several processes, and its first words: here the same flags are given to one process
LAUNCHERS = {"accelerate": 5, "torchrun": 4}
# Programs whose flags the text names, besides the verbs
OTHER_PROGRAMS = re.compile(r"bash |python |OMP_NUM_THREADS=1 python |sbatch |pip |tensorboard ")
# Flags that are added to the commands of a verb, so that they take seconds
_SMALL_VOCABULARY = ["--vocab_size", "290"]
_SHORT_TRAINING = as_flags({**SIZES, "max_steps": 5, "save_steps": 1, "warmup_steps": 2, "max_tokens": 512})
_SHORT_TRAINING += ["--use_cpu", "--disable_tqdm", "true"]
SHORTENED = {
    "train": [*_SHORT_TRAINING, "--eval_strategy", "no"],
    "tune": [*_SHORT_TRAINING, "--max_steps", "20", "--eval_steps", "20", "--trials", "1"],
    "prepare": [*_SMALL_VOCABULARY, "--workers", "1"],
}
SHORTENED["tune"] += ["--train_file", "data/train", "--validation_file", "data/val"]  # not 30,000 phrases
# Numbers of Python code that are replaced for the same reason
SHORTENED_CODE = {
    "max_steps=200,": "max_steps=2,",
    "max_tokens=1024": "max_tokens=256",
    'splits()["train"]': 'splits()["train"][:40]',
}


def reason_not_to_run(command: str) -> str | None:
    return next((reason for start, reason in NOT_RUN.items() if command.startswith(start)), None)


def shortened(words: list[str]) -> list[str]:
    """Return the verb and the flags of a command, with those that make it short."""
    verb, *flags = words
    flags += SHORTENED.get(verb, [])
    has_vocabulary = {"--model_name_or_path", "--tokenizer_name", "prepared"} & set(flags)
    if verb in ("train", "tune") and not has_vocabulary:
        flags += _SMALL_VOCABULARY
    if "--input_files" in flags:
        flags += ["--workers", "1"]
    return [verb, *flags]


def run_command(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run `vanilla-transformer ... < FILE > FILE` in this process, as a shell would."""
    program, *words = shlex.split(command, comments=True)
    if program in LAUNCHERS:
        words = ["train", *words[LAUNCHERS[program] - 1 :]]
    else:
        assert program == "vanilla-transformer", f"give a reason in NOT_RUN why this is not run: {command}"

    with contextlib.ExitStack() as files, monkeypatch.context() as patch:
        for sign, name, mode in (("<", "stdin", "r"), (">", "stdout", "w")):
            if sign in words:
                place = words.index(sign)
                file = files.enter_context(open(words[place + 1], mode, encoding="utf-8"))
                patch.setattr(sys, name, file)
                del words[place : place + 2]
        try:
            status = main(shortened(words))
        except SystemExit as end:  # argparse refuses a flag
            status = end.code
    assert status == 0, command


def write_texts(folder: Path) -> None:
    """Write the texts that the pages name."""
    write_documents(folder)
    (folder / "data" / "multi30k").mkdir(parents=True)
    for name in ("train", "val", "test", "medical", "europarl", "newstest2013", "multi30k/train", "multi30k/val"):
        write_moses(folder / "data" / name, en=EN, de=DE)
    write_moses(folder / "data" / "newstest2013", en=EN[:1], de=DE[:1])
    for name in ("news", "val", "test", "en-de", "val-ende"):
        write_moses(folder / name, en=EN, de=DE)
    for name in ("en-fr", "val-enfr"):
        write_moses(folder / name, en=EN, fr=FR)
    rows = "".join(f'{{"en": "{en}", "de": "{de}"}}\n' for en, de in zip(EN, DE, strict=True))
    (folder / "europarl.jsonl").write_text(rows, encoding="utf-8")
    (folder / "corpus").mkdir()
    compressed = {
        "data/commoncrawl.jsonl.zst": rows,
        "corpus/part.de.zst": "\n".join(DE[:4]),
    }
    for name, text in compressed.items():
        with pa.output_stream(str(folder / name), compression="zstd") as file:
            file.write(text.encode())
    (folder / "in.txt").write_text("\n".join(EN[:4]), encoding="utf-8")
    for name in ("words.xlsx", "week2.xlsx"):
        pairs = [(f"{name} {i}: {en}", f"{name} {i}: {de}") for i in range(4) for en, de in zip(EN, DE, strict=True)]
        write_xlsx(folder / name, pairs, header=("English", "Swahili"))
    (folder / "terms.tsv").write_text("man\tKerl\n", encoding="utf-8")
    (folder / "paragraphs.txt").write_text(" ".join(EN[:4]), encoding="utf-8")


@pytest.fixture(scope="session")
def prepared_files(tmp_path_factory):
    """A folder with all that the pages' commands read: texts, small models, runs and shards."""
    folder = tmp_path_factory.mktemp("guide")
    write_texts(folder)
    flags = ["--preset", "tiny", *SHORTENED["train"], *_SMALL_VOCABULARY, "--train_file", "data/train"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["train", *flags, "--output_dir", "my-model"]) == 0
        reverse = ["--source_lang", "de", "--target_lang", "en", "--output_dir", "my-other-model"]
        assert main(["train", *flags, *reverse]) == 0
        languages = ["--source_lang", "en", "--target_lang", "de"]
        assert main(["prepare", "data/train", *languages, *SHORTENED["prepare"], "--output_dir", "prepared"]) == 0
        shutil.copytree("my-other-model", "de-en-model")
        opus = Path("Helsinki-NLP/opus-mt-en-de")
        sizes = {"encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
        heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
        opus_model(write_opus_tokenizer(opus, EN, DE), d_model=16, **sizes, **heads).save_pretrained(opus)
        for name in ("small", "large"):
            shutil.copytree("my-model", f"runs/{name}")
    return folder


@pytest.fixture
def sandbox(prepared_files, tmp_path, monkeypatch):
    """A function that copies these files, except those that a page's commands write, and enters the copy."""

    def enter(page: Path) -> None:
        written = re.findall(r"--output_dir (\S+)", page.read_text(encoding="utf-8"))
        folder = tmp_path / "sandbox"
        shutil.copytree(prepared_files, folder)
        for name in written:
            shutil.rmtree(folder / name, ignore_errors=True)
        (folder / "scripts").symlink_to(ROOT / "scripts")
        monkeypatch.chdir(folder)

    return enter


def names_for_code() -> dict[str, object]:
    """Return what the code of the pages expects: sentences, and a model of torch to convert."""
    sizes = {"d_model": 16, "nhead": 2, "dim_feedforward": 32, "num_encoder_layers": 1, "num_decoder_layers": 1}
    transformer = torch.nn.Transformer(**sizes, batch_first=True)
    transformer.encoder.norm = None
    transformer.decoder.norm = None
    embedding = torch.nn.Embedding(40, 16)
    return {"sentences": EN[:4], "transformer": transformer, "embedding": embedding}


# from peft, and from torch, because the pages do not say use_cpu
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning", "ignore:'pin_memory' argument")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_and_code_of_a_page_run(page, sandbox, monkeypatch):
    sandbox(page)
    names = names_for_code()
    names["model"] = VanillaTransformerForConditionalGeneration.from_pretrained("my-other-model")
    for language, block in blocks(page):
        if language == "python":
            for number, replacement in SHORTENED_CODE.items():
                block = block.replace(number, replacement)
            exec(compile(block, str(page), "exec"), names)
        elif not language:
            for command in split_commands(block):
                if reason_not_to_run(command) is None:
                    run_command(command, monkeypatch)


def flags_of(*words: str) -> set[str]:
    """Return the flags that `--help` lists after some words."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.suppress(SystemExit):
        main([*words, "--help"])
    return set(re.findall(r"--\w+", output.getvalue()))


@pytest.fixture(scope="module")
def flags():
    """The flags of each verb."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.suppress(SystemExit):
        main(["--help"])
    verbs = re.findall(r"^    (\w+)", output.getvalue(), re.MULTILINE)
    assert {"train", "translate", "serve"} <= set(verbs)
    # plugins take over `translate` with one of these
    files, documents = (flags_of("translate", *words) for words in (["--input_files", "x"], ["--output_dir", "x"]))
    return {verb: flags_of(verb) for verb in verbs} | {"translate": flags_of("translate") | files | documents}


def test_every_flag_of_a_command_is_one_of_its_verb(flags):
    for command in ALL_COMMANDS:
        verb = command.split()[1] if command.startswith("vanilla-transformer") else ""
        # not that of the example of a plugin
        if verb in flags:
            assert set(re.findall(r"--\w+", command)) <= flags[verb], command


def test_every_flag_that_the_text_names_exists(flags):
    known = set().union(*flags.values()) | {"--per_device_train_batch_size"}  # hidden, because it is refused
    known |= {"--cpu", "--NAME", "--volume"}  # of install.sh, any flag of a plugin, and of `hf jobs`
    for page in PAGES:
        for code in re.findall(r"`([^`]+)`", prose(page)):
            if OTHER_PROGRAMS.match(code) is None:
                assert set(re.findall(r"--\w+", code)) <= known, f"{page.name}: {code}"


def test_every_reason_not_to_run_a_command_is_needed():
    for start in NOT_RUN:
        assert any(command.startswith(start) for command in ALL_COMMANDS), start
