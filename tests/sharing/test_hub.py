"""Uploads to a local server with the API of the Hub, and loading in processes without this package."""

import hashlib
import json
import re
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from card_contents import HUB_SCORES, PHRASES, RECORD, SCORES, front_matter
from clean_process import run_python
from hub_endpoint import hub_environment, local_hub, run_command
from huggingface_hub import EvalResultEntry, parse_eval_result_entries
from safetensors import safe_open
from small import model_flags, write_phrases
from transformers import AutoTokenizer

from hf_vanilla_transformer import (
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    average_checkpoints,
    model,
)
from hf_vanilla_transformer.cli import main
from hf_vanilla_transformer.data.phrases import splits
from hf_vanilla_transformer.files import model_files
from hf_vanilla_transformer.sharing.card import CardDetails, model_card, write_record
from hf_vanilla_transformer.sharing.hub import push, push_model

CODE = Path(model.__path__[0])


LOAD_AND_TRANSLATE = """
import json
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, pipeline
model = AutoModelForSeq2SeqLM.from_pretrained({0!r}, trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained({0!r}, trust_remote_code=True)
translator = pipeline("translation", model={0!r}, trust_remote_code=True)
texts = [result["translation_text"] for result in translator({1!r}, max_new_tokens=9)]
generated = []
for text in {1!r}:
    output = model.generate(**tokenizer(text, return_tensors="pt"), max_new_tokens=9)
    generated.append(tokenizer.decode(output[0], skip_special_tokens=True))
assert texts == generated
assert type(model).__module__.startswith("transformers_modules"), type(model)
{2}
print(json.dumps(texts))
"""


def load_and_translate(name: str, sentences: list[str], home: Path, then: str = "", **environment: str) -> list[str]:
    """Load a model in a process without this package, run `then`, and return its translations of `sentences`."""
    result = run_python(LOAD_AND_TRANSLATE.format(name, sentences, then), home, **environment)
    return json.loads(result.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("saving", ["model.save_pretrained", "translator.save_pretrained"])
def test_saved_folder_loads_without_the_package_even_after_saving_it_again(saved, tmp_path, saving):
    folder, expected = saved
    resaved = str(tmp_path / "resaved")
    save = f"{saving}({resaved!r}); tokenizer.save_pretrained({resaved!r})"
    assert load_and_translate(str(folder), PHRASES, tmp_path / "home", then=save) == expected
    assert load_and_translate(resaved, PHRASES, tmp_path / "home2") == expected
    configs = [json.loads((path / "config.json").read_text()) for path in (folder, tmp_path / "resaved")]
    assert configs[0] == configs[1]


def test_saved_folder_contains_all_modules_of_the_model_code(saved):
    folder, _ = saved
    names = {file.name for file in folder.glob("*.py")}
    modules = (
        "cache",
        "configuration",
        "errors",
        "layers",
        "fast_search",
        "generation",
        "graphs",
        "loss",
        "modeling",
        "pipeline",
        "text_rules",
    )
    assert names == {f"{module}_vanilla_transformer.py" for module in modules}
    config = json.loads((folder / "config.json").read_text())
    assert set(config["auto_map"]) == {"AutoConfig", "AutoModel", "AutoModelForSeq2SeqLM"}
    assert config["custom_pipelines"]["translation"]["impl"] == "pipeline_vanilla_transformer.TranslationPipeline"


def test_tied_embedding_matrix_is_saved_once_and_no_file_is_pickled(saved):
    folder, _ = saved
    with safe_open(folder / "model.safetensors", "pt") as weights:
        matrices = [name for name in weights.keys() if weights.get_slice(name).get_shape()[0] > 300]  # noqa: SIM118
    assert matrices == ["model.shared.weight"]
    assert {file.suffix for file in folder.iterdir()} == {".json", ".py", ".safetensors"}


@pytest.mark.slow
def test_pushed_model_loads_from_the_hub_and_translates_the_same(saved, tmp_path):
    folder, expected = saved
    write_record(folder, RECORD)
    (folder / "checkpoint-5").mkdir()
    (folder / "settings.yaml").write_text("train_file: /home/me/secret")
    scores = tmp_path / "scores.json"
    scores.write_text(json.dumps(SCORES))
    before = {file: file.read_bytes() for file in folder.glob("*.*")}
    with local_hub() as server:
        push = ["push", folder, "you/tiny-en-de", "--scores", scores, "--license", "apache-2.0"]
        result = run_command(push, tmp_path / "home", **hub_environment(server))
        assert result.stdout.strip() == f"{server.address}/you/tiny-en-de"
        files = server.repositories["models"]["you/tiny-en-de"]
        assert set(files) == {file.name for file in before} - {"settings.yaml"} | {"README.md"}
        card = files["README.md"].decode()
        assert front_matter(card)["license"] == "apache-2.0"
        assert 'model="you/tiny-en-de"' in card
        anonymous = hub_environment(server, None)
        assert load_and_translate("you/tiny-en-de", PHRASES, tmp_path / "home2", **anonymous) == expected
    assert {file: file.read_bytes() for file in folder.glob("*.*")} == before


@pytest.mark.slow
def test_scores_on_a_dataset_of_the_hub_are_pushed_as_its_leaderboard_reads_them(saved, tmp_path):
    folder, _ = saved
    (tmp_path / "scores.json").write_text(f"{json.dumps(SCORES)}\n{json.dumps(HUB_SCORES)}\n")
    with local_hub() as server:
        environment = hub_environment(server)
        run_command(["push", folder, "you/m", "--scores", tmp_path / "scores.json"], tmp_path / "home", **environment)
        files = server.repositories["models"]["you/m"]
        results = parse_eval_result_entries(yaml.safe_load(files[".eval_results/vanilla_transformer.yaml"]))
        notes = "BLEU (nrefs:1|tok:none), en-de, split test"
        assert results == [EvalResultEntry("someone/text", "de-en", 12.35, notes=notes)]
        # other weights, without scores, do not keep those of the first; the results of others stay
        files[".eval_results/other.yaml"] = b""
        run_command(["push", folder, "you/m"], tmp_path / "home", **environment)
        assert {name for name in files if name.startswith(".eval_results")} == {".eval_results/other.yaml"}


@pytest.mark.slow
def test_push_to_hub_of_a_model_uploads_the_card_of_this_package(saved, tmp_path):
    folder, _ = saved
    write_record(folder, RECORD)
    code = f"""
from hf_vanilla_transformer import VanillaTransformerForConditionalGeneration as Model
from transformers import AutoTokenizer
AutoTokenizer.from_pretrained({str(folder)!r}).push_to_hub("you/model")  # uploads a card generated by transformers
Model.from_pretrained({str(folder)!r}).push_to_hub("you/model", tags=["study"], commit_description="the first")
"""
    with local_hub() as server:
        run_python(code, tmp_path / "home", package=True, **hub_environment(server))
        files = server.repositories["models"]["you/model"]
        assert front_matter(files["README.md"].decode())["language"] == ["en", "de"]
        assert "study" in front_matter(files["README.md"].decode())["tags"]
        assert "29000 sentence pairs" in files["README.md"].decode()
        assert files["model.safetensors"] == (folder / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_push_to_a_new_branch_creates_it(saved, tmp_path):
    folder, _ = saved
    code = f"from hf_vanilla_transformer.sharing.hub import push; push({str(folder)!r}, 'you/model', revision='v2')"
    with local_hub() as server:
        run_python(code, tmp_path / "home", package=True, **hub_environment(server))
        assert set(server.repositories["models"]) == {"you/model", "you/model@v2"}
        assert server.repositories["models"]["you/model"] == {}
        assert "model.safetensors" in server.repositories["models"]["you/model@v2"]


@pytest.mark.slow
def test_card_written_by_hand_is_kept(saved, tmp_path):
    folder, _ = saved
    (folder / "README.md").write_text("---\nlanguage: en\n---\n# My words\n")
    with local_hub() as server:
        run_command(["push", folder, "you/model"], tmp_path / "home", **hub_environment(server))
        assert server.repositories["models"]["you/model"]["README.md"] == (folder / "README.md").read_bytes()
        (folder / "README.md").unlink()
        run_command(["push", folder, "you/model"], tmp_path / "home", **hub_environment(server))
        assert b"# My words" in server.repositories["models"]["you/model"]["README.md"]
        (folder / "README.md").write_text(str(model_card(folder)))  # as training writes it
        run_command(["push", folder, "you/model"], tmp_path / "home", **hub_environment(server))
        assert b"# My words" in server.repositories["models"]["you/model"]["README.md"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("token", "message"),
    [
        (None, "the token is missing or invalid; run `hf auth login` or set HF_TOKEN"),
        ("hf_unknown", "the token is missing or invalid; run `hf auth login` or set HF_TOKEN"),
        ("reader", "the token does not have write permission"),
    ],
)
def test_failed_upload_reports_the_problem_with_the_token(saved, tmp_path, token, message):
    folder, _ = saved
    before = {file: file.read_bytes() for file in folder.iterdir()}
    with local_hub() as server:
        environment = hub_environment(server, token)
        result = run_command(["push", folder, "you/model"], tmp_path / "home", status=1, **environment)
    (line,) = result.stderr.splitlines()
    assert message in line
    assert token is None or token not in line
    assert {file: file.read_bytes() for file in folder.iterdir()} == before


@pytest.mark.slow
def test_upload_without_network_reports_the_network(saved, tmp_path):
    folder, _ = saved
    offline = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "0", "HF_TOKEN": "writer"}
    result = run_command(["push", folder, "you/model"], tmp_path / "home", status=1, **offline)
    assert "the network failed" in result.stderr.splitlines()[-1]
    assert "writer" not in result.stderr


@pytest.mark.slow
def test_large_files_are_uploaded_to_the_xet_storage(saved, tmp_path):
    folder, _ = saved
    with local_hub() as server:
        xet = {**hub_environment(server), "HF_HUB_DISABLE_XET": "0"}
        run_command(["push", folder, "me/model"], tmp_path / "home", **xet)
        requests = server.requests
        files = server.repositories["models"]["me/model"]
    assert any(request.startswith("POST /v1/xorbs/") for request in requests)
    assert not any("/info/lfs/" in request for request in requests)
    # the local hub knows only its hash
    weights = (folder / "model.safetensors").read_bytes()
    assert files["model.safetensors"].decode() == hashlib.sha256(weights).hexdigest()


PUSH_TO_ALL = """
from hf_vanilla_transformer.sharing.hub import push
for name in {names!r}:
    try:
        push({folder!r}, name)
    except OSError as error:
        print(error)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("disabled", "messages"),
    [
        (
            "0",
            {
                401: "the token is missing or invalid",
                403: "the token does not have write permission",
                404: "the Hub has no Xet storage for it; set HF_HUB_DISABLE_XET=1 to upload without",
                410: "the Xet storage returned HTTP status 410",
            },
        ),
        ("1", {403: "the token does not have write permission", 410: "the Hub returned HTTP status 410"}),
    ],
)
def test_a_large_file_that_the_hub_refuses_is_reported_with_the_cause(saved, tmp_path, disabled, messages):
    folder, _ = saved
    names = {status: f"me/model{status}" for status in messages}
    code = PUSH_TO_ALL.format(names=list(names.values()), folder=str(folder))
    with local_hub() as server:
        server.failures = {name: status for status, name in names.items()}
        environment = {**hub_environment(server), "HF_HUB_DISABLE_XET": disabled}
        lines = run_python(code, tmp_path / "home", package=True, **environment).stdout.splitlines()
    for line, (status, name) in zip(lines, names.items(), strict=True):
        assert line.startswith(f"Cannot upload to {name}: {messages[status]}")
        assert "writer" not in line


TRAIN = ["train", *model_flags(num_encoder_layers=4, num_decoder_layers=4), "--max_steps", 4, "--save_steps", 2]
TRAIN += ["--max_tokens", 256, "--disable_tqdm", "true", "--vocab_size", 400]


@pytest.mark.slow
def test_training_uploads_card_weights_and_tokenizer_at_the_end(tmp_path):
    for name, size in (("train", 200), ("val", 10)):
        write_phrases(tmp_path / name, splits()["train"][:size])
    files = ["--train_file", tmp_path / "train", "--validation_file", tmp_path / "val", "--license", "mit"]
    target = ["--output_dir", tmp_path / "run", "--push_to_hub", "--hub_model_id", "you/phrases"]
    with local_hub() as server:
        anonymous = hub_environment(server, None)
        result = run_command([*TRAIN, *files, *target, "--hub_token", "writer"], tmp_path / "home", **anonymous)
        files = server.repositories["models"]["you/phrases"]
        assert not [name for name in files if name.endswith((".bin", ".pt"))]
        card = files["README.md"].decode()
        metadata = front_matter(card)
        assert metadata["license"] == "mit"
        assert "nrefs:1" in metadata["model-index"][0]["results"][0]["metrics"][0]["name"]
        assert len(load_and_translate("you/phrases", PHRASES[:3], tmp_path / "home2", **anonymous)) == 3
        everything = [
            card,
            result.stdout,
            result.stderr,
            *(file.read_text() for file in (tmp_path / "run").glob("*.[jym]*")),
        ]
        assert not [text for text in everything if re.search(r"\bwriter\b", text)]
        assert str(tmp_path) not in card


@pytest.mark.slow
def test_training_without_write_permission_fails_before_it_starts(tmp_path):
    target = ["--output_dir", tmp_path / "run", "--push_to_hub", "--hub_model_id", "you/phrases"]
    with local_hub() as server:
        result = run_command([*TRAIN, *target], tmp_path / "home", status=1, **hub_environment(server, "reader"))
    assert "Cannot upload to you/phrases: the token does not have write permission" in result.stderr
    assert not list((tmp_path / "run").glob("*.safetensors"))


def files_that_push_model_uploads(monkeypatch, model) -> dict[str, bytes]:
    uploaded: dict[str, bytes] = {}

    def push(folder, *_):
        uploaded.update({file.name: file.read_bytes() for file in Path(folder).iterdir()})

    monkeypatch.setattr("hf_vanilla_transformer.sharing.hub.push", push)
    push_model(model, "me/mine")
    return uploaded


def test_model_that_was_not_loaded_is_pushed_without_a_record_from_the_current_folder(saved, tmp_path, monkeypatch):
    current = tmp_path / "work"
    current.mkdir()
    write_record(current, {**RECORD, "data": "private"})
    monkeypatch.chdir(current)
    pushed = files_that_push_model_uploads(
        monkeypatch, VanillaTransformerForConditionalGeneration(VanillaTransformerConfig(d_model=8, d_ff=8))
    )
    assert "model.safetensors" in pushed
    assert "training.json" not in pushed


def test_model_is_pushed_with_its_record_unless_it_was_trained_since(saved, monkeypatch):
    folder, _ = saved
    write_record(folder, RECORD)
    model = VanillaTransformerForConditionalGeneration.from_pretrained(folder)
    for same in (model, model.half()):
        assert json.loads(files_that_push_model_uploads(monkeypatch, same)["training.json"])["data"] == "train"
    with torch.no_grad():
        model.model.decoder.layers[0].fc1.weight[0, 0] += 1
    assert "training.json" not in files_that_push_model_uploads(monkeypatch, model)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("training.json", "[]"),
        ("training.json", '{"seconds": 1,'),
        ("training.json", '{"seconds": "many", "updates": 3}'),
        ("training.json", '{"validation": 3}'),
        ("config.json", '{"model_type": "vanilla_transformer", "d_model": "wide"}'),
        ("model.safetensors", ""),
    ],
)
def test_damaged_folder_is_a_one_line_error_before_the_hub_is_contacted(saved, file, content, capsys, monkeypatch):
    folder, _ = saved
    (folder / file).write_text(content)
    monkeypatch.setattr("hf_vanilla_transformer.sharing.hub.HfApi", None)  # any use of the Hub would fail
    assert main(["push", str(folder), "me/mine"]) == 1
    lines = capsys.readouterr().err.splitlines()
    (message,) = [line for line in lines if line.startswith("vanilla-transformer")]
    assert file in message or "Cannot load" in message


@pytest.mark.parametrize("argument", ["safe_serialization", "repo_type", "run_as_future"])
def test_unknown_arguments_are_rejected_before_the_hub_is_contacted(saved, argument, monkeypatch):
    folder, _ = saved
    monkeypatch.setattr("hf_vanilla_transformer.sharing.hub.HfApi", None)
    with pytest.raises(TypeError, match=argument):
        VanillaTransformerForConditionalGeneration.from_pretrained(folder).push_to_hub("me/mine", **{argument: True})


@pytest.fixture
def crowded(saved, tmp_path):
    """A copy of a saved model among files of the user's that look like its own."""
    folder = tmp_path / "crowded"
    shutil.copytree(saved[0], folder)
    for name in ("aws_config.json", "tokenizer_notes.txt", "my_vanilla_transformer.py", "model-old.safetensors"):
        (folder / name).write_text("secret")
    # changed since it was saved
    (folder / "modeling_vanilla_transformer.py").write_text("print('foreign')")
    return folder


@pytest.mark.slow
def test_only_the_files_of_the_model_are_uploaded_and_its_code_is_that_of_this_package(crowded, tmp_path):
    with local_hub() as server:
        run_command(["push", crowded, "me/model"], tmp_path / "home", **hub_environment(server))
        files = server.repositories["models"]["me/model"]
    code = {file.name: file.read_bytes() for file in CODE.glob("*_vanilla_transformer.py")}
    weights_and_texts = {"README.md", "config.json", "generation_config.json", "model.safetensors"}
    assert set(files) - {"training.json", ".gitattributes"} == {
        *(*weights_and_texts, "tokenizer.json", "tokenizer_config.json"),
        *code,
    }
    assert code.items() <= files.items()
    assert not any(b"secret" in content or b"foreign" in content for content in files.values())


def test_the_average_of_checkpoints_copies_no_other_files(crowded, tmp_path):
    average_checkpoints([crowded, crowded], tmp_path / "average")
    names = {file.name for file in (tmp_path / "average").iterdir()}
    assert not names & {"aws_config.json", "tokenizer_notes.txt", "my_vanilla_transformer.py", "model-old.safetensors"}
    assert "foreign" not in (tmp_path / "average" / "modeling_vanilla_transformer.py").read_text()


@pytest.mark.parametrize("name", ["tokenizer.json", "README.md", "model.safetensors"])
def test_a_link_to_a_file_elsewhere_is_never_uploaded(crowded, tmp_path, name):
    content = (crowded / name).read_bytes() if (crowded / name).exists() else b"# Mine"
    (crowded / name).unlink(missing_ok=True)
    (tmp_path / "elsewhere").write_bytes(content)
    (crowded / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=f"{name} is a link to a file elsewhere"):
        push(crowded, "me/model")
    # a link inside the folder is the model's own file
    (crowded / name).unlink()
    (crowded / "inside").write_bytes(content)
    (crowded / name).symlink_to("inside")
    assert name == "README.md" or name == "model.safetensors" or name in model_files(crowded)


LOAD_MARIAN = """
import json
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
model = AutoModelForSeq2SeqLM.from_pretrained({0!r})
inputs = AutoTokenizer.from_pretrained({0!r})({1!r}, return_tensors="pt", padding=True)
print(type(model).__name__, json.dumps(model.generate(**inputs, num_beams=1, max_length=20).tolist()))
"""


@pytest.mark.slow
def test_a_model_pushed_as_marian_loads_without_code_and_generates_the_same(saved, tmp_path):
    folder, _ = saved
    write_record(folder, RECORD)
    with local_hub() as server:
        push = ["push", folder, "you/tiny-en-de", "--format", "marian", "--license", "mit"]
        run_command(push, tmp_path / "home", **hub_environment(server))
        files = server.repositories["models"]["you/tiny-en-de"]
        assert not [name for name in files if name.endswith(".py")]
        card = files["README.md"].decode()
        assert front_matter(card)["tags"] == ["marian", "translation"]
        assert 'from_pretrained("you/tiny-en-de")' in card
        assert "trust_remote_code" not in card
        code = LOAD_MARIAN.format("you/tiny-en-de", PHRASES)
        result = run_python(code, tmp_path / "home2", **hub_environment(server, None))
    name, ids = result.stdout.splitlines()[-1].split(" ", 1)
    assert name == "MarianMTModel"
    model = VanillaTransformerForConditionalGeneration.from_pretrained(folder)
    inputs = AutoTokenizer.from_pretrained(folder)(PHRASES, return_tensors="pt", padding=True)
    expected = model.generate(**inputs, num_beams=1, max_length=20)
    # padding, the first token of the model, is the last of the copy
    last = model.config.vocab_size - 1
    assert [[last if i == 0 else i - 1 for i in row] for row in expected.tolist()] == json.loads(ids)


@pytest.mark.slow
def test_training_uploads_a_copy_as_marian_on_request(tmp_path):
    target = ["--output_dir", tmp_path / "run", "--push_to_hub", "--hub_model_id", "you/phrases"]
    with local_hub() as server:
        run_command([*TRAIN, *target, "--hub_format", "marian"], tmp_path / "home", **hub_environment(server))
        files = server.repositories["models"]["you/phrases"]
    assert json.loads(files["config.json"])["model_type"] == "marian"
    assert not [name for name in files if name.endswith(".py")]
    assert (tmp_path / "run" / "modeling_vanilla_transformer.py").is_file()


@pytest.mark.slow
def test_training_for_a_copy_as_marian_that_cannot_be_is_refused_before_it_starts(tmp_path):
    target = ["--output_dir", tmp_path / "run", "--push_to_hub", "--hub_model_id", "you/phrases"]
    model = ["--hub_format", "marian", "--position_embedding", "learned"]
    with local_hub() as server:
        run = run_command([*TRAIN, *target, *model], tmp_path / "home", 1, **hub_environment(server))
        assert not server.repositories["models"]
    assert run.returncode == 1
    assert "this model has learned positions" in run.stderr
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_a_space_needs_a_model_of_this_package(saved, capsys):
    folder, _ = saved
    assert main(["push", str(folder), "you/model", "--format", "marian", "--space"]) == 2
    assert "--space" in capsys.readouterr().err


def test_a_model_without_equivalent_in_marian_is_not_uploaded(small_model, saved):
    folder, _ = saved
    small_model(vocab_size=330, position_embedding="learned").save_pretrained(folder)
    with pytest.raises(ValueError, match="learned positions"):
        push(folder, "you/tiny-en-de", CardDetails(format="marian"))
