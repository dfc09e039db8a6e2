"""The workflows on GitHub run every test once, and nothing that others could exchange."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from corpora import ROOT
from script_runs import import_script

FILES = {file.name: file for file in (ROOT / ".github" / "workflows").iterdir()}
DOCKERFILES = [file for file in (ROOT / "scripts").rglob("Dockerfile*")]
DIGEST = re.compile(r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}")


def jobs(name: str) -> dict[str, dict[str, Any]]:
    """Return the jobs of a workflow."""
    return yaml.safe_load(FILES[name].read_text(encoding="utf-8"))["jobs"]


def test_every_test_file_is_in_one_part_of_the_matrix():
    promise, python, *parts = jobs("ci.yml")["everything"]["strategy"]["matrix"]["part"]
    assert (promise, python) == ("promise", "python")
    assert {part.split()[0] for part in parts} == {"rest"}
    counts = Counter(
        file
        for part in parts
        for pattern in part.split()[1:]
        for path in ROOT.glob(pattern)
        for file in (path.rglob("test_*.py") if path.is_dir() else [path])
    )
    assert counts == Counter((ROOT / "tests").rglob("test_*.py"))


def test_every_action_is_a_commit_with_its_version_beside_it():
    commits: dict[str, set[str]] = {}
    for name, file in FILES.items():
        for action in re.findall(r"uses: *(.+)", file.read_text(encoding="utf-8")):
            if action.startswith("./"):
                continue
            match = re.fullmatch(r"([\w/-]+)@([0-9a-f]{40}) # v\d+\.\d+\.\d+", action)
            assert match, f"{name}: {action}"
            commits.setdefault(match[1], set()).add(match[2])
    assert len(commits) == 6
    assert all(len(versions) == 1 for versions in commits.values())


def test_every_image_has_a_digest():
    images = [job["container"]["image"] for name in FILES for job in jobs(name).values() if "container" in job]
    for file in DOCKERFILES:
        stages = re.findall(r"^FROM (\S+)", file.read_text(encoding="utf-8"), re.MULTILINE)
        assert len({*stages}) == 1, file
        images += stages
    assert len(images) >= 3
    assert [image for image in images if not DIGEST.fullmatch(image)] == []


@pytest.mark.parametrize("name", FILES)
def test_jobs_may_only_read_and_keep_no_credentials(name):
    workflow = yaml.safe_load(FILES[name].read_text(encoding="utf-8"))
    assert workflow["permissions"] == {"contents": "read"}
    more = {job: settings["permissions"] for job, settings in workflow["jobs"].items() if "permissions" in settings}
    uploads = {"publish": {"id-token": "write"}, "attach": {"contents": "write"}}
    assert more == (uploads if name == "release.yml" else {})
    for job in workflow["jobs"].values():
        for step in job.get("steps", []):
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False


def test_the_jobs_that_upload_a_release_run_nothing_of_the_repository():
    test, build, publish, model, attach = jobs("release.yml").values()
    assert test == {"uses": "./.github/workflows/ci.yml"}
    assert (build["needs"], publish["needs"]) == ("test", "build")
    assert [step["uses"].partition("@")[0] for step in publish["steps"]] == [
        "actions/download-artifact",
        "pypa/gh-action-pypi-publish",
    ]
    assert (model["needs"], attach["needs"]) == ("test", ["publish", "model"])
    download, release = attach["steps"]
    assert download["uses"].startswith("actions/download-artifact@")
    assert release["run"].startswith('gh release create "$GITHUB_REF_NAME" ')
    # what the script packs is what is attached
    (packed,) = [
        step["with"] for step in model["steps"] if step.get("with", {}).get("name") == download["with"]["name"]
    ]
    assert packed["path"] == f"out/{import_script('build_model.py').NAME}.zip"
    assert release["run"].endswith(Path(packed["path"]).name)
    assert ".venv/bin/python scripts/build_model.py out" in [step.get("run") for step in model["steps"]]
    # the builder and all that it needs, by their hashes, and nothing of a cache that other jobs may write to
    (install,) = [step["run"] for step in build["steps"] if "pip install" in step.get("run", "")]
    assert "--require-hashes" in install
    assert "python -m build --no-isolation" in [step.get("run") for step in build["steps"]]
    assert not any("cache" in str(step) for step in build["steps"])
    pinned = (ROOT / ".github" / "build-requirements.txt").read_text(encoding="utf-8").splitlines()
    assert all(re.fullmatch(r"#.*|[\w-]+==[\w.]+ --hash=sha256:[0-9a-f]{64}", line) for line in pinned)
