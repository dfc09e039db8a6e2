"""A server whose model fails or hangs ends by itself, with one line, so that a supervisor starts it again."""

import signal
import subprocess
import sys
import threading

import pytest
from live_server import request, text
from server_process import serving, wait_for_log

BREAK = """
import sys, threading
from hf_vanilla_transformer.cli import main
from hf_vanilla_transformer.plugins.serving import batcher, service

batcher._SECONDS_BETWEEN_CHECKS = 0.1
search = service.ServedModel._search
count = 0

def break_after_two(self, sources, nbest):
    global count
    count += 1
    if count > 2:
        {failure}
    return search(self, sources, nbest)

service.ServedModel._search = break_after_two
sys.exit(main(sys.argv[1:]))
"""
HANG = "print('The model hangs.', file=sys.stderr, flush=True); threading.Event().wait()"


@pytest.fixture
def broken(model, tmp_path):
    """A function that serves a model that breaks after the check and one sentence."""

    def serve(failure, *flags):
        program, script = tmp_path / "python", tmp_path / "broken.py"
        script.write_text(BREAK.format(failure=failure))
        # without `-m hf_vanilla_transformer`
        program.write_text(f'#!/bin/sh\nshift 2\nexec "{sys.executable}" "{script}" "$@"\n')
        program.chmod(0o755)
        return serving(model[2], tmp_path / "log", "--no_page", *flags, python=str(program))

    return serve


def send(process) -> int:
    return request(process.port, "POST", "/translate", text("Who?")).status


@pytest.mark.slow
def test_a_model_that_fails_for_good_ends_the_server(broken):
    with broken("raise RuntimeError('device-side assert')") as process:
        assert [send(process), send(process)] == [200, 500]
        assert process.popen.wait(300) == 1
        last = process.log.read_text().splitlines()[-1]
        reason = "the model fails for every sentence (RuntimeError)"
        assert last == f"vanilla-transformer: {reason}; start the server again."


@pytest.mark.slow
def test_a_model_that_hangs_ends_the_server(broken):
    with broken(HANG, "--timeout", "10") as process:
        assert [send(process), send(process)] == [200, 504]
        assert process.popen.wait(300) == 1
        last = process.log.read_text().splitlines()[-1]
        assert last.startswith("vanilla-transformer: the model has been at work on one batch for ")


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_server_whose_model_hangs_ends_when_told_to(broken, sent):
    with broken(HANG, "--timeout", "10") as process:
        assert send(process) == 200
        client = threading.Thread(target=send, args=(process,))
        client.start()
        wait_for_log(process, "The model hangs.")
        process.popen.send_signal(sent)
        try:
            # the request that it has accepted is answered, with 504
            assert process.popen.wait(300) == 1
        except subprocess.TimeoutExpired:
            pytest.fail("the server has not ended")
        client.join()
        assert "still at work" in process.log.read_text().splitlines()[-1]
