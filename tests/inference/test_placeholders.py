"""Placeholders of all kinds appear once in a translation, and other text is translated."""

import re
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_vanilla_transformer.errors import UserError
from hf_vanilla_transformer.inference.placeholders import KINDS, placeholder_pattern
from hf_vanilla_transformer.inference.segments import Document

EXAMPLES = {
    "code": ["`ls -l`", "``a`b``", "`a manual <https://e/x>`_"],
    "Markdown link": [
        "[a](https://e/x)",
        '[the manual](https://e/x "Title here")',
        "![a picture](img.png)",
        "[a](/docs/x_(y))",
    ],
    "Markdown autolink": ["<https://e/x>", "<anna@e.org>"],
    "ICU choice": [
        "{count, plural, one {# file} other {# files}}",
        "{n, plural, =0 {no {x} files} one {# file by {who, select, male {him} other {them}}} other {# files}}",
        "{gender, select, male {his} female {her} other {their}}",
        "{n,selectordinal,one{#st}other{#th}}",
        "{n, plural,\n  one {# file}\n  other {# files}\n}",
        "{ $n ->\n  [one] a file\n *[other] { $n } files\n}",
    ],
    "ICU format": ["{0, number}", "{0, date, long}", "{price, number, ::currency/EUR}"],
    "block of a template": ["{% if x %}", "{%- endif -%}", "{# a comment #}", "<%= user.name %>", "<?php echo $x; ?>"],
    "template": [
        "{{{x}}}",
        "{{x}}",
        "{{ user.name | upper }}",
        "${{ secrets.KEY }}",
        "$t(common:key)",
        "{{n}}",
        "@:a.key",
    ],
    "override of a subtitle": [r"{\fnArial Black}", r"{\an8}", r"{\i1}"],
    "field": [
        "%{count}",
        "#{name}",
        "${name}",
        "@{x}",
        "{ $name }",
        "{ -brand-name }",
        '{ DATETIME($date, month: "long") }',
        r"\textbf{bold}",
        "{ name }",
        "{0:dd MMM yyyy}",
        "{now:%d %B %Y}",
        "{0,10:C2}",
        "{name!r:>10}",
        "{now}",
        "{}",
        "{0}",
    ],
    "format": [
        "%@",
        "%1$@",
        "%ld",
        "%lld",
        "%,d",
        "%%",
        "%d%%",
        "%s%s",
        "%1$s%2$s",
        "%-10s",
        "%5.2f",
        "%*d",
        "%05d",
        "%.2f",
        "%.2lf",
        "%zu",
        "%1$tY",
        "%n",
        "%<name>s",
        "%(name)s",
        "%#@files@",
        "%2$#@files@",
        "%Y-%m-%d",
        "%s",
        "%d",
    ],
    "name after %": ["%1", "%1%", "%L1", "%name%", "%user.name%", "%username"],
    "emoji shortcode": [":shortcode:", ":+1:", ":wave::skin-tone-2:"],
    "name after :": [":name", ":Name", ":user_id"],
    "variable": ["$name", "$NAME$", "$(PRODUCT_NAME)"],
    "mask": ["[X19X]", "__NAME__", "__0__"],
    "untranslated element": [
        "<i class=notranslate>{0}</i>",
        '<i class="notranslate">Firefox</i>',
        '<span translate="no">Foo bar</span>',
    ],
    "tag": [
        "<br />",
        "<br>",
        "<br/>",
        "<b>",
        "</b>",
        "<a href=\"https://x.org/a?b=c\" target='_blank'>",
        "<0>",
        "</1>",
        '<x id="1"/>',
        "<color=#ff0000>",
        "<file>",
        "<!-- a comment -->",
        "<@123>",
        "<#C024|general>",
        "<:smile:12345>",
        "<!here>",
    ],
    "character reference": ["&nbsp;", "&#160;", "&#x1F600;"],
    "BBCode": ["[b]", "[/url]", "[url=https://e/x]", "[COLOR red]"],
    "escape": [r"\n", r"\t", r"\u00e9"],
    "address": [
        "https://e.org/{id}",
        "https://en.wikipedia.org/wiki/A_(b)",
        "https://e.org/a?b={c}&d=%s",
        "mailto:a@e.org",
        "https://x.org/a?b=c&d=(e)#f",
        "http://localhost:80",
        "www.x.org",
    ],
    "e-mail address": ["anna@e.org", "a.b+c@x-y.org", "@me@x.org"],
    "path": [
        "/users/:id",
        "/users/{id}/x",
        "/etc/passwd",
        "/usr/lib/x.so",
        "../x.txt",
        r"\\server\share\a.txt",
        r"C:\Users\new\x.txt",
        "~/x",
        "./a/b",
        "src/a_b.py",
        r"C:\Users\new",
        r"C:\Program Files (x86)\new\x.exe",
    ],
    "emoji": [
        "\u2b50",
        "\u23f0",
        "\u25b6\ufe0f",
        "\u2b06\ufe0f",
        "\u203c\ufe0f",
        "\u2049\ufe0f",
        "\u2139\ufe0f",
        "\u2122\ufe0f",
        "\u2122",
        "\xa9\ufe0f",
        "1\ufe0f\u20e3",
        "#\ufe0f\u20e3",
        "*\u20e3",
        "\U0001f1e9\U0001f1ea",
        "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
        "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466",
        "\U0001f469\U0001f3fd\u200d\U0001f4bb",
        "\u2764\ufe0f\u200d\U0001f525",
        "\u263a\ufe0f",
        "\u2192",
        "\u2713",
        "\U0001f3f3\ufe0f\u200d\U0001f308",
        "\u3297\ufe0f",
        "\U0001f170\ufe0f",
    ],
    "invisible": ["\u2060", "\ufeff"],
}
PLACEHOLDERS = [placeholder for examples in EXAMPLES.values() for placeholder in examples]


def translate(document: Document) -> str:
    """Return a translation in other words and another order."""
    return document.join([" ".join(reversed(sentence.upper().split())) for sentence in document.sentences])


def test_every_kind_has_an_example():
    assert EXAMPLES.keys() == KINDS.keys()


@pytest.mark.parametrize("placeholder", PLACEHOLDERS)
def test_a_placeholder_is_found_as_a_whole(placeholder):
    for before, behind in [
        ("A dog ", " runs."),
        ("", " is a dog"),
        ("Dogs: ", ""),
        ("A (", ") dog"),
        ("See ", ", dog"),
    ]:
        text = before + placeholder + behind
        assert [match[0] for match in placeholder_pattern().finditer(text)] == [placeholder]
        document = Document(text, "en")
        assert list(filter(str.isalpha, "".join(document.sentences))) == list(filter(str.isalpha, before + behind))
        assert translate(document).count(placeholder) == 1
        assert document.join([None] * len(document.sentences)) == text


_WORDS = st.sampled_from(["dog", "runs", "Two men", "sit.", "Who?", "a/b", "50%", "10:30", "it's", "dog,", "(big)"])
_TOKENS = st.sampled_from(PLACEHOLDERS)


@settings(max_examples=500, deadline=None)
@given(st.lists(_WORDS | _TOKENS | _TOKENS.map("({}),".format), min_size=2, max_size=12))
def test_texts_keep_each_placeholder_exactly_once(parts):
    text = " ".join(parts)
    translation = translate(Document(text, "en"))
    assert [part for part in PLACEHOLDERS if part in text and part not in translation] == []
    # nothing but words in capitals, and spaces, is different
    assert Counter("".join(translation.upper().split())) == Counter("".join(text.upper().split()))


@pytest.mark.parametrize(
    "text",
    [
        "note: this",
        "his/her/their",
        "he said: yes",
        "a @-@ b",
        "Note:this is",
        "100 %",
        "50% discount",
        "50 % discount",
        "100 % der Fälle",
        "a/b",
        "and/or",
        "10:30:15",
        "at 10:30: the",
        "e.g.:smile",
        "50 %-a a",
        "10 %-os",
        "%50 indirim",
        "%5,5 fazla",
        "100 %ige Lösung",
        "20%iger",
        "a ratio of 1:2:3",
        "I <3 you",
        "<<Bonjour>> dit-il",
        "[list of things]",
        "a < b and c > d",
        "a <b and c> d",
        "$5",
        "US$ 5",
        "5$ and 6$",
        "[1]",
        "[see below]",
        "{see the list}",
        "{a, b, c}",
        "R&D; and more",
        "it &apos;s &quot;a&quot; &amp; b",
        "Groß-/Kleinschreibung",
        '"Kissa":n',
        "HH:MM[:ss]",
        "@/./+/-/_",
        "AT&T;",
        "Q&A",
        "ab:cd:ef",
        "key: value",
        'he said: "yes"',
        "20 °C",
        "№ 5",
        "1 2 3",
        "#1",
        "C# and F#",
        "vitamin *C*",
        "5 * 3",
        "3-4",
        "snake_case",
        "__bold text__",
        "Stop‼",
        "who said ^this^",
        "x = {1, 2}",
        "Straße/Weg",
        "100%ig",
        "die 5 %-Hürde",
        "100-%ige Lösung",
        "п`ять м`яч",
        "5 €/Monat",
        "90°/s",
        "5%/10%",
        "C#/F#",
        '"ja"/nein',
        r"a\b",
        r"\new",
        "(a) and (b)",
        "f(x)",
        "O'Neill",
        "1,000.50",
        "l\u2019art",
        "5 %",
        "the 5% of",
        "5%.",
    ],
)
def test_other_text_is_no_placeholder(text):
    assert not placeholder_pattern().findall(f"A dog {text} runs.")
    assert not placeholder_pattern().findall(text)


@pytest.mark.parametrize(
    ("text", "placeholders"),
    [
        ("%sを表示", ["%s"]),
        ("%(name)ss Hund, %1$ss", ["%(name)s", "%1$s"]),
        ("これはhttp://x.org。次", ["http://x.org"]),
        ("„http://x.org“", ["http://x.org"]),
        ("info@x.org를 a", ["info@x.org"]),
        ("メールはa@b.jpへ", ["a@b.jp"]),
        ("@小明 你好", ["@小明"]),
        ('The ":attribute" of (:name), <b>:x</b>', [":attribute", ":name", "<b>", ":x", "</b>"]),
    ],
)
def test_what_touches_a_placeholder_is_text(text, placeholders):
    assert [match[0] for match in placeholder_pattern().finditer(text)] == placeholders


def test_a_number_is_a_placeholder_only_as_a_keycap():
    assert placeholder_pattern().findall("1 dog, 1\ufe0f\u20e3 and #1, #\u20e3") == ["1\ufe0f\u20e3", "#\u20e3"]


def test_a_zero_width_space_separates_words_in_the_scripts_of_southeast_asia_and_stays_elsewhere():
    for words in ("ខ្ញុំ\u200bទៅ", "ຂ້ອຍ\u200bໄປ", "ฉัน\u200bไป", "ទៅ\u200bABC"):
        assert Document(words, "km").sentences == [words]
    document = Document("A dog\u200b runs", "en")
    assert document.sentences == ["A dog runs"]
    assert document.join(["EIN HUND LÄUFT"]).count("\u200b") == 1


def test_a_written_line_break_ends_a_sentence_and_glues_no_words():
    document = Document(r"First line<br>second line<br />third\nFourth. C:\new \\n", "en")
    assert document.sentences == ["First line", "second line", "third", "Fourth."]
    assert document.join(["1", "2", "3", "4."]) == r"1<br>2<br />3\n4. C:\new \\n"


@pytest.mark.parametrize("own", [r"ACME-\d+", r"(ACM)E-(?:\d)\d*", "(?i)acme-[0-9]+", r"\d*|ACME-\d+"])
def test_users_add_placeholders_of_their_own(own):
    text = "Call ACME-12 about {0} now"
    document = Document(text, "en", placeholders=own)
    assert document.sentences == ["Call about now"]
    assert document.join(["RUF NUN AN"]).count("ACME-12") == 1
    assert Document(text, "en").sentences == ["Call ACME-12 about now"]
    # which changes nothing else
    assert placeholder_pattern(own).fullmatch("{% IF x %}")


def test_a_wrong_expression_is_an_error_of_one_line():
    with pytest.raises(UserError, match=re.escape("Not a regular expression for placeholders: '(a' (missing )")):
        placeholder_pattern("(a")


@pytest.mark.parametrize("kind", EXAMPLES)
def test_beginnings_of_placeholders_in_any_number_are_searched_in_linear_time(kind):
    # in seconds, not minutes: the time limit of every test
    longest = max(EXAMPLES[kind], key=len)
    for end in range(1, len(longest) + 1, 4):
        text = longest[:end] * (10_000 // end)
        document = Document(text, "en")
        assert document.join([None] * len(document.sentences)) == text


@pytest.mark.parametrize("repeated", ["a.", "a/", "%1", "@a", "- ", "<a =", "[a](b", "&", "{a,plural,", "<br>", r"\n"])
def test_other_texts_are_searched_in_linear_time(repeated):
    text = repeated * (20_000 // len(repeated))
    document = Document(text, "en")
    assert document.join([None] * len(document.sentences)) == text
