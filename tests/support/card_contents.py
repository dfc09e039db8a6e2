"""A training record and scores for model cards, and what can be read back from a card."""

from typing import Any

import yaml

from hf_vanilla_transformer.data.phrases import splits

PHRASES = [phrase.en for phrase in splits()["test"][:20]]
RECORD = {
    "data": "train",
    "pairs": 29000,
    "updates": 100,
    "seconds": 2160,
    "hardware": "1 x 2 threads of a CPU",
    "software": "torch 2",
    "license": "mit",
    "settings": {"preset": "tiny", "max_steps": 100},
    "validation": [{"updates": 50, "perplexity": 9.5, "bleu": 7.25}, {"updates": 100, "perplexity": 8.5, "bleu": 8.0}],
}
SCORES = {
    "bleu": 12.3456,
    "chrf": 34.5,
    "ter": 56.7,
    "text": "test_2016",
    "sentences": 20,
    "seconds": 1.0,
    "signatures": {"bleu": "nrefs:1|tok:none", "chrf": "nc:6", "ter": "norm:no"},
}
# The same on a dataset of the Hub, as `evaluate --dataset_name` prints it.
HUB_SCORES = {
    **SCORES,
    "text": "someone/text, test",
    "direction": "en-de",
    "dataset": {"id": "someone/text", "config": "de-en", "split": "test"},
}


def front_matter(card: str) -> dict[str, Any]:
    """Return the metadata at the top of a card."""
    return yaml.safe_load(card.split("---\n")[1])
