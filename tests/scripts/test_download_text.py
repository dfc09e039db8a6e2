"""scripts/get_multi30k.sh and get_wmt_sample.sh, which download from a local server here."""

import gzip
import os
import subprocess
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from corpora import ROOT

SCRIPTS = ROOT / "scripts"
PARTS = ("train", "val", "test_2016_flickr")


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@pytest.fixture
def server(tmp_path):
    """A folder and the URL at which it is served."""
    folder = tmp_path / "served"
    folder.mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(folder))) as httpd:
        Thread(target=httpd.serve_forever, daemon=True).start()
        yield folder, f"http://127.0.0.1:{httpd.server_port}"
        httpd.shutdown()


def download(url: str, folder: Path, *flags: str, script: str = "get_multi30k.sh") -> subprocess.CompletedProcess:
    environment = {**os.environ, "MULTI30K_URL": url, "WMT_SAMPLE_URL": url, "no_proxy": "127.0.0.1"}
    command = ["bash", SCRIPTS / script, *flags, folder]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def test_all_files_are_downloaded_and_only_damaged_ones_again(server, multi30k, tmp_path):
    served, url = server
    for part in PARTS:
        for language in ("en", "de"):
            (served / f"{part}.lc.norm.tok.{language}").write_bytes((multi30k / f"{part}.{language}").read_bytes())
    run = download(url, tmp_path / "text")
    assert run.returncode == 0, run.stderr
    names = sorted(f"{part}.{language}" for part in PARTS for language in ("de", "en"))
    assert sorted(file.name for file in (tmp_path / "text").iterdir()) == names
    for name in names:
        assert (tmp_path / "text" / name).read_bytes() == (multi30k / name).read_bytes()
    (tmp_path / "text" / "val.de").write_text("damaged")
    again = download(url, tmp_path / "text")
    assert again.returncode == 0
    assert again.stderr.count("Downloading") == 1
    assert (tmp_path / "text" / "val.de").read_bytes() == (multi30k / "val.de").read_bytes()


def test_raw_text_is_decompressed(server, multi30k_raw, tmp_path):
    served, url = server
    names = [f"{part}.{language}" for part in PARTS for language in ("en", "de")]
    for name in names:
        (served / f"{name}.gz").write_bytes(gzip.compress((multi30k_raw / name).read_bytes()))
    run = download(url, tmp_path / "text", "--raw")
    assert run.returncode == 0, run.stderr
    assert {name: (tmp_path / "text" / name).read_bytes() for name in names} == {
        name: (multi30k_raw / name).read_bytes() for name in names
    }
    (tmp_path / "text" / "val.de").unlink()
    for damaged in (gzip.compress(b"ein Satz")[:-9], b"not compressed"):
        (served / "val.de.gz").write_bytes(damaged)
        run = download(url, tmp_path / "text", "--raw")
        assert run.returncode == 1
        assert run.stderr.splitlines()[-1].startswith("Cannot download")
        assert not (tmp_path / "text" / "val.de").exists()


def test_the_sample_of_wmt_is_named_by_its_languages(server, wmt_sample, tmp_path):
    served, url = server
    for part in ("train", "val"):
        for side, language in (("src", "en"), ("tgt", "de")):
            (served / f"{side}-{part}.txt").write_bytes((wmt_sample / f"{part}.{language}").read_bytes())
    run = download(url, tmp_path / "text", script="get_wmt_sample.sh")
    assert run.returncode == 0, run.stderr
    names = [f"{part}.{language}" for part in ("train", "val") for language in ("de", "en")]
    assert sorted(file.name for file in (tmp_path / "text").iterdir()) == names
    assert (tmp_path / "text" / "train.de").read_bytes() == (wmt_sample / "train.de").read_bytes()
    (served / "src-val.txt").write_text("something else\n")
    run = download(url, tmp_path / "other", script="get_wmt_sample.sh")
    assert run.returncode == 1
    assert "Set WMT_SAMPLE_URL to the URL of another mirror." in run.stderr.splitlines()[-1]


def test_a_file_with_another_checksum_is_refused_and_not_kept(server, tmp_path):
    served, url = server
    (served / "train.lc.norm.tok.en").write_text("something else\n")
    run = download(url, tmp_path / "text")
    assert run.returncode == 1
    assert "is not the Multi30k text: its SHA-256 checksum is wrong" in run.stderr.splitlines()[-1]
    assert not (tmp_path / "text").exists()


def test_a_failed_download_ends_with_one_clear_line(server, tmp_path):
    _, url = server
    run = download(url, tmp_path / "text")
    assert run.returncode == 1
    assert "Cannot download" in run.stderr.splitlines()[-1]
    assert "Traceback" not in run.stderr
