"""The task runner of corpus jobs."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch

from hf_vanilla_transformer.data.cleaning import available_cores
from hf_vanilla_transformer.plugins.corpus.job_folder import JobFolder, is_complete, write_json
from hf_vanilla_transformer.plugins.corpus.runner import Runner


def square(number: int) -> tuple[int, int, int]:
    return number**2, torch.get_num_threads(), os.getpid()


def fail_at(bad: int, folder, number: int) -> int:
    if number == bad:
        raise ValueError(f"task {number} is bad")
    (folder / str(number)).touch()
    return number


def kill_itself(number: int) -> int:
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def never(task: object) -> bool:
    return False


@pytest.fixture(autouse=True)
def _restore_threads():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_a_single_worker_runs_in_this_process_with_its_number_of_threads():
    assert list(Runner(workers=1, threads=2).run(square, [2, 3], never)) == [(4, 2, os.getpid()), (9, 2, os.getpid())]


@pytest.mark.slow
def test_several_workers_share_the_tasks_and_each_has_its_threads():
    results = list(Runner(workers=2, threads=1).run(square, range(20), never))
    assert sorted(result for result, _, _ in results) == [number**2 for number in range(20)]
    assert {threads for _, threads, _ in results} == {1}
    assert os.getpid() not in {process for _, _, process in results}


def test_the_shares_of_an_array_are_all_tasks_once_and_finished_tasks_are_skipped():
    shares = [
        list(Runner(workers=1, task=i, tasks=3).run(square, range(10), lambda task: task == 4)) for i in range(3)
    ]
    assert [[result for result, _, _ in share] for share in shares] == [[0, 9, 36, 81], [1, 49], [4, 25, 64]]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_the_error_of_a_task_ends_the_job_and_keeps_finished_tasks(workers, tmp_path):
    with pytest.raises(ValueError, match="task 3 is bad"):
        list(Runner(workers=workers).run(partial(fail_at, 3, tmp_path), range(1000), never))
    assert 1 <= len(list(tmp_path.iterdir())) < 500  # the others were cancelled


@pytest.mark.slow
def test_a_killed_worker_ends_the_job_with_advice():
    with pytest.raises(OSError, match=r"worker process was killed.*run the same command again"):
        list(Runner(workers=2).run(kill_itself, range(10), never))


@pytest.mark.slow
def test_workers_end_when_their_parent_is_killed():
    code = (
        "import os, time, sys\n"
        "sys.path.insert(0, 'tests/plugins/corpus')\n"
        "from test_runner import never, report_and_wait\n"
        "from hf_vanilla_transformer.plugins.corpus.runner import Runner\n"
        "if __name__ == '__main__': list(Runner(workers=2).run(report_and_wait, range(2), never))\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        try:
            assert len({int(parent.stdout.readline()) for _ in range(2)}) == 2
        finally:
            parent.kill()
        # it ends when no process holds the other end of the pipe
        assert parent.communicate(timeout=100)[0] == ""


def report_and_wait(number: int) -> None:
    print(os.getpid(), flush=True)
    time.sleep(200)


def test_an_address_where_nothing_answers_is_reported_at_once():
    pytest.importorskip("ray")  # which takes seconds itself
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    start = time.monotonic()
    with pytest.raises(OSError, match=f"Nothing answers at the Ray address 127.0.0.1:{port}"):
        list(Runner(ray=f"127.0.0.1:{port}").run(square, [1], never))
    assert time.monotonic() - start < 30


def test_the_number_of_workers_follows_from_cores_and_threads():
    assert Runner(threads=1).processes == available_cores()
    assert Runner(threads=10_000).processes == 1
    assert Runner(workers=3, threads=2).describe() == "3 workers of 2 threads each"
    assert Runner(workers=1).describe() == "1 worker of 1 thread"


def test_leftovers_of_interrupted_tasks_are_removed(tmp_path):
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "00001.json.1a2b.unfinished").touch()
    write_json(tmp_path / "tasks" / "00001.json", {"bytes": 3})
    JobFolder(tmp_path, "manifest.json", "tasks", dict).finish({}, {})
    (tmp_path / "manifest.json").unlink()
    assert [file.name for file in (tmp_path / "tasks").iterdir()] == ["00001.json"]


@pytest.mark.parametrize("vanishing", ["tasks", "tasks/00001.unfinished", "tasks/shards.unfinished"])
def test_leftovers_may_vanish_while_they_are_removed(vanishing, tmp_path, monkeypatch):
    (tmp_path / "tasks" / "shards.unfinished").mkdir(parents=True)
    (tmp_path / "tasks" / "00001.unfinished").touch()
    walk, lost, gone = os.walk, tmp_path / vanishing, []

    def walk_and_lose(folder):
        for found in walk(folder):
            if Path(found[0]) == lost.parent:
                # by another process, after the folder was read
                shutil.rmtree(lost) if lost.is_dir() else lost.unlink()
                gone.append(lost)
            yield found

    monkeypatch.setattr(os, "walk", walk_and_lose)
    JobFolder(tmp_path, "manifest.json", "tasks", dict).remove_leftovers()
    monkeypatch.undo()
    assert gone == [lost]
    assert not list(tmp_path.rglob("*.unfinished"))


def test_a_task_whose_note_is_damaged_is_not_done(tmp_path):
    part = tmp_path / "part"
    part.write_text("12345")
    for note in ({"bytes": 5, "lines": "2"}, {"bytes": 4, "lines": 2}, {"lines": 2}, [], {"bytes": True, "lines": 2}):
        write_json(tmp_path / "note", note)
        assert not is_complete(part, tmp_path / "note", {"lines": int})
    for content in ("", "{", "[" * 100_000):
        (tmp_path / "note").write_text(content)
        assert not is_complete(part, tmp_path / "note", {"lines": int})
    write_json(tmp_path / "note", {"bytes": 5, "lines": 2})
    assert is_complete(part, tmp_path / "note", {"lines": int})
