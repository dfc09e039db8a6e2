"""Documents with other texts put into them, read by libraries for each format."""

import contextlib
import io
import re
import zipfile

import docx
import pysubs2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree
from lxml import html as lxml_html

from hf_vanilla_transformer.data.foreign_files import ExchangeError
from hf_vanilla_transformer.plugins.documents import document_files
from hf_vanilla_transformer.plugins.documents.document_files import ENDINGS, texts_of, with_texts

SRT = """1
00:00:01,000 --> 00:00:02,500 X1:100
<font color="red">Hello</font> Tom & Jerry,
how are you <3

2
00:00:03,000 --> 00:00:04,000
- Good.
- And you
  two?
"""
VTT = """WEBVTT - A film

STYLE
::cue { color: white }

NOTE nothing to translate

intro
00:01.000 --> 00:02.000 align:start position:10%
<v Anna>R&amp;D <00:01.500>is <i>here</i>.
"""


def loud(text: str) -> str:
    """Return HTML with its text in upper case."""
    parts = re.split(r"(<[^>]*>|&\w+;)", text)
    parts[::2] = map(str.upper, parts[::2])
    return "".join(parts)


def rewritten(content: bytes, name: str) -> bytes:
    return with_texts(content, name, map(loud, texts_of(content, name)))


def word_file(fill) -> bytes:
    document = docx.Document()
    fill(document)
    output = io.BytesIO()
    document.save(output)
    return output.getvalue()


def read_word(content: bytes):
    return docx.Document(io.BytesIO(content))


@pytest.mark.parametrize("ending", [".txt", ".html", ".htm"])
def test_text_and_pages_are_one_text(ending):
    assert texts_of("a\r\nö".encode(), f"a{ending}") == ["a\r\nö"]
    assert with_texts(b"a", f"A{ending.upper()}", ["ö"]) == "ö".encode()


def test_subtitles_keep_everything_but_their_words():
    assert texts_of(SRT.encode(), "a.srt") == [
        '<font color="red">Hello</font> Tom &amp; Jerry, how are you &lt;3',
        "- Good.",
        "- And you two?",
    ]
    output = rewritten(SRT.encode(), "a.srt").decode()
    lines = SRT.replace("Tom & Jerry,\n", "Tom & Jerry, ").replace("you\n  two", "you two").splitlines(keepends=True)
    assert output == "".join(line if "-->" in line else loud(line) for line in lines)
    windows = SRT.replace("\n", "\r\n").encode()
    assert rewritten(windows, "a.srt").decode() == output.replace("\n", "\r\n")
    before, after = (pysubs2.SSAFile.from_string(text, "srt") for text in (SRT, output))
    assert [(each.start, each.end) for each in before] == [(each.start, each.end) for each in after]


def test_web_subtitles_keep_styles_notes_and_positions():
    assert rewritten(VTT.encode(), "a.vtt").decode() == VTT.replace(
        "R&amp;D <00:01.500>is <i>here</i>", "R&amp;D IS <i>HERE</i>"
    )


def test_a_time_without_a_blank_line_before_it_starts_the_next_subtitle():
    # as youtube-dl has written them
    text = "{}00:01.000 --> 00:02.000\na dog\n{}00:02.000 --> 00:03.000 align:start\n<c>two</c> --> men\n"
    web = text.format("WEBVTT\n\n", "")
    assert rewritten(web.encode(), "a.vtt").decode() == web.replace("a dog", "A DOG").replace(
        "<c>two</c> --> men", "<c>TWO</c> --&gt; MEN"
    )
    film = text.format("1\n", "2\n").replace("c>", "i>")
    assert rewritten(film.encode(), "a.srt").decode() == film.replace("a dog", "A DOG").replace(
        "<i>two</i> --> men", "<i>TWO</i> --> MEN"
    )


def test_long_subtitles_are_wrapped_outside_of_tags():
    text = "1\n00:00 --> 00:01\nfirst\nsecond\n"
    tag = '<font face="a b c d e f g h i j k l m">'
    output = with_texts(text.encode(), "a.srt", [f"{'word ' * 8}{tag}ending</font>"]).decode()
    *_, first, second, _ = output.split("\n")
    assert (first, second) == (("word " * 8).strip(), f"{tag}ending</font>")


def test_a_word_file_is_translated_everywhere():
    def fill(document):
        document.add_heading("title")
        document.add_paragraph("one & two < three")
        document.add_table(1, 1).cell(0, 0).text = "cell"
        document.sections[0].header.paragraphs[0].text = "above"
        document.sections[0].footer.paragraphs[0].text = "below"

    document = read_word(rewritten(word_file(fill), "a.docx"))
    assert [each.text for each in document.paragraphs] == ["TITLE", "ONE & TWO < THREE"]
    assert document.tables[0].cell(0, 0).text == "CELL"
    assert document.sections[0].header.paragraphs[0].text == "ABOVE"
    assert document.sections[0].footer.paragraphs[0].text == "BELOW"
    assert document.paragraphs[0].style.name == "Heading 1"


def archive(members: dict[str, str]) -> bytes:
    output = io.BytesIO()
    with zipfile.ZipFile(output, "w", zipfile.ZIP_DEFLATED) as file:
        for name, text in members.items():
            file.writestr(name, text)
    return output.getvalue()


def test_slides_and_books():
    space = 'xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main"'
    runs = '<a:r><a:rPr lang="en" b="1"/><a:t>big</a:t></a:r><a:r><a:rPr lang="de" b="1"/><a:t> news</a:t></a:r>'
    slide = f"<a:p {space}>{runs}</a:p>"
    content = archive({"ppt/slides/slide1.xml": slide, "ppt/theme.xml": slide})
    assert texts_of(content, "a.pptx") == ["big news"]
    with zipfile.ZipFile(io.BytesIO(rewritten(content, "a.pptx"))) as file:
        assert b"<a:t>BIG NEWS</a:t>" in file.read("ppt/slides/slide1.xml")
        assert file.read("ppt/theme.xml").decode() == slide

    page = "<html><body><p>Once upon<br/></p></body></html>"
    book = archive({"mimetype": "application/epub+zip", "OEBPS/one.XHTML": page})
    with zipfile.ZipFile(io.BytesIO(rewritten(book, "a.epub"))) as file:
        assert file.namelist() == ["mimetype", "OEBPS/one.XHTML"]
        assert file.read("OEBPS/one.XHTML").decode() == loud(page)


def test_the_pages_of_a_book_are_those_of_its_manifest():
    page = '<?xml version="1.0" encoding="{}"?><html lang="en-US"><meta charset="{}"/><p>a dog M\xfc</p></html>'
    package = """<!DOCTYPE package PUBLIC "+//ISBN 0-9673008-1-9//DTD OEB 1.2 Package//EN" "x.dtd"><package xmlns="http://www.idpf.org/2007/opf">
        <metadata xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:language>en-US</dc:language>
        <dc:language>fr</dc:language></metadata>
        <manifest><item href="../text/one%20two.xml" media-type="application/xhtml+xml"/>
        <item href="data.xml" media-type="application/xml"/></manifest></package>"""
    container = """<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>
        <rootfile full-path="OEBPS/content.opf"/></rootfiles></container>"""
    members = {
        "META-INF/container.xml": container,
        "OEBPS/content.opf": package,
        "OEBPS/data.xml": "<p>data</p>",
        "text/one two.xml": page.format("iso-8859-1", "latin1").encode("latin-1"),
        "other.html": "<p>other</p>",
    }
    texts = texts_of(archive(members), "a.epub")
    # in another encoding than it was
    assert texts == [page.format("utf-8", "utf-8"), "<p>other</p>"]
    with zipfile.ZipFile(io.BytesIO(with_texts(archive(members), "a.epub", map(loud, texts), "de"))) as file:
        assert file.read("text/one two.xml").decode() == loud(page.format("utf-8", "utf-8"))
        assert file.read("OEBPS/data.xml") == b"<p>data</p>"
        languages = etree.fromstring(file.read("OEBPS/content.opf")).iter("{*}language")
        assert [element.text for element in languages] == ["de", "fr"]


@pytest.mark.parametrize("language", ["de", None])
def test_the_titles_of_a_book_are_translated(language):
    dublin_core = 'xmlns:dc="http://purl.org/dc/elements/1.1/"'
    package = f"""<package xmlns="http://www.idpf.org/2007/opf"><metadata {dublin_core}>
        <dc:title>Tom &amp; the dog</dc:title><dc:creator>Anna Bell</dc:creator>
        <dc:title>1984</dc:title><dc:language>en</dc:language></metadata></package>"""
    contents = """<!DOCTYPE ncx PUBLIC "-//NISO//DTD ncx 2005-1//EN" "http://www.daisy.org/z3986/2005/ncx-2005-1.dtd">
        <ncx xmlns="http://www.daisy.org/z3986/2005/ncx/"><docTitle><text>Tom</text></docTitle>
        <docAuthor><text>Anna Bell</text></docAuthor>
        <navMap><navPoint id="a"><navLabel><text>One &lt; two</text></navLabel><content src="one.html"/>
        </navPoint></navMap></ncx>"""
    book = archive({"content.opf": package, "toc.NCX": contents, "one.html": "<p>a</p>"})
    texts = texts_of(book, "a.epub")
    assert texts == ["Tom &amp; the dog", "Tom", "One &lt; two", "<p>a</p>"]
    with zipfile.ZipFile(io.BytesIO(with_texts(book, "a.epub", map(loud, texts), language))) as file:
        metadata = etree.fromstring(file.read("content.opf"))
        navigation = etree.fromstring(file.read("toc.NCX"))
    titles = ["TOM & THE DOG", "Anna Bell", "1984", language or "en"]
    assert [element.text for element in metadata.iterfind(".//{http://purl.org/dc/elements/1.1/}*")] == titles
    assert [element.text for element in navigation.iter("{*}text")] == ["TOM", "Anna Bell", "ONE < TWO"]


@pytest.mark.parametrize("language", [None, "de"])
@pytest.mark.parametrize("damaged", ["<ncx><navMap>", "", "\0"])
def test_a_damaged_table_of_contents_stays_as_it_is(damaged, language):
    book = archive({"toc.ncx": damaged, "content.opf": damaged, "one.html": "<p>a</p>"})
    texts = texts_of(book, "a.epub")
    assert texts == ["<p>a</p>"]
    with zipfile.ZipFile(io.BytesIO(with_texts(book, "a.epub", map(loud, texts), language))) as file:
        assert file.read("toc.ncx") == file.read("content.opf") == damaged.encode()
        assert file.read("one.html") == b"<p>A</p>"


@pytest.mark.parametrize(
    ("page", "text"),
    [
        (b'<META charset="ISO-8859-1"><p>a', '<META charset="utf-8"><p>a'),
        # which browsers take for Windows-1252
        (
            b"<meta http-equiv=Content-Type content='text/html; charset=latin1'>\x93M\xfc\x94",
            "<meta http-equiv=Content-Type content='text/html; charset=utf-8'>\u201cM\xfc\u201d",
        ),
        ("<meta charset=koi8-r>\u043c\u0438\u0440".encode("koi8-r"), "<meta charset=utf-8>\u043c\u0438\u0440"),
        ("<meta charset=iso-2022-jp>\u65e5".encode("iso-2022-jp"), "<meta charset=utf-8>\u65e5"),
        # names of the web
        ("<meta charset=X-SJIS>\u65e5\u2460".encode("cp932"), "<meta charset=utf-8>\u65e5\u2460"),
        ("<meta charset=windows-874>\u0e44".encode("cp874"), "<meta charset=utf-8>\u0e44"),
        ("<meta charset=iso-8859-8-i>\u05e9".encode("iso8859-8"), "<meta charset=utf-8>\u05e9"),
        ("<meta charset=utf-16>\u65e5".encode("utf-16-le"), "<meta charset=utf-8>\u65e5"),
        ("<?xml version='1.0' encoding='utf-16'?>a".encode("utf-16-be"), "<?xml version='1.0' encoding='utf-8'?>a"),
        ("<meta charset=utf-16>\u65e5".encode("utf-16"), "<meta charset=utf-8>\u65e5"),
        # a page that is UTF-8 all the same
        ("<meta charset=windows-1252>\u65e5".encode(), "<meta charset=utf-8>\u65e5"),
        ("<meta charset=unknown>\u65e5".encode(), "<meta charset=utf-8>\u65e5"),
        ("<meta charset=UTF-8>\ufeff\u65e5".encode(), "<meta charset=UTF-8>\ufeff\u65e5"),
        (b"<p>charset=latin1", "<p>charset=latin1"),
    ],
)
def test_pages_become_utf_8_and_say_so(page, text):
    assert texts_of(page, "a.html") == [text]
    output = with_texts(page, "a.html", [text + "\xe4"])
    assert output == (text + "\xe4").encode()
    # as a browser reads it
    if "charset" in text and "<p>" not in text:
        assert "\xe4" in lxml_html.document_fromstring(output).text_content()


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("ending", [".txt", ".srt", ".vtt"])
def test_text_in_utf_16_becomes_utf_8_with_or_without_a_byte_order_mark(ending, encoding):
    text = "1\n00:00 --> 00:01\n\u65e5\n"
    assert rewritten(text.encode(encoding), f"a{ending}") == text.encode()


XML_BOMB = """<!DOCTYPE d [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;">]><d>&b;</d>"""


@pytest.mark.parametrize(
    ("ending", "content", "problem"),
    [
        (".txt", b"M\xfcller", "not UTF-8"),
        (".docx", b"PK nothing", "damaged, encrypted or not .docx"),
        (".docx", archive({"word/document.xml": "<a>"}), "damaged, encrypted or not .docx"),
        (".docx", archive({"word/document.xml": XML_BOMB}), "declares XML entities, which are not read"),
        (".docx", archive({"word/document.xml": "<a>" * 600}), "damaged, encrypted or not .docx"),
        (".epub", archive({"one": "0" * 3000, "two.html": "0" * 3000}), "larger than 5,000 bytes"),
        (".epub", archive({"one.html": "0" * 3000}), "larger than 2,000 bytes"),
        (".html", b"0" * 3000, "larger than 2,000 bytes"),
        (".html", b"<meta charset=koi8-r>" + b"0" * 3000, "larger than 2,000 bytes"),
        (".html", b"<meta charset=cp1252>\x81", "not UTF-8"),
        (".html", "\u65e5".encode("utf-16")[:3], "not UTF-8"),
    ],
)
def test_files_that_cannot_be_used_are_explained(ending, content, problem, monkeypatch):
    monkeypatch.setattr(document_files, "MAX_BYTES", 5000)
    with pytest.raises(ExchangeError, match=problem):
        texts_of(content, f"a{ending}", max_bytes=2000)


@pytest.mark.parametrize("ending", ENDINGS)
@given(
    st.binary()
    | st.lists(st.sampled_from(["\n", "\n-", "-->", "<", "<i>", ">", "&", "&lt;", "a b", "\0"])).map("".join)
)
def test_any_content_is_rewritten_or_refused(ending, content):
    content = content if isinstance(content, bytes) else content.encode()
    with contextlib.suppress(ExchangeError):
        texts = texts_of(content, f"a{ending}")
        assert texts_of(with_texts(content, f"a{ending}", texts), f"a{ending}") is not None


STRANGE = "a\0b\x01c\x0bd\x1fe\ufffef\uffffg"


def test_characters_that_no_xml_may_have_are_left_out_of_translations():
    word = with_texts(word_file(lambda document: document.add_paragraph("x")), "a.docx", [STRANGE])
    assert read_word(word).paragraphs[0].text == "abcdefg"
    book = with_texts(archive({"a.xhtml": "<p>x</p>"}), "a.epub", [f"<p>{STRANGE}</p>"])
    with zipfile.ZipFile(io.BytesIO(book)) as file:
        assert file.read("a.xhtml") == b"<p>abcdefg</p>"


@pytest.mark.parametrize("ending", [".srt", ".vtt"])
@pytest.mark.parametrize("lines", ["x", "x\ny"])
def test_no_translation_breaks_a_subtitle(ending, lines):
    before = "1\n00:00 --> 00:01\n"
    content = f"{before}{lines}\n\n2\n00:02 --> 00:03\nz\n"
    output = with_texts(content.encode(), f"a{ending}", [f"<i>{STRANGE}</i>\n\n9\x85h", "z"]).decode()
    assert re.sub(" +", " ", output) == content.replace(lines, "<i>abcdefg</i> 9 h", 1)


def test_other_texts_stay_as_they_are_with_all_their_characters():
    text = f"<p>{STRANGE}</p>".encode()
    for ending in (".txt", ".html"):
        assert with_texts(text, f"a{ending}", texts_of(text, f"a{ending}")) == text
