"""Everything that translates goes through `Translator`: the design, checked on syntax trees."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import hf_vanilla_transformer
from hf_vanilla_transformer.inference.exports import format_names

PACKAGE = Path(hf_vanilla_transformer.__file__).parent
TRANSLATING = ("inference", "plugins/ctranslate2", "plugins/onnx", "model")  # folders that may decode
RUNTIMES = {"Ensemble", "CTranslate2Model", "OnnxModel", "VanillaTransformerForConditionalGeneration"}
FILES = {str(file.relative_to(PACKAGE)): file for file in PACKAGE.rglob("*.py")}
OTHERS = [name for name in FILES if not name.startswith(TRANSLATING)]


def nodes(name: str) -> Iterator[ast.AST]:
    return ast.walk(ast.parse(FILES[name].read_text(encoding="utf-8")))


def names_in(node: ast.AST) -> set[str]:
    """Return the last parts of all names in an expression."""
    return {
        part.id if isinstance(part, ast.Name) else part.attr
        for part in ast.walk(node)
        if isinstance(part, (ast.Name, ast.Attribute))
    }


@pytest.mark.parametrize("name", OTHERS)
def test_only_the_translator_and_the_runtimes_generate(name):
    called = [node.func for node in nodes(name) if isinstance(node, ast.Call)]
    passed = [node for node in nodes(name) if isinstance(node, ast.Attribute) and node.attr == "generate"]
    assert not [function for function in called if isinstance(function, ast.Attribute) and function.attr == "generate"]
    assert not passed  # as in partial(model.generate, ...)


@pytest.mark.parametrize("name", FILES)
def test_nothing_tests_the_class_of_a_runtime(name):
    tests = [
        node
        for node in nodes(name)
        if isinstance(node, ast.Call) and names_in(node.func) & {"isinstance", "issubclass"}
    ]
    assert not [node.lineno for node in tests if names_in(node.args[1]) & RUNTIMES]


@pytest.mark.parametrize("name", [name for name in OTHERS if not name.startswith("corpus")])
def test_only_the_registry_knows_the_formats_of_exports(name):
    strings = {node.value for node in nodes(name) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    assert not strings & set(format_names())


@pytest.mark.parametrize("name", [name for name in FILES if not name.startswith(("model", "training"))])
def test_only_directions_reads_languages_out_of_a_configuration(name):
    read = [
        node.lineno
        for node in nodes(name)
        if isinstance(node, ast.Attribute)
        and node.attr in ("source_lang", "target_lang", "language_pairs")
        and "config" in names_in(node.value)
    ]
    assert not read
