"""`translate MODEL FILE ... --output_dir`: documents become documents."""

import docx
import pytest

from hf_vanilla_transformer import Translator, translate
from hf_vanilla_transformer.cli import main
from hf_vanilla_transformer.plugins.documents.html import escape_text

SETTINGS = {"num_beams": 2, "max_tokens": 100}


@pytest.fixture
def run(saved, capsys):
    """A function that translates documents, and returns the status, stdout and the last line of stderr."""

    def translate(*names: str, out: str = "out", flags: tuple[str, ...] = ()):
        paths = [str(saved.folder / name) for name in names]
        decoding = ("--num_beams", "2", "--max_tokens", "100")
        try:
            status = main(
                ["translate", saved.path, *paths, "--output_dir", str(saved.folder / out), *decoding, *flags]
            )
        except SystemExit as stop:
            status = stop.code
        output = capsys.readouterr()
        return status, output.out, output.err.splitlines()[-1]

    return translate


def test_each_document_becomes_one_of_its_name(saved, run):
    page = "<!DOCTYPE html>\n<p class=x>a dog <b>runs</b>. two men<br></p><!-- a dog -->"
    subtitles = (
        "1\n00:00:01,000 --> 00:00:02,000\na dog\nruns\n\n2\n00:00:03,000 --> 00:00:04,000\n- two men\n- 12:30\n"
    )
    notes = "a dog runs. two men sit\r\n\r\n- 12345\r\n"
    (saved.folder / "page.html").write_text(page)
    (saved.folder / "film.SRT").write_text(subtitles)
    (saved.folder / "notes.txt").write_bytes(notes.encode())
    document = docx.Document()
    document.add_heading("two men")
    paragraph = document.add_paragraph("a ")
    paragraph.add_run("dog").bold = True
    document.save(saved.folder / "report.docx")
    names = ("page.html", "film.SRT", "notes.txt", "report.docx")

    status, out, _ = run(*names)
    assert status == 0
    assert out.splitlines() == [str(saved.folder / "out" / name) for name in names]
    translator = Translator(saved.model, saved.tokenizer)
    assert (saved.folder / "out" / "page.html").read_text() == translator.translate_html([page], **SETTINGS)[0].text
    (expected,) = translator.translate([notes], split_sentences=True, **SETTINGS)
    assert (saved.folder / "out" / "notes.txt").read_bytes() == expected.text.encode()
    first, second = [each.text for each in translator.translate(["a dog runs", "two men"], **SETTINGS)]
    lines = (saved.folder / "out" / "film.SRT").read_text()
    assert " ".join(lines.split()) == " ".join(
        f"1 00:00:01,000 --> 00:00:02,000 {first} 2 00:00:03,000 --> 00:00:04,000 - {second} - 12:30".split()
    )
    translated = docx.Document(saved.folder / "out" / "report.docx")
    assert translated.paragraphs[0].text == second
    assert translated.paragraphs[0].style.name == "Heading 1"
    assert all(run.text for run in translated.paragraphs[1].runs)
    (expected,) = translator.translate(["a dog"], **SETTINGS)
    assert translated.paragraphs[1].text == expected.text


def test_doubtful_translations_of_a_document_are_quoted_and_counted(saved, capsys):
    (saved.folder / "a.txt").write_text("a dog runs\n" * 13)
    (saved.folder / "b.html").write_text("<p>two <b>men</b> sit</p>")
    command = ["translate", saved.path, *(str(saved.folder / name) for name in ("a.txt", "b.html"))]
    for threshold, output in ((0.0, "doubted"), (None, "plain")):
        saved.model.config.doubtful_score = threshold
        saved.model.config.save_pretrained(saved.path)
        assert main([*command, "--output_dir", str(saved.folder / output), "--num_beams", "2"]) == 0
        reported = [line for line in capsys.readouterr().err.splitlines() if "doubtful: " in line]
        if threshold is None:
            assert reported == []
            continue
        first, second = translate(saved.model, saved.tokenizer, ["a dog runs", "two men sit"], num_beams=2)
        quoted = [f"{command[2]}: doubtful: {' '.join(first.split())}"] * 10
        assert [line.split("\r")[-1] for line in reported] == [
            *quoted,
            f"{command[2]}: doubtful: 3 more sentences",
            f"{command[3]}: doubtful: {' '.join(second.split())}",
        ]
    for name in ("a.txt", "b.html"):
        assert (saved.folder / "doubted" / name).read_bytes() == (saved.folder / "plain" / name).read_bytes()


@pytest.mark.parametrize(
    ("names", "out", "flags", "status", "message"),
    [
        (("a.txt", "b/a.txt"), "out", (), 2, "Documents need different names, and an --output_dir that is not their"),
        (
            ("b/a.txt",),
            "b",
            (),
            2,
            "Documents need different names, and an --output_dir that is not their own folder.",
        ),
        (("a.txt",), "out", ("--scores",), 2, "unrecognized arguments: --scores"),
        (("a.txt",), "out", ("--input_files", "x"), 2, "a.txt is a file, not a model; documents are translated with"),
        (("a.docx",), "out", (), 1, "a.docx: damaged, encrypted or not .docx (File is not a zip file)."),
        (("missing.html",), "out", (), 2, "missing.html: check its path."),
        (("none.pdf",), "out", (), 2, "Documents (.docx .epub"),
        (("a.pdf",), "out", (), 2, "a.pdf is neither a model nor a document of these: .docx .epub"),
    ],
)
def test_what_cannot_be_translated_is_refused_before_a_file_is_written(saved, run, names, out, flags, status, message):
    (saved.folder / "b").mkdir()
    for name in ("a.txt", "a.docx", "a.pdf", "b/a.txt"):
        (saved.folder / name).write_text("a dog")
    found, _, line = run(*names, out=out, flags=flags)
    assert found == status
    assert message in line
    assert not (saved.folder / "out").exists()
    assert (saved.folder / "b" / "a.txt").read_text() == "a dog"


def test_documents_without_a_model_or_a_folder_are_wrong_use(saved, capsys):
    (saved.folder / "a.txt").write_text("a dog")
    for words in (["a.txt", "--output_dir", "out"], [saved.path, str(saved.folder / "a.txt")]):
        assert main(["translate", *words]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(": ")[2] for line in lines] == [
        "Name the model before the documents.",
        f"{saved.folder}/a.txt is a file, not a model; documents are translated with --output_dir FOLDER.",
    ]


def test_html_is_translated_with_its_tags_and_reports_sentences_that_are_too_long(saved):
    translator = Translator(saved.model, saved.tokenizer)
    page, long = translator.translate_html(["<p>A <b>dog</b> runs.</p> 12", f"<i>cats {'and dogs ' * 50}</i>&amp;"])
    assert (
        page.text.replace("<b>", "").replace("</b>", "")
        == f"<p>{escape_text(translate(saved.model, saved.tokenizer, 'A dog runs.'))}</p> 12"
    )
    assert page.text.count("<b>") == page.text.count("</b>") == 1
    assert page.problem is None
    assert long.text == f"<i>cats {'and dogs ' * 50}</i>&amp;"
    assert "sentence 1: " in long.problem


def test_a_document_without_text_is_reported_and_others_are_not(saved, run, capsys):
    (saved.folder / "script.html").write_text("<html lang=en><script>show('a dog')</script>12:30</html>")
    (saved.folder / "notes.txt").write_text("a dog")
    docx.Document().save(saved.folder / "picture.docx")
    assert (
        main(
            [
                "translate",
                saved.path,
                *(str(saved.folder / name) for name in ("script.html", "notes.txt")),
                str(saved.folder / "picture.docx"),
                "--output_dir",
                str(saved.folder / "out"),
            ]
        )
        == 0
    )
    lines = [line for line in capsys.readouterr().err.splitlines() if "no text" in line]
    assert [line.partition(": ")[2] for line in lines] == [
        "no text to translate was found; text in pictures is not read"
    ] * 2
    assert [line.partition(": ")[0].rpartition("/")[2] for line in lines] == ["script.html", "picture.docx"]


def test_documents_declare_the_language_of_their_translation(saved, run):
    (saved.folder / "page.html").write_text('<html lang="en"><meta charset="ascii"><p>a dog</p></html>')
    document = docx.Document()
    document.add_paragraph("a dog")
    document.core_properties.language = "en-US"
    document.save(saved.folder / "report.docx")
    assert run("page.html", "report.docx", flags=("--source_lang", "en", "--target_lang", "de"))[0] == 0
    assert (saved.folder / "out" / "page.html").read_text().startswith('<html lang="de"><meta charset="utf-8"><p>')
    assert docx.Document(saved.folder / "out" / "report.docx").core_properties.language == "de"
