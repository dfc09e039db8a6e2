"""Exports to CTranslate2: the folders, the command line and the errors."""

import io
import json
import subprocess
import sys

import pytest
from export_models import PHRASES, check_export_of_adapter, check_independence_of_files
from forked_python import forked_python
from small import write_moses

from hf_vanilla_transformer import translate
from hf_vanilla_transformer.cli import main
from hf_vanilla_transformer.inference.exports import export_model, load_export
from hf_vanilla_transformer.inference.metrics import evaluate_translations
from hf_vanilla_transformer.plugins.ctranslate2.ctranslate2_runtime import QUANTIZATIONS


def test_ctranslate2_export_contains_model_tokenizer_configuration_and_readme(save_model, tmp_path):
    _, folder = save_model(layer_norm_eps=1e-4)
    export_model(folder, tmp_path / "export", "ctranslate2", "int8")
    names = {file.name for file in (tmp_path / "export").iterdir()}
    assert {"model.bin", "config.json", "tokenizer.json", "README.md", "vanilla_transformer"} <= names
    assert json.loads((tmp_path / "export" / "config.json").read_text())["layer_norm_epsilon"] == 1e-4
    readme = (tmp_path / "export" / "README.md").read_text()
    assert "--backend ctranslate2" in readme
    assert "int8" in readme
    assert not [file for file in tmp_path.iterdir() if file.name not in ("model", "export")]


def test_impossible_export_is_a_clear_error_and_leaves_no_files(save_model, tmp_path, monkeypatch, capsys):
    _, folder = save_model()
    with pytest.raises(ValueError, match=r"Unknown quantisation 'int3' for CTranslate2; choose one of int8"):
        export_model(folder, tmp_path / "export", "ctranslate2", "int3")
    with pytest.raises(ValueError, match="is in use"):
        export_model(folder, folder, "ctranslate2")
    save_model(d_k=5)
    with pytest.raises(ValueError, match="d_model / num_heads wide"):
        export_model(folder, tmp_path / "export", "ctranslate2")
    assert [file.name for file in tmp_path.iterdir()] == ["model"]
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    assert main(["export", str(folder), str(tmp_path / "export"), "--format", "ctranslate2"]) == 1
    assert 'pip install ".[export]"' in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore")  # of PEFT
def test_an_export_of_an_adapter_translates_with_it(save_model, phrase_tokenizer, tmp_path):
    check_export_of_adapter(save_model, phrase_tokenizer, tmp_path, "ctranslate2")


def test_a_loaded_export_does_not_depend_on_its_files(save_model, tmp_path):
    _, folder = save_model()
    export_model(str(folder), str(tmp_path / "export"), "ctranslate2")
    check_independence_of_files(tmp_path / "export", load_export(str(tmp_path / "export"), "ctranslate2"))


@pytest.mark.parametrize("exported", [True, False])
def test_translate_and_evaluate_run_exports_and_saved_models_with_ctranslate2(
    save_model, phrase_tokenizer, tmp_path, capsys, monkeypatch, exported
):
    model, folder = save_model(source_lang="en", target_lang="de")
    if exported:
        assert main(["export", str(folder), str(tmp_path / "export"), "--format", "ctranslate2"]) == 0
        folder = tmp_path / "export"
    lines = ["", *PHRASES[:5]]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("\n".join(lines).encode())))
    assert main(["translate", str(folder), "--backend", "ctranslate2", "--num_beams", "1"]) == 0
    translations = translate(model, phrase_tokenizer, lines, num_beams=1)
    expected = [" ".join(text.splitlines()) for text in translations]
    assert capsys.readouterr().out.split("\n") == [*expected, ""]
    write_moses(tmp_path / "test", en=PHRASES[:5], de=PHRASES[:5])
    flags = ["--test_file", str(tmp_path / "test"), "--num_beams", "1"]
    assert main(["evaluate", str(folder), *flags, "--backend", "ctranslate2"]) == 0
    result = json.loads(capsys.readouterr().out)
    translations = translate(model, phrase_tokenizer, PHRASES[:5], num_beams=1)
    scores = evaluate_translations(translations, PHRASES[:5], "13a")
    assert result["chrf"] == round(scores["chrf"], 2)


@pytest.mark.slow
def test_export_translate_and_evaluate_work_in_new_processes(save_model, tmp_path):
    _, folder = save_model(source_lang="en", target_lang="de")

    def run(*words, text=""):
        command = [forked_python(), "-m", "hf_vanilla_transformer", *map(str, words)]
        return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout

    run("export", folder, tmp_path / "export", "--format", "ctranslate2")
    exported = run("translate", tmp_path / "export", "--backend", "ctranslate2", text=PHRASES[0])
    assert len(exported.splitlines()) == 1
    assert run("translate", folder, text=PHRASES[0]).count("\n") == 1
    assert json.loads(run("evaluate", folder, "--num_beams", "1"))["sentences"] > 0


def test_export_used_without_its_backend_is_an_error_that_names_it(save_model, tmp_path, capsys):
    _, folder = save_model()
    export_model(folder, tmp_path / "export", "ctranslate2")
    for verb in (["evaluate"], ["plot", "attention", "--sentence", "a dog", "--output", "x.png"], ["demo"]):
        assert main([*verb, str(tmp_path / "export")]) == 1
        assert "is an export for CTranslate2: use " in capsys.readouterr().err


def longer_vocabulary(folder):
    file = folder / "shared_vocabulary.json"
    file.write_text(json.dumps([*json.loads(file.read_text()), *(f"extra {i}" for i in range(100_000))]))


def reversed_vocabulary(folder):
    file = folder / "shared_vocabulary.json"
    file.write_text(json.dumps(json.loads(file.read_text())[::-1]))


def change_json(name, **changes):
    def change(folder):
        (folder / name).write_text(json.dumps({**json.loads((folder / name).read_text()), **changes}))

    return change


def fewer_rows(folder):
    """Halve the number of rows of a weight, but not the weight itself."""
    content = (folder / "model.bin").read_bytes()
    name = b"decoder/embeddings/weight\0\x02"
    start = content.index(name) + len(name)
    rows = int.from_bytes(content[start : start + 4], "little")
    (folder / "model.bin").write_bytes(content[:start] + (rows // 2).to_bytes(4, "little") + content[start + 4 :])


def link_weights(folder):
    (folder / "model.bin").rename(folder.parent / "elsewhere.bin")
    (folder / "model.bin").symlink_to(folder.parent / "elsewhere.bin")


_CONFIG = "vanilla_transformer/config.json"
_OTHER = "is missing, or is not that of the configuration"
# with which CTranslate2 reads past its arrays, or translates into something else
MISMATCHES = {
    "a vocabulary longer than the embeddings": (
        longer_vocabulary,
        r"shared_vocabulary\.json does not list the \d+ tok",
    ),
    "more tokens than fit into memory": (
        change_json(_CONFIG, vocab_size=2**31),
        r"does not list the 2,147,483,648 tok",
    ),
    "a vocabulary in another order": (reversed_vocabulary, r"shared_vocabulary\.json does not list"),
    "fewer rows than bytes": (fewer_rows, r"'decoder/embeddings/weight' has [\d,]+ bytes"),
    "other heads": (change_json(_CONFIG, num_heads=8, d_k=4, d_v=4), f"num_heads' {_OTHER}"),
    "another width": (change_json(_CONFIG, d_ff=128), f"linear_0/bias' {_OTHER}"),
    "fewer layers": (change_json(_CONFIG, num_decoder_layers=1), f"decoder/layer_1/[^ ]*' {_OTHER}"),
    "keys of a single head": (change_json("config.json", multi_query_attention=True), r"its config\.json is not that"),
    "weights elsewhere": (link_weights, r"names 'model\.bin', which is outside the folder"),
}


@pytest.mark.parametrize("damage", MISMATCHES)
def test_files_of_an_export_that_do_not_match_are_refused_before_they_are_used(save_model, tmp_path, damage):
    _, folder = save_model()
    export_model(folder, tmp_path / "export", "ctranslate2")
    change, message = MISMATCHES[damage]
    change(tmp_path / "export")
    with pytest.raises(OSError, match=rf"^Cannot load {tmp_path / 'export'}: [^\n]*{message}"):
        load_export(str(tmp_path / "export"), "ctranslate2")


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
def test_every_quantisation_is_recognised_when_it_is_loaded(save_model, tmp_path, quantization):
    model, folder = save_model(attention_bias=True)
    export_model(folder, tmp_path / "export", "ctranslate2", quantization)
    assert load_export(str(tmp_path / "export"), "ctranslate2").config.d_ff == model.config.d_ff


@pytest.mark.parametrize("damage", ["model.bin", "vanilla_transformer/config.json", "tokenizer.json"])
def test_damaged_export_is_a_one_line_error(save_model, tmp_path, capsys, monkeypatch, damage):
    _, folder = save_model()
    export_model(folder, tmp_path / "export", "ctranslate2")
    content = (tmp_path / "export" / damage).read_bytes()
    (tmp_path / "export" / damage).write_bytes(content[: len(content) // 2])
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a dog\n")))
    assert main(["translate", str(tmp_path / "export"), "--backend", "ctranslate2"]) == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("vanilla-transformer")]
    assert len(lines) == 1
    assert f"Cannot load {tmp_path / 'export'}" in lines[0]
