"""The verb `serve`, without a server."""

import socket

import pytest
import torch

from hf_vanilla_transformer.cli import main
from hf_vanilla_transformer.plugins.serving.serve import ServeArguments
from hf_vanilla_transformer.plugins.serving.service import TranslationService


@pytest.fixture
def free_port():
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return sock.getsockname()[1]


def test_the_number_format_is_measured_with_the_beams_that_serve(save_model, free_port, monkeypatch):
    _, folder = save_model(source_lang="en", target_lang="de")
    searches = []

    def choose(model, *search):
        searches.append(search)
        return torch.float32

    monkeypatch.setattr("hf_vanilla_transformer.inference.translator.choose_dtype", choose)
    process = "hf_vanilla_transformer.plugins.serving.process"
    monkeypatch.setattr(f"{process}.start_log", lambda: None)
    monkeypatch.setattr(f"{process}.serve_until_stopped", lambda app, sock, *settings: sock.close())
    flags = ["--port", str(free_port), "--dtype", "auto", "--num_beams", "1"]
    assert main(["serve", str(folder), *flags]) == 0
    # one sentence at a time, with one beam
    assert searches == [(1, 1)]


def test_the_service_gets_the_placeholders(save_model, free_port, monkeypatch):
    _, folder = save_model(source_lang="en", target_lang="de")
    services = []
    plugin = "hf_vanilla_transformer.plugins.serving"
    monkeypatch.setattr(f"{plugin}.process.start_log", lambda: None)
    monkeypatch.setattr(f"{plugin}.process.serve_until_stopped", lambda app, sock, *settings: sock.close())
    make = TranslationService
    monkeypatch.setattr(f"{plugin}.service.TranslationService", lambda *args: services.append(args) or make(*args))
    assert main(["serve", str(folder), "--port", str(free_port), "--placeholders", r"ACME-\d+"]) == 0
    assert services[0][2] == r"ACME-\d+"


@pytest.mark.parametrize("host", ["256.1.1.1", "no.such.host.invalid"])
def test_an_address_on_which_nothing_can_listen_is_named_before_models_are_loaded(host, capsys):
    assert main(["serve", "nowhere", "--host", host]) == 1
    assert f"Cannot listen on {host}, port 5000: " in capsys.readouterr().err


@pytest.mark.parametrize("port", ["0", "65536"])
def test_a_port_that_does_not_exist_is_refused(port, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["serve", "nowhere", "--port", port])
    assert f"must be from 1 to 65535, got {port}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "path"), [("mt", "/mt"), ("/mt/", "/mt"), ("a/b/", "/a/b"), ("/mt", "/mt"), ("/", ""), ("", "")]
)
def test_the_path_of_a_proxy_begins_and_does_not_end_with_a_slash(given, path):
    assert ServeArguments(model=["m"], root_path=given).root_path == path
