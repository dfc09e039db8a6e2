"""The shell scripts in scripts/recipes/, on a few sentences."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from corpora import ROOT
from small import model_flags, write_moses, write_phrases

from hf_vanilla_transformer.data.phrases import splits
from hf_vanilla_transformer.data.readers import load_pairs


def run_recipe(name: str, *args: object) -> None:
    """Run a recipe with the commands of this Python environment."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(
        ["bash", f"scripts/recipes/{name}.sh", *map(str, args)],
        cwd=ROOT,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "PATH": path},
        capture_output=True,
        check=True,
    )


@pytest.mark.slow
def test_back_translation_and_distillation_train_on_pairs_and_translations(tmp_path):
    sides = {language: [getattr(p, language) for p in splits()["train"][:80]] for language in ("en", "de")}
    write_phrases(tmp_path / "pairs", splits()["train"][:60])
    write_moses(tmp_path / "monolingual", de=sides["de"][60:])
    flags = [
        *model_flags(),
        "--vocab_size",
        "300",
        "--max_steps",
        "3",
        "--max_tokens",
        "512",
        "--disable_tqdm",
        "true",
    ]
    back, distilled = tmp_path / "back", tmp_path / "distilled"
    run_recipe("back_translation", tmp_path / "pairs", tmp_path / "monolingual.de", "en", "de", back, *flags)
    assert load_pairs(str(back / "synthetic"), "en", "de")["target"][:] == sides["de"][60:]
    sources = json.loads((back / "model" / "training.json").read_text())["sources"]
    assert [(source["name"], source["tag"]) for source in sources] == [("pairs", None), ("synthetic", "<bt>")]
    directions = {
        (config["source_lang"], config["target_lang"])
        for config in (json.loads((back / name / "config.json").read_text()) for name in ("backwards", "model"))
    }
    assert directions == {("de", "en"), ("en", "de")}
    teachers = f"{back / 'model'} {back / 'model'}"
    run_recipe("distillation", teachers, tmp_path / "pairs", "en", "de", distilled, *flags)
    run_recipe("distillation", teachers, tmp_path / "pairs", "en", "de", distilled, *flags)  # finished: does nothing
    translated = load_pairs(str(distilled / "translated"), "en", "de")
    assert translated["source"][:] == sides["en"][:60]
    sources = json.loads((distilled / "model" / "training.json").read_text())["sources"]
    assert [source["name"] for source in sources] == ["pairs", "translated"]
    assert json.loads((distilled / "model" / "trainer_state.json").read_text())["global_step"] == 3
