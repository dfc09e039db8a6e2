"""The work for a document grows with its size, not with the square of it, whatever is repeated in it.

Times differ from machine to machine, so that these tests count what the package does: the instructions of its own
code, and the characters that it hands to libraries.
"""

import html.parser
import io
import sys
import zipfile

import pytest
import sentencex

from hf_vanilla_transformer.data.foreign_files import ExchangeError
from hf_vanilla_transformer.inference.segments import Document
from hf_vanilla_transformer.plugins.documents import document_files, office
from hf_vanilla_transformer.plugins.documents.document_files import texts_of, with_texts
from hf_vanilla_transformer.plugins.documents.html import HtmlDocument, _Tokenizer

RUN = "<x:r><x:t>w</x:t></x:r>"
FORMATTED = '<x:r><x:rPr><x:sz x:val="{}"/></x:rPr><x:t>w</x:t></x:r>'
SIGN = '<x:r><x:fldChar x:fldCharType="{}"/></x:r>'
# what is repeated in a paragraph, and what stands before and behind it
REPEATED = {
    "line breaks": ("", RUN + "<x:br/>", ""),
    "line breaks in runs": ("", RUN + "<x:r><x:br/></x:r>", ""),
    "tabs in one run": ("<x:r>", "<x:t>w</x:t><x:tab/>", "</x:r>"),
    "fields": ("", RUN + f"<x:fldSimple>{RUN}</x:fldSimple>", ""),
    "complex fields": ("", SIGN.format("begin") + SIGN.format("separate") + RUN + SIGN.format("end"), ""),
    "formats": ("", FORMATTED, ""),
    "formats in one link": ("<x:h>", FORMATTED, "</x:h>"),
    "links": ("", RUN + f"<x:h>{RUN}</x:h>", ""),
    "bookmarks": ("", '<x:bStart x:id="{0}"/>' + RUN + '<x:bEnd x:id="{0}"/>', ""),
    "bookmarks around all": ("", '<x:bStart x:id="{0}"/>' + RUN, '<x:bEnd x:id="1"/>'),
    "notes": ("", RUN + '<x:r><x:note x:id="{}"/></x:r>', ""),
}


def packed(files: list[tuple[str, str]]) -> bytes:
    output = io.BytesIO()
    with zipfile.ZipFile(output, "w") as archive:
        for name, content in files:
            archive.writestr(name, content)
    return output.getvalue()


def office_file(ending: str, paragraph: str) -> bytes:
    part, space = {
        ".docx": ("word/document.xml", "wordprocessingml"),
        ".pptx": ("ppt/slides/slide1.xml", "drawingml"),
    }[ending]
    space = f"http://schemas.openxmlformats.org/{space}/2006/main"
    return packed([(part, f'<x:p xmlns:x="{space}">{paragraph}</x:p>')])


def count_instructions(function) -> int:
    """Return how many instructions of Python the package executes in a function."""
    count = 0

    def trace(frame, event, _):
        nonlocal count
        if "hf_vanilla_transformer" not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return count


def rewrite(content: bytes, name: str) -> None:
    with_texts(content, name, texts_of(content, name))


@pytest.mark.parametrize("ending", [".docx", ".pptx"])
@pytest.mark.parametrize("name", REPEATED)
def test_twice_as_much_in_a_paragraph_is_twice_the_work(name, ending):
    before, repeated, behind = REPEATED[name]
    files = [office_file(ending, before + "".join(map(repeated.format, range(n))) + behind) for n in (150, 300)]
    rewrite(files[0], f"a{ending}")
    once, twice = (count_instructions(lambda file=file: rewrite(file, f"a{ending}")) for file in files)
    assert twice < 2.2 * once


@pytest.mark.parametrize("signs", [("begin", "separate", "end"), ("begin", "end")])
def test_twice_as_many_fields_in_others_are_twice_the_work(signs):
    *starts, end = map(SIGN.format, signs)
    files = [office_file(".docx", ("".join(starts) + RUN) * n + end * n) for n in (150, 300)]
    rewrite(files[0], "a.docx")
    once, twice = (count_instructions(lambda file=file: rewrite(file, "a.docx")) for file in files)
    assert twice < 2.2 * once


def test_the_children_of_a_paragraph_are_not_counted_for_each_text(monkeypatch):
    counted = []

    def count_children(items):
        counted.append(len(items) if hasattr(items, "iterchildren") else 0)
        return len(items)

    monkeypatch.setattr(office, "len", count_children, raising=False)
    moved = f"{RUN}<x:moveFrom>{RUN}</x:moveFrom>"
    rewrite(office_file(".docx", moved * 300), "a.docx")
    assert 0 < max(counted) <= 2


@pytest.mark.parametrize("properties", ["<x:rPr>{}</x:rPr>", "<x:rPr {}/>"])
def test_the_format_of_a_run_is_read_once_however_many_texts_it_has(properties):
    items = (" ".join(f'a{i}="1"' for i in range(n)) if properties[-2] == "/" else "<x:b/>" * n for n in (100, 200))
    files = [
        office_file(".docx", f"<x:r>{properties.format(part)}{'<x:t>w</x:t>' * n}</x:r>")
        for part, n in zip(items, (100, 200), strict=True)
    ]
    rewrite(files[0], "a.docx")
    once, twice = (count_instructions(lambda file=file: rewrite(file, "a.docx")) for file in files)
    assert twice < 2.2 * once


@pytest.mark.parametrize("cue", ["- a\\N", "<i>a\n\n", ">>{", "\u4f60\n", "{-", "00:01 --> ", "\u300c", "a <b> "])
def test_twice_as_much_in_a_subtitle_is_twice_the_work(cue):
    contents = [f"1\n00:01 --> 00:02\n{cue * n}\n".encode() for n in (200, 400)]
    rewrite(contents[0], "a.srt")
    once, twice = (count_instructions(lambda content=content: rewrite(content, "a.srt")) for content in contents)
    assert twice < 2.2 * once


def test_an_unclosed_comment_is_looked_for_once(monkeypatch):
    calls = []
    parse = html.parser.HTMLParser.parse_comment
    monkeypatch.setattr(html.parser.HTMLParser, "parse_comment", lambda *args: calls.append(1) or parse(*args))
    page = "<!-- a>" * 500
    assert HtmlDocument(page, "en").join([]) == page
    assert len(calls) == 0
    document = HtmlDocument(f"<p>A dog.</p><!-- b -->{page}", "en")
    assert document.sentences == ["A dog."]
    assert len(calls) < 10


def test_the_end_of_a_section_that_has_none_is_looked_for_once():
    class Text(str):
        searches = 0

        def find(self, *args):
            Text.searches += args[0] == "]]>"
            return super().find(*args)

    tokenizer = _Tokenizer("")
    tokenizer.rawdata = Text("<![CDATA[ a>" * 500)
    assert [tokenizer.parse_marked_section(12 * i) for i in range(500)] == [12 * (i + 1) for i in range(500)]
    assert Text.searches == 1


@pytest.mark.parametrize("text", ["`" * 20_000 + "\u2039" * 20_000, '"\u300a' * 20_000, "a" * 40_000])
def test_sentences_are_looked_for_in_pieces(text, monkeypatch):
    lengths = []
    segment = sentencex.segment
    monkeypatch.setattr(sentencex, "segment", lambda code, part: lengths.append(len(part)) or segment(code, part))
    document = Document(text, "en")
    assert document.join(document.sentences) == text
    assert max(lengths) <= 2048
    assert sum(lengths) <= 4 * len(text)


@pytest.mark.parametrize("length", [1, 30, 300, 3000])
def test_the_pieces_change_no_sentence(length):
    sentence = "Two men, " + "who are tall, " * (length // 14) + "play at home.  "
    text = sentence * (20_000 // len(sentence) + 1)
    assert Document(text, "en").sentences == [" ".join(sentence.split())] * (len(text) // len(sentence))
    quoted = f'He said "It rains. {sentence}I stay." ' * 40
    if length < 1000:
        assert Document(quoted, "en").sentences == [" ".join(part.split()) for part in sentencex.segment("en", quoted)]


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (map(str, range(11)), "has more than 10 parts"),
        (["secret", "secret"], "has several parts of the same name"),
    ],
)
def test_archives_with_too_many_parts_or_equal_names_are_refused(names, problem, monkeypatch, recwarn):
    monkeypatch.setattr(document_files, "MAX_MEMBERS", 10)
    with pytest.warns() if problem.endswith("name") else pytest.MonkeyPatch.context():
        content = packed([(name, "") for name in names])
    recwarn.clear()
    for ending in (".docx", ".epub"):
        with pytest.raises(ExchangeError, match=problem) as error:
            texts_of(content, f"a{ending}")
        assert "secret" not in str(error.value)
    assert not recwarn
