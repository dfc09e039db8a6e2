"""Compatibility with commit 937b408, whose files in tests/fixtures are a model and a run stopped at update 8 of 12.

This version must load both, produce the same translations, and finish the run with the same weights.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file
from small import model_flags
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_vanilla_transformer import translate
from hf_vanilla_transformer.cli import main
from hf_vanilla_transformer.corpus.pieces import Preparation
from hf_vanilla_transformer.corpus.preparation import prepare
from hf_vanilla_transformer.corpus.runner import Runner
from hf_vanilla_transformer.data.source import TextFile
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
    source = TextFile(("en", "de"), str(SAVED / "text"))
    folder = tmp_path / "prepared"
    preparation = Preparation(("en", "de"), vocab_size=300)
    manifest = prepare(source, preparation, str(folder), runner=Runner(1))
    for name in ("dataset", "tokenizer", "vocab_size", "version"):  # not recorded by that commit
        del manifest["settings"][name]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert prepare(source, preparation, str(folder), runner=Runner(1)) == manifest


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
