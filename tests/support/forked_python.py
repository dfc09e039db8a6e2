"""A stand-in for Python that starts in a tenth of a second: it is forked from a process that has imported the package.

Importing torch, transformers and datasets takes each new process several seconds. The stand-in runs a script, `-m` or
`-c`, as Python does. What Python does when it starts and ends is not done, and all processes share one seed of hashes
and what modules read when they are imported, such as HF_HOME: tests of that, of closed standard streams or of aborts
need a process of their own. test_end_to_end.py and test_wheel.py run the verbs in real ones.
"""

import atexit
import contextlib
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from functools import cache
from pathlib import Path
from typing import NoReturn

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# before a test changes it
_ENVIRONMENT = {**os.environ}


@cache
def forked_python() -> str:
    """Start the process that forks, once, and return the path of the stand-in."""
    folder = tempfile.TemporaryDirectory(prefix="python")
    program = Path(folder.name, "python")
    address = Path(folder.name, "socket")
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -IS "{__file__}" request "{address}" "$@"\n')
    program.chmod(0o755)
    command = [sys.executable, __file__, "serve", str(address)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=_ENVIRONMENT, cwd=Path(__file__).parents[2]
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"

    def stop() -> None:
        assert process.stdin is not None
        # not communicate(): processes that a test has left running hold the other end of its pipe
        process.stdin.close()
        process.wait()
        folder.cleanup()

    atexit.register(stop)
    return str(program)


def serve(address: str) -> None:
    """Fork a process for each request, until standard input ends."""
    import hf_vanilla_transformer.inference.metrics
    import hf_vanilla_transformer.training.run  # noqa: F401

    for plugin in ("corpus.corpus_translation", "serving.process"):
        with contextlib.suppress(ImportError):
            importlib.import_module(f"hf_vanilla_transformer.plugins.{plugin}")

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        print("ready", flush=True)
        while sys.stdin not in select.select([sys.stdin, listener], [], [])[0]:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                answer(connection)
            connection.close()
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass


def answer(connection: socket.socket) -> NoReturn:
    """Run what is requested in a new process, and send its number, then the status with which it ends."""
    words, streams, *_ = socket.recv_fds(connection, 4, 3)
    request = connection.makefile("rb").read(int.from_bytes(words, "big"))
    pid = os.fork()
    if pid == 0:
        os.setpgrp()
        connection.close()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        run(**json.loads(request))
    for stream in streams:
        os.close(stream)

    def kill_without_client() -> None:
        with contextlib.suppress(ConnectionError):
            connection.recv(1)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)

    threading.Thread(target=kill_without_client, daemon=True).start()
    with contextlib.suppress(BrokenPipeError):
        connection.sendall(b"%d\n" % pid)
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(BrokenPipeError):
        connection.sendall(b"%d\n" % status)
    os._exit(0)


def run(words: list[str], folder: str, environment: dict[str, str]) -> NoReturn:
    """Do in this process what Python does with these words, and end it without taking the interpreter down."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    option, *rest = words
    sys.path[0] = folder if option in ("-m", "-c") else str(Path(option).resolve().parent)
    sys.argv = {"-m": rest, "-c": ["-c", *rest[1:]]}.get(option, words)
    status: object = 0
    try:
        if option == "-m":
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        elif option == "-c":
            exec(rest[0], {"__name__": "__main__"})
        else:
            runpy.run_path(option, run_name="__main__")
    except SystemExit as stop:
        status = stop.code
    except BaseException:
        status = traceback.format_exc()
    if isinstance(status, str):
        print(status, file=sys.stderr)
    # nothing is left to be interrupted
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(1 if isinstance(status, str) else status or 0)


def request(address: str, words: list[str]) -> NoReturn:
    """Ask for a process that does what Python does with these words, and end as it ends."""
    content = json.dumps({"words": words, "folder": os.getcwd(), "environment": dict(os.environ)}).encode()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        socket.send_fds(connection, [len(content).to_bytes(4, "big")], [0, 1, 2])
        connection.sendall(content)
        answers = connection.makefile("rb")
        pid = int(answers.readline())

        def forward(number: int, frame: object) -> None:
            # it may have ended already
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

        for number in FORWARDED:
            signal.signal(number, forward)
        status = os.waitstatus_to_exitcode(int(answers.readline()))
    if status < 0:
        if status != -signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        request(sys.argv[2], sys.argv[3:])
