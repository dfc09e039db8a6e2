"""Paragraphs of Word and PowerPoint: words take their format along, and all else keeps its place among them."""

import io
import zipfile
from collections import Counter
from itertools import accumulate, count

import docx
import pytest
from docx.oxml.ns import qn
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import etree

from hf_vanilla_transformer.plugins.documents.document_files import texts_of, with_texts
from hf_vanilla_transformer.plugins.documents.html import HtmlDocument

WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
STRICT_WORD = "http://purl.oclc.org/ooxml/wordprocessingml/main"
DRAWING = "http://schemas.openxmlformats.org/drawingml/2006/main"
STRICT_DRAWING = "http://purl.oclc.org/ooxml/drawingml/main"
# sentences with their translations, and the source word of each word
KNOWN = {
    "the red car": ("LA VOITURE ROUGE", [[0], [2], [1]]),
    "the big car": ("LA VOITURE", [[0], [2]]),
    "see this page now": ("JETZT SEITE DIESE SIEHE", [[3], [2], [1], [0]]),
    "I see it": ("DASS ICH ES SEHE", [[], [0], [2], [1]]),
}


def office_file(name: str, part: str, content: str) -> bytes:
    output = io.BytesIO()
    with zipfile.ZipFile(output, "w") as archive:
        archive.writestr(part, content)
    return output.getvalue()


def word_part(paragraph: str, space: str = WORD) -> str:
    return f'<w:document xmlns:w="{space}" xmlns:m="urn:m"><w:body><w:p>{paragraph}</w:p></w:body></w:document>'


def translated(content: bytes, name: str, sentences: list[str] | None = None) -> bytes:
    """Return a file with each sentence as in `KNOWN` or in upper case; the sentences are added to a list."""
    texts = []
    for text in texts_of(content, name):
        document = HtmlDocument(text, "en", target="de")
        links = {i: KNOWN[sentence][1] for i, sentence in enumerate(document.sentences) if sentence in KNOWN}
        texts.append(
            document.join([KNOWN.get(sentence, [sentence.upper()])[0] for sentence in document.sentences], links)
        )
        if sentences is not None:
            sentences += document.sentences
    return with_texts(content, name, texts, "de")


def run(text: str, properties: str = "") -> str:
    return f'<w:r><w:rPr>{properties}</w:rPr><w:t xml:space="preserve">{text}</w:t></w:r>'


def paragraph_of(xml: str, sentences: list[str] | None = None, space: str = WORD) -> list[str]:
    """Return what is in a translated paragraph, in order: texts with a "*" for bold ones, and names of elements."""
    content = translated(office_file("a.docx", "word/document.xml", word_part(xml, space)), "a.docx", sentences)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        root = etree.fromstring(archive.read("word/document.xml"))
    found: list[str] = []
    for element in root.iter():
        name = etree.QName(element).localname
        if name == "t":
            is_bold = element.getparent().find("{*}rPr/{*}b") is not None
            found.append("*" * is_bold + (element.text or ""))
        elif name not in ("document", "body", "p", "r", "rPr", "b", "lang"):
            found.append(name)
        if name == "r":
            # no run is left with nothing but its format
            assert [etree.QName(child).localname for child in element] != ["rPr"]
    return found


BOLD = "<w:b/>"
FIELD = '<w:r><w:fldChar w:fldCharType="{}"/></w:r>'


INSTRUCTION = "<w:r><w:instrText>{}</w:instrText></w:r>"


def complex_field(text: str, instruction: str = "") -> str:
    start = FIELD.format("begin") + (INSTRUCTION.format(instruction) if instruction else "")
    return start + FIELD.format("separate") + run(text) + FIELD.format("end")


def simple_field(text: str) -> str:
    return f"<w:fldSimple>{run(text)}</w:fldSimple>"


@pytest.mark.parametrize(
    ("xml", "expected"),
    [
        # the commonest format is that of all words that no other one claims
        (run("the ") + run("red", BOLD) + run(" car"), ["LA VOITURE ", "*ROUGE"]),
        (run("I", BOLD) + run(" see", BOLD) + run(" it"), ["*DASS ICH ", "ES", "* SEHE"]),
        (run("I") + run(" see it", BOLD), ["*DASS ", "ICH", "* ES SEHE"]),
        # the translation has no "big"
        (run("the ") + run("big", BOLD) + run(" car"), ["LA VOITURE"]),
        # a tab, and what follows it
        (
            run("the ") + run("red", BOLD) + "<w:r><w:t> car</w:t><w:tab/><w:t>is old</w:t></w:r>",
            ["LA VOITURE ", "*ROUGE", "tab", "IS OLD"],
        ),
        # formulas and notes as in HTML
        (run("where ") + "<m:oMath><m:r/></m:oMath>" + run(" is big"), ["WHERE ", "oMath", " IS BIG"]),
        (
            run("the red") + '<w:r><w:footnoteReference w:id="1"/></w:r>' + run(" car"),
            ["LA VOITURE ROUGE", "footnoteReference"],
        ),
        # ranges stay around their words
        (
            run("the ") + '<w:bookmarkStart w:id="1"/>' + run("red") + '<w:bookmarkEnd w:id="1"/>' + run(" car"),
            ["LA VOITURE ", "bookmarkStart", "ROUGE", "bookmarkEnd"],
        ),
        (
            run("see ")
            + '<w:commentRangeStart w:id="1"/>'
            + run("this page")
            + '<w:commentRangeEnd w:id="1"/><w:r><w:commentReference w:id="1"/></w:r>'
            + run(" now"),
            ["JETZT ", "commentRangeStart", "SEITE DIESE", "commentRangeEnd", "commentReference", " SIEHE"],
        ),
        # moved text is translated where it is now
        (
            f"<w:moveFrom>{run('a dog')}</w:moveFrom>{run('Go ')}<w:moveTo>{run('a dog')}</w:moveTo>",
            ["moveFrom", "a dog", "GO ", "moveTo", "A DOG"],
        ),
        (
            run("a ") + f"<w:del><w:r><w:delText>x</w:delText></w:r></w:del><w:ins>{run('dog')}</w:ins>",
            ["A ", "del", "delText", "ins", "DOG"],
        ),
        (
            f"{run('a ')}<w:r><w:ruby><w:rt>{run('read')}</w:rt><w:rubyBase>{run('base')}</w:rubyBase></w:ruby></w:r>",
            ["A ", "ruby", "rt", "read", "rubyBase", "BASE"],
        ),
        # fields keep the space between them, and go with their words
        (
            complex_field("one") + run(" ") + complex_field("two"),
            ["fldChar", "fldChar", "ONE", "fldChar", " ", "fldChar", "fldChar", "TWO", "fldChar"],
        ),
        (simple_field("one") + run(" ") + simple_field("two"), ["fldSimple", "ONE", " ", "fldSimple", "TWO"]),
        (
            run("a ") + f"<w:ins>{run('big ')}</w:ins>" + run("dog ") + f"<w:ins>{run('runs')}</w:ins>",
            ["A ", "ins", "BIG", " DOG ", "ins", "RUNS"],
        ),
        (run("page ") + simple_field("7") + run(" or so"), ["PAGE ", "fldSimple", "7", " OR SO"]),
        # Word's marks of spelling and layout
        (
            run("a ") + '<w:proofErr w:type="spellStart"/>' + run("dog") + "<w:r><w:lastRenderedPageBreak/></w:r>",
            ["A DOG"],
        ),
        (
            "<w:sdt><w:sdtPr/><w:sdtContent>" + run("a") + "</w:sdtContent></w:sdt>" + run(" dog"),
            ["sdt", "sdtPr", "sdtContent", "A", " DOG"],
        ),
        (
            run("see ") + complex_field("this page", "HYPERLINK") + run(" now"),
            ["JETZT ", "fldChar", "instrText", "fldChar", "SEITE DIESE", "fldChar", " SIEHE"],
        ),
        # an entry of the index has no result; a page number in a link of a table of contents
        (
            run("the red") + FIELD.format("begin") + INSTRUCTION.format("XE car") + FIELD.format("end") + run(" car"),
            ["LA VOITURE ROUGE", "fldChar", "instrText", "fldChar"],
        ),
        (
            FIELD.format("begin")
            + INSTRUCTION.format("HYPERLINK")
            + FIELD.format("separate")
            + run("the red car")
            + "<w:r><w:tab/></w:r>"
            + complex_field("7", "PAGEREF")
            + FIELD.format("end"),
            [
                *("fldChar", "instrText", "fldChar", "LA VOITURE ROUGE", "tab"),
                *("fldChar", "instrText", "fldChar", "7", "fldChar", "fldChar"),
            ],
        ),
        # one that starts in another paragraph
        (
            run("the red car") + FIELD.format("end") + run(" is old"),
            ["LA VOITURE ROUGE", "fldChar", " IS OLD"],
        ),
        # the format of a link is not that of words outside
        (
            run("I ") + complex_field("x", "HYPERLINK").replace(run("x"), run("see it", BOLD)),
            ["DASS ICH ", "fldChar", "instrText", "fldChar", "*ES SEHE", "fldChar"],
        ),
        (
            run("I ") + f"<w:hyperlink>{run('see it', BOLD)}</w:hyperlink>",
            ["DASS ICH ", "hyperlink", "*ES SEHE"],
        ),
    ],
    ids=count(),
)
def test_what_is_in_a_paragraph_goes_with_its_words(xml, expected):
    assert paragraph_of(xml) == expected


def test_a_field_that_crosses_a_range_starts_before_it_ends_whatever_the_translation_is():
    start = FIELD.format("begin") + INSTRUCTION.format("HYPERLINK") + FIELD.format("separate")
    xml = '<w:commentRangeStart w:id="1"/>' + run("see ") + start + run("this ") + '<w:commentRangeEnd w:id="1"/>'
    xml += run("page") + FIELD.format("end") + run(" now")
    content = office_file("a.docx", "word/document.xml", word_part(xml))
    (text,) = texts_of(content, "a.docx")
    document = HtmlDocument(text, "en")
    translations, links = [], {}
    for number, sentence in enumerate(document.sentences):
        words = sentence.split()
        order = sorted(words, key=["page", "now", "see", "this"].index)
        translations.append(" ".join(order))
        links[number] = [[words.index(word)] for word in order]
    after = docx_of(with_texts(content, "a.docx", [document.join(translations, links)]))
    signs = [sign.get(f"{{{WORD}}}fldCharType") for sign in after.iter("{*}fldChar")]
    assert signs == ["begin", "separate", "end"]


@pytest.mark.parametrize("field", [complex_field, simple_field])
def test_a_field_does_not_end_a_sentence(field):
    sentences: list[str] = []
    paragraph_of(run("As ") + field("Figure 1") + run(" shows, it runs"), sentences)
    assert sentences == ["As Figure 1 shows, it runs"]


def test_alternatives_in_a_paragraph_are_translated_each_by_itself():
    space = "http://schemas.openxmlformats.org/markup-compatibility/2006"
    alternatives = f'<mc:AlternateContent xmlns:mc="{space}">{{}}</mc:AlternateContent>'
    first = run("the ") + run("red", BOLD) + run(" car")
    both = f"<mc:Choice>{first}</mc:Choice><mc:Fallback>{run('the big car')}</mc:Fallback>"
    sentences: list[str] = []
    xml = run("a dog ") + alternatives.format(both) + run(" runs")
    expected = ["A DOG ", "AlternateContent", "Choice", "LA VOITURE ", "*ROUGE", "Fallback", "LA VOITURE", " RUNS"]
    assert paragraph_of(xml, sentences) == expected
    assert sentences == ["a dog runs", "the red car", "the big car"]
    # those around text boxes have paragraphs
    box = f"<mc:Choice><w:drawing><w:p>{run('the big car')}</w:p></w:drawing></mc:Choice>"
    assert paragraph_of(run("a dog") + f"<w:r>{alternatives.format(box)}</w:r>") == [
        *("A DOG", "AlternateContent", "Choice", "drawing", "LA VOITURE"),
    ]


def test_a_note_is_not_part_of_the_word_before_it():
    sentences: list[str] = []
    xml = run("The man") + run("1", '<w:vertAlign w:val="superscript"/>') + run(" runs")
    assert paragraph_of(xml, sentences) == ["THE MAN", "vertAlign", "1", " RUNS"]
    assert sentences == ["The man runs"]
    # but an ordinal is
    sentences.clear()
    paragraph_of(run("the 1") + run("st", '<w:vertAlign w:val="superscript"/>') + run(" man"), sentences)
    assert sentences == ["the 1st man"]


def test_formats_inside_one_link_move_in_it():
    xml = f"{run('see ')}<w:hyperlink>{run('this ', BOLD)}{run('page', '<w:i/>')}</w:hyperlink>{run(' now')}"
    assert paragraph_of(xml) == ["JETZT ", "hyperlink", "i", "SEITE ", "*DIESE", " SIEHE"]


def test_a_translation_without_the_tags_loses_formats_but_nothing_else():
    content = office_file(
        "a.docx",
        "word/document.xml",
        word_part(run("a ") + run("b", BOLD) + '<w:bookmarkStart w:id="1"/>' + run(" c")),
    )
    document = docx_of(with_texts(content, "a.docx", ['<i id="1">x</i> &amp; y']))
    assert document.xpath("string()") == "x & y"
    assert len(document.findall(".//{*}bookmarkStart")) == 1


def docx_of(content: bytes):
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return etree.fromstring(archive.read("word/document.xml"))


def test_a_hyphen_that_never_ends_a_line_is_part_of_its_word():
    document = docx.Document()
    first = document.add_paragraph("a well").runs[0]
    first._r.append(first._r.makeelement(qn("w:noBreakHyphen"), {}))
    first._r.add_t("known dog")
    output = io.BytesIO()
    document.save(output)
    sentences: list[str] = []
    content = translated(output.getvalue(), "a.docx", sentences)
    assert sentences == ["a well-known dog"]
    assert docx.Document(io.BytesIO(content)).paragraphs[0].text == "A WELL-KNOWN DOG"


@pytest.mark.parametrize("space", [DRAWING, STRICT_DRAWING])
@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("a.pptx", "ppt/slides/slide1.xml"),
        ("a.pptx", "ppt/notesSlides/notesSlide1.xml"),
        # SmartArt, and what programs that do not know it show instead
        ("a.pptx", "ppt/diagrams/data1.xml"),
        ("a.docx", "word/diagrams/drawing1.xml"),
        ("a.docx", "word/charts/chart1.xml"),
    ],
)
def test_paragraphs_of_drawings(name, part, space):
    properties = '<a:rPr lang="en-US" b="1" altLang="fr-FR"/>'
    xml = f"""<x xmlns:a="{space}"><a:p><a:pPr/><a:r><a:t>the </a:t></a:r><a:r>{properties}<a:t>red</a:t></a:r>
        <a:r><a:t> car</a:t></a:r><a:br/><a:fld type="date"><a:rPr/><a:pPr/><a:t>May 1</a:t></a:fld>
        <a:r><a:t> </a:t></a:r><a:fld type="n"><a:t>7</a:t></a:fld>
        <a:r><a:t> by us</a:t></a:r><a:fld type="slidenum"/><a:endParaRPr lang="en-GB"/></a:p></x>"""
    with zipfile.ZipFile(io.BytesIO(translated(office_file(name, part, xml), name))) as archive:
        paragraph = etree.fromstring(archive.read(part))[0]
    assert [(etree.QName(child).localname, child.findtext("{*}t")) for child in paragraph] == [
        ("pPr", None),
        ("r", "LA VOITURE "),
        ("r", "ROUGE"),
        ("br", None),
        ("fld", "MAY 1"),
        ("r", " "),
        ("fld", "7"),
        ("r", " BY US"),
        ("fld", None),
        ("endParaRPr", None),
    ]
    assert [element.get("lang") for element in paragraph.iter("{*}rPr", "{*}endParaRPr") if element.keys()] == [
        "de",
        "de",
    ]


@pytest.mark.parametrize("properties", ["", '<a:rPr lang="en-US"/>'])
def test_a_line_break_in_powerpoint_ends_a_sentence(properties):
    xml = f"""<x xmlns:a="{DRAWING}"><a:p><a:r><a:t>the red car</a:t></a:r><a:br>{properties}</a:br>
        <a:r><a:t>is old</a:t></a:r></a:p></x>"""
    part = "ppt/slides/slide1.xml"
    sentences: list[str] = []
    with zipfile.ZipFile(io.BytesIO(translated(office_file("a.pptx", part, xml), "a.pptx", sentences))) as archive:
        paragraph = etree.fromstring(archive.read(part))[0]
    assert sentences == ["the red car", "is old"]
    assert [child.findtext("{*}t") for child in paragraph] == ["LA VOITURE ROUGE", None, "IS OLD"]


def test_strict_files_of_word_are_translated_and_name_the_language():
    xml = run("a dog", '<w:lang w:val="en-US" w:eastAsia="zh-CN"/>')
    assert paragraph_of(xml, space=STRICT_WORD) == ["A DOG"]
    content = translated(office_file("a.docx", "word/document.xml", word_part(xml, STRICT_WORD)), "a.docx")
    (language,) = docx_of(content).iter("{*}lang")
    assert sorted(language.values()) == ["de", "zh-CN"]


@pytest.mark.parametrize(
    ("target", "values"),
    [
        ("de", ["ar-SA", "de", "zh-CN"]),
        ("ja", ["ar-SA", "ja", "ja"]),
        ("en_GB", ["ar-SA", "en-US", "zh-CN"]),
        ("he", ["he", "he", "zh-CN"]),
    ],
)
def test_word_files_declare_the_language_of_the_translation(target, values):
    document = docx.Document()
    document.add_paragraph("a dog")
    language = document.styles.element.find(f".//{qn('w:lang')}")
    for name, value in (("val", "en-US"), ("eastAsia", "zh-CN"), ("bidi", "ar-SA")):
        language.set(qn(f"w:{name}"), value)
    document.core_properties.language = "en-US"
    output = io.BytesIO()
    document.save(output)
    after = docx.Document(io.BytesIO(with_texts(output.getvalue(), "a.docx", ["x"], target)))
    assert sorted(after.styles.element.find(f".//{qn('w:lang')}").values()) == values
    assert after.core_properties.language == ("en-US" if target == "en_GB" else target)
    # without a language, nothing is declared
    same = docx.Document(io.BytesIO(with_texts(output.getvalue(), "a.docx", ["x"])))
    assert same.core_properties.language == "en-US"


def test_elements_in_many_others_lose_no_text():
    xml = "<w:ins>" * 60 + run("see ") + "<w:ins>" + run("this page") + "</w:ins>" + "</w:ins>" * 60 + run(" now")
    assert "".join(paragraph_of(xml)).replace("ins", "").split() == ["JETZT", "SEITE", "DIESE", "SIEHE"]


TEXTS = st.sampled_from(["dog ", " a", "big", ". Two", " ", "12", "&amp; ", "men"])
RUNS = st.tuples(TEXTS, st.sampled_from(["", BOLD, "<w:i/>", '<w:vertAlign w:val="superscript"/>'])).map(
    lambda parts: run(*parts)
)
ALONE = st.sampled_from(
    [
        "<w:r><w:tab/></w:r>",
        "<w:r><w:t>a</w:t><w:br/><w:t>dog</w:t><w:drawing/></w:r>",
        "<m:oMath/>",
        simple_field("May"),
        complex_field("two", "HYPERLINK"),
        complex_field(""),
        FIELD.format("begin"),
        FIELD.format("separate"),
        FIELD.format("end"),
    ]
)
# with numbers, which pair them
RANGES = st.sampled_from([f'<w:{name}{end} w:id="{i}"/>' for name in "ab" for end in ("Start", "End") for i in (1, 2)])
PARAGRAPHS = st.recursive(
    RUNS | ALONE | RANGES,
    lambda inner: st.tuples(st.sampled_from(["ins", "hyperlink", "sdtContent"]), st.lists(inner, max_size=4)).map(
        lambda parts: f"<w:{parts[0]}>{''.join(parts[1])}</w:{parts[0]}>"
    ),
    max_leaves=20,
)


KEPT = [f"{{*}}{name}" for name in ("tab", "br", "drawing", "oMath", "fldSimple", "hyperlink", "ins", "sdtContent")]
KEPT += ["{*}fldChar", "{*}instrText"]
KEPT += [f"{{*}}{name}{end}" for name in "ab" for end in ("Start", "End")]


def nesting_of(document) -> list[int]:
    """Return how many fields are open behind each sign of a field, sorted."""
    steps = {"begin": 1, "separate": 0, "end": -1}
    signs = [steps[sign.get(f"{{{WORD}}}fldCharType")] for sign in document.iter("{*}fldChar")]
    return sorted(accumulate(signs))


LETTERS = str.maketrans("0123456789", "ghijklmnop")


@settings(max_examples=60, deadline=None)
@given(st.lists(PARAGRAPHS, max_size=6).map("".join), st.randoms(use_true_random=False))
def test_each_word_and_each_element_is_there_once_whatever_the_translation_is(xml, random):
    numbers = count()
    content = office_file("a.docx", "word/document.xml", word_part(xml))
    texts = []
    words = []
    for text in texts_of(content, "a.docx"):
        document = HtmlDocument(text, "en")
        translations = []
        for sentence in document.sentences:
            # only of letters, as a note may stand between a letter and a full stop
            translations.append(
                " ".join("x" + chr(0x4E00 + next(numbers)).encode().hex().translate(LETTERS) for _ in sentence.split())
            )
            words += translations[-1].split()
        links = {i: [[random.randrange(9)] for _ in range(99)] for i in range(len(translations))}
        texts.append(document.join(translations, links))
    before, after = docx_of(content), docx_of(with_texts(content, "a.docx", texts))
    assert Counter(part.tag for part in after.iter(*KEPT)) == Counter(part.tag for part in before.iter(*KEPT))
    written = "".join(after.itertext())
    assert all(word in written for word in words)
    order = [element.tag for element in before.iter("{*}tab", "{*}br")]
    assert [element.tag for element in after.iter("{*}tab", "{*}br")] == order
    assert nesting_of(after) == nesting_of(before)
