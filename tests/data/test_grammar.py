"""German grammar of the generated phrases, checked against rules that are stated independently of the generator."""

import re
from collections import Counter

import pytest

# Rules of German: the gender of nouns whose plural differs from the singular ("p": plural forms, except in the dative,
# where they differ), and the adjective ending that each article requires.

GENDERS = {
    "m": "Mann Vater Sohn Arzt König Freund Gast Hund Vogel Apfel Brief Hut Stuhl Tisch Baum Garten Park Wald Fluss",
    "f": "Frau Mutter Katze Kuh Maus Birne Zeitung Lampe Tasche Blume Jacke Küche Schule Stadt Kirche Insel Straße",
    "n": "Kind Pferd Ei Buch Gedicht Bild Geschenk Kleid Hemd Auto Boot Bett Haus Dorf Schloss Hotel",
    "p": "Männer Söhne Ärzte Könige Hunde Pferde Bücher Briefe Kinder Äpfel Häuser Vögel Bäume Hüte Bilder",
}
GENDER = {noun: gender for gender, nouns in GENDERS.items() for noun in nouns.split()}
STEMS = (
    "alt groß klein schön neu jung teur billig rot blau grün weiß schwarz klug faul stark arm reich nett krank dunkl"
)
ENDINGS = {
    "m": {"der e", "dieser e", "jeder e", "welcher e", "den en", "dem en", "diesen en", "diesem en", "jeden en",
          "ein er", "einen en", "einem en", "kein er", "keinen en", "mein er", "meinen en", "meinem en",
          "jedem en"},
    "f": {"die e", "der en", "diese e", "dieser en", "jede e", "jeder en", "eine e", "einer en", "keine e",
          "meine e", "meiner en", "welche e", "welcher en"},
    "n": {"das e", "dem en", "dieses e", "diesem en", "jedes e", "jedem en", "welches e", "ein es", "einem en",
          "kein es", "mein es", "meinem en"},
    "p": {"die en", "diese en", "keine en", "meine en", "welche en", "zwei e", "drei e", "viele e", "einige e"},
}  # fmt: skip
ARTICLES = {article.split()[0] for allowed in ENDINGS.values() for article in allowed}


def test_adjective_endings_agree_with_article_and_noun(phrases):
    pattern = re.compile(rf"(\w+) ({'|'.join(STEMS.split())})(e|er|es|en|em) ({'|'.join(GENDER)})\b")
    checked = Counter()
    for phrase in phrases:
        for article, _, ending, noun in pattern.findall(phrase.de):
            article = article.lower()
            if article in ARTICLES:
                assert f"{article} {ending}" in ENDINGS[GENDER[noun]], phrase
                checked[f"{article} {ending} {GENDER[noun]}"] += 1
    assert sum(checked.values()) > 1_000
    assert len(checked) > 45


def test_articles_agree_with_nouns(phrases):
    pattern = re.compile(rf"(\w+) ({'|'.join(GENDER)})\b(?! \w*er Mann)")
    checked = Counter()
    for phrase in phrases:
        for article, noun in pattern.findall(phrase.de):
            allowed = {entry.split()[0] for entry in ENDINGS[GENDER[noun]]}
            if article.lower() in ARTICLES:
                assert article.lower() in allowed, phrase
                checked[GENDER[noun]] += 1
    assert min(checked.values()) > 500


def test_irregular_verbs_have_their_present_tense_forms(phrases):
    found = {word.lower() for phrase in phrases for word in re.findall(r"\w+", phrase.de)}
    right = (
        "sieht siehst liest isst gibt hilft schläft trifft fährt läuft trägt wäscht lädt vergisst wirft spricht mag"
    )
    wrong = "seht sehst lest esst gebt helft schlaft trefft fahrt lauft tragt wascht ladet vergesst werft sprecht mögt"
    assert found >= set(right.split())
    assert not found & set(wrong.split())


def test_weak_nouns_are_declined(phrases):
    assert not [
        p for p in phrases if re.search(r"\b(den|dem|einem|diesem|des) (Junge|Student|Nachbar|Bär|Löwe)\b", p.de)
    ]
    declined = re.compile(r"\b(dem|einem|diesem|des) (Jungen|Studenten|Bären|Löwen)\b")
    assert sum(bool(declined.search(phrase.de)) for phrase in phrases) > 50


def test_prepositions_take_their_case(phrases):
    found = [match for p in phrases for match in re.findall(r" (mit|von|zu|neben|hinter|vor|unter) (\w+) ", p.de)]
    assert len(found) > 200
    accusative = "die|das|eine|einen|keine|meine|diese|dieses|mich|dich|ihn|sie"
    assert not [match for match in found if match[1] in accusative.split("|")]


@pytest.mark.parametrize(
    ("verbs", "wrong"),
    [
        (
            "helfen|geholfen|danken|gedankt|folgen|gefolgt|zuhören|zugehört",
            "einen|das|die|eine|diese|dieses|ihre|meine",
        ),
        ("besuchen|besucht|kaufen|gekauft|malen|gemalt|suchen|gesucht", "dem|der|einem|einer|diesem|dieser|meinem"),
    ],
)
def test_verbs_take_their_case(phrases, verbs, wrong):
    # Match a subject whose end is recognisable, an auxiliary, one noun phrase (the object) and the verb.
    subject = (
        r"(?:Ich|Du|Er|Sie|Wir|Anna|Peter|Maria|Paul|(?:Der|Die|Das|Ein|Eine|Mein|Meine) (?:[a-zäöüß]+ )?[A-ZÄÖÜ]\w+)"
    )
    auxiliary = (
        "(?:habe|hast|hat|haben|bin|bist|ist|sind|kann|können|muss|müssen|will|wollen|wird|werden|sollte|sollten)"
    )
    noun = r"(\w+) (?:[a-zäöüß]+ )?[A-ZÄÖÜ]\w+"
    pattern = re.compile(rf"{subject} {auxiliary} {noun} (?:nicht )?(?:{verbs})\.")
    found = [match[1] for p in phrases if (match := pattern.fullmatch(p.de))]
    assert len(found) > 30
    assert not set(found) & set(wrong.split("|"))


TIMES = "Heute|Gestern|Jetzt|Bald|Am (?:Montag|Morgen|Abend)|(?:Letzte|Nächste) Woche|(?:Letztes|Jedes) Jahr|Jeden Tag"
FINITE = "kannst musst willst solltest wirst hast bist kann muss will wird mag weiß war bin ist sind"
NOT_VERBS = "die eine keine meine deine seine ihre unsere diese viele einen den"


def is_finite(word):
    return word in FINITE.split() or (word[0].islower() and re.search(r"(e|t|en|rn)$", word) is not None)


def test_the_verb_is_second_after_a_fronted_time(phrases):
    fronted = [re.match(rf"(?:{TIMES}) (\w+) (\w+)", phrase.de) for phrase in phrases]
    found = [match.groups() for match in fronted if match]
    assert len(found) > 800
    for verb, subject in found:
        assert is_finite(verb), (verb, subject)
        assert verb not in NOT_VERBS.split()
    assert {subject for _, subject in found} >= {"ich", "du", "er", "wir", "der", "die", "das", "Anna"}


AGREEMENT = {
    "ich": r"(\w+e|kann|muss|will|mag|weiß|war|bin)$",
    "du": r"(\w+(st|ßt|zt)|isst|liest|vergisst)$",
    "er": r"(\w+t|kann|muss|will|sollte|wird|mag|weiß|war)$",
    "wir": r"(\w+n|sind)$",
}


def test_the_verb_is_last_and_agrees_with_its_subject_in_subordinate_clauses(phrases):
    pattern = re.compile(
        r"\b(?:weil|dass|wenn|obwohl|bevor|während|ob) (ich|du|er|wir) [^,.]*?(\w+)[,.]", re.IGNORECASE
    )
    found = [match for phrase in phrases for match in pattern.findall(phrase.de)]
    assert len(found) > 300
    for subject, verb in found:
        assert re.match(AGREEMENT[subject], verb), (subject, verb)


def test_the_verb_agrees_with_its_subject_in_main_clauses(phrases):
    found = [match.groups() for p in phrases if (match := re.match(r"(Ich|Du|Er|Wir) (\w+)", p.de))]
    assert len(found) > 800
    for subject, verb in found:
        assert re.match(AGREEMENT[subject.lower()], verb), (subject, verb)


def test_a_participle_or_infinitive_ends_a_perfect_or_modal_clause(phrases):
    simple = [
        p for p in phrases if re.match(r"(Ich|Du|Er|Wir|Sie) [^,]*\.$", p.de) and not re.search("ha(ve|s) ", p.en)
    ]
    modal = [p.de for p in simple if re.match(r"\w+ (kann|muss|will|wird|können|müssen) ", p.de)]
    perfect = [p.de for p in simple if re.match(r"\w+ (habe|hast|hat|haben) ", p.de)]
    assert min(len(modal), len(perfect)) > 100
    assert all(re.search(r" [a-zäöü]\w*n\.$", text) for text in modal)
    assert all(re.search(r" [a-zäöü]*(ge|be|ver|repar|prob)\w*(t|en)\.$", text) for text in perfect)


def test_relative_pronouns_agree_with_their_noun(phrases):
    allowed = {"m": {"der", "den", "dem"}, "f": {"die", "der"}, "n": {"das", "dem"}, "p": {"die", "denen"}}
    found = [
        match
        for phrase in phrases
        for match in re.findall(rf"\b({'|'.join(GENDER)}), (der|die|das|den|dem|denen) ", phrase.de)
    ]
    assert len(found) > 300
    for noun, pronoun in found:
        assert pronoun in allowed[GENDER[noun]], (noun, pronoun)
    assert {pronoun for _, pronoun in found} == {"der", "die", "das", "den", "dem", "denen"}
