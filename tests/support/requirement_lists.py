"""The requirements that files of the project name."""

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from corpora import ROOT
from packaging.requirements import Requirement


def read_toml(text: str) -> dict[str, Any]:
    """Return the content of a TOML document; on Python 3.10, skip the test that asks for it."""
    tomllib = pytest.importorskip("tomllib", reason="part of Python since 3.11")
    return tomllib.loads(text)


@lru_cache
def pyproject() -> dict[str, Any]:
    """Return the content of pyproject.toml, which the metadata of an editable installation may be behind."""
    return read_toml((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def script_metadata(script: Path) -> dict[str, Any]:
    """Return the metadata inside a script (PEP 723)."""
    (block,) = re.findall(
        r"^# /// script\n((?:#(?: .*)?\n)+?)# ///$", script.read_text(encoding="utf-8"), re.MULTILINE
    )
    return read_toml(re.sub(r"^# ?", "", block, flags=re.MULTILINE))


def all_requirements() -> dict[str, list[Requirement]]:
    """Return the requirements of the package, its extras, its builds and the script for jobs, by where they are."""
    project = pyproject()["project"]
    lists = {"build-system": pyproject()["build-system"]["requires"], "dependencies": project["dependencies"]}
    lists |= project["optional-dependencies"]
    lists["scripts/hf_job.py"] = script_metadata(ROOT / "scripts" / "hf_job.py")["dependencies"]
    for file in ("scripts/constraints.txt", ".github/build-requirements.txt"):
        lists[file] = re.findall(r"^[\w-]+==[\w.]+", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)
    return {place: [Requirement(text) for text in requirements] for place, requirements in lists.items()}
