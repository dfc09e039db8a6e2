"""Deleting a plugin, its entry points and its tests leaves everything else as it was."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from corpora import ROOT

PLUGINS = sorted(path.parent.name for path in (ROOT / "hf_vanilla_transformer" / "plugins").glob("*/__init__.py"))
# what imports every module of the package, finds every verb, or looks at the text of all files
TESTS = [f"tests/{name}.py" for name in ("test_imports", "test_design", "test_one_translator", "plugins/test_plugins")]
COPIED = ("hf_vanilla_transformer", "model_cards", "scripts", "tests", ".github", "pyproject.toml", "README.md")


@pytest.fixture
def copy(tmp_path) -> Path:
    """A copy of the project."""
    for name in COPIED:
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(path, tmp_path / name)
    return tmp_path


def delete(project: Path, plugin: str) -> None:
    """Delete a plugin as its author would who has no use for it any more, and write the metadata of the rest."""
    shutil.rmtree(project / "hf_vanilla_transformer" / "plugins" / plugin)
    shutil.rmtree(project / "tests" / "plugins" / plugin)
    settings = project / "pyproject.toml"
    lines = settings.read_text(encoding="utf-8").splitlines()
    name = re.compile(rf"\bhf_vanilla_transformer\.plugins\.{plugin}\b")
    settings.write_text("".join(f"{line}\n" for line in lines if not name.search(line)), encoding="utf-8")
    subprocess.run(
        [sys.executable, "-c", "from setuptools import setup; setup()", "-q", "egg_info"],
        cwd=project,
        check=True,
        capture_output=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize("plugin", PLUGINS)
def test_the_rest_works_without_a_plugin(plugin, copy):
    delete(copy, plugin)
    # its package and its metadata come before the installed ones
    environment = {**os.environ, "PYTHONPATH": str(copy)}

    def run(*words: str) -> str:
        process = subprocess.run(
            [sys.executable, "-m", *words], cwd=copy, env=environment, capture_output=True, text=True
        )
        assert process.returncode == 0, process.stdout[-3000:] + process.stderr[-3000:]
        return process.stdout

    assert plugin not in run("hf_vanilla_transformer", "--help").replace("documents", "")
    run("pytest", "-q", "-p", "no:cacheprovider", *TESTS)


@pytest.mark.parametrize("plugin", PLUGINS)
def test_only_the_tests_of_a_plugin_import_it(plugin):
    # inside a function, after a check that skips the test, others may
    imported = re.compile(rf"^(from|import) hf_vanilla_transformer\.plugins\.{plugin}\b", re.MULTILINE)
    tests = ROOT / "tests"
    importing = {path for path in tests.rglob("test_*.py") if imported.search(path.read_text(encoding="utf-8"))}
    assert importing
    assert all(path.is_relative_to(tests / "plugins" / plugin) for path in importing)
