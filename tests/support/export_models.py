"""What the tests of exports have in common: sentences, variants of the model, and comparisons of outputs."""

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


def without_special_tokens(outputs: list[list[int]]) -> list[list[int]]:
    return [[token for token in output if token not in (0, 1, 2)] for output in outputs]


def count_equal(outputs: list[list[int]], expected: list[list[int]]) -> int:
    """Return how many outputs are equal, apart from special tokens."""
    pairs = zip(without_special_tokens(outputs), without_special_tokens(expected), strict=True)
    return sum(output == reference for output, reference in pairs)


def check_export_of_adapter(save_model, tokenizer, folder, format_name: str) -> None:
    """Check that an export of a model with an adapter of PEFT translates as both do in torch."""
    _, base = save_model()
    adapted = get_peft_model(load_model(str(base)), LoraConfig(target_modules=["q_proj"], init_lora_weights=False))
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
