"""Imports go only downwards, between the folders of the package and between the files of a folder, and outside it name
only packages that pyproject.toml declares."""

import ast
import sys
from collections.abc import Iterator
from functools import lru_cache
from graphlib import TopologicalSorter
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from corpora import ROOT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from requirement_lists import pyproject

import hf_vanilla_transformer

PACKAGE = Path(hf_vanilla_transformer.__file__).parent
ORDER = [
    "cli",
    "plugins",
    "commands",
    "training",
    "sharing",
    "inference",
    "data",
    "loading",
    "model",
    "flags",
    "files",
    "errors",
    "version",
]
FILES = {".".join(file.relative_to(PACKAGE).with_suffix("").parts): file for file in PACKAGE.rglob("*.py")}
# registration may import from any folder, and the package re-exports names from all of them
MODULES = {name: file for name, file in FILES.items() if not file.stem.startswith("__") and name != "registration"}
SAVED_WITH_MODELS = sorted(name for name in MODULES if name.endswith("_vanilla_transformer"))


def height(name: str) -> int:
    """Return how far down a module is: the files that travel with a model are below everything else."""
    return len(ORDER) if name in SAVED_WITH_MODELS else ORDER.index(name.split(".")[0])


@lru_cache
def tree_of(name: str) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(FILES[name].read_text(encoding="utf-8"))


# reads the metadata of all that is installed
distributions = lru_cache(packages_distributions)


def imports(name: str) -> Iterator[str]:
    """Yield all modules that a file imports; those of this package relative to it."""
    for node in ast.walk(tree_of(name)):
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
    for module in imports(name):
        folder = module.split(".")[0]
        assert folder != PACKAGE.name, f"{name} imports {module} by its absolute name"
        assert module, f"{name} imports the package itself"
        if module in FILES:
            assert height(module) >= height(name), f"{name} imports {module}, which is above it"


@pytest.mark.parametrize("name", MODULES)
def test_no_arrow_leads_to_a_plugin_from_the_core_or_from_another_plugin(name):
    plugin = name.rpartition(".")[0]
    for module in imports(name):
        if module.startswith("plugins."):
            assert f"{module}.".startswith(f"{plugin}."), f"{name} imports {module}"


@pytest.mark.parametrize("folder", sorted({name.rpartition(".")[0] for name in MODULES if "." in name}))
def test_the_files_of_a_folder_have_no_circular_imports(folder):
    inside = {name: {*imports(name)} for name in MODULES if name.startswith(f"{folder}.")}
    if folder == "model":  # imported there only so that transformers saves it with the model
        inside["model.modeling_vanilla_transformer"].remove("model.pipeline_vanilla_transformer")
    TopologicalSorter({name: below & inside.keys() for name, below in inside.items()}).prepare()


def test_only_the_space_and_loading_name_modules_in_strings():
    named = {
        name
        for name in MODULES
        for node in ast.walk(tree_of(name))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and f"{PACKAGE.name}." in node.value
    }
    assert named <= {"plugins.demo.space", "loading"}


def test_modules_log_as_transformers_does():
    importing = {name for name in MODULES if "logging" in imports(name) and not name.startswith("model.")}
    # which configure the loggers of other libraries
    assert importing <= {"plugins.serving.process", "plugins.onnx.onnx_runtime"}


@pytest.mark.parametrize("name", SAVED_WITH_MODELS)
def test_files_saved_with_a_model_import_only_torch_and_transformers(name):
    allowed = {"torch", "transformers", "huggingface_hub", *sys.stdlib_module_names}
    for module in imports(name):
        assert module in SAVED_WITH_MODELS or module.split(".")[0] in allowed


@pytest.mark.parametrize("name", SAVED_WITH_MODELS)
def test_files_saved_with_a_model_import_each_other_as_siblings(name):
    for node in ast.walk(tree_of(name)):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0 or (node.level == 1 and f"model.{node.module}" in SAVED_WITH_MODELS)


FOLDERS = {str(path.parent.relative_to(PACKAGE)) for path in PACKAGE.rglob("*/__init__.py")}


@pytest.mark.parametrize("folder", sorted(FOLDERS - {"plugins"}))
def test_folder_inits_contain_only_a_docstring_that_names_existing_files(folder):
    (docstring,) = ast.parse((PACKAGE / folder / "__init__.py").read_text(encoding="utf-8")).body
    assert isinstance(docstring, ast.Expr)
    files = [word.strip("`,;.") for word in ast.literal_eval(docstring.value).split() if ".py" in word]
    assert files
    assert all((PACKAGE / folder / file).is_file() for file in files if "*" not in file)


def test_the_root_has_few_modules_and_functions_are_short():
    assert len(list(PACKAGE.glob("*.py"))) <= 9
    for name in FILES:
        for node in ast.walk(tree_of(name)):
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno - node.lineno < 60, f"{name}: {node.name}"


def project() -> dict:
    """Return the table [project] of pyproject.toml."""
    return pyproject()["project"]


def declared(extra: str = "") -> set[str]:
    """Return the packages in the dependencies, or those in an extra."""
    requirements = project()["optional-dependencies"][extra] if extra else project()["dependencies"]
    return {canonicalize_name(Requirement(requirement).name) for requirement in requirements}


def distribution(module: str) -> str:
    """Return the package on the index that contains a module."""
    return canonicalize_name(distributions().get(module, [module])[0])


def third_party(name: str) -> set[str]:
    """Return the packages on the index that a file of the package imports by statements."""
    modules = {module.split(".")[0] for module in imports(name) if module not in FILES}
    own = {name.split(".")[0] for name in FILES}  # a name from this package's root, or a folder of it
    return {distribution(module) for module in modules - own - {"", *sys.stdlib_module_names}}


def extras_imported(name: str) -> Iterator[tuple[str, str]]:
    """Yield the modules that a file imports with `import_extra`, with their extras."""
    tree = tree_of(name)
    # `for module in ("a", "b"): import_extra(module, extra)`
    loops = {
        node.target.id: [item.value for item in node.iter.elts if isinstance(item, ast.Constant)]
        for node in ast.walk(tree)
        if isinstance(node, ast.For) and isinstance(node.target, ast.Name) and isinstance(node.iter, ast.Tuple)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "import_extra":
            module, extra = node.args
            modules = loops[module.id] if isinstance(module, ast.Name) else [module.value]
            yield from ((module.split(".")[0], extra.value) for module in modules)


def test_every_imported_package_is_declared_and_those_of_extras_are_named_by_import_extra():
    required = declared()
    for name in FILES:
        # the files of a folder use an extra together: the server imports fastapi, which its verb has asked for
        folder = [other for other in FILES if other.rpartition(".")[0] == name.rpartition(".")[0]]
        extras = {extra for other in folder for _, extra in extras_imported(other)}
        allowed = required.union(*map(declared, extras))
        assert third_party(name) <= allowed, f"{name} imports {third_party(name) - allowed}, not declared"


def test_packages_imported_with_import_extra_are_in_that_extra():
    found = {pair for name in FILES for pair in extras_imported(name)}
    assert len(found) > 8
    for module, extra in found:
        assert distribution(module) in declared(extra), f"{module} is not in [{extra}]"


def test_the_extra_dev_contains_all_other_extras():
    extras = project()["optional-dependencies"]
    itself = next(filter(lambda requirement: requirement.name == project()["name"], map(Requirement, extras["dev"])))
    assert itself.extras == extras.keys() - {"dev"}


@pytest.mark.parametrize("folder", ["benchmarks", "study"])
def test_scripts_have_no_circular_imports(folder):
    files = {file.stem: file for file in (ROOT / "scripts" / folder).glob("*.py")}
    below = {}
    for name, file in files.items():
        nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
        below[name] = {node.module for node in nodes if isinstance(node, ast.ImportFrom)} & files.keys()
    TopologicalSorter(below).prepare()
