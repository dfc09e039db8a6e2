"""Folders saved with the oldest and a newer release of transformers, loaded with the one that is installed.

They are in tests/fixtures/transformers_releases, with the script that makes them. `scripts/test.sh`, with and without
`--oldest`, runs these tests, so that each release loads what the other has saved.
"""

import json
import shutil
from importlib.metadata import requires
from pathlib import Path

import pytest
from clean_process import run_python
from packaging.requirements import Requirement
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_vanilla_transformer import translate

RELEASES = sorted((Path(__file__).parent / "fixtures" / "transformers_releases").glob("*.*.*"))
# The greedy translations of each model in each direction, made with the release that saved it
EXPECTED = {release.name: json.loads((release / "expected.json").read_text(encoding="utf-8")) for release in RELEASES}

TRANSLATE = """
import json
from pathlib import Path
from transformers import pipeline

for name, directions in json.loads({expected!r}).items():
    translator = pipeline("translation", model=str(Path({folder!r}, name)), trust_remote_code=True)
    assert type(translator.model).__module__.startswith("transformers_modules"), type(translator.model)
    for direction, expected in directions.items():
        target = {{"tgt_lang": direction.split("-")[1]}} if len(directions) > 1 else {{}}
        results = translator(list(expected), num_beams=1, **target)
        found = [result["translation_text"] for result in results]
        assert found == list(expected.values()), (name, direction, found)
"""


def test_the_oldest_supported_release_is_among_them():
    requirements = map(Requirement, requires("hf-vanilla-transformer"))
    [supported] = [each for each in requirements if each.name == "transformers"]
    [oldest] = [each.version for each in supported.specifier if each.operator == ">="]
    assert len(RELEASES) > 1
    assert any(supported.specifier.contains(name) and name.startswith(f"{oldest}.") for name in EXPECTED)
    for config in (file for release in RELEASES for file in release.glob("*/config.json")):
        assert json.loads(config.read_text(encoding="utf-8"))["transformers_version"] == config.parent.parent.name


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.name)
def test_a_folder_of_another_release_translates_the_same_with_the_package(release):
    for name, directions in EXPECTED[release.name].items():
        model = AutoModelForSeq2SeqLM.from_pretrained(release / name).eval()
        tokenizer = AutoTokenizer.from_pretrained(release / name)
        for direction, expected in directions.items():
            languages = dict(zip(("source_lang", "target_lang"), direction.split("-"), strict=True))
            found = translate(model, tokenizer, list(expected), num_beams=1, **languages)
            assert found == list(expected.values())


@pytest.mark.slow
def test_folders_of_other_releases_translate_the_same_without_the_package(tmp_path):
    # One process for all of them, and not marked as slow, because --oldest leaves out slow tests
    code = ""
    for release in RELEASES:
        folder = shutil.copytree(release, tmp_path / release.name)
        for name in EXPECTED[release.name]:
            shutil.unpack_archive(release / "code.zip", folder / name)
        code += TRANSLATE.format(expected=json.dumps(EXPECTED[release.name]), folder=str(folder))
    run_python(code, tmp_path / "home")
