"""A model like OPUS-MT's from conversion to use: it is adapted to a text, served, and exported."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from export_models import NEEDS_ONNX
from opus_models import opus_model, write_opus_tokenizer
from server_process import serving
from small import write_moses
from transformers import MarianTokenizer

from hf_vanilla_transformer import Translator
from hf_vanilla_transformer.cli import main
from hf_vanilla_transformer.inference.attention import Explorer

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def lines(multi30k) -> Callable[[str], list[str]]:
    """A function that returns the lines of a file of Multi30k."""

    def read(name: str) -> list[str]:
        return (multi30k / name).read_text(encoding="utf-8").splitlines()

    return read


@pytest.fixture(scope="module")
def folders(multi30k, lines, tmp_path_factory) -> tuple[Path, Path]:
    """The folders of a converted model with random weights, and of one adapted to Multi30k for half a minute."""
    folder = tmp_path_factory.mktemp("opus")
    source, target = lines("train.en"), lines("train.de")
    tokenizer = write_opus_tokenizer(folder / "opus-mt-en-de", source[:5000], target[:5000], size=1500)
    model = opus_model(tokenizer, d_model=64, encoder_ffn_dim=128, decoder_ffn_dim=128)
    # of the usual size: the model is trained
    for parameter in model.parameters():
        if parameter.dim() > 1 and parameter.requires_grad:
            parameter.data.normal_(std=0.05)
    model.save_pretrained(folder / "opus-mt-en-de")
    (folder / "opus-mt-en-de" / "README.md").write_text("---\nlicense: cc-by-4.0\n---\n")
    assert main(["convert", str(folder / "opus-mt-en-de"), str(folder / "converted")]) == 0
    write_moses(folder / "val", en=lines("val.en")[:100], de=lines("val.de")[:100])
    flags = ["--model_name_or_path", str(folder / "converted"), "--train_file", str(multi30k / "train")]
    flags += ["--validation_file", str(folder / "val"), "--output_dir", str(folder / "adapted"), "--use_cpu"]
    flags += ["--max_tokens", "1024", "--max_steps", "600", "--eval_steps", "600", "--save_strategy", "no"]
    flags += ["--lr_scheduler_type", "inverse_sqrt", "--learning_rate", "3e-3", "--warmup_steps", "100"]
    assert main(["train", *flags, "--num_beams", "1", "--disable_tqdm", "true"]) == 0
    return folder / "converted", folder / "adapted"


def test_an_adapted_model_translates_better_and_keeps_its_tokenizer_and_attribution(folders, capsys):
    scores = []
    for folder in folders:
        flags = ["--test_file", str(folders[0].parent / "val"), "--num_beams", "1"]
        assert main(["evaluate", str(folder), *flags]) == 0
        scores.append(json.loads(capsys.readouterr().out)["chrf"])
    assert scores[1] > scores[0] + 10
    assert isinstance(Translator.load(str(folders[1])).tokenizer, MarianTokenizer)
    card = (folders[1] / "README.md").read_text(encoding="utf-8")
    assert "converted from opus-mt-en-de (cc-by-4.0) and fine-tuned" in " ".join(card.split())


def test_an_adapted_model_is_served_to_libretranslates_client(folders, lines, tmp_path):
    from libretranslatepy import LibreTranslateAPI

    sentences = lines("val.en")[:3]
    expected = [translation.text for translation in Translator.load(str(folders[1])).translate(sentences)]
    with serving(folders[1], tmp_path / "log") as process:
        client = LibreTranslateAPI(f"http://127.0.0.1:{process.port}")
        assert [client.translate(sentence, "en", "de") for sentence in sentences] == expected


def test_a_corpus_job_translates_with_an_adapted_model(folders, lines, tmp_path):
    sentences = lines("val.en")[:40]
    write_moses(tmp_path / "text", en=sentences)
    flags = ["--input_files", str(tmp_path / "text.en"), "--output_dir", str(tmp_path / "job")]
    flags += ["--output_format", "txt", "--shard_lines", "15", "--workers", "1"]
    assert main(["translate", str(folders[1]), *flags]) == 0
    expected = [translation.text for translation in Translator.load(str(folders[1])).translate(sentences)]
    parts = sorted((tmp_path / "job").glob("part-*.txt"))
    assert [line for part in parts for line in part.read_text(encoding="utf-8").splitlines()] == expected


def test_the_demo_shows_the_attention_of_an_adapted_model(folders, lines):
    explorer = Explorer.load(str(folders[1]))
    sentence = lines("val.en")[0]
    best = explorer.translate(sentence, num_beams=4, alpha=1.0)[0]
    [expected] = Translator.load(str(folders[1])).translate([sentence], num_beams=4, length_penalty=1.0)
    assert best.text == expected.text
    # without the padding with which outputs start, and with one `</s>`
    attention = explorer.attention(sentence, best.ids)
    tokenizer = explorer.translator.tokenizer
    source = tokenizer(sentence)["input_ids"]
    assert (best.ids[0], best.ids[-1]) == (tokenizer.pad_token_id, tokenizer.eos_token_id)
    queries = {"encoder": len(source), "decoder": len(best.ids) - 1, "cross": len(best.ids) - 1}
    for kind, weights in attention["weights"].items():
        assert weights.shape[2] == queries[kind]
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:3]))
    assert attention["tokens"]["source"][-1] == "</s>"
    assert [len(attention["tokens"][side]) for side in ("source", "target")] == [len(source), len(best.ids) - 1]


@NEEDS_ONNX
def test_an_export_to_onnx_has_equal_outputs(folders, lines, tmp_path):
    assert main(["export", str(folders[1]), str(tmp_path / "export"), "--format", "onnx"]) == 0
    translators = Translator.load(str(folders[1])), Translator.load(str(tmp_path / "export"), "onnx")
    sentences = lines("val.en")[:8]
    for num_beams in (1, 4):
        settings = {"num_beams": num_beams, "max_length": 30}
        expected, found = (translator.translate(sentences, **settings) for translator in translators)
        assert [translation.text for translation in found] == [translation.text for translation in expected]


@pytest.mark.parametrize("num_beams", [1, 4])
def test_an_export_to_ctranslate2_has_equal_outputs(folders, lines, tmp_path, num_beams):
    assert main(["export", str(folders[1]), str(tmp_path / "export"), "--format", "ctranslate2"]) == 0
    translators = Translator.load(str(folders[1])), Translator.load(str(tmp_path / "export"), "ctranslate2")
    ids = translators[0].encode(lines("val.en")[:100])
    padding = translators[0].tokenizer.pad_token_id
    outputs = []
    # CTranslate2 ends a search when it has found as many hypotheses as there are beams
    for translator, settings in zip(translators, ({"early_stopping": num_beams > 1}, {}), strict=True):
        found = translator.translate_ids(ids, num_beams=num_beams, **settings)
        outputs.append([[token for token in output.hypotheses[0][1:] if token != padding] for output in found])
    # those that end before the limit, at which transformers prefers hypotheses whose end it forces
    ended = [i for i, output in enumerate(outputs[0]) if len(output) < 200]
    assert len(ended) > 60
    assert [outputs[0][i] for i in ended] == [outputs[1][i] for i in ended]
