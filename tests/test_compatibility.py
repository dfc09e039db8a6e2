"""Compatibility with what commits 937b408 and 1ad60c3 have saved, in the folders of tests/fixtures named after them.

This version must load their models and exports, produce the same translations, and finish their interrupted runs and
jobs with the same result as if they had not been interrupted.
"""

import io
import json
import os
import shlex
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from export_models import NEEDS_ONNX
from safetensors.torch import load_file
from small import model_flags
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_vanilla_transformer import (
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    __version__,
    translate,
)
from hf_vanilla_transformer.cli import main
from hf_vanilla_transformer.corpus.pieces import Preparation
from hf_vanilla_transformer.corpus.preparation import prepare
from hf_vanilla_transformer.corpus.runner import Runner
from hf_vanilla_transformer.training.settings import check_same_run

SAVED = Path(__file__).parent / "fixtures" / "commit_937b408"
EXPECTED = json.loads((SAVED / "expected.json").read_text(encoding="utf-8"))
FLAGS = [
    *model_flags(d_model=8, d_ff=8),
    *("--vocab_size", "280", "--max_tokens", "128", "--warmup_steps", "20"),
    *("--learning_rate", "2.0", "--save_steps", "4", "--logging_steps", "2", "--dropout", "0.1"),
    *("--disable_tqdm", "true", "--train_file", "text", "--max_steps", "12", "--output_dir", "run"),
]


@pytest.mark.parametrize("num_beams", [1, 4])
def test_an_old_model_produces_the_same_translations(num_beams):
    model, tokenizer = (auto.from_pretrained(SAVED / "model") for auto in (AutoModelForSeq2SeqLM, AutoTokenizer))
    translations = translate(model.eval(), tokenizer, EXPECTED["sources"], num_beams=num_beams)
    assert translations == EXPECTED["greedy" if num_beams == 1 else "beam"]


def test_an_old_model_produces_the_same_logits():
    model, tokenizer = (auto.from_pretrained(SAVED / "model") for auto in (AutoModelForSeq2SeqLM, AutoTokenizer))
    inputs = tokenizer(EXPECTED["sources"][:1], return_tensors="pt")
    logits = model.eval()(**inputs, labels=torch.tensor([[5, 6, 2]])).logits[0, :, :8]
    torch.testing.assert_close(logits, torch.tensor(EXPECTED["logits"]), atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    "setting",
    [
        "per_device_train_batch_size: 16",
        "resume_from_checkpoint: nowhere",
        "accelerator_config:\n  even_batches: false",
        "lr_scheduler_kwargs:\n  min_lr: 0.1",
    ],
)
def test_settings_recorded_in_another_form_do_not_prevent_resuming(tmp_path, setting):
    shutil.copytree(SAVED / "run", tmp_path / "run")
    file = tmp_path / "run" / "settings.yaml"
    file.write_text(f"{file.read_text()}{setting}\n")
    settings = yaml.safe_load((SAVED / "run" / "settings.yaml").read_text())
    if setting.startswith("accelerator"):
        settings["accelerator_config"] = json.dumps({"even_batches": False})  # the form in which it is now recorded
    assert check_same_run({**settings, "processes": 1}, str(tmp_path / "run"))


def test_an_old_prepared_folder_is_not_prepared_again(tmp_path):
    sources, folder = [str(SAVED / "text")], tmp_path / "prepared"
    preparation = Preparation(("en", "de"), vocab_size=300)
    manifest = prepare(sources, preparation, str(folder), runner=Runner(1))
    for name in ("dataset", "tokenizer", "vocab_size", "version"):  # not recorded by that commit
        del manifest["settings"][name]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert prepare(sources, preparation, str(folder), runner=Runner(1)) == manifest


def test_an_old_interrupted_run_resumes_and_finishes_with_the_same_weights(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    for name in ("text.en", "text.de"):
        shutil.copy(SAVED / name, tmp_path)
    shutil.copytree(SAVED / "run", tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    assert main(["train", *FLAGS]) == 0
    assert "checkpoint-8" in capsys.readouterr().err
    expected, weights = load_file(SAVED / "straight.safetensors"), load_file(tmp_path / "run" / "model.safetensors")
    assert expected.keys() == weights.keys()
    for name, weight in weights.items():
        torch.testing.assert_close(weight, expected[name], atol=1e-5, rtol=0)


LATER = SAVED.with_name("commit_1ad60c3")
COMMANDS = yaml.safe_load((LATER / "commands.yaml").read_text(encoding="utf-8"))
RECORDED = json.loads((LATER / "expected.json").read_text(encoding="utf-8"))
DIRECTIONS = RECORDED["translations"]


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """The current folder for a test: it has the texts that the commands of commit 1ad60c3 name, and their times."""
    texts = [*SAVED.glob("text.*"), *LATER.glob("back.*"), *LATER.glob("lines.*")]
    for text in texts:
        copy = shutil.copy(text, tmp_path)
        os.utime(copy, (RECORDED["modification_time"],) * 2)  # jobs record it to notice that a text has changed
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(command: str) -> None:
    assert main(shlex.split(command)) == 0


def train(flags: str) -> None:
    run(f"train {COMMANDS['small']} {flags}")


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Return the content and the modification time of each file."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    return {str(file.relative_to(folder)): (file.read_bytes(), file.stat().st_mtime_ns) for file in files}


def translations_in(folder: Path) -> list[dict]:
    """Return the lines of a corpus job's output."""
    parts = [part.read_text(encoding="utf-8") for part in sorted(folder.glob("part-*"))]
    return [json.loads(line) for part in parts for line in part.split("\n")[:-1]]


def check_weights(file: Path, expected: Path) -> None:
    weights = load_file(file)
    recorded = load_file(expected)
    assert weights.keys() == recorded.keys()
    for name, weight in weights.items():
        torch.testing.assert_close(weight, recorded[name], atol=1e-5, rtol=0)


@pytest.mark.parametrize("model", RECORDED["models"], ids=lambda model: ", ".join(model["changes"]) or "tied")
def test_parameters_and_state_keep_their_names_and_order(model):
    sizes = {"vocab_size": 280, "d_model": 4, "num_heads": 2, "d_ff": 8}
    config = VanillaTransformerConfig(**sizes, num_encoder_layers=1, num_decoder_layers=1, **model["changes"])
    built = VanillaTransformerForConditionalGeneration(config)
    # the saved state of an optimizer refers to parameters by their position
    assert [name for name, _ in built.named_parameters()] == model["parameters"]
    assert list(built.state_dict()) == model["state"]


@pytest.mark.parametrize("search", ["greedy", "beam"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_multilingual_model_translates_in_each_direction_as_before(direction, search):
    model = AutoModelForSeq2SeqLM.from_pretrained(LATER / "multilingual").eval()
    tokenizer = AutoTokenizer.from_pretrained(LATER / "multilingual")
    source, target = direction.split("-")
    settings = {"source_lang": source, "target_lang": target, "num_beams": 1 if search == "greedy" else 4}
    assert translate(model, tokenizer, DIRECTIONS[direction]["sources"], **settings) == DIRECTIONS[direction][search]


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_nbest_lists_and_their_scores_are_as_before(workplace, direction):
    source, target = direction.split("-")
    expected = DIRECTIONS[direction]["nbest"]
    lines = DIRECTIONS[direction]["sources"][: len(expected)]
    (workplace / "sources.txt").write_text("\n".join(lines), encoding="utf-8")
    flags = f"--source_lang {source} --target_lang {target} --num_beams 4 --nbest 3 --scores --workers 1"
    run(f"translate '{LATER / 'multilingual'}' --input_files sources.txt --output_dir out {flags}")
    found = translations_in(workplace / "out")
    hypotheses = [hypothesis for list_of_one in expected for hypothesis in list_of_one]
    assert [row[target] for row in found] == [text for text, _ in hypotheses]
    assert [row["score"] for row in found] == pytest.approx([score for _, score in hypotheses], abs=1e-4)


@pytest.mark.parametrize("name", ["mixture", "average", "untied"])
def test_interrupted_runs_finish_with_the_weights_of_uninterrupted_ones(workplace, name, capsys):
    shutil.copytree(LATER / name, name)
    shutil.unpack_archive(LATER / "code.zip", workplace / name / "checkpoint-8")
    if name == "untied":  # was fine-tuned from an untied model, whose weights no longer matter
        shutil.copytree(workplace / name / "checkpoint-8", "start")
    train(COMMANDS["runs"][name])
    assert "checkpoint-8" in capsys.readouterr().err
    check_weights(workplace / name / "model.safetensors", LATER / f"{name}.safetensors")


def test_thirty_updates_end_with_the_same_weights_as_before(workplace):
    train(COMMANDS["runs"]["plain"])
    check_weights(workplace / "plain" / "model.safetensors", LATER / "plain.safetensors")


def test_a_finished_prepared_folder_is_recognised_and_left_unchanged(workplace, capsys):
    shutil.copytree(LATER / "prepared", "prepared")
    before = contents(workplace / "prepared")
    run(COMMANDS["prepare"])
    assert json.loads(capsys.readouterr().out)["pairs"] == 20
    assert contents(workplace / "prepared") == before


@pytest.mark.parametrize("reading", ["memory-mapped", "streamed"])
def test_a_prepared_folder_trains_with_the_same_losses_as_before(workplace, reading):
    shutil.copytree(LATER / "prepared", "prepared")
    flags = COMMANDS["from_prepared"][reading]
    train(flags)
    state = json.loads((workplace / shlex.split(flags)[-1] / "trainer_state.json").read_text(encoding="utf-8"))
    losses = [log["loss"] for log in state["log_history"] if "loss" in log]
    assert losses == pytest.approx(RECORDED["losses"][reading], abs=1e-4)


def test_an_interrupted_corpus_job_is_finished_by_the_same_command(workplace, capsys):
    shutil.copytree(LATER / "multilingual", "multilingual")
    folder = Path(shutil.copytree(LATER / "corpus", "corpus"))
    manifest = json.loads((folder / "translation.json").read_text(encoding="utf-8"))
    manifest["settings"]["version"] = __version__  # a job is finished by the version that began it
    (folder / "translation.json").write_text(json.dumps(manifest), encoding="utf-8")
    before = contents(folder)
    run(COMMANDS["corpus"])
    assert json.loads(capsys.readouterr().out)["lines"] == 10
    after = contents(folder)
    assert {name: after[name] for name in before if name != "translation.json"} == {
        name: content for name, content in before.items() if name != "translation.json"
    }
    assert translations_in(folder) == RECORDED["corpus"]


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("backend", ["ctranslate2", pytest.param("onnx", marks=NEEDS_ONNX)])
def test_exports_translate_in_each_direction_as_before(workplace, backend, direction, monkeypatch, capsys):
    folder = LATER / f"export-{backend}"
    if backend == "onnx":
        folder = workplace / "export"
        shutil.unpack_archive(LATER / "export-onnx.zip", folder)
    source, target = direction.split("-")
    text = "\n".join(DIRECTIONS[direction]["sources"])
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    flags = f"--source_lang {source} --target_lang {target} --num_beams 1"
    run(f"translate '{folder}' --backend {backend} {flags}")
    assert capsys.readouterr().out.splitlines() == DIRECTIONS[direction]["greedy"]
