"""The requests that scripts/guide/serving.md and the README show, to a running server."""

import shlex
import shutil
import subprocess

import pytest
from corpora import ROOT
from guide_pages import GUIDE, commands

PAGES = [ROOT / "README.md", GUIDE / "serving.md"]
REQUESTS = {command for page in PAGES for command in commands(page) if command.startswith("curl")}


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("command", sorted(REQUESTS))
def test_the_server_answers_the_requests_of_the_pages(command, server):
    words = shlex.split(command.replace(":5000", f":{server.port}"))
    answer = subprocess.run([*words, "--silent", "--noproxy", "*"], capture_output=True, text=True)
    assert answer.returncode == 0
    assert '"translatedText":' in answer.stdout


def test_a_page_shows_a_request():
    assert REQUESTS
