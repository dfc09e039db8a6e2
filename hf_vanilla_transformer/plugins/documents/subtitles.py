"""Subtitles, SubRip's (.srt) and WebVTT: the words of each speaker are HTML, whose translation is wrapped again."""

import html
import re
from collections.abc import Callable
from itertools import groupby
from unicodedata import east_asian_width

from .html import follow_language

WEB = ".vtt"
_LINE_END = re.compile("\r\r\n|\r\n?|\n")  # the first one as programs write it that end lines twice
# The time of a subtitle, with its number; there may be no blank line before them
_TIMES = re.compile(r"^((?:\d+[ \t]*\n)?[ \t]*\d[\d:.,]*[ \t]*-->[^\n]*\n?)", re.MULTILINE)
_LANGUAGE = re.compile(r"(?<=^Language: )\S+", re.MULTILINE)  # of WebVTT
# No two parts of these match the same, so that their time is linear
_TAG = re.compile(r"(</?[A-Za-z][^<>]*>)")
_START = r"(?:<[^<>\n]*>|\{[^{}\n]*\}|[ \t])*(?:[-\u2010-\u2015]|>>|&gt;&gt;)"  # of the words of another speaker
_SPEAKER = re.compile(rf"(\n|\\N)(?={_START}|<v[ \t.])")  # WebVTT names them
_GLUED_START = re.compile(rf"{_START}(?=[^\W\d])")
# Characters between which a line may end, except before and behind these punctuation marks
_OPENING = "\u3008\u300a\u300c\u300e\u3010\u3014\uff08\uff3b\uff5b"
_CLOSING = (
    "\u3001\u3002\u3005\u3009\u300b\u300d\u300f\u3011\u3015\u30fc"
    "\uff01\uff09\uff0c\uff0e\uff1a\uff1b\uff1f\uff3d\uff5d"
)
_CHINESE = r"\u3000-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff00-\uff60\U00020000-\U0003ffff"
_WITHOUT_SPACE = re.compile(rf"(?<=[{_CHINESE}])\s*\n\s*(?=[{_CHINESE}])")
_WORD = rf"(?![{_OPENING}])[{_CHINESE}]|[^\s{_CHINESE}]+"
_PIECE = re.compile(rf"\s*(?:[{_OPENING}]+(?:{_WORD})?|{_WORD})[{_CLOSING}\0]*")
_LINE_WIDTH = 42  # columns of a line, of which a Chinese character takes two
_Translate = Callable[[str], str]


def rewrite_subtitles(text: str, ending: str, translate: _Translate, language: str | None) -> str:
    """Return subtitles of which only the lines below a time are translated, into a language that is declared."""
    newline = line_end[0] if (line_end := _LINE_END.search(text)) else "\n"
    # what is before the first time, then each time and what follows it
    parts = _TIMES.split(_LINE_END.sub("\n", text))
    parts[0] = _LANGUAGE.sub(lambda match: follow_language(match[0], language), parts[0])
    for i in range(2, len(parts), 2):
        # WebVTT ignores what follows a blank line, such as notes; players show it in SubRip
        end = re.search("^$", parts[i], re.MULTILINE) if ending == WEB else None
        length = end.start() if end else len(parts[i])
        parts[i] = _rewrite_cue(parts[i][:length], ending, translate) + parts[i][length:]
    return "".join(parts).replace("\n", newline)


def _rewrite_cue(cue: str, ending: str, translate: _Translate) -> str:
    """Return the lines of a subtitle translated; blank ones stay."""
    written = []
    for is_blank, lines in groupby(cue.split("\n"), lambda line: not line.strip()):
        parts = _SPEAKER.split("\n".join(lines))
        if not is_blank:
            parts[::2] = [_rewrite_speech(speech, ending, translate) for speech in parts[::2]]
        written.append("".join(parts))
    return "\n".join(written)


def _rewrite_speech(speech: str, ending: str, translate: _Translate) -> str:
    """Return the translation of what one speaker says in a subtitle, in one line or several."""
    # a dash that is no word of its own, as in "-Good."
    start = dash[0] if (dash := _GLUED_START.match(speech)) else ""
    # SubStation's line break and space
    lines = speech[len(start) :].replace("\0", "").replace(r"\N", "\n").replace(r"\h", " ")
    # without `<00:01.000>`, the time of the next word, which would stand before another one
    text = re.sub(r"<\d[^<>]*>", "", " ".join(_WITHOUT_SPACE.sub("", lines).split()))
    parts = _TAG.split(text)
    # unlike tags, "Tom & Jerry <3" is not HTML
    parts[::2] = [html.escape(html.unescape(part), quote=False) for part in parts[::2]]
    # in one line: the next one could start another subtitle
    translated = " ".join(translate("".join(parts)).splitlines())
    if ending != WEB:
        translated = html.unescape(translated)
    if "\n" not in lines:
        return start + translated
    # tags take no room, and no line ends inside one
    tags = iter(_TAG.findall(translated))
    wrapped = ("\n" if "\n" in speech else r"\N").join(_wrap(_TAG.sub("\0", translated)))
    return start + re.sub("\0", lambda _: next(tags), wrapped)


def _wrap(text: str) -> list[str]:
    """Return a text in lines, which end at white space or between Chinese or Japanese characters."""
    lines = [""]
    width = 0
    for piece in _PIECE.findall(text):
        if lines[-1] and width + _columns(piece) > _LINE_WIDTH:
            lines.append("")
            width = 0
            piece = piece.lstrip()
        lines[-1] += piece
        width += _columns(piece)
    return lines


def _columns(text: str) -> int:
    return sum(1 + (east_asian_width(character) in "WF") for character in text if character != "\0")
