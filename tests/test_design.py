"""The design, held on syntax trees."""

import ast
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import get_type_hints

import pytest

import hf_vanilla_transformer
from hf_vanilla_transformer.cli import find_verbs, parses_words
from hf_vanilla_transformer.training.arguments import RUN_FLAGS

PACKAGE = Path(hf_vanilla_transformer.__file__).parent
TRAINING = [PACKAGE / "training" / f"{name}.py" for name in ("run", "record", "recipes")]
COMMANDS = sorted((PACKAGE / "commands").glob("*.py"))
SPLITS = {"test", "validation"}  # flags of `import`, and names of parts of a text everywhere
VERBS = [verb for verb in find_verbs().values() if not parses_words(verb)]
ARGUMENTS = [get_type_hints(verb.run)["args"] for verb in VERBS]
# a verb of several kinds, as `plot`, has flags for each
VERB_FLAGS = [flags for kind in ARGUMENTS for flags in getattr(kind, "KINDS", {"": kind}).values()]


def names(*kinds: type) -> set[str]:
    return {flag.name for kind in kinds for flag in dataclasses.fields(kind)}


def named_flags(tree: ast.Module, flags: set[str]) -> Iterator[str]:
    """Yield the flags that code names in lists, comparisons, look-ups or arguments: outside their dataclass.

    Keys of dictionaries are not looked at, because records and keyword arguments have such names too.
    """
    for node in ast.walk(tree):
        places: list[ast.AST] = []
        if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
            places = [*node.elts]
        elif isinstance(node, ast.Compare):
            places = [node.left, *node.comparators]
        elif isinstance(node, ast.Subscript):
            places = [node.slice]
        elif isinstance(node, ast.Call):
            places = [*node.args]
        for place in places:
            if isinstance(place, ast.Constant) and isinstance(place.value, str) and place.value in flags:
                yield f"line {place.lineno}: {place.value}"


@pytest.mark.parametrize("file", [*TRAINING, *COMMANDS], ids=lambda file: f"{file.parent.name}.{file.stem}")
def test_no_flag_is_named_outside_its_dataclass(file):
    flags = names(*(RUN_FLAGS if file in TRAINING else VERB_FLAGS)) - SPLITS
    assert not list(named_flags(ast.parse(file.read_text(encoding="utf-8")), flags))


@pytest.mark.parametrize("code", ['("seed", "x")', 'settings["seed"]', 'name == "seed"', 'settings.pop("seed")'])
def test_the_search_for_named_flags_finds_one_of_each_kind(code):
    assert [*named_flags(ast.parse(code), names(*RUN_FLAGS))]
