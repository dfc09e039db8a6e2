"""Subtitles as people write them: blank lines, old line ends, several speakers, and lines without spaces."""

import re

import pysubs2
import pytest

from hf_vanilla_transformer.plugins.documents.document_files import texts_of, with_texts

TIMES = "00:00:01,000 --> 00:00:02,000"
LAST = "\n2\n00:00:03,000 --> 00:00:04,000\nan end\n"
WIDE = "\u4f60\u597d\u4e16\u754c\uff0c"  # no line starts with the last one of these characters


def loud(text: str) -> str:
    """Return HTML with its text in upper case."""
    return re.sub(r"[^<>&;]+(?=[<&]|$)", lambda match: match[0].upper(), text)


def spoken(subtitles: str, ending: str) -> tuple[list[str], str]:
    """Return the texts of subtitles, and the subtitles with these in upper case."""
    texts = texts_of(subtitles.encode(), f"a{ending}")
    return texts, with_texts(subtitles.encode(), f"a{ending}", map(loud, texts)).decode()


@pytest.mark.parametrize(
    ("cue", "texts", "expected"),
    [
        # SubRip's players show what follows a blank line, and WebVTT's start with a line of spaces
        ("one\n\ntwo\n", ["one", "two"], "ONE\n\nTWO\n"),
        ("one\n \n\ntwo\nthree\n", ["one", "two three"], "ONE\n \n\nTWO THREE\n"),
        ("  \none\n", ["one"], "  \nONE\n"),
        ("<i>- one.</i>\n<i>- two</i>\n", ["<i>- one.</i>", "<i>- two</i>"], "<i>- ONE.</i>\n<i>- TWO</i>\n"),
        ("-one.\n-two\n", ["one.", "two"], "-ONE.\n-TWO\n"),
        ("- one\\N- two\n", ["- one", "- two"], "- ONE\\N- TWO\n"),
        (">> one\n>> two\n", ["&gt;&gt; one", "&gt;&gt; two"], ">> ONE\n>> TWO\n"),
        (">>one\n>>two\n", ["one", "two"], ">>ONE\n>>TWO\n"),
        ("one\\Ntwo\\hthree\n", ["one two three"], "ONE TWO THREE\n"),
        # lines of a script without spaces
        ("\u4f60\n\u597d\n", ["\u4f60\u597d"], "\u4f60\u597d\n"),
    ],
)
def test_subtitles_of_subrip(cue, texts, expected):
    subtitles = f"1\n{TIMES}\n{cue}{LAST}"
    cut, output = spoken(subtitles, ".srt")
    assert cut == [*texts, "an end"]
    assert output == f"1\n{TIMES}\n{expected}{LAST.replace('an end', 'AN END')}"
    before, after = (pysubs2.SSAFile.from_string(text, "srt") for text in (subtitles, output))
    assert [(event.start, event.end) for event in before] == [(event.start, event.end) for event in after]


def test_each_voice_of_web_subtitles_keeps_its_line():
    cue = "<v Ann>one\ntwo\n<v.loud Tom>three</v>\n<video>four"
    cut, output = spoken(f"WEBVTT\n\n00:01 --> 00:02\n{cue}\n", ".vtt")
    assert cut == ["<v Ann>one two", "<v.loud Tom>three</v> <video>four"]
    assert output.endswith("\n<v Ann>ONE TWO\n<v.loud Tom>THREE</v> <video>FOUR\n")


def test_web_subtitles_end_at_a_blank_line():
    start = "WEBVTT\nLanguage: en-US\n\n"
    subtitles = start + "00:01 --> 00:02\n \none\n&gt;&gt; two\n\nNOTE a note\n\nid\n00:03 --> 00:04\n-three\n"
    cut, output = spoken(subtitles, ".vtt")
    assert cut == ["one", "&gt;&gt; two", "three"]
    assert output == subtitles.replace("one", "ONE").replace("two", "TWO").replace("three", "THREE")
    assert with_texts(subtitles.encode(), "a.vtt", cut, "de").decode() == subtitles.replace("en-US", "de")


@pytest.mark.parametrize("newline", ["\r", "\r\n", "\r\r\n"])
@pytest.mark.parametrize("ending", [".srt", ".vtt"])
def test_old_line_ends_are_read_and_kept(ending, newline):
    subtitles = f"WEBVTT\n\n1\n{TIMES.replace(',', '.')}\none\ntwo\n{LAST}".replace("\n", newline)
    cut, output = spoken(subtitles, ending)
    assert cut == ["one two", "an end"]
    assert output == subtitles.replace(f"one{newline}two", "ONE TWO").replace("an end", "AN END")


@pytest.mark.parametrize(
    ("translation", "lines"),
    [
        (WIDE * 5, [WIDE * 4 + WIDE[0], WIDE[1:]]),
        # the comma would stand at the start of a line
        ("\u4f60" + WIDE * 4 + "x", ["\u4f60" + WIDE * 4, "x"]),
        # a bracket would stand at its end
        ("\u4f60" * 20 + "\u300c\u597d\u300d", ["\u4f60" * 20, "\u300c\u597d\u300d"]),
        (f"<i>{WIDE * 4}</i>{WIDE}", [f"<i>{WIDE * 4}</i>{WIDE[0]}", WIDE[1:]]),
        ("\u3053\u308c " + "word " * 8, ["\u3053\u308c word word word word word word word", "word"]),
        # 42 columns, twice
        (f"{'word ' * 8}xx {'word ' * 8}xx y", [f"{'word ' * 8}xx", f"{'word ' * 8}xx", "y"]),
        # Korean ends its lines at spaces
        ("\uc548\ub155 " * 10, [("\uc548\ub155 " * 8).strip(), "\uc548\ub155 \uc548\ub155"]),
    ],
)
def test_lines_are_wrapped_by_their_width(translation, lines):
    subtitles = f"1\n{TIMES}\none\ntwo\n"
    output = with_texts(subtitles.encode(), "a.srt", [translation]).decode()
    assert [line.strip() for line in output.splitlines()[2:]] == lines


def test_the_line_breaks_of_substation_are_kept():
    output = with_texts(f"1\n{TIMES}\none\\Ntwo\n".encode(), "a.srt", ["word " * 9]).decode()
    assert output.splitlines()[2:] == [("word " * 8).strip() + "\\Nword"]
