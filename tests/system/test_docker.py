"""What scripts/docker/Dockerfile copies and runs, as far as it can be tested without Docker."""

import json
import re
import shlex
import signal
import subprocess
import sys

import pytest
from corpora import ROOT
from live_server import request, text
from server_process import serving

DOCKERFILE = (ROOT / "scripts" / "docker" / "Dockerfile").read_text(encoding="utf-8")


def instructions(name: str) -> list[str]:
    """Return what follows each instruction of this name, with continued lines joined."""
    return re.findall(rf"^{name} (.*)$", DOCKERFILE.replace("\\\n", ""), re.MULTILINE)


def command(name: str) -> list[str]:
    """Return the words of the only command in JSON of an instruction, such as those of ENTRYPOINT."""
    (found,) = instructions(name)
    return json.loads(found[found.index("[") :])


def test_all_files_that_the_image_copies_exist_and_contain_what_it_installs():
    copies = [shlex.split(words)[:-1] for words in instructions("COPY") if not words.startswith("--from=")]
    copied = {file for files in copies for file in files}
    assert all((ROOT / file).exists() for file in copied)
    assert {"pyproject.toml", "README.md", "LICENSE", "hf_vanilla_transformer"} <= copied


@pytest.mark.slow
def test_the_command_of_the_image_serves_a_model_to_its_health_check_until_it_is_stopped(save_model, tmp_path):
    _, folder = save_model(source_lang="en", target_lang="de")
    program, verb, *flags = command("ENTRYPOINT")
    assert (program, verb, command("CMD")) == ("/venv/bin/vanilla-transformer", "serve", ["/model"])
    with serving([], tmp_path / "log", *flags, str(folder)) as server:
        python, *check = command("HEALTHCHECK")
        assert python == "/venv/bin/python"
        check = [word.replace(":5000", f":{server.port}") for word in check]
        assert subprocess.run([sys.executable, *check]).returncode == 0
        body = text("A man sleeps.")
        assert request(server.port, "POST", "/translate", body, {"Host": "localhost:5000"}).status == 200
        assert request(server.port, "POST", "/translate", body, {"Host": "example.org"}).status == 403
        server.popen.send_signal(signal.SIGTERM)
        assert server.popen.wait() == 0
