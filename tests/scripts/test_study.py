"""The scripts in scripts/study/."""

import json
import re
import runpy

import pytest
from corpora import ROOT
from script_runs import read_table, run_script
from small import write_moses, write_phrases

from hf_vanilla_transformer.data.phrases import splits
from hf_vanilla_transformer.training.presets import PRESETS


@pytest.fixture
def run_here(monkeypatch, capsys):
    """A function that runs a script of scripts/study/ in this process and returns what it printed."""
    monkeypatch.syspath_prepend(ROOT / "scripts" / "study")

    def run(name: str, *flags: object) -> tuple[str, str]:
        monkeypatch.setattr("sys.argv", [f"{name}.py", *map(str, flags)])
        runpy.run_path(str(ROOT / "scripts" / "study" / f"{name}.py"), run_name="__main__")
        return capsys.readouterr()

    return run


def test_table3_prints_our_parameter_counts_beside_every_row_of_the_paper(run_here):
    rows = read_table(run_here("table3")[0])
    assert set(rows) == {*PRESETS} - {"tiny"}
    for row in rows.values():
        if row["M parameters (paper)"]:
            assert float(row["M parameters (ours)"]) == pytest.approx(float(row["M parameters (paper)"]), rel=0.07)
    assert (rows["big"]["PPL (paper)"], rows["big"]["BLEU (paper)"]) == ("4.33", "26.4")
    assert (rows["base"]["M parameters (paper)"], rows["C5"]["M parameters (paper)"]) == ("65", "168")
    assert (rows["B1"]["d_k"], rows["B1"]["d_v"]) == ("16", "64")


@pytest.mark.slow
def test_ablate_trains_all_rows_for_the_same_number_of_steps_and_resumes(run_here, datasets_cache, tmp_path):
    for split in ("train", "validation"):
        write_phrases(tmp_path / split, splits()[split][:100])
    flags = ["--reduce", "16", "--num_encoder_layers", "1", "--num_decoder_layers", "1", "--vocab_size", "300"]
    flags += ["--max_steps", "3", "--max_tokens", "256", "--save_steps", "3", "--eval_strategy", "no", "--use_cpu"]
    flags += ["--train_file", str(tmp_path / "train"), "--validation_file", str(tmp_path / "validation")]
    flags += ["--dropout", "0.3", "--output_dir", str(tmp_path)]
    names = ["base", "B1", "D1", "D3"]
    rows = read_table(run_here("ablate", *names, *flags)[0])
    assert list(rows) == names
    assert {row["steps"] for row in rows.values()} == {"3"}
    results = json.loads((tmp_path / "ablation.json").read_text())
    assert results["B1"]["millions"] < results["base"]["millions"] == results["D1"]["millions"]
    for name, change in (("base", {"dropout: 0.3"}), ("D1", {"dropout: 0.0"}), ("B1", {"d_k: 1", "dropout: 0.3"})):
        settings = (tmp_path / name / "settings.yaml").read_text().splitlines()
        assert change <= set(settings)
    assert "label_smoothing_factor: 0.0" in (tmp_path / "D3" / "settings.yaml").read_text()
    again, errors = run_here("ablate", *names, *flags)
    assert errors.count("is finished") == 4
    assert read_table(again) == rows
    assert list(read_table(run_here("ablate", "D1", *flags)[0])) == ["D1"]
    assert json.loads((tmp_path / "ablation.json").read_text()) == results


def test_ablate_requires_validation_text(run_here, tmp_path):
    text = write_moses(tmp_path / "text", en=["one two three"] * 50, de=["eins zwei drei"] * 50)
    with pytest.raises(SystemExit, match=r"^ablate\.py: .* pass it with --validation_file"):
        run_here("ablate", "base", "--train_file", text, "--output_dir", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_train_copy_learns_both_tasks_without_a_mistake():
    output = run_script("study/train_copy.py", "--steps", "900").stdout
    assert re.findall(r"(copy|reverse): 100\.0% exact matches", output) == ["copy", "reverse"], output
    assert len((ROOT / "scripts" / "study" / "train_copy.py").read_text().splitlines()) < 80


@pytest.mark.slow
def test_the_walkthrough_shows_code_and_numbers(tmp_path):
    # with fewer updates
    script = (ROOT / "scripts" / "study" / "walkthrough.py").read_text(encoding="utf-8")
    for setting, shorter in (("max_steps=1500", "max_steps=450"), ("logging_steps=150", "logging_steps=45")):
        assert setting in script
        script = script.replace(setting, shorter)
    (tmp_path / "walkthrough.py").write_text(script, encoding="utf-8")
    walk = run_script(tmp_path / "walkthrough.py")
    assert walk.returncode == 0, walk.stderr[-2000:]
    for title in (
        "3.2.1 Scaled",
        "3.2.2 Multi",
        "3.2.3 Masks",
        "3.3 Feed",
        "3.4 Emb",
        "3.5 Pos",
        "5.3 Opt",
        "6.1 Beam",
    ):
        assert title in walk.stdout
    places = re.findall(r"^(\w+\.py), line (\d+):\n    (.+)$", walk.stdout, re.MULTILINE)
    assert len(places) > 10
    for file, line, text in places:
        (source,) = (ROOT / "hf_vanilla_transformer").rglob(file)
        lines = source.read_text(encoding="utf-8").splitlines()
        assert lines[int(line) - 1].strip() == text.strip()
    assert "each row sums to 1.000" in walk.stdout
    assert "mean 0.0000 and variance 1.0000" in walk.stdout
    losses = [float(loss) for loss in re.findall(r"'loss': '([\d.]+)'", walk.stdout)]
    assert losses[-1] < losses[0] / 2


@pytest.mark.parametrize("moses", [[], ["--moses"]])
def test_tokens_per_sentence_are_compared_with_subword_nmt(moses, run_here, tmp_path):
    pytest.importorskip("subword_nmt")
    for split in ("train", "test"):
        write_phrases(tmp_path / split, splits()[split][:500])
    flags = ["--test", tmp_path / "test", "--vocab_size", "600", *moses]
    (row,) = read_table(run_here("tokens_per_sentence", tmp_path / "train", *flags)[0]).values()
    theirs, ours = float(row["subword-nmt"]), float(row["byte-level BPE"])
    assert 10 < ours < 1.2 * theirs
    assert float(row["difference"].removesuffix(" %")) == pytest.approx(100 * (ours / theirs - 1), abs=0.1)
