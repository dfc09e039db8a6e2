"""What the tests of exports have in common: sentences, variants of the model, and comparisons of outputs."""

import pytest
import transformers
from packaging.version import Version

from hf_vanilla_transformer.data.phrases import splits

PHRASES = [phrase.en for phrase in splits()["test"][:60]]
VARIANTS = {
    "paper": {"lm_head_bias": False, "tie_word_embeddings": True},
    "biases and GELU": {"attention_bias": True, "activation_function": "gelu"},
    "large epsilon": {"layer_norm_eps": 1e-2},
    "learned positions": {"position_embedding": "learned", "max_position_embeddings": 128},
}

NEEDS_ONNX = pytest.mark.skipif(Version(transformers.__version__) < Version("5.23"), reason="too old for ONNX exports")


def without_special_tokens(outputs: list[list[int]]) -> list[list[int]]:
    return [[token for token in output if token not in (0, 1, 2)] for output in outputs]


def count_equal(outputs: list[list[int]], expected: list[list[int]]) -> int:
    """Return how many outputs are equal, apart from special tokens."""
    pairs = zip(without_special_tokens(outputs), without_special_tokens(expected), strict=True)
    return sum(output == reference for output, reference in pairs)
