"""ONNX exports, compared with `generate` of the model in torch."""

import io
import json
import re
import shutil
from pathlib import Path

import numpy
import psutil
import pytest
import torch
from export_models import (
    NEEDS_ONNX,
    PHRASES,
    VARIANTS,
    check_export_of_adapter,
    check_independence_of_files,
    count_equal,
    save_padded,
    without_special_tokens,
)
from search_models import translate_ids
from transformers import AutoModelForSeq2SeqLM

import hf_vanilla_transformer
from hf_vanilla_transformer import Translator, translate
from hf_vanilla_transformer.cli import main
from hf_vanilla_transformer.inference.exports import export_model
from hf_vanilla_transformer.inference.hardware import use_threads
from hf_vanilla_transformer.model.cache_vanilla_transformer import CACHE
from hf_vanilla_transformer.plugins.onnx.onnx_runtime import OnnxModel

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def export(save_model_to, tmp_path_factory):
    """A random model, and the folder of its export."""
    place = tmp_path_factory.mktemp("export")
    model = save_model_to(place / "model")
    export_model(place / "model", place / "onnx", "onnx")
    return model, place / "onnx"


def test_an_export_names_no_folder_of_this_machine(export):
    _, folder = export
    package = Path(hf_vanilla_transformer.__file__).parent
    private = [str(path).encode() for path in (folder.parent, package, Path(torch.__file__).parent)]
    for file in folder.iterdir():
        content = file.read_bytes()
        assert not [path for path in private if path in content], file.name


def test_a_number_format_is_refused_where_there_is_no_choice(export, tmp_path):
    with pytest.raises(ValueError, match="'int8' for ONNX; it has a single number format, so omit it"):
        export_model(export[1].parent / "model", tmp_path / "onnx", "onnx", "int8")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["paper", "learned positions"])
def test_export_translates_like_generate(save_model, phrase_tokenizer, tmp_path, name):
    sizes = {} if name == "paper" else {"num_encoder_layers": 1, "num_decoder_layers": 1}
    model, folder = save_model(**VARIANTS[name], **sizes)
    export_model(folder, tmp_path / "onnx", "onnx")
    exported = OnnxModel(tmp_path / "onnx")
    sources = phrase_tokenizer(PHRASES)["input_ids"]
    for settings in ({"num_beams": 1}, {"num_beams": 4}, {"num_beams": 2, "length_penalty": 1.5}):
        expected = translate_ids(model, sources, max_new_tokens=12, **settings)
        outputs = translate_ids(exported, sources, max_new_tokens=12, **settings)
        assert without_special_tokens(outputs) == without_special_tokens(expected)


def test_a_model_in_half_precision_from_the_config_of_a_run_translates_the_same(
    save_model, phrase_tokenizer, tmp_path
):
    """As transformers' Trainer leaves it, without a cache, with a padded vocabulary and a setting of decoding."""
    padded, folder = save_padded(save_model, phrase_tokenizer)
    padded.config.use_cache = False
    model = AutoModelForSeq2SeqLM.from_config(padded.config, dtype=torch.bfloat16).eval()
    model.load_state_dict(padded.state_dict())
    model.generation_config.update(no_repeat_ngram_size=2)
    model.save_pretrained(folder)
    export_model(folder, tmp_path / "onnx", "onnx")
    exported = OnnxModel(tmp_path / "onnx")
    sources = phrase_tokenizer(PHRASES[:20])["input_ids"]
    for settings in ({"num_beams": 1}, {"num_beams": 3}, {"num_beams": 1, "use_cache": False}):
        expected = translate_ids(model.float(), sources, max_new_tokens=12, **settings)
        assert translate_ids(exported, sources, max_new_tokens=12, **settings) == expected


def test_threads_are_those_of_torch_and_too_long_text_is_a_clear_error(export):
    model, folder = export
    started = {}
    for threads in (1, 3):
        others = psutil.Process().num_threads()
        with use_threads(threads):
            exported = OnnxModel(folder)  # the model has 64 positions, the export twice as many
        started[threads] = (psutil.Process().num_threads() - others) / len(exported.graphs)
    assert started == {1: 0, 3: 2}  # the calling thread is one of them
    inputs = torch.randint(4, 300, (2, 128))
    settings = {"num_beams": 1, "max_new_tokens": 70}
    assert exported.generate(inputs, **settings).tolist() == model.generate(inputs, **settings).tolist()
    with pytest.raises(ValueError, match="128 positions, but the text needs 129"):
        exported.generate(torch.full((1, 129), 5), max_new_tokens=3)


PAYLOADS = {
    # transformers gives these to torch's pytrees, which import and call what they name
    "a factory": [
        1,
        {
            "type": "collections.defaultdict",
            "context": {
                "default_factory_module": "payload",
                "default_factory_name": "make",
                "dict_context": ["a"],
            },
            "children_spec": [{"type": None, "context": None, "children_spec": []}],
        },
    ],
    # and these it calls itself
    "a sequence": [
        1,
        {
            "type": "transformers.cache_utils:EncoderDecoderCache",
            "context": json.dumps({"_t": "seq", "p": "payload:call", "v": ["command"]}),
            "children_spec": [],
        },
    ],
}


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS)
def test_what_is_imported_and_read_is_not_chosen_by_the_export(export, payload, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "foreign"
    shutil.copytree(export[1], folder)
    # whoever imports the module, or calls what is in it, leaves a mark
    mark = tmp_path / "mark"
    code = f"from pathlib import Path\nPath({str(mark)!r}).touch()\n\ndef make(): ...\n\ndef call(*words): ...\n"
    (tmp_path / "payload.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    (folder / "encoder.onnx").rename(folder / "elsewhere.onnx")
    shutil.copy(export[1] / "encoder.onnx", tmp_path / "outside.onnx")
    described = json.loads((folder / "export.json").read_text())
    for entry in described["components"].values():
        entry["metadata"] |= {"in_spec": json.dumps(payload), "out_spec": json.dumps(payload)}
    described["components"]["encoder"]["file"] = "../outside.onnx"
    (folder / "export.json").write_text(json.dumps(described))
    command = ["translate", str(folder), "--backend", "onnx", "--num_beams", "1"]
    # without its own graph, it is no export
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a dog\n")))
    assert main(command) == 1
    (folder / "elsewhere.onnx").rename(folder / "encoder.onnx")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a dog\n")))
    capsys.readouterr()
    assert main(command) == 0
    known = OnnxModel(export[1])
    (expected,) = translate(known, known.tokenizer, ["a dog"], num_beams=1)
    assert capsys.readouterr().out == f"{expected}\n"
    assert not mark.exists()


def test_export_of_a_trained_model_translates_the_same(trained_on_multi30k, tmp_path, monkeypatch, capsys):
    model, tokenizer, folder, sources, _ = trained_on_multi30k
    assert main(["export", str(folder), str(tmp_path / "onnx"), "--format", "onnx"]) == 0
    exported = OnnxModel(tmp_path / "onnx")
    ids = tokenizer(sources[:200])["input_ids"]
    expected, outputs = (translate_ids(m, ids, num_beams=1) for m in (model, exported))
    assert count_equal(outputs, expected) >= 198
    assert "--backend onnx" in (tmp_path / "onnx" / "README.md").read_text()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("\n".join(sources[:20]).encode())))
    capsys.readouterr()
    assert main(["translate", str(tmp_path / "onnx"), "--backend", "onnx", "--num_beams", "1"]) == 0
    assert capsys.readouterr().out.splitlines() == translate(model, tokenizer, sources[:20], num_beams=1)
    assert main(["translate", str(tmp_path / "onnx"), "--backend", "ctranslate2"]) == 1
    assert "is an export for onnx, not for ctranslate2" in capsys.readouterr().err


def test_a_loaded_export_does_not_depend_on_its_files(export, tmp_path):
    folder = shutil.copytree(export[1], tmp_path / "onnx")
    check_independence_of_files(folder, OnnxModel(folder))


def test_an_export_says_nothing_about_attention_so_that_words_stay_in_order(export):
    _, folder = export
    translator = Translator.load(str(folder), "onnx")
    assert translator.align([("a dog", "ein Hund")]) == [None]
    (page,) = translator.translate_html(["<p>a <b>dog</b> runs</p>"], max_new_tokens=8)
    assert page.text.startswith("<p>")
    assert page.text.count("<b>") == page.text.count("</b>") == 1
    (line,) = translator.translate(["a `dog` runs"], split_sentences=True, max_new_tokens=8)
    assert "`dog`" in line.text


def test_onnx_graphs_alone_prefill_and_decode_with_the_cache(save_model, phrase_tokenizer, tmp_path):
    """Run the graphs as a program in another language would: with inputs and outputs matched by name."""
    import onnxruntime

    model, folder = save_model()
    export_model(folder, tmp_path / "onnx", "onnx")
    names = ("encoder", "prefill", "decode")
    graphs = {name: onnxruntime.InferenceSession(tmp_path / "onnx" / f"{name}.onnx") for name in names}

    def run(name, inputs):
        session = graphs[name]
        outputs = session.run(None, {spec.name: inputs[spec.name] for spec in session.get_inputs()})
        return dict(zip([spec.name for spec in session.get_outputs()], outputs, strict=True))

    values = dict(phrase_tokenizer(PHRASES[0], return_tensors="np"))
    values["encoder_outputs.last_hidden_state"] = run("encoder", values)["last_hidden_state"]
    tokens = [model.config.decoder_start_token_id]
    in_cache = re.compile(rf"(?:.*\.)?{CACHE}\.(.*)")
    for step in range(8):
        values["decoder_input_ids"] = numpy.array([tokens[-1:]])
        outputs = run("decode" if step else "prefill", values)
        outputs["logits"][0, -1, model.config.eos_token_id] = -numpy.inf  # like min_new_tokens
        tokens.append(int(outputs["logits"][0, -1].argmax()))
        caches = {match[1]: x for name, x in outputs.items() if (match := in_cache.fullmatch(name))}
        assert len(caches) == 4 * model.config.num_decoder_layers
        values |= {f"input.{CACHE}.{name}": x for name, x in caches.items()}
    source = phrase_tokenizer(PHRASES[0], return_tensors="pt")
    assert tokens == model.generate(**source, num_beams=1, min_new_tokens=8, max_new_tokens=8)[0].tolist()


@NEEDS_ONNX
@pytest.mark.filterwarnings("ignore")  # of PEFT
def test_an_export_of_an_adapter_translates_with_it(save_model, phrase_tokenizer, tmp_path):
    check_export_of_adapter(save_model, phrase_tokenizer, tmp_path, "onnx")
