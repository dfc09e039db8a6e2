"""Variants of the model, and outputs of many lengths, for the tests of the searches."""

from typing import Any

from hf_vanilla_transformer import Translator
from hf_vanilla_transformer.inference.translator import Hypothesis

MODELS = {
    "paper": {},
    "custom d_k and d_v": {"d_k": 5, "d_v": 9},
    "attention biases": {"attention_bias": True, "activation_function": "gelu"},
    "learned positions": {"position_embedding": "learned", "max_position_embeddings": 70},
    "vocabulary of many blocks": {"vocab_size": 3333},
}


def with_varied_lengths(model):
    """Make a random model end its sentences at many lengths, with large differences between the logits."""
    model.lm_head.weight.data *= 3
    model.lm_head.bias.data[2] += 3.0
    return model


def translate_ids(model, sources, **settings) -> list[list[int]]:
    """Return the best ids that `Translator` finds for each source."""
    tokenizer: Any = None  # so that only the model limits the length
    return [output.hypotheses[0] for output in Translator(model, tokenizer).translate_ids(sources, **settings)]


def nbest_lists(model, tokenizer, sentences, nbest, **settings) -> list[list[Hypothesis]]:
    """Return the n-best list that `Translator` finds for each sentence."""
    translations = Translator(model, tokenizer).translate(sentences, nbest=nbest, scores=True, **settings)
    return [translation.hypotheses for translation in translations]
