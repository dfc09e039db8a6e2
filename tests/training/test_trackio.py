"""The metrics that trackio gets, read by its own reader."""

import json
from importlib.util import find_spec

import pytest
from clean_process import run_python

# In a new process, because trackio reads TRACKIO_DIR when it is imported
TRAIN_AND_READ = """
import json
from hf_vanilla_transformer.cli import main
for updates in ("4", "6"):
    assert main(["train", *{flags!r}, "--max_steps", updates]) == 0
from trackio.sqlite_storage import SQLiteStorage
print(json.dumps([SQLiteStorage.get_logs("study", run) for run in SQLiteStorage.get_runs("study")], default=str))
"""


@pytest.mark.slow
@pytest.mark.skipif(find_spec("trackio") is None, reason="trackio is not installed")
def test_trackio_gets_all_metrics_and_continues_a_resumed_run_of_the_same_name(run_flags, text_flags, tmp_path):
    tracker = ["--report_to", "trackio", "--project", "study", "--run_name", "first"]
    flags = run_flags(tmp_path / "run", *text_flags, *tracker, "--save_steps", "2", "--eval_steps", "2")
    code = TRAIN_AND_READ.format(flags=[*flags, "--no_eval_bleu"])
    result = run_python(code, tmp_path / "home", package=True, TRACKIO_DIR=str(tmp_path / "board"))
    # what trackio prints does not mix with results
    assert len(result.stdout.splitlines()) == 1
    assert "Trackio" in result.stderr
    (logged,) = json.loads(result.stdout)
    history = json.loads((tmp_path / "run" / "trainer_state.json").read_text())["log_history"]
    for name in ("loss", "perplexity", "learning_rate", "eval_loss", "eval_perplexity"):
        label = name.replace("eval_", "eval/") if name.startswith("eval_") else f"train/{name}"
        curve = {row["train/global_step"]: row[label] for row in logged if label in row}
        assert curve == pytest.approx({entry["step"]: entry[name] for entry in history if name in entry}, rel=1e-5)
        assert max(curve) == 6
    assert (tmp_path / "board" / "study.db").is_file()
