"""The handler of an inference endpoint, called as huggingface-inference-toolkit does."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from card_contents import PHRASES
from clean_process import run_python
from corpora import ROOT
from hub_endpoint import hub_environment, local_hub, run_command

from hf_vanilla_transformer import translate
from hf_vanilla_transformer.cli import main
from hf_vanilla_transformer.sharing import endpoint_handler
from hf_vanilla_transformer.sharing.hub import _ENDPOINT

# What the toolkit does with a model's folder and each request, and the Hub's own client in front of it
SERVE_AND_ASK = """
import importlib.util, json, sys, threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError

model_dir = {folder!r}
spec = importlib.util.spec_from_file_location("handler.EndpointHandler", Path(model_dir, "handler.py"))
sys.path.insert(0, model_dir)
module = importlib.util.module_from_spec(spec)
sys.modules["handler.EndpointHandler"] = module
spec.loader.exec_module(module)
handler = module.EndpointHandler(model_dir)

class Toolkit(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        try:
            status, answer = 200, handler(body)
        except Exception as error:
            status, answer = 400, {{"error": str(error)}}
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args):
        pass

server = HTTPServer(("127.0.0.1", 0), Toolkit)
threading.Thread(target=server.serve_forever, daemon=True).start()
client = InferenceClient(model=f"http://127.0.0.1:{{server.server_port}}")
short = {{"max_new_tokens": 9}}
several = handler({{"inputs": {phrases!r}, "parameters": short}})
single = [client.translation(text, generate_parameters=short).translation_text for text in {phrases!r}]
assert [translation["translation_text"] for translation in several] == single
try:
    client.translation("Who?", src_lang="en", tgt_lang="xx")
except HfHubHTTPError as error:
    refusal = error.response.json()
print(json.dumps([single, refusal]))
"""


@pytest.mark.slow
def test_a_pushed_handler_translates_for_the_clients_of_an_endpoint_without_this_package(saved, tmp_path):
    folder, expected = saved
    repository = tmp_path / "repository"
    repository.mkdir()
    with local_hub() as server:
        run_command(["push", folder, "you/model", "--endpoint"], tmp_path / "home", **hub_environment(server))
        for name, content in server.repositories["models"]["you/model"].items():
            (repository / name).write_bytes(content)
    code = SERVE_AND_ASK.format(folder=str(repository), phrases=PHRASES)
    result = run_python(code, tmp_path / "home2", HF_HUB_OFFLINE="0", HF_ENDPOINT="http://127.0.0.1:9")
    translations, refusal = json.loads(result.stdout.splitlines()[-1])
    assert translations == expected
    assert "xx" in refusal["error"]


def test_an_endpoint_installs_the_transformers_that_this_package_needs():
    (requirement,) = re.findall(r'"(transformers[<>=].*)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert _ENDPOINT["requirements.txt"] == f"{requirement}\n".encode()
    assert Path(_ENDPOINT["handler.py"]).read_text(encoding="utf-8").count("hf_vanilla_transformer") == 0


@pytest.fixture
def handler(saved):
    return endpoint_handler.EndpointHandler(str(saved[0]))


def test_a_text_and_a_list_are_translated_with_the_settings_of_the_request(handler, saved):
    _, expected = saved
    parameters = {"max_new_tokens": 9, "src_lang": "en", "tgt_lang": "de", "truncation": True, "num_beams": None}
    answers = handler({"inputs": PHRASES, "parameters": parameters})
    assert answers == [{"translation_text": text} for text in expected]
    assert handler({"inputs": PHRASES[0], "parameters": {"generate_parameters": parameters}}) == answers[:1]
    assert handler({"inputs": [], "parameters": None}) == []
    model, tokenizer = handler.translator.model, handler.translator.tokenizer
    greedy = translate(model, tokenizer, PHRASES[:1], num_beams=1, max_new_tokens=9)
    given = {"num_beams": 1, "max_new_tokens": 9, "length_penalty": 1}
    assert handler({"inputs": PHRASES[:1], "parameters": given}) == [{"translation_text": greedy[0]}]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "inputs must be a text"),
        ({"inputs": [["a"]]}, "inputs must be a text"),
        ({"inputs": {"text": "a"}}, "inputs must be a text"),
        ({"inputs": ["a", "\ud800"]}, "in valid Unicode"),
        ({"inputs": "a", "parameters": ["x"]}, "parameters must be an object"),
        ({"inputs": "a", "parameters": {"generate_parameters": "x"}}, "generate_parameters must be an object"),
        # of generate(): code from the Hub, a second model, all memory
        ({"inputs": "a", "parameters": {"custom_generate": "someone/code"}}, "custom_generate is not supported"),
        ({"inputs": "a", "parameters": {"trust_remote_code": True}}, "trust_remote_code is not supported"),
        ({"inputs": "a", "parameters": {"generate_parameters": {"assistant_model": "x"}}}, "is not supported"),
        ({"inputs": "a", "parameters": {"batch_size": 10**9}}, "batch_size is not supported"),
        ({"inputs": "a", "parameters": {"num_beams": 10**9}}, "no value of num_beams, which is from 1 to 32"),
        ({"inputs": "a", "parameters": {"num_beams": 2.5}}, "no value of num_beams"),
        ({"inputs": "a", "parameters": {"max_new_tokens": True}}, "no value of max_new_tokens"),
        ({"inputs": "a", "parameters": {"length_penalty": float("nan")}}, "no value of length_penalty"),
        ({"inputs": "a", "parameters": {"tgt_lang": 3}}, "3 is no value of tgt_lang"),
        ({"inputs": "a", "parameters": {"tgt_lang": "fr"}}, "fr"),
    ],
)
def test_wrong_requests_are_refused_in_one_line_before_the_model_runs(handler, data, message, monkeypatch):
    monkeypatch.setattr(handler.translator.model, "generate", None)
    with pytest.raises(ValueError, match=message) as refusal:
        handler(data)
    assert len(str(refusal.value).splitlines()) == 1


def test_an_endpoint_needs_a_model_of_this_package(capsys, monkeypatch):
    monkeypatch.setattr("hf_vanilla_transformer.sharing.hub.HfApi", SimpleNamespace)
    assert main(["push", "nowhere", "you/model", "--format", "marian", "--endpoint"]) == 2
    assert "--endpoint needs a model of this package" in capsys.readouterr().err
