"""The cards of the models trained here, parsed as on the Hub."""

import re

import pytest
from corpora import ROOT
from huggingface_hub import ModelCard

CARDS = sorted(set((ROOT / "model_cards").glob("*.md")) - {ROOT / "model_cards" / "README.md"})


@pytest.mark.parametrize("card", CARDS, ids=lambda file: file.stem)
def test_a_card_states_its_results_in_metadata_and_in_text(card):
    data = ModelCard.load(card).data
    assert data.model_name == card.stem
    results = {result.metric_type: result for result in data.eval_results}
    text = card.read_text().split("---", 2)[2]
    for result in results.values():
        assert f"{result.metric_value:.2f}" in text
    if data.pipeline_tag == "translation":
        assert {"bleu", "chrf"} <= results.keys()
        for result in results.values():
            signature = result.metric_name.split("(")[1].rstrip(")")
            assert "version:" in signature
            assert f"`{signature}`" in text
    else:
        assert {"wer", "per"} <= results.keys()
        assert f"word error rate: {results['wer'].metric_value:.1f}" in text.splitlines()
    scripts = re.findall(r"scripts/[\w./]+", text)
    assert any(script.startswith("scripts/recipes/") for script in scripts)
    assert all((ROOT / script).is_file() for script in scripts)


def test_at_least_one_card_exists():
    assert CARDS
