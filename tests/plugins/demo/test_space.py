"""The Space that `push --space` creates, on a local server with the API of the Hub."""

import re
import shutil
from pathlib import Path

import pytest
from card_contents import PHRASES, front_matter
from clean_process import run_python
from hub_endpoint import hub_environment, local_hub, run_command

import hf_vanilla_transformer
from hf_vanilla_transformer import train_tokenizer
from hf_vanilla_transformer.plugins.demo import space


def test_a_space_gets_no_stray_files_of_a_clone(tmp_path, monkeypatch):
    clone = tmp_path / "hf_vanilla_transformer"
    shutil.copytree(Path(hf_vanilla_transformer.__file__).parent, clone, ignore=shutil.ignore_patterns("__pycache__"))
    shipped = {file.relative_to(tmp_path).as_posix() for file in clone.rglob("*") if file.is_file()}
    for stray in (".env", "notes.txt", "token.json", "data/private.en", "model/weights.safetensors", "page.html~"):
        (clone / stray).write_text("secret")
    monkeypatch.setattr(space, "_PACKAGE", clone)
    # a Space needs neither the marker for type checkers nor the template of cards
    unneeded = {f"hf_vanilla_transformer/{name}" for name in ("py.typed", "sharing/card_template.md")}
    assert set(space._package_files()) == shipped - unneeded


@pytest.mark.slow
def test_push_with_space_uploads_the_demo_page(small_model, tmp_path):
    folder = tmp_path / "model"
    small_model(vocab_size=330, source_lang="en", target_lang="de").save_pretrained(folder)
    train_tokenizer(PHRASES, 330).save_pretrained(folder)
    with local_hub() as server:
        result = run_command(["push", folder, "model", "--space"], tmp_path / "home", **hub_environment(server))
        assert result.stdout.splitlines()[-1] == f"{server.address}/spaces/somebody/model"
        files = server.repositories["spaces"]["somebody/model"]
    assert {"app.py", "requirements.txt", "README.md", "hf_vanilla_transformer/loading.py"} <= set(files)
    assert not any("__pycache__" in name for name in files)
    # nothing that pip would look for on an index under the name of this package, which has no release
    names = {re.split("[<>=!~]", line)[0] for line in files["requirements.txt"].decode().splitlines()}
    assert {"torch", "transformers", "gradio", "matplotlib"} <= names
    assert "hf-vanilla-transformer" not in names
    for name, content in files.items():
        (tmp_path / "copy" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "copy" / name).write_bytes(content)
    code = "from hf_vanilla_transformer.plugins.demo import gradio_page; print(gradio_page.__file__)"
    code = f"import sys; sys.path.insert(0, {str(tmp_path / 'copy')!r}); {code}"
    result = run_python(code, tmp_path / "home", package=True)
    assert result.stdout.strip().startswith(str(tmp_path / "copy"))
    assert "build_page" in compile(files["app.py"], "app.py", "exec").co_names
    assert front_matter(files["README.md"].decode())["sdk"] == "gradio"
