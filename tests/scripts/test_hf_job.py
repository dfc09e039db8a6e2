"""The script for jobs of Hugging Face; tests/system/test_wheel.py runs it."""

import pytest
from corpora import ROOT
from requirement_lists import pyproject, script_metadata
from script_runs import import_script

SCRIPT = ROOT / "scripts" / "hf_job.py"


def test_the_script_installs_what_the_package_needs_and_not_the_package():
    metadata = script_metadata(SCRIPT)
    project = pyproject()["project"]
    assert metadata["dependencies"] == project["dependencies"]
    assert metadata["requires-python"] == project["requires-python"]
    # by its name, since a script can be read by anybody
    assert metadata["tool"]["hf-jobs"] == {"secrets": ["HF_TOKEN"]}


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["recipe.yaml", "--hub_model_id", "you/model"],
        ["package.whl", "--hub_model_id", "you/model"],
        # which would create a repository called as the folder
        ["package.whl", "recipe.yaml", "--dataset_name", "you/text"],
    ],
)
def test_wrong_use_of_the_script_is_one_line(words, capsys):
    assert import_script("hf_job.py").main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("usage: hf_job.py WHEEL RECIPE.yaml")
