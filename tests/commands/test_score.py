import json

import pytest
import torch

from hf_vanilla_transformer.cli import main


def test_scores_of_given_translations_agree_with_the_loss_of_the_model(two_models, capsys):
    path, _ = two_models.paths
    assert main(["score", path, "--test_file", two_models.test_file, "--max_tokens", "9"]) == 0
    captured = capsys.readouterr()
    rows = [json.loads(line) for line in captured.out.splitlines()]
    for row, source, target in zip(rows, two_models.sources, two_models.references, strict=True):
        inputs, labels = (two_models.tokenizer(text, return_tensors="pt")["input_ids"] for text in (source, target))
        with torch.no_grad():
            loss = two_models.one(input_ids=inputs, labels=labels).loss.item()  # mean per token
        assert row["tokens"] == labels.shape[1]
        assert row["log_probability"] == pytest.approx(-loss * labels.shape[1], rel=1e-4)
        assert row["perplexity"] == pytest.approx(torch.tensor(loss).exp().item(), rel=1e-3)
    assert f"3 pairs, {sum(row['tokens'] for row in rows)} tokens" in captured.err
