"""The workflows on GitHub run every test once."""

from collections import Counter

import yaml
from corpora import ROOT


def test_every_test_file_is_in_one_part_of_the_matrix():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    quickstart, *parts = workflow["jobs"]["everything"]["strategy"]["matrix"]["part"]
    assert quickstart == "quickstart"
    counts = Counter(
        file
        for part in parts
        for pattern in part.split()
        for path in ROOT.glob(pattern)
        for file in (path.rglob("test_*.py") if path.is_dir() else [path])
    )
    assert counts == Counter((ROOT / "tests").rglob("test_*.py"))
