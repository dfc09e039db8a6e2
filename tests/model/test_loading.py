"""Models from elsewhere: their code never runs, and what is wrong with their files is one line."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import MarianConfig, MarianMTModel

import hf_vanilla_transformer
from hf_vanilla_transformer import train_tokenizer
from hf_vanilla_transformer.cli import main
from hf_vanilla_transformer.model.loading import load_model

PACKAGE = Path(hf_vanilla_transformer.__file__).parent
FOREIGN = """
from transformers import PreTrainedConfig
open({mark!r}, "w").close()
class ForeignConfig(PreTrainedConfig):
    model_type = "foreign"
"""


@pytest.fixture
def folder(small_model, tmp_path):
    """A folder with a model and its tokenizer."""
    place = tmp_path / "model"
    small_model(vocab_size=260, source_lang="en", target_lang="de").save_pretrained(place)
    train_tokenizer([""], 260).save_pretrained(place)
    return place


def with_weights(change):
    def damage(folder):
        weights = load_file(folder / "model.safetensors")
        change(weights)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    return damage


def with_config(**changes):
    def damage(folder):
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **changes}))

    return damage


def truncated(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-500])


DAMAGES = {
    "truncated weights": truncated,
    "no weights": lambda folder: (folder / "model.safetensors").write_bytes(b""),
    "a tensor that is missing": with_weights(lambda weights: weights.pop("model.decoder.layers.1.fc1.weight")),
    "a tensor of another shape": with_weights(
        lambda weights: weights.update({"model.decoder.layers.1.fc1.weight": torch.zeros(3, 3)})
    ),
    "a wrong type": with_config(d_model="wide"),
    "a value out of range": with_config(dropout=7.0),
    "no object": lambda folder: (folder / "config.json").write_text("[]"),
    "another kind": with_config(model_type="bert"),
    "an unknown kind": with_config(model_type="foreign"),
    "a damaged tokenizer": lambda folder: (folder / "tokenizer.json").write_text('{"model": 3}'),
}
VERBS = {
    "evaluate": ["evaluate", "MODEL", "--test_file", "TEXT"],
    "score": ["score", "MODEL", "--test_file", "TEXT"],
    "compare": ["compare", "MODEL", "MODEL", "--test_file", "TEXT"],
    "translate": ["translate", "MODEL"],
    "train": ["train", "--model_name_or_path", "MODEL", "--train_file", "TEXT", "--output_dir", "OUT", "--use_cpu"],
    "demo": ["demo", "MODEL"],
    "export": ["export", "MODEL", "OUT", "--format", "ctranslate2"],
}


def failure(verb: str, folder: Path, capsys, monkeypatch, tmp_path) -> str:
    """Runs a verb that must fail; gives its line."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    for language in ("en", "de"):
        (tmp_path / f"text.{language}").write_text("a dog\n" * 3)
    names = {"MODEL": str(folder), "TEXT": str(tmp_path / "text"), "OUT": str(tmp_path / "out")}
    assert main([names.get(word, word) for word in VERBS[verb]]) == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("vanilla-transformer")]
    assert len(lines) == 1
    return lines[0]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("verb", ["evaluate", "train"])
def test_a_damaged_model_is_one_line(damage, verb, folder, capsys, monkeypatch, tmp_path):
    DAMAGES[damage](folder)
    assert str(folder) in failure(verb, folder, capsys, monkeypatch, tmp_path)


@pytest.mark.parametrize("verb", VERBS)
def test_weights_that_lack_a_tensor_are_never_used(verb, folder, capsys, monkeypatch, tmp_path):
    DAMAGES["a tensor that is missing"](folder)
    line = failure(verb, folder, capsys, monkeypatch, tmp_path)
    assert "lack 1 of the model's tensors, such as model.decoder.layers.1.fc1.weight" in line
    assert not (tmp_path / "out" / "settings.yaml").exists()


@pytest.mark.parametrize("verb", VERBS)
def test_a_model_of_another_kind_is_one_line(verb, folder, capsys, monkeypatch, tmp_path):
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    config = MarianConfig(vocab_size=260, d_model=8, encoder_layers=1, decoder_layers=1, pad_token_id=0, **heads)
    MarianMTModel(config).save_pretrained(folder)
    assert "is a marian model" in failure(verb, folder, capsys, monkeypatch, tmp_path)


@pytest.mark.parametrize("verb", ["translate", "evaluate", "demo", "train"])
def test_a_folders_own_code_never_runs_whatever_is_piped_in(verb, tmp_path):
    folder, mark = tmp_path / "foreign", tmp_path / "code has run"
    folder.mkdir()
    auto_map = {"AutoConfig": "code.ForeignConfig", "AutoModelForSeq2SeqLM": "code.ForeignModel"}
    (folder / "config.json").write_text(json.dumps({"model_type": "foreign", "auto_map": auto_map}))
    (folder / "code.py").write_text(FOREIGN.format(mark=str(mark)))
    words = [{"MODEL": str(folder), "OUT": str(tmp_path / "out")}.get(word, word) for word in VERBS[verb]]
    run = subprocess.run(
        [sys.executable, "-m", "hf_vanilla_transformer", *words],
        **{"input": "y\ny\ny\nHello.\n", "capture_output": True, "text": True, "timeout": 100},
    )
    assert run.returncode == 1
    assert "[y/N]" not in run.stdout + run.stderr
    assert "trust_remote_code" in run.stderr
    assert not mark.exists()


def test_nothing_in_the_package_leaves_the_question_of_remote_code_open():
    """Every call that could ask on stdin, which may be text to translate, says no."""
    asking = []
    for file in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            name = ast.unparse(node.func)
            answers = [keyword.value for keyword in node.keywords if keyword.arg == "trust_remote_code"]
            if name.endswith(".from_pretrained") and ("auto" in name.lower() or "ExportedModel" in name):
                asking += [f"{file.name}: {name}"] * ([ast.unparse(answer) for answer in answers] != ["False"])
    assert asking == []


@pytest.mark.filterwarnings("ignore")
def test_a_folder_with_an_adapter_loads(folder, tmp_path):
    adapted = get_peft_model(load_model(str(folder)), LoraConfig(target_modules=["q_proj"], task_type="SEQ_2_SEQ_LM"))
    for name, weight in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight)
    source = torch.tensor([[5, 6, 2]])
    expected = adapted.eval().generate(input_ids=source, max_new_tokens=5)
    adapted.save_pretrained(tmp_path / "adapter")
    assert torch.equal(load_model(str(tmp_path / "adapter")).eval().generate(source, max_new_tokens=5), expected)


def test_a_whole_model_loads(folder):
    assert load_model(str(folder)).config.source_lang == "en"
