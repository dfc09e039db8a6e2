"""The workflows on GitHub run every test once."""

from collections import Counter

import yaml
from corpora import ROOT


def test_every_test_file_is_in_one_part_of_the_matrix():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    promise, python, *parts = workflow["jobs"]["everything"]["strategy"]["matrix"]["part"]
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
