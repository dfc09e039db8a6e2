"""Exports, run by CTranslate2 and ONNX Runtime themselves, against `generate`."""

import io
import json
import subprocess
import sys

import numpy
import pytest
import torch

from hf_vanilla_transformer import train_tokenizer, translate
from hf_vanilla_transformer.cli import main
from hf_vanilla_transformer.data.phrases import splits
from hf_vanilla_transformer.inference.ctranslate2_runtime import CTranslate2Model
from hf_vanilla_transformer.inference.metrics import evaluate_translations
from hf_vanilla_transformer.inference.onnx_runtime import OnnxModel
from hf_vanilla_transformer.inference.translation import translate_ids
from hf_vanilla_transformer.sharing.export import export_ctranslate2, export_onnx, load_export

PHRASES = [phrase.en for phrase in splits()["test"][:60]]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(PHRASES, 350)


@pytest.fixture
def save(small_model, tokenizer, tmp_path):
    """A function that saves a random model, which ends its sentences at many lengths, with its tokenizer."""

    def build(**changes):
        model = small_model(
            **{"vocab_size": len(tokenizer), "lm_head_bias": True, "tie_word_embeddings": False, **changes}
        )
        model.lm_head.weight.data.normal_()
        if model.lm_head.bias is not None:
            model.lm_head.bias.data[2] += 5.0
        folder = tmp_path / "model"
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return model, folder

    return build


def real(outputs: list[list[int]]) -> list[list[int]]:
    return [[token for token in output if token not in (0, 1, 2)] for output in outputs]


VARIANTS = {
    "the paper's": {"lm_head_bias": False, "tie_word_embeddings": True},
    "biases and gelu": {"attention_bias": True, "activation_function": "gelu"},
    "another epsilon": {"layer_norm_eps": 1e-2},
    "learned positions": {"position_embedding": "learned", "max_position_embeddings": 128},
}


@pytest.mark.parametrize("num_beams", [1, 4])
@pytest.mark.parametrize("name", VARIANTS)
def test_an_export_translates_as_generate_does(save, tokenizer, tmp_path, name, num_beams):
    model, folder = save(length_normalization="length", **VARIANTS[name])
    export_ctranslate2(folder, tmp_path / "export")
    exported = CTranslate2Model(tmp_path / "export", device="cpu")
    sources, beams = tokenizer(PHRASES)["input_ids"], {"early_stopping": True, "length_penalty": 0.8}
    settings = {"num_beams": num_beams, "max_new_tokens": 15}
    expected = real(translate_ids(model, sources, **settings, **(beams if num_beams > 1 else {})))
    assert len(set(map(tuple, expected))) > 10
    given = real(translate_ids(exported, sources, length_penalty=0.8, **settings))
    assert sum(a == b for a, b in zip(given, expected, strict=True)) >= 0.99 * len(expected)


def test_an_export_of_a_gnmt_model_scores_by_the_gnmt_formula(save, tokenizer, tmp_path):
    model, folder = save()
    exported = load_export(folder, "ctranslate2")
    sources = tokenizer(PHRASES)["input_ids"]
    for alpha in (0.0, 0.6, 2.0):
        settings = {"num_beams": 4, "length_penalty": alpha, "max_new_tokens": 15}
        given = translate_ids(exported, sources, **settings)
        expected = real(translate_ids(model, sources, early_stopping=True, **settings))
        # the n best are searched by log P there and by the GNMT score here: the choice may fall on another search's
        assert sum(a == b for a, b in zip(real(given), expected, strict=True)) >= 0.9 * len(expected)


def test_a_sentences_limit_is_its_own_length_plus_50_in_any_company(save, tokenizer, tmp_path):
    model, folder = save()
    model.lm_head.bias.data[2] = -1e4  # never ends by itself
    model.save_pretrained(folder)
    exported = load_export(folder, "ctranslate2")
    sources = tokenizer(PHRASES[:12])["input_ids"]
    together = translate_ids(exported, sources, num_beams=2)
    for source, output in zip(sources, together, strict=True):
        assert len([token for token in output if token != 0]) == 1 + len(source) + 50
        assert translate_ids(exported, [source], num_beams=2)[0] == [token for token in output if token != 0]


def test_the_export_folder_is_whole(save, tmp_path):
    _, folder = save(layer_norm_eps=1e-4)
    export_ctranslate2(folder, tmp_path / "export", "int8")
    names = {file.name for file in (tmp_path / "export").iterdir()}
    assert {"model.bin", "config.json", "tokenizer.json", "README.md", "vanilla_transformer"} <= names
    assert json.loads((tmp_path / "export" / "config.json").read_text())["layer_norm_epsilon"] == 1e-4
    readme = (tmp_path / "export" / "README.md").read_text()
    assert "--backend ctranslate2" in readme
    assert "int8" in readme
    assert not [file for file in tmp_path.iterdir() if file.name not in ("model", "export")]


def test_what_cannot_be_exported_is_a_clear_error(save, tmp_path, monkeypatch, capsys):
    _, folder = save()
    with pytest.raises(ValueError, match=r"quantisation 'int3'; choose one of int8"):
        export_ctranslate2(folder, tmp_path / "export", "int3")
    with pytest.raises(ValueError, match="is in use"):
        export_ctranslate2(folder, folder)
    save(d_k=5)
    with pytest.raises(ValueError, match="d_model / num_heads wide"):
        export_ctranslate2(folder, tmp_path / "export")
    assert [file.name for file in tmp_path.iterdir()] == ["model"]
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    assert main(["export", str(folder), str(tmp_path / "export"), "--format", "ctranslate2"]) == 1
    assert "hf-vanilla-transformer[export]" in capsys.readouterr().err


def test_a_text_beyond_the_table_of_positions_is_a_clear_error(save, tokenizer):
    _, folder = save()
    exported = load_export(folder, "ctranslate2")  # 64 positions, twice that in the export
    assert exported.generate(torch.full((1, 100), 5), max_new_tokens=3).shape[1] <= 4
    with pytest.raises(ValueError, match=r"CTranslate2: .*position"):
        exported.generate(torch.full((1, 200), 5), max_new_tokens=3)


@pytest.mark.parametrize("exported", [True, False])
def test_the_command_line_translates_and_evaluates_with_it(save, tokenizer, tmp_path, capsys, monkeypatch, exported):
    model, folder = save(source_lang="en", target_lang="de")
    if exported:
        assert main(["export", str(folder), str(tmp_path / "export"), "--format", "ctranslate2"]) == 0
        folder = tmp_path / "export"
    lines = ["", *PHRASES[:5]]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("\n".join(lines).encode())))
    assert main(["translate", str(folder), "--backend", "ctranslate2", "--num_beams", "1"]) == 0
    expected = [" ".join(text.splitlines()) for text in translate(model, tokenizer, lines, num_beams=1)]
    assert capsys.readouterr().out.split("\n") == [*expected, ""]
    for language in ("en", "de"):
        (tmp_path / f"test.{language}").write_text("\n".join(PHRASES[:5]))
    flags = ["--test_file", str(tmp_path / "test"), "--num_beams", "1"]
    assert main(["evaluate", str(folder), *flags, "--backend", "ctranslate2"]) == 0
    result = json.loads(capsys.readouterr().out)
    scores = evaluate_translations(translate(model, tokenizer, PHRASES[:5], num_beams=1), PHRASES[:5], "13a")
    assert result["chrf"] == pytest.approx(scores["chrf"])


@pytest.mark.slow
def test_every_verb_works_in_a_process_of_its_own(save, tmp_path):
    _, folder = save(source_lang="en", target_lang="de")

    def run(*words, text=""):
        command = [sys.executable, "-m", "hf_vanilla_transformer", *map(str, words)]
        return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout

    run("export", folder, tmp_path / "export", "--format", "ctranslate2")
    exported = run("translate", tmp_path / "export", "--backend", "ctranslate2", text=PHRASES[0])
    assert len(exported.splitlines()) == 1
    assert run("translate", folder, text=PHRASES[0]).count("\n") == 1
    assert json.loads(run("evaluate", folder, "--num_beams", "1"))["sentences"] > 0


def test_an_export_given_to_torch_says_which_backend_it_needs(save, tmp_path, capsys):
    _, folder = save()
    export_ctranslate2(folder, tmp_path / "export")
    assert main(["evaluate", str(tmp_path / "export")]) == 2
    assert "--backend ctranslate2" in capsys.readouterr().err


@pytest.mark.slow
def test_a_trained_model_translates_the_same_and_int8_costs_little(trained_on_multi30k, tmp_path, monkeypatch):
    model, tokenizer, folder, sentences, references = trained_on_multi30k
    sources = tokenizer(sentences)["input_ids"]
    bleu = {}
    for quantization in ("float32", "int8"):
        export_ctranslate2(folder, tmp_path / quantization, quantization)
        exported = CTranslate2Model(tmp_path / quantization, device="cpu")
        texts = translate(exported, tokenizer, sentences)
        bleu[quantization] = evaluate_translations(texts, references, "none")["bleu"]
        if quantization == "float32":
            for config in (exported.config, model.config):
                monkeypatch.setattr(config, "length_normalization", "length")
            settings = {"num_beams": 4, "length_penalty": 0.8}
            given = real(translate_ids(exported, sources, **settings))
            expected = real(translate_ids(model, sources, early_stopping=True, **settings))
            assert sum(a == b for a, b in zip(given, expected, strict=True)) >= 0.99 * len(sources)
    assert bleu["float32"] > 3
    assert abs(bleu["float32"] - bleu["int8"]) < 0.3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["the paper's", "learned positions"])
def test_onnx_runtime_translates_as_generate_does(save, tokenizer, tmp_path, name):
    model, folder = save(**VARIANTS[name])
    export_onnx(folder, tmp_path / "onnx")
    exported = OnnxModel(tmp_path / "onnx")
    sources = tokenizer(PHRASES)["input_ids"]
    for settings in ({"num_beams": 1}, {"num_beams": 4}, {"num_beams": 2, "length_penalty": 1.5}):
        expected = translate_ids(model, sources, max_new_tokens=12, **settings)
        assert real(translate_ids(exported, sources, max_new_tokens=12, **settings)) == real(expected)


@pytest.mark.slow
def test_the_onnx_graphs_alone_decode_first_without_and_then_with_the_cache(save, tokenizer, tmp_path):
    """As a program in another language would: ONNX Runtime's own sessions, fed by the names in the graphs."""
    import onnxruntime

    model, folder = save()
    export_onnx(folder, tmp_path / "onnx")
    names = ("encoder", "prefill", "decode")
    graphs = {name: onnxruntime.InferenceSession(tmp_path / "onnx" / f"{name}.onnx") for name in names}

    def run(name, inputs):
        session = graphs[name]
        outputs = session.run(None, {spec.name: inputs[spec.name] for spec in session.get_inputs()})
        return dict(zip([spec.name for spec in session.get_outputs()], outputs, strict=True))

    known = dict(tokenizer(PHRASES[0], return_tensors="np"))
    known["encoder_outputs.last_hidden_state"] = run("encoder", known)["last_hidden_state"]
    tokens = [model.config.decoder_start_token_id]
    for step in range(8):
        known["decoder_input_ids"] = numpy.array([tokens[-1:]])
        outputs = run("decode" if step else "prefill", known)
        outputs["logits"][0, -1, model.config.eos_token_id] = -numpy.inf  # as min_new_tokens does
        tokens.append(int(outputs["logits"][0, -1].argmax()))
        caches = {name.split("past_key_values.")[1]: x for name, x in outputs.items() if "past_key_values" in name}
        assert len(caches) == 4 * model.config.num_decoder_layers
        known |= {f"input.past_key_values.{name}": x for name, x in caches.items()}
    source = tokenizer(PHRASES[0], return_tensors="pt")
    assert tokens == model.generate(**source, num_beams=1, min_new_tokens=8, max_new_tokens=8)[0].tolist()


@pytest.mark.slow
def test_a_text_beyond_the_onnx_tables_is_a_clear_error(save, tmp_path):
    model, folder = save()
    export_onnx(folder, tmp_path / "onnx")
    exported = OnnxModel(tmp_path / "onnx")  # 64 positions, twice that in the export
    inputs = torch.randint(4, 300, (2, 128))
    settings = {"num_beams": 1, "max_new_tokens": 70}
    assert exported.generate(inputs, **settings).tolist() == model.generate(inputs, **settings).tolist()
    with pytest.raises(ValueError, match="128 positions, but the text needs 129"):
        exported.generate(torch.full((1, 129), 5), max_new_tokens=3)


@pytest.mark.slow
def test_a_trained_model_translates_the_same_in_onnx_runtime(trained_on_multi30k, tmp_path, monkeypatch, capsys):
    model, tokenizer, folder, sources, _ = trained_on_multi30k
    assert main(["export", str(folder), str(tmp_path / "onnx"), "--format", "onnx"]) == 0
    exported = OnnxModel(tmp_path / "onnx")
    ids = tokenizer(sources[:200])["input_ids"]
    expected, found = (real(translate_ids(m, ids, num_beams=1)) for m in (model, exported))
    assert sum(a == b for a, b in zip(expected, found, strict=True)) >= 198
    assert "--backend onnx" in (tmp_path / "onnx" / "README.md").read_text()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("\n".join(sources[:20]).encode())))
    capsys.readouterr()
    assert main(["translate", str(tmp_path / "onnx"), "--backend", "onnx", "--num_beams", "1"]) == 0
    assert capsys.readouterr().out.splitlines() == translate(model, tokenizer, sources[:20], num_beams=1)
    assert main(["translate", str(tmp_path / "onnx"), "--backend", "ctranslate2"]) == 1
    assert "is an export for onnx, not for ctranslate2" in capsys.readouterr().err


@pytest.mark.parametrize("damage", ["model.bin", "vanilla_transformer/config.json", "tokenizer.json"])
def test_a_damaged_export_is_one_line(save, tmp_path, capsys, monkeypatch, damage):
    _, folder = save()
    export_ctranslate2(folder, tmp_path / "export")
    content = (tmp_path / "export" / damage).read_bytes()
    (tmp_path / "export" / damage).write_bytes(content[: len(content) // 2])
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a dog\n")))
    assert main(["translate", str(tmp_path / "export"), "--backend", "ctranslate2"]) == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("vanilla-transformer")]
    assert len(lines) == 1
    assert f"Cannot load {tmp_path / 'export'}" in lines[0]
