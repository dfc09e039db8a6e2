"""Progress bars in a new process, since tqdm reads its defaults once."""

import os
import subprocess
import sys

import pytest
from terminal import Terminal

# Bars of tqdm and of `datasets`, one for work that has taken two seconds, as if it had started earlier
BARS = """
from hf_vanilla_transformer import cli
cli.main(["average", "missing", "--output_dir", "missing"])
from datasets.utils import tqdm as of_datasets
from tqdm import tqdm
for kind in (tqdm, of_datasets):
    list(kind(range(3), desc=f"{kind.__module__} short"))
    bar = kind(range(3), desc=f"{kind.__module__} long", mininterval=0)
    if not bar.disable:
        bar.start_t = bar.last_print_t = bar.start_t - 2
    list(bar)
"""


@pytest.mark.parametrize("in_terminal", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_bars_of_all_libraries_are_drawn_in_a_terminal_and_after_the_first_second(tmp_path, in_terminal):
    settings = {name: value for name, value in os.environ.items() if not name.startswith("TQDM_")}
    with Terminal() as terminal, open(tmp_path / "log", "w+", encoding="utf-8") as log:
        stream = terminal.stream if in_terminal else log
        subprocess.run([sys.executable, "-c", BARS], stderr=stream, env=settings, cwd=tmp_path, check=True)
        log.seek(0)
        shown = terminal.read() if in_terminal else log.read()
    # the message of the verb, after which tqdm was imported
    assert "missing" in shown
    assert "short" not in shown
    for name in ("tqdm.std long", "datasets.utils.tqdm long"):
        assert (f"{name}: 100%" in shown) is in_terminal
