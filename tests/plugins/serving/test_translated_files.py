"""Files over HTTP: what is refused, what comes back, and how long it is kept."""

import io
import logging

import docx
import pytest
from export_models import PHRASES
from live_server import metric

from hf_vanilla_transformer.plugins.serving import server
from hf_vanilla_transformer.plugins.serving.server import ENDINGS


def form(name: str, content: bytes, **fields: str) -> tuple[bytes, dict[str, str]]:
    """Return the body and the headers of a form with a file."""
    part = 'Content-Disposition: form-data; name="{}"'
    parts = [f"{part.format(field)}\r\n\r\n{value}".encode() for field, value in fields.items()]
    parts.append(f'{part.format("file")}; filename="{name}"\r\n\r\n'.encode() + content)
    body = b"".join(b"--boundary\r\n" + each + b"\r\n" for each in parts) + b"--boundary--\r\n"
    return body, {"Content-Type": "multipart/form-data; boundary=boundary"}


def send_file(send, name: str, content: bytes, **fields: str):
    body, headers = form(name, content, **{"source": "en", "target": "de", **fields})
    return send("POST", "/translate_file", body, headers=headers)


def path_of(answer) -> str:
    """Return the path at which a translated file can be downloaded."""
    assert answer.status == 200, answer.body
    return "/" + answer.body["translatedFileUrl"].split("/", 3)[3]


def test_a_file_is_translated_and_downloaded_under_its_name(serve, alone):
    send = serve()
    answer = send_file(send, "my notes.TXT", f"{PHRASES[0]}\r\n\r\n12345\r\n{PHRASES[1]}".encode())
    assert answer.body["translatedFileUrl"].startswith(f"http://127.0.0.1:{send.port}/download_file/")
    found = send("GET", path_of(answer))
    assert found.body == f"{alone(PHRASES[0])}\r\n\r\n12345\r\n{alone(PHRASES[1])}"
    assert found.headers["content-disposition"] == 'attachment; filename="my-notes.TXT"'
    assert found.headers["content-type"] == "application/octet-stream"
    assert metric(send, 'requests_total{path="/download_file/{name}",status="200"}') == 1


def test_subtitles_keep_their_times(serve, alone):
    send = serve()
    content = f"1\n00:00:01,000 --> 00:00:02,000\n{PHRASES[0]}\n"
    found = send("GET", path_of(send_file(send, "film.srt", content.encode()))).body
    assert found == content.replace(PHRASES[0], alone(PHRASES[0]))


def test_the_language_of_a_file_is_that_of_all_its_texts(serve, alone):
    cue = "00:00 --> 00:01\n{}\n\n"
    content = "".join(map(cue.format, ("Das ist ein Hotel.", *PHRASES[:5])))
    found = send_file(send := serve(), "film.vtt", content.encode(), source="auto", target="DE")
    assert send("GET", path_of(found)).body == "".join(
        cue.format(alone(text)) for text in ("Das ist ein Hotel.", *PHRASES[:5])
    )


@pytest.mark.parametrize(
    ("name", "content", "fields", "message"),
    [
        ("a.exe", b"", {}, f"Invalid request: file: expected one of {' '.join(ENDINGS)}"),
        ("a.txt", b"a", {"target": ""}, "Invalid request: missing target parameter"),
        ("a.txt", b"a" * 101, {}, "Invalid request: the text has 101 characters, more than 100"),
        ("a.txt", b"a", {"target": "fr"}, "en to fr is not supported. Supported directions: en to de."),
        ("a.docx", b"a", {}, "Invalid request: a.docx: damaged, encrypted or not .docx (File is not a zip file)."),
    ],
)
def test_wrong_files_are_explained(serve, name, content, fields, message):
    assert send_file(serve(max_characters=100), name, content, **fields)[:2] == (400, {"error": message})


def test_the_doubtful_translations_of_a_file_are_named(serve, model, alone):
    model.config.doubtful_score = 0.0
    answer = send_file(serve(), "a.txt", b"A dog runs.")
    assert answer.body["doubtful"] == [alone("A dog runs.")]
    assert "warnings" not in answer.body


def test_a_request_without_a_file_is_explained(serve):
    send = serve()
    message = {"error": "Invalid request: missing file parameter"}
    assert send("POST", "/translate_file", {"source": "en", "target": "de"}, form=True)[:2] == (400, message)
    assert send("POST", "/translate_file", {"source": "en", "target": "de"})[:2] == (400, message)
    # as curl sends it if the "@" is missing
    message = {"error": "Invalid request: file: expected the content of a file (curl -F file=@NAME)"}
    name = {"file": "report.docx", "source": "en", "target": "de"}
    assert send("POST", "/translate_file", name, form=True)[:2] == (400, message)


def test_a_file_that_is_too_large_is_413(serve, monkeypatch):
    monkeypatch.setattr(server, "MAX_FILE_BYTES", 1000)
    answer = send_file(serve(max_characters=1), "a.docx", b"a" * 20_000)
    assert answer[:2] == (413, {"error": "Invalid request: it is larger than 11,012 bytes"})


def test_a_file_with_too_much_text_is_413(serve):
    answer = send_file(serve(max_characters=1), "a.html", b"<p>" * 5000)
    assert answer[:2] == (413, {"error": "Invalid request: a.html: its text is larger than 10,100 bytes; split it."})


def test_reading_a_file_takes_a_part_of_the_time_of_a_request(monkeypatch):
    limits = []
    monkeypatch.setattr(server, "FileProcesses", limits.append)
    server.Server(None, None, timeout=30)
    assert limits == [8]


def test_a_form_without_a_file_is_not_larger_than_others(serve):
    send = serve(max_characters=1)
    assert send("POST", "/translate_file", {"q": "a" * 20_000}, form=True).status == 413


def test_files_need_a_key_and_their_names_are_not_logged(serve, caplog):
    caplog.set_level(logging.DEBUG)
    send = serve(api_keys=["topsecret"])
    assert send_file(send, "private.txt", b"private").status == 403
    path = path_of(send_file(send, "private.txt", b"private", api_key="topsecret"))
    assert send("GET", path).status == 200
    assert send("GET", path.replace("private", "other")).status == 404
    assert "/download_file/{name}: 200 in" in caplog.text
    assert "private" not in caplog.text


def test_only_the_newest_files_are_kept(serve, monkeypatch):
    monkeypatch.setattr(server, "MAX_KEPT_BYTES", 3)
    send = serve()
    first, second = (path_of(send_file(send, "a.txt", b"12")) for _ in range(2))
    assert first != second
    assert send("GET", first)[:2] == (404, {"error": "There is no such file any more: translate it again"})
    assert send("GET", second).body == "12"


def test_files_are_removed_after_a_while(serve, monkeypatch):
    monkeypatch.setattr(server, "SECONDS_KEPT", 0.0)
    send = serve()
    assert send("GET", path_of(send_file(send, "a.txt", b"12"))).status == 404


def test_a_word_file_comes_back_as_one(serve, alone):
    document = docx.Document()
    document.add_paragraph(PHRASES[0])
    content = io.BytesIO()
    document.save(content)
    send = serve()
    path = path_of(send_file(send, "report.docx", content.getvalue()))
    assert path.endswith(".report.docx")


def test_a_file_without_text_gets_a_warning(serve):
    answer = send_file(serve(), "scan.html", b"<img src=page.png>")
    assert answer.body["warnings"] == ["scan.html: no text to translate was found; text in pictures is not read."]
    assert "warnings" not in send_file(serve(), "a.html", b"<p>a dog").body


def test_a_file_declares_the_language_of_its_translation(serve):
    document = docx.Document()
    document.add_paragraph(PHRASES[0])
    document.core_properties.language = "en"
    content = io.BytesIO()
    document.save(content)
    send = serve()
    page = send("GET", path_of(send_file(send, "a.html", b"<html lang=en><p>a dog"))).body
    assert page.startswith('<html lang="de"><p>')


def test_suggestions_are_refused_as_libretranslate_does(serve):
    answer = serve()("POST", "/suggest", {"q": "Hi", "s": "Hallo", "source": "en", "target": "de"})
    assert answer[:2] == (403, {"error": "Suggestions are disabled on this server."})
