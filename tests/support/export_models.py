"""What the tests of exports have in common: sentences, variants of the model, and comparisons of outputs."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from packaging.version import Version
from peft import LoraConfig, get_peft_model

from hf_vanilla_transformer.data.phrases import splits
from hf_vanilla_transformer.inference.exports import load_export
from hf_vanilla_transformer.inference.runtime import Runtime
from hf_vanilla_transformer.loading import load_model

PHRASES = [phrase.en for phrase in splits()["test"][:60]]
VARIANTS = {
    "paper": {"lm_head_bias": False, "tie_word_embeddings": True},
    "biases and GELU": {"attention_bias": True, "activation_function": "gelu"},
    "large epsilon": {"layer_norm_eps": 1e-2},
    "learned positions": {"position_embedding": "learned", "max_position_embeddings": 128},
}

NEEDS_ONNX = pytest.mark.skipif(Version(transformers.__version__) < Version("5.23"), reason="too old for ONNX exports")


# Decoding settings saved with a model
SETTINGS = {
    "no repetitions": {"no_repeat_ngram_size": 2},
    "a penalty for repetitions": {"repetition_penalty": 1.5},
    "suppressed tokens": {"suppress_tokens": [19, 48, 116]},
    "words to avoid": {"bad_words_ids": [[19], [48], [116]]},
    "a forced first token": {"forced_bos_token_id": 77},
    "an end that is also a word to avoid": {"bad_words_ids": [[2], [19]]},
    "a forced last token": {"forced_eos_token_id": 2},
    "one of several forced last tokens": {"forced_eos_token_id": [48, 2], "eos_token_id": [2, 48]},
    "several last tokens": {"eos_token_id": [2, 19, 48]},
    "a start token": {"decoder_start_token_id": 55},
    "a shortest translation": {"min_length": 9},
    "a smallest number of tokens": {"min_new_tokens": 9},
    "sampling from one token": {"do_sample": True, "top_k": 1},
    "defaults of transformers": {"top_p": 1.0, "guidance_scale": 1.0, "encoder_repetition_penalty": 1.0},
}


def save_padded(save_model, tokenizer, gaps: int = 0):
    """Save a model with an unused id after its tokens, and `gaps` among them; return the model and its folder."""
    model, folder = save_model(vocab_size=len(tokenizer) + gaps + 29)
    # random weights generate what trained ones do not
    model.lm_head.bias.data[-1] += 22.0
    model.save_pretrained(folder)
    if gaps:
        # the ids of the last tokens of a vocabulary that has lost those before them
        content = json.loads((folder / "tokenizer.json").read_text())
        vocabulary = content["model"]["vocab"]
        first = len(vocabulary) - 40
        content["model"]["vocab"] = {token: i + gaps * (i >= first) for token, i in vocabulary.items()}
        (folder / "tokenizer.json").write_text(json.dumps(content))
    return model, folder


def without_special_tokens(outputs: list[list[int]]) -> list[list[int]]:
    return [[token for token in output if token not in (0, 1, 2)] for output in outputs]


def count_equal(outputs: list[list[int]], expected: list[list[int]]) -> int:
    """Return how many outputs are equal, apart from special tokens."""
    pairs = zip(without_special_tokens(outputs), without_special_tokens(expected), strict=True)
    return sum(output == reference for output, reference in pairs)


def check_export_of_adapter(save_model, tokenizer, folder, format_name: str) -> None:
    """Check that an export of a model with an adapter of PEFT translates as both do in torch."""
    _, base = save_model(tie_word_embeddings=True)
    # the projection to the vocabulary has no adapter, but the same matrix as a module that has one
    layers = LoraConfig(target_modules=["q_proj", "shared"], init_lora_weights=False)
    adapted = get_peft_model(load_model(str(base)), layers)
    adapted.save_pretrained(folder / "adapter")
    tokenizer.save_pretrained(folder / "adapter")
    sources = torch.tensor([[token] * 6 for token in range(4, 200)])
    settings = {"num_beams": 1, "max_new_tokens": 1}
    exported = load_export(str(folder / "adapter"), format_name).generate(sources, **settings)
    assert torch.equal(exported, adapted.eval().generate(input_ids=sources, **settings))
    assert not torch.equal(exported, load_model(str(base)).eval().generate(sources, **settings))


def overwrite(folder: Path) -> None:
    """Overwrite what a model has learned, in place, as `cp` and `rsync --inplace` do."""
    weights = [file for pattern in ("*.safetensors", "*.bin", "*.data") for file in folder.glob(pattern)]
    assert weights
    for file in weights:
        with file.open("r+b") as content:
            content.write(bytes(file.stat().st_size))


def check_independence_of_files(folder: Path, model: Runtime) -> None:
    """Check that the output of a model that was loaded from a folder does not depend on its files any more."""
    sources = torch.tensor([[token] * 6 for token in range(4, 100)])
    settings = {"num_beams": 1, "max_new_tokens": 2}
    # where a truncated file would end the process
    assert str(folder) not in Path("/proc/self/maps").read_text()
    expected = model.generate(sources, **settings)
    overwrite(folder)
    assert torch.equal(model.generate(sources, **settings), expected)
    assert not torch.equal(expected[:, 1:], expected[:1, 1:].expand_as(expected[:, 1:]))
