"""Variants of the model, and outputs of many lengths, for the tests of the searches."""

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
