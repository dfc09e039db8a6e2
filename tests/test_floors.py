"""No requirement of the project allows a release with a known hole: `fixtures/floors.yaml` says which, and why."""

import re
from importlib.metadata import PackageNotFoundError, version

import pytest
import yaml
from corpora import ROOT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from requirement_lists import all_requirements, pyproject

FLOORS = yaml.safe_load((ROOT / "tests" / "fixtures" / "floors.yaml").read_text(encoding="utf-8"))


def lowest(requirement: Requirement) -> Version:
    """Return the lowest version that a requirement allows."""
    return max(Version(part.version) for part in requirement.specifier if part.operator in (">=", "=="))


@pytest.mark.parametrize("package", FLOORS)
def test_no_requirement_allows_a_release_with_a_known_hole(package):
    floor, reason = Version(str(FLOORS[package]["floor"])), FLOORS[package]["reason"]
    places = {
        place: lowest(requirement)
        for place, requirements in all_requirements().items()
        for requirement in requirements
        if canonicalize_name(requirement.name) == package
    }
    assert places, "no longer required: remove it from the list"
    assert not {place for place, allowed in places.items() if allowed < floor}, reason


# builds bring their own setuptools
@pytest.mark.parametrize("package", sorted(FLOORS.keys() - {"setuptools"}))
def test_no_installed_package_has_a_known_hole(package):
    try:
        installed = Version(version(package))
    except PackageNotFoundError:
        pytest.skip(f"{package} is not installed")
    assert installed >= Version(str(FLOORS[package]["floor"])), FLOORS[package]["reason"]


def test_every_floor_has_a_reason_that_can_be_looked_up():
    assert not [name for name, entry in FLOORS.items() if not re.search("CVE-|pull request", entry["reason"])]


def test_every_requirement_has_a_lowest_version():
    itself = pyproject()["project"]["name"]
    for place, requirements in all_requirements().items():
        for requirement in requirements:
            assert requirement.name == itself or lowest(requirement), f"{place}: {requirement}"
