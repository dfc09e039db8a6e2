"""The requests that scripts/guide/serving.md and the README show, to a running server."""

import shlex
import shutil
import subprocess

import pytest
from corpora import ROOT
from guide_pages import GUIDE, commands, write_documents

PAGES = [ROOT / "README.md", GUIDE / "serving.md", GUIDE / "documents.md"]
REQUESTS = {command for page in PAGES for command in commands(page) if command.startswith("curl")}


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("command", sorted(REQUESTS))
def test_the_server_answers_the_requests_of_the_pages(command, server, tmp_path):
    write_documents(tmp_path)
    words = shlex.split(command.replace(":5000", f":{server.port}"))
    words += ["--silent", "--noproxy", "*"]
    answer = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert answer.returncode == 0
    assert answer.stdout.startswith(('{"translatedText":', '{"translatedFileUrl":'))


def test_a_page_shows_a_request():
    assert REQUESTS
