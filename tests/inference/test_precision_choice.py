"""The number format of a model that translates: which one is chosen, and that translations use it."""

import io

import pytest
import torch

from hf_vanilla_transformer import train_tokenizer, translate
from hf_vanilla_transformer.cli import main
from hf_vanilla_transformer.commands.models import load_translator
from hf_vanilla_transformer.inference.precision import resolve_dtype

SENTENCES = ["a dog", "the old man reads a book", "", "where do your friends live"]


@pytest.fixture
def saved(small_model, tmp_path):
    """A model saved in bfloat16, and its tokenizer, in a folder."""
    tokenizer = train_tokenizer(SENTENCES * 3, 270)
    model = small_model(vocab_size=len(tokenizer), source_lang="en", target_lang="de")
    model.to(torch.bfloat16).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return str(tmp_path / "model")


@pytest.mark.parametrize(
    ("device", "avx512", "amx", "gpu", "expected"),
    [
        ("cpu", True, False, False, torch.bfloat16),
        ("cpu", False, True, False, torch.bfloat16),
        ("cpu", False, False, True, torch.float32),
        ("cuda", False, False, True, torch.bfloat16),
        ("cuda", True, True, False, torch.float32),
        ("mps", True, True, True, torch.float32),
    ],
)
def test_auto_is_bfloat16_where_the_device_multiplies_it_natively(device, avx512, amx, gpu, expected, monkeypatch):
    monkeypatch.setattr("torch.cpu._is_avx512_bf16_supported", lambda: avx512)
    monkeypatch.setattr("torch.cpu._is_amx_tile_supported", lambda: amx)
    monkeypatch.setattr("torch.cuda.is_bf16_supported", lambda including_emulation: gpu)
    assert resolve_dtype("auto", torch.device(device)) == expected
    assert resolve_dtype("float16", torch.device(device)) == torch.float16


def test_an_unknown_dtype_is_rejected_with_the_known_ones(small_model):
    with pytest.raises(ValueError, match="Unknown dtype 'int4'; choose one of float32, bfloat16"):
        translate(small_model(), train_tokenizer([""], 260), ["a"], dtype="int4")


@pytest.mark.parametrize(("flag", "expected"), [(None, torch.float32), ("bfloat16", torch.bfloat16)])
def test_commands_load_float32_unless_told_otherwise(saved, flag, expected):
    assert load_translator([saved], dtype=flag).model.dtype == expected
    ensemble = load_translator([saved, saved], dtype=flag).model
    assert {parameter.dtype for parameter in ensemble.parameters()} == {expected}


def test_translations_in_bfloat16_are_those_of_a_bfloat16_model_which_stays_unchanged(saved):
    plain = load_translator([saved])
    model, tokenizer = plain.model, plain.tokenizer
    expected = translate(load_translator([saved], dtype="bfloat16").model, tokenizer, SENTENCES)
    assert translate(model, tokenizer, SENTENCES, dtype="bfloat16") == expected
    assert model.dtype == torch.float32


def test_the_command_translates_in_the_given_dtype(saved, monkeypatch, capsys):
    translator = load_translator([saved], dtype="bfloat16")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("\n".join(SENTENCES).encode())))
    assert main(["translate", saved, "--dtype", "bfloat16"]) == 0
    expected = [" ".join(text.splitlines()) for text in translate(translator.model, translator.tokenizer, SENTENCES)]
    assert capsys.readouterr().out.split("\n") == [*expected, ""]


def test_a_dtype_is_rejected_for_other_backends(saved, capsys):
    assert main(["translate", saved, "--backend", "ctranslate2", "--dtype", "bfloat16"]) == 2
    assert "--dtype requires --backend torch" in capsys.readouterr().err
