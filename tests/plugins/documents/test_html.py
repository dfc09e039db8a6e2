"""Tags of HTML are copied, and text is translated between them."""

import re
from collections import Counter
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import html as lxml_html

from hf_vanilla_transformer.plugins.documents.html import HtmlDocument

WORDS = st.sampled_from(
    ["dog", "a", "Two men", "&amp;", "&lt;b&gt;", "&nbsp;", "&copy", "&#233;t", "ü", "1.", ".", "! A", "12", " ", "\n"]
)
TEXT = st.lists(WORDS | st.text(alphabet="ab <>&\"'/=!?-;#\u00e9\U0001f436\0\r", max_size=6), max_size=6).map(" ".join)
VALUES = st.sampled_from(["x", "a &amp; b", "a<b", "x?a=1&amp;b=2", "A dog", "it's", "no", ""])
ATTRIBUTES = st.lists(
    st.tuples(
        st.sampled_from(["href", "class", "alt", "title", "TITLE", "translate", "data-x"]),
        st.sampled_from(["{}='{}'", '{} = "{}"', "{}", '{}="{}"']),
        VALUES,
    ).map(lambda parts: parts[1].format(parts[0], parts[2].replace("'", "") if "='" in parts[1] else parts[2])),
    max_size=2,
).map(" ".join)
NAMES = st.sampled_from(["b", "i", "a", "em", "span", "B", "code", "p", "div", "li", "td", "h1", "pre", "script"])
VOID = st.tuples(st.sampled_from(["br", "img", "hr", "BR"]), ATTRIBUTES, st.sampled_from(["", "/", " /"])).map(
    lambda parts: f"<{parts[0]} {parts[1]}{parts[2]}>"
)
OTHER = st.sampled_from(
    [
        "<!-- a -- b -->",
        "<!DOCTYPE html>",
        "</b>",
        "</p>",
        "<i>",
        "<",
        "&",
        "</>",
        "<![if x]>",
        "<?a b?>",
        "<a href='x",
        "</ b>",
        "<b/>",
    ]
)


def element(inner):
    parts = st.tuples(NAMES, ATTRIBUTES, st.lists(inner, max_size=4).map("".join))
    return parts.map(lambda each: f"<{each[0]} {each[1]}>{each[2]}</{each[0]}>")


FRAGMENTS = st.recursive(TEXT | VOID | OTHER, element, max_leaves=25)
DOCUMENTS = st.lists(FRAGMENTS, min_size=1, max_size=6).map("".join)
TRANSLATED = ("alt", "title")


class Tags(HTMLParser):
    """All tags of a text as they were written, but for attributes that are translated, and its comments."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, tuple((name, None if name in TRANSLATED else value) for name, value in attrs)))
        if not set(TRANSLATED) & {name for name, _ in attrs}:
            self.found.append(self.get_starttag_text())

    def handle_endtag(self, tag):
        self.found.append(f"/{tag}")

    def handle_comment(self, data):
        self.found.append(data)

    handle_decl = handle_pi = unknown_decl = handle_comment

    def parse_marked_section(self, i, report=1):
        return self.parse_bogus_comment(i)


def tags(text):
    return Tags(text).found


def elements(text):
    """Return the elements that lxml finds, with their attributes, but for the values of those that are translated."""
    found = lxml_html.fromstring(f"<div>{text}</div>").iter(lxml_html.etree.Element)
    return Counter(
        (each.tag, tuple(sorted((name, "" if name in TRANSLATED else value) for name, value in each.items())))
        for each in found
    )


def blocks(text):
    """Return all tags that are not inline, in their order."""
    return re.findall(r"</?(?:p|div|li|td|h1|pre|br|hr|BR)[ >/]", text)


@pytest.mark.slow
@settings(max_examples=1000, deadline=None)
@given(DOCUMENTS, st.randoms(use_true_random=False))
def test_every_tag_is_copied_once_and_blocks_keep_their_order(text, random):
    document = HtmlDocument(text, "en")
    translations = []
    links = {}
    for i, sentence in enumerate(document.sentences):
        # any words in any order, with any alignment
        words = [*sentence.upper().split(), "<&>"]
        random.shuffle(words)
        translations.append(" ".join(words))
        links[i] = (
            [[random.randrange(len(sentence))] for _ in range(len(sentence) + 9)] if random.random() < 0.8 else None
        )
    result = document.join(translations, links)
    assert Counter(tags(result)) == Counter(tags(text))
    assert elements(result) == elements(text)
    assert blocks(result) == blocks(text)


@settings(max_examples=100, deadline=None)
@given(DOCUMENTS)
def test_html_whose_sentences_are_kept_has_the_same_tags_and_text(text):
    document = HtmlDocument(text, "en")
    kept = document.join([None] * len(document.sentences))
    assert tags(kept) == tags(text)
    assert lxml_html.fromstring(f"<p>{kept}</p>").text_content().split() == (
        lxml_html.fromstring(f"<p>{text}</p>").text_content().split()
    )


def translated(text, words=None):
    """Return HTML with its sentences in upper case, and these; or with one translation and its words' sources."""
    document = HtmlDocument(text, "en")
    if words is None:
        return document.join([sentence.upper() for sentence in document.sentences]), document.sentences
    translation, sources = words
    links = sources and [[source] for source in sources]
    return document.join([translation], {0: links})


NINES = "9" * 5000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<P CLASS=x>a dog</P >", "<P CLASS=x>A DOG</P >"),
        ("a<br/>b<BR>c<br />d", "A<br/>B<BR>C<br />D"),
        ('<a href=\'x?a=1&amp;b="2"\' data-title="a">dog</a>', '<a href=\'x?a=1&amp;b="2"\' data-title="a">DOG</a>'),
        ("&nbsp;a &amp; b &lt; c&gt; &copy;", "&nbsp;A &amp; B &lt; C&gt; ©"),
        ("<p>12 &copy; &#8212; 3</p>", "<p>12 &copy; &#8212; 3</p>"),
        ("<p>one\n two.\nThree</p>\n\n<p>\n</p>", "<p>ONE  TWO. THREE</p>\n\n<p>\n</p>".replace("  ", " ")),
        (
            "<!-- a dog --><!doctype html><?x a?><![CDATA[a dog]]>",
            "<!-- a dog --><!doctype html><?x a?><![CDATA[a dog]]>",
        ),
        # templates end where their own languages end them
        ("<?php if ($a > 1):\n?>a<?= $b->c ?> dog", "<?php if ($a > 1):\n?>A<?= $b->c ?> DOG"),
        ("a <% if a > b %>dog<% end %> b", "A <% if a > b %>DOG<% end %> B"),
        ("a <?php echo 1 > 2; 'dog'", "A <?php echo 1 > 2; 'dog'"),
        (
            "<script>x(<?= a > 1 ?>)</script><title><?= $t > 1 ?> a",
            "<script>x(<?= a > 1 ?>)</script><title><?= $t > 1 ?> A",
        ),
        ("100 <% a dog", "100 &lt;% A DOG"),
        # to XHTML, a section ends at "]]>" only
        ("<p><![CDATA[a <b>dog</b>]]> a</p><![CDATA[b>c", "<p><![CDATA[a <b>dog</b>]]> A</p><![CDATA[b>C"),
        # the slash is part of the value
        ("<p translate=no id=a/>dog</p><p>a</p>", "<p translate=no id=a/>dog</p><p>A</p>"),
        ("<script src=//a/>if (a<b) '<p>dog'</script>", "<script src=//a/>if (a<b) '<p>dog'</script>"),
        ('<script src="a"/>a<title/>b', '<script src="a"/>A<title/>B'),
        ("<script>if (a<b) x()</script><style>p {}</style>", "<script>if (a<b) x()</script><style>p {}</style>"),
        ("<pre>a <b>dog</b></pre><textarea>a</textarea>", "<pre>a <b>dog</b></pre><textarea>a</textarea>"),
        ("a <code>b <code>c</code> d</code> e", "A <code>b <code>c</code> d</code> E"),
        ("<div translate=no>a <div>b</div> c</div> d", "<div translate=no>a <div>b</div> c</div> D"),
        # whose end tag may be missing
        ("<p translate=no>a <i>b<p>c", "<p translate=no>a <i>b<p>C"),
        (
            "<p translate=no>a <svg><title>x</title><desc>b</desc></svg> c</p>d",
            "<p translate=no>a <svg><title>x</title><desc>b</desc></svg> c</p>D",
        ),
        (
            "<p translate=no>a<svg><foreignObject><p>b</p></foreignObject></svg> c</p>d",
            "<p translate=no>a<svg><foreignObject><p>b</p></foreignObject></svg> c</p>D",
        ),
        *(
            (
                f"<p translate=no>a <{tag}><div>b</div></{tag}> c</p>d",
                f"<p translate=no>a <{tag}><div>b</div></{tag}> c</p>D",
            )
            for tag in ("button", "object", "template")
        ),
        ("<button><p translate=no>a</button> b", "<button><p translate=no>a</button> B"),
        ("<div><p translate=no>a <b>x</div>b", "<div><p translate=no>a <b>x</div>B"),
        ("<ul><li translate=no>a<li>b</ul>c", "<ul><li translate=no>a<li>B</ul>C"),
        ("<li translate=no>a<ul><li>b<li>c</ul>d<li>e", "<li translate=no>a<ul><li>b<li>c</ul>d<li>E"),
        ("<ul translate=no><li translate=yes>a<li>b</ul>c", "<ul translate=no><li translate=yes>A<li>b</ul>C"),
        ("<dl><dt translate=no>a<dd>b</dl>", "<dl><dt translate=no>a<dd>B</dl>"),
        ("<tr translate=no><td>a<td>b<tr><td>c", "<tr translate=no><td>a<td>b<tr><td>C"),
        ("<td translate=no><table><td>a<td>b</table>c<td>d", "<td translate=no><table><td>a<td>b</table>c<td>D"),
        ("<select><option translate=no>a<option>b</select>", "<select><option translate=no>a<option>B</select>"),
        # but a stray end tag ends nothing
        ("<li translate=no>a</b></p>b<li>c", "<li translate=no>a</b></p>b<li>C"),
        ("<img translate='no' alt='a dog'> a", "<img translate='no' alt='a dog'> A"),
        ("<p translate=NO>a</p><b TRANSLATE='No'>a</b>", "<p translate=NO>a</p><b TRANSLATE='No'>a</b>"),
        ("<code>a dog", "<code>a dog"),
        ("a <b", "A <b"),
        ("</>a</>", "</>a</>"),
        ("it's</><b>x</b>", "it's</><b>X</b>"),
        # a number with more digits than Python reads
        (
            f"<p>a &#{NINES};</p>b<img alt='&#{NINES}; c'>",
            f"<p>a &#{NINES};</p>B<img alt='&#{NINES}; c'>",
        ),
        ("<img alt='a &quot;dog&#39;s&quot;'>", "<img alt='A &quot;DOG&#x27;S&quot;'>"),
        ('<img ALT=dog title="12" data-x=" alt=\'a\'">', '<img ALT="DOG" title="12" data-x=" alt=\'a\'">'),
        ("<p title='a dog'>12</p>", "<p title='A DOG'>12</p>"),
        ("\ue000 a \ue0000\ue000 <img alt=b>", '\ue000 A \ue0000\ue000 <img alt="B">'),
        # what looks like a reference to a passage, also in other words
        ("<p>a &#xe000;0&#xe000;", "<p>A \ue0000\ue000"),
        ("<img alt='a &#57344;9&#57344;'>", "<img alt='A \ue0009\ue000'>"),
    ],
)
def test_only_text_and_the_attributes_for_readers_change(text, expected):
    assert translated(text)[0] == expected


def test_inline_elements_are_in_the_sentence_and_blocks_end_it():
    text = "<div>A <b>big</b> dog <i>runs. It</i> sits.<p>A cat<br>A <span>man</span></div><td>x<td>y"
    assert translated(text)[1] == ["A big dog runs.", "It sits.", "A cat", "A man", "x", "y"]


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("A <svg viewBox='0'><path d=M/></svg> dog <nobr>runs</nobr> on", ["A dog runs on"]),
        ("the <x-word>big</x-word> <my-icon name=x></my-icon> dog", ["the big dog"]),
        ('<g id="1">A big</g> dog<x id="2"/> runs<o:p></o:p>', ["A big dog runs"]),
        ("A <script>if (a<b) f()</script> dog <style>p {}</style> runs", ["A dog runs"]),
        ("Type <input value=x> and click <button>Save</button> now", ["Type and click Save now"]),
        # what has texts of its own
        ("A <svg><title>Gear</title><text>one</text><text>two</text></svg> dog", ["Gear", "one", "two", "A dog"]),
        ("Take <select><option>one<option>two</select> now", ["one", "two", "Take now"]),
        ("A <noscript><p>no script</p></noscript> dog", ["no script", "A dog"]),
        ("A <unknown>big dog", ["A big dog"]),
        # neighbours are different controls
        ("<button>Save</button> <button>Close</button>", ["Save", "Close"]),
        ("<x-title>Home</x-title><x-text>A dog</x-text>", ["Home", "A dog"]),
        ("<label>First<input></label><label>Last<input></label>", ["First", "Last"]),
        ("<input type=radio><label>Yes</label><input type=radio><label>No</label>", ["Yes", "No"]),
    ],
)
def test_only_blocks_end_a_sentence(text, sentences):
    joined, cut = translated(text)
    assert cut == sentences
    assert Counter(tags(joined)) == Counter(tags(text))


@pytest.mark.parametrize(
    ("text", "expected", "sentences"),
    [
        # notes, as in Wikipedia, too
        ("The man<sup>1</sup> runs.", "THE MAN<sup>1</sup> RUNS.", ["The man runs."]),
        (
            "A man<sup id=r><a href=#n><span>[</span>1<span>]</span></a></sup>, old",
            "A MAN<sup id=r><a href=#n><span>[</span>1<span>]</span></a></sup>, OLD",
            ["A man, old"],
        ),
        ("A man<sup><a href=#n>b</a></sup> runs", "A MAN<sup><a href=#n>b</a></sup> RUNS", ["A man runs"]),
        ("10<sup>3</sup> men", "10<sup>3</sup> MEN", ["10 men"]),
        # others are part of their words
        ("the 1<sup>st</sup> man", "THE 1<sup>ST</sup> MAN", ["the 1st man"]),
        ("H<sub>2</sub>O is old", "H<sub>2</sub>O IS OLD", ["H2O is old"]),
        ("a dog<sup>2</sup>s", "A DOG<sup>2</sup>S", ["a dog2s"]),
        # readings
        (
            "<ruby>old<rp>(</rp><rt>X</rt><rp>)</rp></ruby> dog",
            "<ruby>OLD<rp>(</rp><rt>X</rt><rp>)</rp></ruby> DOG",
            ["old dog"],
        ),
        ("<ruby>old<rt>X<rt>Y</ruby> dog", "<ruby>OLD<rt>X<rt>Y</ruby> DOG", ["old dog"]),
        ("<ruby>old<rt>X<p>dog", "<ruby>OLD<rt>X<p>DOG", ["old", "dog"]),
        # what is not to be translated
        ('<p class="a notranslate">keep</p> dog', '<p class="a notranslate">keep</p> DOG', ["dog"]),
        ("A <b class=notranslate>keep</b> dog", "A <b class=notranslate>keep</b> DOG", ["A dog"]),
        (
            "<div translate=no>keep <p translate=yes>a <b>dog</b></p> it</div>",
            "<div translate=no>keep <p translate=yes>A <b>DOG</b></p> it</div>",
            ["a dog"],
        ),
        ("<pre>x <i translate=yes>dog</i></pre>", "<pre>x <i translate=yes>DOG</i></pre>", ["dog"]),
        ("<b class=notranslate translate=yes>dog</b>", "<b class=notranslate translate=yes>DOG</b>", ["dog"]),
        (
            "<b translate=no>a<b translate=yes>dog<b translate=no>b</b></b></b>c",
            "<b translate=no>a<b translate=yes>DOG<b translate=no>b</b></b></b>C",
            ["dog", "c"],
        ),
        # a hashtag, as Mastodon writes it
        (
            'See <a href="u" class="mention hashtag">#<span>dogs</span></a> now',
            'SEE <a href="u" class="mention hashtag">#<span>dogs</span></a> NOW',
            ["See now"],
        ),
    ],
)
def test_what_is_no_part_of_a_sentence_keeps_its_place(text, expected, sentences):
    assert translated(text) == (expected, sentences)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('<html lang="en-US" xml:lang=en>', '<html lang="pt-BR" xml:lang="pt-BR">'),
        # a page may be wrong about its language, but not about that of a quotation
        (
            "<html LANG=fr><p lang=fr>a</p><p lang='en'>b</p>",
            "<html LANG=\"pt-BR\"><p lang=fr>A</p><p lang='pt-BR'>B</p>",
        ),
        ('<html lang="pt">', '<html lang="pt">'),
        ("<p lang=en translate=no>a</p><a hreflang=en>b</a>", "<p lang=en translate=no>a</p><a hreflang=en>B</a>"),
        (
            '<meta http-equiv="Content-Language" content="en"><meta name=x content="en">',
            '<meta http-equiv="Content-Language" content="pt-BR"><meta name=x content="en">',
        ),
    ],
)
def test_declared_languages_follow_the_translation(text, expected):
    document = HtmlDocument(text, "en", target="pt_BR")
    assert document.join([sentence.upper() for sentence in document.sentences]) == expected
    # of a model that does not say what it translates, nothing is known
    assert HtmlDocument(text, None).join([None] * len(document.sentences)) == text


def test_speakers_and_classes_of_web_subtitles_are_tags():
    text = "<v.loud Anna>A <c.red.big>dog</c> <i.far>runs</i>.</v> No."
    assert translated(text) == (
        text.replace("dog", "DOG").replace("runs", "RUNS").replace("No", "NO"),
        ["A dog runs.", "No."],
    )


def test_a_word_that_the_translation_adds_is_at_no_edge_of_an_element():
    document = HtmlDocument("I hope <b>that he</b> runs", "en")
    assert document.join(["ICH HOFFE , DASS ER LÄUFT"], {0: [[0], [1], [], [2], [3], [4]]}) == (
        "ICH HOFFE , <b>DASS ER</b> LÄUFT"
    )


def test_a_tag_lands_on_the_words_that_come_from_its_words():
    text = "the <b>dog</b> has <i>a <u>red</u> ball</i> seen"
    translation = "HUND DER GESEHEN HAT EIN ROT BALL", [1, 0, 6, 2, 3, 4, 5]
    assert translated(text, translation) == "<b>HUND</b> DER GESEHEN HAT <i>EIN <u>ROT</u> BALL</i>"


def test_an_address_that_ends_in_a_slash_does_not_close_its_link():
    words = ("PAGE THIS SEE NOW", [2, 1, 0, 3])
    for start in ("<a href=http://x/>", "<a href='http://x/'>"):
        assert translated(f"See {start}this page</a> now", words) == f"{start}PAGE THIS</a> SEE NOW"


def test_a_stray_link_does_not_widen_an_element():
    assert translated("a <b>red ball</b> is here now", ("A RED BALL IS HERE RED", [0, 1, 2, 3, 4, 1])) == (
        "A <b>RED BALL</b> IS HERE RED"
    )


def test_elements_that_the_alignment_mixes_up_do_not_cross():
    assert translated("<b>one two</b> <i>three four</i>", ("1 3 2 4", [0, 2, 1, 3])) == "<b>1</b> <i>3</i> 2 4"


def test_elements_of_two_sentences_that_share_a_word_do_not_cross():
    assert translated("<b> a</b><i>dog </i>")[0] == "<b> ADOG</b><i> </i>"
    # an element around the end of one sentence and the start of the next
    assert translated("<b>One. Two th</b><i>ree. Four</i>")[0] == "<b>ONE. TWO THREE</b><i>. FOUR</i>"


def test_elements_that_go_on_in_the_next_sentence_stay_nested():
    # "two" and "three" change places
    document = HtmlDocument("One <b>two <i>three. Four</i></b>", "en")
    assert document.join(["ONE THREE TWO.", "FOUR"], {0: [[0], [2], [1], [3]]}) == "ONE THREE <b><i>TWO. FOUR</i></b>"


def test_without_an_alignment_words_are_in_the_same_order():
    assert translated("one <b>two</b> three", ("1 2 3", None)) == "1 <b>2</b> 3"


def test_images_and_code_keep_one_space_on_each_side():
    assert translated("a <img> b, see <code>f()</code>. Use <i class=icon></i> c")[0] == (
        "A <img> B, SEE <code>f()</code>. USE <i class=icon></i> C"
    )


def test_an_empty_element_beside_code_leaves_a_space_between_words():
    # as Sphinx writes an entry of its index
    page = "in the\n<span id=index-1></span><code>PYTHONPATH</code> variable"
    assert translated(page) == ("IN THE " + page[7:].replace("variable", "VARIABLE"), ["in the variable"])


def test_an_image_behind_a_word_stays_with_it():
    # as sites mark links to others
    assert translated("a <a>dog</a><img> runs.<img> No")[0] == "A <a>DOG</a><img> RUNS.<img> NO"


def test_soft_hyphens_do_not_reach_the_model():
    assert translated("a beau&shy;ti\xadful <b>dog</b>, 1&shy;2") == (
        "A BEAUTIFUL <b>DOG</b>, 12",
        ["a beautiful dog, 12"],
    )


def test_a_link_around_an_address_is_a_placeholder():
    # as Mastodon writes it
    link = '<a href="u"><span class="invisible">https://</span><span>x.org/y</span><span class="invisible"></span></a>'
    assert translated(f"<p>See {link} now</p>") == (f"<p>SEE {link} NOW</p>", ["See now"])


def test_pages_keep_the_placeholders_of_plain_text_and_those_of_users():
    page = "<p>A <b>dog</b> &lt;br /&gt; ACME-12 has :name and <i>ACME-3</i> runs</p><img alt='a cat ACME-4'>"
    document = HtmlDocument(page, "en", placeholders=r"ACME-\d+")
    assert document.sentences == ["A dog has and runs", "a cat"]
    joined = document.join([sentence.upper() for sentence in document.sentences])
    for placeholder in ("&lt;br /&gt;", "ACME-12", ":name", "<i>ACME-3</i>", "ACME-4"):
        assert joined.count(placeholder) == 1
    assert HtmlDocument(page, "en").sentences == ["A dog ACME-12 has and ACME-3 runs", "a cat ACME-4"]


@pytest.mark.parametrize(
    "text",
    [
        "<b>" * 3000 + "a dog",
        "<i>a " * 3000 + "</i>" * 3000,
        "<!--" * 3000,
        "<a href='" * 1000,
        # these took minutes, from the square of their length
        f"<a {'x' * 100_000}>a dog</a>",
        "a dog" + "-a" * 100_000,
        "it's</>" + "<b>x</b>" * 5000,
        "a dog" + "<!-- a -->" * 30_000,
        "<b translate=no>a<b translate=yes>b" * 3000,
        "<li translate=no>a<ul>" * 3000 + "</b>" * 3000 + "</ul>" * 3000,
        "<%" * 50_000 + "<?=" * 1000,
        "<svg>a" * 3000,
        "<ruby>a<rt>b" * 3000,
        "<button>a</button>" * 3000,
    ],
    ids=range(14),
)
def test_html_made_to_be_deep_or_slow_is_translated(text):
    assert Counter(tags(translated(text)[0])) == Counter(tags(text))
