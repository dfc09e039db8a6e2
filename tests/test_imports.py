"""Imports go only downwards, between the folders of the package and between the files of a folder."""

import ast
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import hf_vanilla_transformer

PACKAGE = Path(hf_vanilla_transformer.__file__).parent
ORDER = [
    "cli",
    "commands",
    "serving",
    "study",
    "training",
    "sharing",
    "corpus",
    "inference",
    "export",
    "data",
    "model",
    "files",
    "flags",
    "version",
]
FILES = {".".join(file.relative_to(PACKAGE).with_suffix("").parts): file for file in PACKAGE.rglob("*.py")}
# registration may import from any folder, and the package re-exports names from all of them
MODULES = {name: file for name, file in FILES.items() if not file.stem.startswith("__") and name != "registration"}
SAVED_WITH_MODELS = sorted(name for name in MODULES if name.endswith("_vanilla_transformer"))


def imports(name: str) -> Iterator[str]:
    """Yield all modules that a file imports; those of this package relative to it."""
    for node in ast.walk(ast.parse(FILES[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module or ""
        elif isinstance(node, ast.ImportFrom):
            module = ".".join([*name.split(".")[: -node.level], *filter(None, [node.module])])
            for alias in node.names:
                full = ".".join(filter(None, [module, alias.name]))
                yield full if full in FILES else module


@pytest.mark.parametrize("name", MODULES)
def test_folders_import_only_folders_below_them(name):
    own = ORDER.index(name.split(".")[0])
    for module in imports(name):
        folder = module.split(".")[0]
        assert folder != PACKAGE.name, f"{name} imports {module} by its absolute name"
        assert module, f"{name} imports the package itself"
        if module in FILES:
            assert ORDER.index(folder) >= own, f"{name} imports {module}, which is above it"


@pytest.mark.parametrize("folder", sorted({name.split(".")[0] for name in MODULES if "." in name}))
def test_the_files_of_a_folder_have_no_circular_imports(folder):
    inside = {name: {*imports(name)} for name in MODULES if name.startswith(f"{folder}.")}
    if folder == "model":  # imported there only so that transformers saves it with the model
        inside["model.modeling_vanilla_transformer"].remove("model.pipeline_vanilla_transformer")
    TopologicalSorter({name: below & inside.keys() for name, below in inside.items()}).prepare()


def test_only_hub_and_loading_name_modules_in_strings():
    named = {
        name
        for name, file in MODULES.items()
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and f"{PACKAGE.name}." in node.value
    }
    assert named <= {"sharing.hub", "model.loading"}


@pytest.mark.parametrize("name", SAVED_WITH_MODELS)
def test_files_saved_with_a_model_import_only_torch_and_transformers(name):
    allowed = {"torch", "transformers", "huggingface_hub", *sys.stdlib_module_names}
    for module in imports(name):
        assert module in SAVED_WITH_MODELS or module.split(".")[0] in allowed


@pytest.mark.parametrize("name", SAVED_WITH_MODELS)
def test_files_saved_with_a_model_import_each_other_as_siblings(name):
    for node in ast.walk(ast.parse(FILES[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0 or (node.level == 1 and f"model.{node.module}" in SAVED_WITH_MODELS)


@pytest.mark.parametrize("folder", sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py")))
def test_folder_inits_contain_only_a_docstring_that_names_existing_files(folder):
    (docstring,) = ast.parse((PACKAGE / folder / "__init__.py").read_text(encoding="utf-8")).body
    assert isinstance(docstring, ast.Expr)
    files = [word.strip("`,;.") for word in ast.literal_eval(docstring.value).split() if ".py" in word]
    assert files
    assert all((PACKAGE / folder / file).is_file() for file in files if "*" not in file)


def test_the_root_has_few_modules_and_functions_are_short():
    assert len(list(PACKAGE.glob("*.py"))) <= 7
    for name, file in FILES.items():
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno - node.lineno < 60, f"{name}: {node.name}"
