import re

import pytest
import torch
from PIL import Image
from script_runs import import_script
from small import write_moses

from hf_vanilla_transformer import Translator
from hf_vanilla_transformer.inference.metrics import bleu

SOURCES = ["The old man reads a book.", "A dog sees the red house.", "The child has two cats."]
ATTENTIONS = {
    "encoder": ("encoder", "self_attn"),
    "decoder": ("decoder", "self_attn"),
    "cross": ("decoder", "encoder_attn"),
}


@pytest.fixture(scope="module")
def script():
    """The module scripts/study/ablate_heads.py."""
    return import_script("study/ablate_heads.py")


@pytest.fixture
def translator(save_model):
    """The translator of a random model with more layers in the decoder than in the encoder."""
    _, folder = save_model(num_encoder_layers=1, num_decoder_layers=2, source_lang="en", target_lang="de")
    return Translator.load(str(folder))


def test_each_score_is_that_of_a_model_whose_head_does_not_reach_the_output_projection(script, translator):
    # the model's own translations are the references, so that each head matters
    references = [each.text for each in translator.translate(SOURCES, num_beams=1)]
    whole, scores = script.measure(translator, SOURCES, references, "char")
    assert whole == pytest.approx(100)
    config = translator.model.config
    assert len(scores) == config.num_heads * (1 + 2 + 2)
    expected = {}
    for head in scores:
        stack, name = ATTENTIONS[head.kind]
        projection = getattr(getattr(translator.model.model, stack).layers[head.layer - 1], name).out_proj.weight
        kept = projection.detach().clone()
        with torch.no_grad():
            projection[:, config.d_v * (head.number - 1) : config.d_v * head.number] = 0
            texts = [each.text for each in translator.translate(SOURCES, num_beams=1)]
            projection.copy_(kept)
        expected[head] = bleu("char").corpus_score(texts, [references]).score
    assert scores == pytest.approx(expected)
    assert len(set(expected.values())) > 3


def test_the_script_prints_a_table_and_draws_a_picture(script, translator, datasets_cache, tmp_path, capsys):
    write_moses(tmp_path / "test", en=SOURCES, de=SOURCES)
    output = tmp_path / "heads.png"
    script.main([translator.name, "--test_file", str(tmp_path / "test"), "--sentences", "2", "--output", str(output)])
    printed = capsys.readouterr().out
    assert re.match(r"BLEU of the model: \d+\.\d\d\n", printed)
    table = printed.split("\n\n")[1].splitlines()
    losses = [float(row.split("|")[4]) for row in table[2:]]
    assert losses == sorted(losses)
    assert len(losses) == translator.model.config.num_heads * 5
    with Image.open(output) as picture:
        assert picture.width > 1000


def test_a_missing_text_is_one_line(script, translator, tmp_path):
    with pytest.raises(SystemExit, match=r"ablate_heads.py: .*no-such-text"):
        script.main([translator.name, "--test_file", str(tmp_path / "no-such-text")])
