"""Imports run downwards only (the order is from the command line down to the configuration)."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import hf_vanilla_transformer

PACKAGE = Path(hf_vanilla_transformer.__file__).parent
MODULES = {file.stem: ast.parse(file.read_text()) for file in PACKAGE.glob("[!_]*.py")}
HUB_MODULES = {name for name in MODULES if name.endswith("_vanilla_transformer")}
ORDER = [
    "cli",
    "commands",
    "tuning",
    "demo",
    "plots",
    "training",
    "recipes",
    "trainer",
    "comparison",
    "ensemble",
    "hub",
    "safeguards",
    "ema",
    "translation",
    "shards",
    "arguments",
    "evaluation",
    "checkpoints",
    "convert",
    "export",
    "data",
    "loss",
    "batching",
    "schedule",
    "phrases",
    "tokenizer",
    "files",
    "presets",
    "loading",
    "registration",
    "modeling_vanilla_transformer",
    "pipeline_vanilla_transformer",
    "generation_vanilla_transformer",
    "decoding_vanilla_transformer",
    "layers_vanilla_transformer",
    "configuration_vanilla_transformer",
]


def imports(tree: ast.AST) -> Iterator[str]:
    """Every module imported anywhere in the file, those of this package with a leading dot."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.replace(f"{PACKAGE.name}.", ".") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = ("." * node.level + (node.module or "")).replace(f"{PACKAGE.name}.", ".")
            if module in (".", PACKAGE.name):
                yield from (f".{alias.name}" for alias in node.names if not alias.name.startswith("__"))
            else:
                yield module


def test_every_module_has_its_place_in_the_order():
    assert sorted(ORDER) == sorted(MODULES)


@pytest.mark.parametrize("name", MODULES)
def test_imports_run_downwards(name):
    below = {f".{module}" for module in ORDER[ORDER.index(name) + 1 :]}
    assert {module for module in imports(MODULES[name]) if module.startswith(".")} <= below


@pytest.mark.parametrize("name", sorted(HUB_MODULES))
def test_what_travels_with_a_saved_model_needs_only_torch_and_transformers(name):
    allowed = {"torch", "transformers", "huggingface_hub", *sys.stdlib_module_names}
    for module in imports(MODULES[name]):
        assert module in {f".{other}" for other in HUB_MODULES} or module.split(".")[0] in allowed


@pytest.mark.parametrize("name", sorted(HUB_MODULES))
def test_what_travels_with_a_saved_model_imports_its_siblings_flat(name):
    for node in ast.walk(MODULES[name]):
        if isinstance(node, ast.Import):
            assert not any(alias.name.startswith(PACKAGE.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 or (node.level == 1 and node.module in HUB_MODULES)
            assert not (node.module or "").startswith(PACKAGE.name)
