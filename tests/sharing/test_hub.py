"""Sharing, against a local server that speaks the Hub's API; loading in processes where this package is missing."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hub_endpoint import hub
from safetensors import safe_open

from hf_vanilla_transformer import (
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    train_tokenizer,
    translate,
)
from hf_vanilla_transformer.cli import main
from hf_vanilla_transformer.data.phrases import splits
from hf_vanilla_transformer.sharing.card import CardDetails, model_card, write_card, write_record
from hf_vanilla_transformer.sharing.hub import push_model

PHRASES = [phrase.en for phrase in splits()["test"][:20]]
SENTENCE = PHRASES[0]
MISSING = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "hf_vanilla_transformer":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
"""
SCORES = {
    **{"bleu": 12.3456, "chrf": 34.5, "ter": 56.7, "text": "test_2016", "sentences": 20, "seconds": 1.0},
    "signatures": {"bleu": "nrefs:1|tok:none", "chrf": "nc:6", "ter": "norm:no"},
}
RECORD = {
    **{"data": "train", "pairs": 29000, "updates": 100, "seconds": 2160, "hardware": "1 x 2 threads of a CPU"},
    **{"software": "torch 2", "license": "mit", "settings": {"preset": "tiny", "max_steps": 100}, "example": SENTENCE},
    "validation": [{"updates": 50, "perplexity": 9.5, "bleu": 7.25}, {"updates": 100, "perplexity": 8.5, "bleu": 8.0}],
}


@pytest.fixture
def saved(small_model, tmp_path):
    """A random model and its tokenizer in a folder, and what it translates the phrases to."""
    tokenizer = train_tokenizer(PHRASES, 330)
    model = small_model(vocab_size=len(tokenizer), source_lang="en", target_lang="de")
    folder = tmp_path / "model"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder, translate(model, tokenizer, PHRASES, max_new_tokens=9)


def python(code: str, home, *, package: bool = False, status: int = 0, **environment: str):
    """Runs `code` in a fresh process with an empty cache, by default as if this package were not installed."""
    settings = {**os.environ, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    settings = {name: value for name, value in settings.items() if name not in ("HF_TOKEN", "HF_ENDPOINT")}
    run = subprocess.run(
        [sys.executable, "-c", code if package else MISSING + code],
        **{"env": {**settings, **environment}, "capture_output": True, "text": True, "cwd": home.parent},
    )
    assert run.returncode == status, run.stderr[-3000:]
    return run


def online(server, token: str | None = "writer") -> dict[str, str]:
    return {"HF_ENDPOINT": server.address, "HF_HUB_OFFLINE": "0", **({"HF_TOKEN": token} if token else {})}


def command(arguments: list, home, status: int = 0, **environment: str):
    words = [str(argument) for argument in arguments]
    code = f"import sys; from hf_vanilla_transformer.cli import main; sys.exit(main({words!r}))"
    return python(code, home, package=True, status=status, **environment)


LOAD = """
import json
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, pipeline
model = AutoModelForSeq2SeqLM.from_pretrained({0!r}, trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained({0!r}, trust_remote_code=True)
translator = pipeline("translation", model={0!r}, trust_remote_code=True)
texts = [result["translation_text"] for result in translator({1!r}, max_new_tokens=9)]
by_hand = []
for text in {1!r}:
    output = model.generate(**tokenizer(text, return_tensors="pt"), max_new_tokens=9)
    by_hand.append(tokenizer.decode(output[0], skip_special_tokens=True))
assert texts == by_hand
assert type(model).__module__.startswith("transformers_modules"), type(model)
{2}
print(json.dumps(texts))
"""


def last_line(run):
    return json.loads(run.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("saving", ["model.save_pretrained", "translator.save_pretrained"])
def test_a_saved_folder_is_enough_also_after_saving_such_a_model_again(saved, tmp_path, saving):
    folder, expected = saved
    again = str(tmp_path / "again")
    save = f"{saving}({again!r}); tokenizer.save_pretrained({again!r})"
    assert last_line(python(LOAD.format(str(folder), PHRASES, save), tmp_path / "home")) == expected
    assert last_line(python(LOAD.format(again, PHRASES, ""), tmp_path / "home2")) == expected
    configs = [json.loads((place / "config.json").read_text()) for place in (folder, tmp_path / "again")]
    assert configs[0] == configs[1]


def test_the_code_that_travels_is_this_packages_and_whole(saved):
    folder, _ = saved
    names = {file.name for file in folder.glob("*.py")}
    for module in ("configuration", "layers", "fast_search", "generation", "modeling", "pipeline"):
        assert f"{module}_vanilla_transformer.py" in names
    assert len(names) == 6
    config = json.loads((folder / "config.json").read_text())
    assert set(config["auto_map"]) == {"AutoConfig", "AutoModel", "AutoModelForSeq2SeqLM"}
    assert config["custom_pipelines"]["translation"]["impl"] == "pipeline_vanilla_transformer.TranslationPipeline"


def test_the_tied_matrix_is_saved_once_and_nothing_is_pickled(saved):
    folder, _ = saved
    with safe_open(folder / "model.safetensors", "pt") as weights:
        matrices = [name for name in weights.keys() if weights.get_slice(name).get_shape()[0] > 300]  # noqa: SIM118
    assert matrices == ["model.shared.weight"]
    assert {file.suffix for file in folder.iterdir()} == {".json", ".py", ".safetensors"}


def front_matter(card: str) -> dict:
    return yaml.safe_load(card.split("---\n")[1])


def test_the_card_says_what_there_is_to_say(saved):
    folder, _ = saved
    write_record(folder, RECORD)
    card = str(model_card(folder, CardDetails("you/tiny-en-de", scores=SCORES)))
    about = front_matter(card)
    assert about["language"] == ["en", "de"]
    assert about["license"] == "mit"
    assert about["pipeline_tag"] == "translation"
    (entry,) = about["model-index"]
    assert entry["name"] == "tiny-en-de"
    metrics = [metric for result in entry["results"] for metric in result["metrics"]]
    assert {(metric["type"], metric["value"]) for metric in metrics} == {
        ("bleu", 12.35),
        ("chrf", 34.5),
        ("ter", 56.7),
    }
    assert "BLEU (nrefs:1|tok:none)" in {metric["name"] for metric in metrics}
    for words in ("29000 pairs", "36 minutes", "1 x 2 threads of a CPU", "max_steps: 100", "| 100 | 8.5 | 8.0 |"):
        assert words in card
    for section in ("Intended use and limits", "Use it", "Training", "Results"):
        assert f"## {section}" in card


def test_a_model_without_a_record_has_a_card_too(saved):
    folder, _ = saved
    write_card(folder)
    card = (folder / "README.md").read_text()
    assert "No record of the training" in card
    assert "Not evaluated." in card
    assert "model-index" not in front_matter(card)


@pytest.mark.slow
def test_the_four_lines_of_the_card_translate(saved, tmp_path):
    folder, _ = saved
    write_record(folder, RECORD)
    write_card(folder)
    (lines,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    assert len([line for line in lines.splitlines() if line]) == 4
    run = python(lines, tmp_path / "home")
    trusting = f"import hf_vanilla_transformer\n{lines.replace(', trust_remote_code=True', '')}"
    expected = python(trusting, tmp_path / "home2", package=True)
    assert run.stdout == expected.stdout != ""


@pytest.mark.slow
def test_what_was_pushed_is_loaded_back_from_there(saved, tmp_path):
    folder, expected = saved
    write_record(folder, RECORD)
    (folder / "checkpoint-5").mkdir()
    (folder / "settings.yaml").write_text("train_file: /home/me/secret")
    scores = tmp_path / "scores.json"
    scores.write_text(json.dumps(SCORES))
    before = {file: file.read_bytes() for file in folder.glob("*.*")}
    with hub() as server:
        push = ["push", folder, "you/tiny-en-de", "--scores", scores, "--license", "apache-2.0"]
        run = command(push, tmp_path / "home", **online(server))
        assert run.stdout.strip() == f"{server.address}/you/tiny-en-de"
        files = server.repositories["models"]["you/tiny-en-de"]
        assert set(files) == {file.name for file in before} - {"settings.yaml"} | {"README.md"}
        card = files["README.md"].decode()
        assert front_matter(card)["license"] == "apache-2.0"
        assert 'model="you/tiny-en-de"' in card
        loaded = python(LOAD.format("you/tiny-en-de", PHRASES, ""), tmp_path / "home2", **online(server, None))
        assert last_line(loaded) == expected
    assert {file: file.read_bytes() for file in folder.glob("*.*")} == before


@pytest.mark.slow
def test_a_models_own_push_to_hub_brings_this_packages_card(saved, tmp_path):
    folder, _ = saved
    write_record(folder, RECORD)
    code = f"""
from hf_vanilla_transformer import VanillaTransformerForConditionalGeneration as Model
from transformers import AutoTokenizer
AutoTokenizer.from_pretrained({str(folder)!r}).push_to_hub("you/model")  # leaves a stock card
Model.from_pretrained({str(folder)!r}).push_to_hub("you/model", tags=["study"], commit_description="the first")
"""
    with hub() as server:
        python(code, tmp_path / "home", package=True, **online(server))
        files = server.repositories["models"]["you/model"]
        assert front_matter(files["README.md"].decode())["language"] == ["en", "de"]
        assert "study" in front_matter(files["README.md"].decode())["tags"]
        assert "29000 pairs" in files["README.md"].decode()
        assert files["model.safetensors"] == (folder / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_a_card_written_by_hand_stays(saved, tmp_path):
    folder, _ = saved
    (folder / "README.md").write_text("---\nlanguage: en\n---\n# My words\n")
    with hub() as server:
        command(["push", folder, "you/model"], tmp_path / "home", **online(server))
        assert server.repositories["models"]["you/model"]["README.md"] == (folder / "README.md").read_bytes()
        (folder / "README.md").unlink()
        command(["push", folder, "you/model"], tmp_path / "home", **online(server))
        assert b"# My words" in server.repositories["models"]["you/model"]["README.md"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("token", "message"),
    [
        (None, "there is none; run `hf auth login` or set HF_TOKEN"),
        ("hf_of-nobody", "the Hub does not know the token"),
        ("reader", "the token may not write there"),
    ],
)
def test_a_failed_upload_says_what_is_missing(saved, tmp_path, token, message):
    folder, _ = saved
    before = {file: file.read_bytes() for file in folder.iterdir()}
    with hub() as server:
        run = command(["push", folder, "you/model"], tmp_path / "home", status=1, **online(server, token))
    (line,) = run.stderr.splitlines()
    assert message in line
    assert token is None or token not in line
    assert {file: file.read_bytes() for file in folder.iterdir()} == before


@pytest.mark.slow
def test_without_a_network_the_upload_says_so(saved, tmp_path):
    folder, _ = saved
    offline = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "0", "HF_TOKEN": "writer"}
    run = command(["push", folder, "you/model"], tmp_path / "home", status=1, **offline)
    assert "the network failed" in run.stderr.splitlines()[-1]
    assert "writer" not in run.stderr


TRAIN = ["train", "--preset", "tiny", "--d_model", 16, "--num_heads", 2, "--d_ff", 32, "--use_cpu", "--max_steps", 4]
TRAIN += ["--save_steps", 2, "--max_tokens", 256, "--disable_tqdm", "true", "--vocab_size", 400]


@pytest.mark.slow
def test_training_ends_on_the_hub_with_card_weights_and_tokenizer(tmp_path):
    for name, size in (("train", 200), ("val", 10)):
        for language in ("en", "de"):
            lines = [getattr(phrase, language) for phrase in splits()["train"][:size]]
            (tmp_path / f"{name}.{language}").write_text("".join(f"{line}\n" for line in lines))
    files = ["--train_file", tmp_path / "train", "--validation_file", tmp_path / "val", "--license", "mit"]
    target = ["--output_dir", tmp_path / "run", "--push_to_hub", "--hub_model_id", "you/phrases"]
    with hub() as server:
        run = command([*TRAIN, *files, *target, "--hub_token", "writer"], tmp_path / "home", **online(server, None))
        files = server.repositories["models"]["you/phrases"]
        assert not [name for name in files if name.endswith((".bin", ".pt"))]
        card = files["README.md"].decode()
        about = front_matter(card)
        assert about["license"] == "mit"
        assert "nrefs:1" in about["model-index"][0]["results"][0]["metrics"][0]["name"]
        loaded = python(LOAD.format("you/phrases", PHRASES[:3], ""), tmp_path / "home2", **online(server, None))
        assert len(last_line(loaded)) == 3
        everything = [
            card,
            run.stdout,
            run.stderr,
            *(file.read_text() for file in (tmp_path / "run").glob("*.[jym]*")),
        ]
        assert not [text for text in everything if re.search(r"\bwriter\b", text)]
        assert str(tmp_path) not in card


@pytest.mark.slow
def test_training_that_may_not_upload_stops_before_it_starts(tmp_path):
    target = ["--output_dir", tmp_path / "run", "--push_to_hub", "--hub_model_id", "you/phrases"]
    with hub() as server:
        run = command([*TRAIN, *target], tmp_path / "home", status=1, **online(server, "reader"))
    assert "Cannot upload to you/phrases: the token may not write there" in run.stderr
    assert not list((tmp_path / "run").glob("*.safetensors"))


@pytest.mark.slow
def test_a_space_has_the_page(saved, tmp_path):
    folder, _ = saved
    with hub() as server:
        run = command(["push", folder, "you/model", "--space"], tmp_path / "home", **online(server))
        assert run.stdout.splitlines()[-1] == f"{server.address}/spaces/you/model"
        files = server.repositories["spaces"]["you/model"]
    assert set(files) == {"app.py", "requirements.txt", "README.md"}
    assert "build_page" in compile(files["app.py"], "app.py", "exec").co_names
    assert front_matter(files["README.md"].decode())["sdk"] == "gradio"


def test_what_evaluate_did_not_print_is_no_score(saved, tmp_path):
    from hf_vanilla_transformer.cli import main

    folder, _ = saved
    for text in ("{", "[]", '{"bleu": 1}'):
        (tmp_path / "scores.json").write_text(text)
        assert main(["push", str(folder), "you/model", "--scores", str(tmp_path / "scores.json")]) == 1


def test_a_model_built_from_nothing_takes_no_record_from_where_it_is_pushed(saved, tmp_path, monkeypatch):
    place = tmp_path / "work"
    place.mkdir()
    write_record(place, {**RECORD, "data": "private"})
    pushed = {}
    monkeypatch.setattr("hf_vanilla_transformer.sharing.hub.push", lambda folder, *_: pushed.update(files(folder)))
    monkeypatch.chdir(place)
    folder, _ = saved
    push_model(VanillaTransformerForConditionalGeneration(VanillaTransformerConfig(d_model=8, d_ff=8)), "me/mine")
    assert "model.safetensors" in pushed
    assert "training.json" not in pushed
    write_record(folder, RECORD)
    push_model(VanillaTransformerForConditionalGeneration.from_pretrained(folder), "me/mine")
    assert json.loads(pushed["training.json"])["data"] == "train"


def files(folder) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in Path(folder).iterdir()}


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("training.json", "[]"),
        ("training.json", '{"seconds": "many", "updates": 3}'),
        ("training.json", '{"validation": 3}'),
        ("config.json", '{"model_type": "vanilla_transformer", "d_model": "wide"}'),
    ],
)
def test_a_damaged_folder_is_one_line_before_anything_is_created(saved, file, content, capsys, monkeypatch):
    folder, _ = saved
    (folder / file).write_text(content)
    monkeypatch.setattr("hf_vanilla_transformer.sharing.hub.HfApi", None)  # nothing is asked of the Hub
    assert main(["push", str(folder), "me/mine"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len([line for line in lines if line.startswith("vanilla-transformer")]) == 1
