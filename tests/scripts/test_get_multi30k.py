"""scripts/get_multi30k.sh against a local server."""

import os
import subprocess
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from corpora import MULTI30K, NO_MULTI30K, ROOT

SCRIPT = ROOT / "scripts" / "get_multi30k.sh"
PARTS = ("train", "val", "test_2016_flickr")


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@pytest.fixture
def server(tmp_path):
    """A folder and the address at which it is served."""
    folder = tmp_path / "served"
    folder.mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as httpd:
        Thread(target=httpd.serve_forever, daemon=True).start()
        yield folder, f"http://127.0.0.1:{httpd.server_port}"
        httpd.shutdown()


def fetch(address: str, folder: Path) -> subprocess.CompletedProcess:
    environment = {**os.environ, "MULTI30K_URL": address, "no_proxy": "127.0.0.1"}
    return subprocess.run(["bash", SCRIPT, folder], env=environment, capture_output=True, text=True)


@pytest.mark.skipif(not MULTI30K.is_dir(), reason=NO_MULTI30K)
def test_the_text_arrives_whole_and_is_fetched_once(server, tmp_path):
    served, address = server
    for part in PARTS:
        for language in ("en", "de"):
            (served / f"{part}.lc.norm.tok.{language}").write_bytes((MULTI30K / f"{part}.{language}").read_bytes())
    run = fetch(address, tmp_path / "text")
    assert run.returncode == 0, run.stderr
    names = sorted(f"{part}.{language}" for part in PARTS for language in ("de", "en"))
    assert sorted(file.name for file in (tmp_path / "text").iterdir()) == names
    for name in names:
        assert (tmp_path / "text" / name).read_bytes() == (MULTI30K / name).read_bytes()
    (tmp_path / "text" / "val.de").write_text("damaged")
    again = fetch(address, tmp_path / "text")
    assert again.returncode == 0
    assert again.stderr.count("Fetching") == 1
    assert (tmp_path / "text" / "val.de").read_bytes() == (MULTI30K / "val.de").read_bytes()


def test_other_text_is_refused_and_not_kept(server, tmp_path):
    served, address = server
    (served / "train.lc.norm.tok.en").write_text("something else\n")
    run = fetch(address, tmp_path / "text")
    assert run.returncode == 1
    assert run.stderr.splitlines()[-1].startswith("get_multi30k.sh: ")
    assert "is not the text of Multi30k: its SHA-256 sum differs" in run.stderr
    assert list((tmp_path / "text").iterdir()) == []


def test_a_missing_file_is_one_line(server, tmp_path):
    _, address = server
    run = fetch(address, tmp_path / "text")
    assert run.returncode == 1
    assert "cannot fetch" in run.stderr.splitlines()[-1]
    assert "Traceback" not in run.stderr
