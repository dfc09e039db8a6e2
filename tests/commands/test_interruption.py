import shutil
import signal
import time

import pytest


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["export", "average"])
def test_ctrl_c_leaves_no_partial_files(verb, saved, start_process):
    folder = saved.folder
    if verb == "average":
        for step in range(1, 40):
            shutil.copytree(folder / "model", folder / "run" / f"checkpoint-{step}")
        words = ["average", folder / "run", "--last", 39, "--output_dir", folder / "out"]
    else:
        words = ["export", folder / "model", folder / "out", "--format", "ctranslate2"]
    before = set(folder.iterdir())
    with start_process(*words) as process:
        while process.poll() is None and set(folder.iterdir()) == before:
            time.sleep(0.001)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
    assert process.returncode in (0, 130), errors
    left = {file.name for place in set(folder.iterdir()) - before for file in place.rglob("*")}
    assert not [name for name in left if "unfinished" in name]
    assert process.returncode == 0 or not left & {"model.safetensors", "model.bin"}
