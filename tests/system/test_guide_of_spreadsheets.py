"""The commands of scripts/guide/spreadsheet.md, from an Excel file of 4,000 pairs to translations over HTTP."""

import itertools
import json
import re
import shlex

import pytest
from guide_pages import GUIDE, commands
from import_files import write_xlsx
from live_server import request
from server_process import serving
from small import SIZES, as_flags

from hf_vanilla_transformer import Translator
from hf_vanilla_transformer.cli import main

SHORT = as_flags({**SIZES, "max_steps": 8, "warmup_steps": 2, "max_tokens": 1024, "disable_tqdm": "true"})
SHORT += ["--eval_strategy", "no", "--use_cpu"]
SUBJECTS = ["mwalimu", "daktari", "mtoto", "mkulima", "rafiki", "dereva", "mpishi", "fundi", "askari", "mgeni"]
OBJECTS = ["kitabu", "nyumba", "gari", "ndizi", "samaki", "meza", "mlango", "barua", "kikombe", "jiwe"]
PAIRS = [
    (f"{number} {subject[2:]} sees the {seen[1:]}.", f"{subject} {number} anaona {seen}.")
    for number, subject, seen in itertools.product(range(45), SUBJECTS, OBJECTS)
]


@pytest.mark.filterwarnings("ignore:'pin_memory' argument")
def test_four_thousand_pairs_become_a_served_model_and_next_week_more(tmp_path, monkeypatch, capsys):
    pytest.importorskip("hf_vanilla_transformer.plugins.importing", reason="needs the plugin importing")
    write_xlsx(tmp_path / "words.xlsx", PAIRS[:4000], header=("English", "Swahili"))
    write_xlsx(tmp_path / "week2.xlsx", PAIRS[4000:], header=("English", "Swahili"))
    monkeypatch.chdir(tmp_path)
    summaries = []
    trained = []
    served = []
    for command in commands(GUIDE / "spreadsheet.md"):
        _, verb, *flags = shlex.split(command)
        if verb == "serve":
            with serving(tmp_path / flags[0], tmp_path / "log") as process:
                body = {"q": PAIRS[0][0], "source": "en", "target": "sw"}
                answer = request(process.port, "POST", "/translate", body)
            assert answer.status == 200
            expected = Translator.load(flags[0]).translate([PAIRS[0][0]])[0].text
            assert answer.body["translatedText"] == " ".join(expected.splitlines())
            served.append(flags[0])
            continue
        if verb == "train":
            flags += SHORT
            flags += [] if "--model_name_or_path" in flags else ["--vocab_size", "400"]
        assert main([verb, *flags]) == 0, command
        output = capsys.readouterr()
        if verb == "import":
            summaries.append(json.loads(output.out))
        elif verb == "train":
            trained.append(output.err)
        elif verb == "evaluate":
            assert json.loads(output.out)["sentences"] == 400

    assert served == ["runs/words", "runs/words2"]
    parts = [{name: summary[name] for name in ("train", "validation", "test")} for summary in summaries]
    assert parts == [{"train": 3200, "validation": 400, "test": 400}, {"train": 500, "validation": 0, "test": 0}]
    assert re.findall(r"train, .*: ([\d,]+) of [\d,]+ pairs", trained[1]) == ["3,200", "500"], trained[1][-3000:]
    assert "- sw" in (tmp_path / "runs" / "words2" / "README.md").read_text("utf-8")
