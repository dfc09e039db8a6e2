"""Find what stays as it is inside a sentence: addresses, code, formats of programs and catalogues, tags, emoji."""

from collections.abc import Iterator
from functools import cache
from html.entities import html5
from operator import itemgetter

import regex

from ..errors import UserError

_NAME = r"[A-Za-z_]\w{0,63}"
_CONVERSION = r"[-+0#,(']{0,5}(?:\d{1,4}|\*)?(?:\.(?:\d{1,3}|\*))?(?:hh?|ll?|[Lqjzt]|I64)?[A-Za-z@]"
# A suffix may follow: that of a language such as Japanese, or with a name in the format, any. "5 %-Hürde" is German
_PRINTF = rf"%(?:(?:\({_NAME}\)|<{_NAME}>|\d{{1,2}}\$){_CONVERSION}|{_CONVERSION}(?![\p{{Latin}}0-9_]))"
_ARGUMENT = r"\{[^{}]*+\}"
for _ in range(5):
    _ARGUMENT = rf"\{{(?:[^{{}}]++|{_ARGUMENT})*+\}}"
_TAG_END = r"\s{0,3}/?>"
_ATTRIBUTE = r"""\s{1,3}[^\s<>="'/]{1,60}(?:\s?=\s?(?:"[^"\n]*"|'[^'\n]*'|[^\s<>"'=`]{1,500}))?"""
_IN_ADDRESS = r"\([^\s<>\"`()]*\)|\{[^\s<>\"`{}]*\}"
_PICTURE = r"\p{Extended_Pictographic}\p{InArrows}\p{InMiscellaneousSymbols}\p{InDingbats}"
_SOUTHEAST_ASIAN = r"\p{Line_Break=Complex_Context}"
# Letters of e-mail addresses: in Chinese, Japanese and Korean, no space is between one and the next word
_LETTER = r"[\w--[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3]]"
# Chinese and Japanese punctuation, which no address contains
_WIDE = r"\u3001-\u3003\u3008-\u3011\u3014-\u301f\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65"

# Each kind with its notation, and where that is defined. Of two that start at the same place, the first one wins.
# Lookbehinds and limits on repetitions keep the time linear in the length of a text, whatever is repeated in it.
KINDS = {
    # CommonMark 6.1 and reStructuredText, but not the apostrophes of "п`ять"; CommonMark 6.3 and 6.4, of which the
    # label stays too; 6.5
    "code": r"(?<!`)``[^\n]+?``|`(?<![\p{Latin}\p{Cyrillic}]`)[^`\n]+`(?:_{1,2}(?!\w))?",
    "Markdown link": r'!?\[[^\[\]\n]{0,300}\]\((?:[^()\s]|\([^()\s]{0,100}\)){1,500}(?:\s"[^"\n]{0,200}")?\)',
    "Markdown autolink": r"<(?:[A-Za-z][A-Za-z0-9+.-]{1,20}:[^\s<>]+|[\w.+-]+@[\w.-]+)>",
    # ICU MessageFormat and FormatJS; selectors of Fluent. All of a plural or a choice, as languages differ in the
    # forms that they need; it may have several lines
    "ICU choice": rf"(?=\{{\s*+(?:[\w.-]{{1,64}}\s*+,\s*+(?:plural|select|selectordinal|choice)\s*+,"
    rf"|(?:\$[\w-]{{1,64}}|[A-Z]{{3,20}}\([^(){{}}\n]{{1,200}}\))\s*+->)){_ARGUMENT}",
    "ICU format": r"\{\s?[\w.-]{1,64}\s?,\s?(?:number|date|time|duration|ordinal|spellout|list)\b[^{}\n]{0,100}\}",
    # Jinja, Django, Twig and Liquid; ERB and PHP
    "block of a template": r"\{%[^{}\n]{0,300}%\}|\{#[^{}\n]{0,300}#\}|<%[^<\n]{0,300}?%>|<\?[^<\n]{0,300}?\?>",
    # Mustache, Handlebars, Jinja, i18next and Angular; shells, JavaScript and GitHub Actions; `$t(key)` of i18next;
    # `@:key` of Vue
    "template": r"\{\{\{[^{}\n]*\}\}\}|\$?\{\{[^{}\n]*\}\}|\$t\([^()\n]{1,100}\)"
    r"|@(?<!\w@)(?:\.[a-z]{1,20})?:(?:\{[^{}\s]{1,100}\}|\([\w.-]{1,100}\)|[A-Za-z_][\w-]{0,64}(?:\.\w{1,64})*)",
    # Advanced SubStation Alpha
    "override of a subtitle": r"\{\\[^{}\n]{0,300}\}",
    # Python's `str.format`, Rust, .NET and Java's `MessageFormat`; Fluent; Ruby's `%{}` and `#{}`, JavaScript's `${}`;
    # LaTeX
    "field": rf"(?:[$#%@]|\\[A-Za-z]{{1,20}}\*?)?\{{[^\s{{}}]*\}}|\{{\s?[$-]?[A-Za-z_][\w.-]{{0,63}}\s?\}}"
    r"|\{\s?(?:[A-Z]{3,20}\([^(){}\n]{1,200}\)|\"[^\"{}\n]{0,100}\")\s?\}"
    rf"|\{{(?:\d{{1,3}}(?:,-?\d{{1,3}})?:|{_NAME}:%)[^{{}}\n]{{0,100}}\}}",
    # printf(3), Python, PHP and Java's `Formatter`; Apple's `%@` and `%#@name@`. "50 %-a" is Hungarian
    "format": rf"%%|(?<![\d%]|\d\s(?=%-[a-z]))(?:%(?:\d{{1,2}}\$)?#@{_NAME}@|{_PRINTF})(?:[-/:.,]?{_PRINTF}|%%)*",
    # Symfony and Windows; Drupal's `%name`, but "100 %ige" is German; Boost's `%1%`; Qt's `%1`, but "%50" is
    # Turkish
    "name after %": rf"(?<![\w%]|\d[\s-](?=%ig))(?:%{_NAME}(?:[.-]\w{{1,64}})*%?|%[1-9]\d?%(?!\w)"
    r"|%L?[1-9](?![\w%]|[.,]\d))",
    # Slack, Discord and GitHub; a time has no letter
    "emoji shortcode": r"(?<![A-Za-z0-9])(?::(?=\d*[A-Za-z_+-]|100:|1234:)[\w+-]{1,64}:)+(?!\w)",
    # Laravel, Rails and SQL; `"x":n` is Finnish
    "name after :": rf"(?:(?<![^\s(>=,])|(?<=(?:^|[\s(>])['\"\u201c\u201e\xab]))::?{_NAME}(?![\w:])",
    # Shells, PHP, Xcode and browser extensions
    "variable": rf"(?<![\w$])\$(?:{_NAME}\$?|\({_NAME}\))",
    # What Weblate puts in place of placeholders; and other programs
    "mask": r"\[X\d{1,6}X\]|(?<!\w)__[A-Z0-9_]{1,64}__(?!\w)",
    # HTML, XML, Qt and Android in plain text, but not "<<this>>"; React's `<0>` and Unity's `<color=red>`; mentions of
    # Slack and Discord
    "untranslated element": r"""<[A-Za-z]\w{0,60}(?=[^<>]{0,300}(?:\bnotranslate\b|\btranslate\s?=\s?["']?no\b))"""
    r"[^<>]{0,600}>[^<>\n]{0,600}</\w{1,60}>",
    "tag": rf"(?<!<)</?(?:[A-Za-z][\w:.-]{{0,60}}|\d{{1,4}}){_TAG_END}(?!>)|<!--[^<\n]{{0,300}}?-->"
    rf"|<[A-Za-z][\w:.-]{{0,60}}(?=[^<>]{{0,300}}=)(?:{_ATTRIBUTE}){{1,50}}{_TAG_END}"
    r"|<\w{1,30}=[^\s<>]{1,100}>|<[@#!:/][^\s<>]{1,100}>|<[at]:[^\s<>]{1,100}>",
    # HTML, but not what Moses writes for some characters of a text
    "character reference": r"&(?!(?:amp|lt|gt|quot|apos|#124|#91|#93);)"
    r"(?:(?=\w{2,32};)\L<entities>|#\d{1,7};|#[xX][0-9A-Fa-f]{1,6};)",
    # phpBB, Kodi
    "BBCode": r"\[/?(?i:b|i|u|s|url|img|color|size|quote|code|list|cr|center)(?:=[^\[\]\n]{1,200})?\]"
    r"|\[COLOR\s\w{1,30}\]",
    # Escapes in catalogues; "\new" may be anything
    "escape": r"\\[nrt](?![a-z])|\\u[0-9A-Fa-f]{4}|\\x[0-9A-Fa-f]{2}",
    # RFC 3986, RFC 5322, and names in social networks; with templates and parentheses in them
    "address": rf"(?<![A-Za-z0-9_])(?:[A-Za-z][A-Za-z0-9+.-]{{0,20}}://|www\.|mailto:)"
    rf"(?:[^\s<>\"`(){{}}{_WIDE}]|{_IN_ADDRESS})*"
    rf"(?:[^\s<>\"`(){{}}.,;:!?\]'\xab\xbb\u2018-\u201f\u2039\u203a{_WIDE}]|{_IN_ADDRESS})",
    "e-mail address": rf"(?<![{_LETTER}.+-])(?:[{_LETTER}.+-]+@{_LETTER}+|@\w+)(?:[.-]{_LETTER}+)*"
    rf"(?:@{_LETTER}+(?:[.-]{_LETTER}+)*)?",
    # POSIX, also routes such as /users/:id, but not "5 €/Tag" and "«a»/b"; Windows, also "C:\Program Files\a.exe"
    "path": r"(?<![\w/.~\\<)\]@+#%\u2030\xb0\xb2\xb3\p{Currency_Symbol}-]|[\w.!?][\"'\xab\xbb\u2018-\u201f])"
    r"(?:~|\.{1,2})?/(?:\w|[./:@+-]{1,8}(?=[\w{])|\{\w{1,64}\})++/?"
    r"|(?<![\w/\\-])(?:[\w-]+/)+[\w-]+\.\w+|(?:\b[A-Za-z]:|(?<![\w\\])\\\\[\w.-]{1,64})\\"
    r"(?:[^\s\"<>|]|\s(?=(?:[\w().-]{1,40}\s){0,2}[\w().-]{0,39}[\w)]\\))*\w",
    # Unicode Technical Standard 51; a digit is a word unless it is a keycap
    "emoji": rf"(?:[{_PICTURE}--[\u203c\u2049]][\ufe0e\ufe0f\u20e3\u200d\p{{Emoji_Modifier}}\U000e0020-\U000e007f]*"
    r"|[\u203c\u2049]\ufe0f|[0-9#*]\ufe0f?\u20e3|\p{Regional_Indicator})+",
    # A zero-width space separates words in Khmer, Lao, Thai and Burmese
    "invisible": rf"[\u2060\ufeff\ufe0f]|(?<!{_SOUTHEAST_ASIAN})\u200b(?!{_SOUTHEAST_ASIAN})",
}

# Each of them has one of these, and most texts have none
_SIGN = regex.compile(
    rf"[`\[<{{$%:&\\/@_\u20e3\p{{Regional_Indicator}}{_PICTURE}\u200b\u2060\ufeff\ufe0f]|www\.", regex.VERSION1
)


def find_placeholders(text: str, own: str | None = None) -> Iterator[regex.Match[str]]:
    """Yield the placeholders of a text, of the kinds above and those that match an expression of the user."""
    if own is not None or _SIGN.search(text):
        # the own one may match an empty text
        yield from filter(itemgetter(0), placeholder_pattern(own).finditer(text))


def is_placeholder(text: str, own: str | None = None) -> bool:
    """Return whether a text is a single placeholder."""
    return bool((own is not None or _SIGN.search(text)) and placeholder_pattern(own).fullmatch(text))


@cache
def placeholder_pattern(own: str | None = None) -> regex.Pattern[str]:
    """Return the expression that finds placeholders.

    Args:
        own: an expression for more of them, which wins over the kinds above, in the syntax of the package `regex`.

    Raises:
        UserError: if it is not a regular expression.
    """
    names = [name for name in html5 if name.endswith(";")]
    # the own one first, so that the numbers of its groups stay
    kinds = [*KINDS.values()] if own is None else [f"(?:{own})", *KINDS.values()]
    try:
        return regex.compile("|".join(kinds), regex.VERSION1, entities=names)
    except regex.error as error:
        raise UserError(f"Not a regular expression for placeholders: {own!r} ({error}).") from None
