"""The cards of models trained here, read as the Hub reads them."""

import pytest
from corpora import ROOT
from huggingface_hub import ModelCard

CARDS = sorted(set((ROOT / "model_cards").glob("*.md")) - {ROOT / "model_cards" / "template.md"})


@pytest.mark.parametrize("card", CARDS, ids=lambda file: file.stem)
def test_a_card_names_its_results_and_repeats_them_in_words(card):
    data = ModelCard.load(card).data
    assert data.model_name == card.stem
    results = {result.metric_type: result for result in data.eval_results}
    assert {"bleu", "chrf"} <= results.keys()
    text = card.read_text().split("---", 2)[2]
    for result in results.values():
        assert f"{result.metric_value:.2f}" in text
        signature = result.metric_name.split("(")[1].rstrip(")")
        assert "version:" in signature
        assert f"`{signature}`" in text
    assert (ROOT / "scripts" / "recipes" / f"{card.stem}.yaml").is_file()


def test_there_are_cards():
    assert CARDS
