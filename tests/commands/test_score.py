import json
import os
import subprocess
import sys

import pytest
import torch
from small import write_moses

from hf_vanilla_transformer.cli import main


def test_scores_of_given_translations_agree_with_the_loss_of_the_model(two_models, capsys):
    path, _ = two_models.paths
    assert main(["score", path, "--test_file", two_models.test_file, "--max_tokens", "9"]) == 0
    captured = capsys.readouterr()
    rows = [json.loads(line) for line in captured.out.splitlines()]
    assert [(row["index"], row["source"], row["target"]) for row in rows] == [
        *zip(range(3), two_models.sources, two_models.references, strict=True)
    ]
    for row, source, target in zip(rows, two_models.sources, two_models.references, strict=True):
        inputs, labels = (two_models.tokenizer(text, return_tensors="pt")["input_ids"] for text in (source, target))
        with torch.no_grad():
            loss = two_models.one(input_ids=inputs, labels=labels).loss.item()  # mean per token
        assert row["tokens"] == labels.shape[1]
        assert row["log_probability"] == pytest.approx(-loss * labels.shape[1], rel=1e-4)
        assert row["perplexity"] == pytest.approx(torch.tensor(loss).exp().item(), rel=1e-3)
    assert f"3 pairs, {sum(row['tokens'] for row in rows)} tokens" in captured.err


@pytest.mark.slow
def test_scored_text_of_any_script_is_printed_as_it_is(two_models, tmp_path):
    """Also where the terminal's encoding is ASCII, and with characters at which some programs split lines."""
    sources = ["कुत्ता दौड़ता है", "两个人坐着", "a\u2028b\x85c", 'a "quote"']
    targets = ["ምሳሌ", "សុនខ", "ein\x1dhund", "\\"]
    write_moses(tmp_path / "scripts", en=sources, de=targets)
    command = [sys.executable, "-m", "hf_vanilla_transformer", "score", two_models.paths[0]]
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    output = subprocess.run(
        [*command, "--test_file", str(tmp_path / "scripts")], env=environment, capture_output=True, check=True
    ).stdout
    lines = output.decode("utf-8").removesuffix("\n").split("\n")
    assert [(row["source"], row["target"]) for row in map(json.loads, lines)] == [*zip(sources, targets, strict=True)]
    assert sources[0] in lines[0]
