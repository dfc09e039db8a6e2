"""The built-in corpus: its splits, held-out combinations, word alignments and surface form."""

import bz2
import hashlib
import itertools
import json
import re
from collections import Counter
from typing import NamedTuple

import pytest

from hf_vanilla_transformer.data.phrases import FILE, Phrase, splits


class Annotated(NamedTuple):
    """A phrase with all that the file says about it."""

    en: str
    de: str
    combinations: set[tuple[str, str]]  # its adjective-noun and verb-object pairs, as English lemmas
    unseen: bool
    alignment: list[tuple[int, int]]
    """Indices of an English and a German word that translate each other, in `str.split()` of each sentence.

    Every English word is aligned, and every German one but an article without a counterpart: "the king's dog",
    "der Hund des Königs".
    """


@pytest.fixture(scope="module")
def corpus() -> dict[str, list[Annotated]]:
    columns = json.loads(bz2.decompress(FILE.read_bytes()))
    rows = itertools.starmap(Annotated, zip(*(columns[field] for field in Annotated._fields), strict=True))
    annotated = (
        row._replace(
            combinations={tuple(pair.split("+")) for pair in row.combinations.split(", ") if pair},
            alignment=[tuple(map(int, pair.split("-"))) for pair in row.alignment.split()],
        )
        for row in rows
    )
    return {name: list(itertools.islice(annotated, len(part))) for name, part in splits().items()}


@pytest.fixture(scope="module")
def phrases(corpus) -> list[Annotated]:
    return [phrase for part in corpus.values() for phrase in part]


def test_the_splits_are_those_of_the_file(corpus):
    for name, part in splits().items():
        assert part == [Phrase(phrase.en, phrase.de, bool(phrase.unseen)) for phrase in corpus[name]]


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text)


def test_the_corpus_is_the_one_that_published_scores_refer_to(phrases):
    content = "".join(f"{phrase.en}\t{phrase.de}\t{bool(phrase.unseen)}\n" for phrase in phrases)
    digest = hashlib.sha256(content.encode()).hexdigest()
    assert digest == "e53470f0542bf19b159c1c6b031312c83aff1a21b7a8644f700298de45f4bd70"


def test_changing_a_split_changes_no_other_reader(corpus):
    first = splits()["train"][0]
    splits()["train"].clear()
    assert splits()["train"][0] == first


def test_no_sentence_occurs_twice_so_none_leaks_from_training_or_has_two_translations(corpus, phrases):
    assert {name: len(part) for name, part in corpus.items()} == {"train": 30_000, "validation": 500, "test": 1_000}
    assert len({phrase.en.lower() for phrase in phrases}) == len(phrases)
    # In German few do: "ihr Hund" is both "her dog" and "their dog".
    training = {phrase.de for phrase in corpus["train"]}
    assert sum(phrase.de in training for phrase in corpus["validation"] + corpus["test"]) < 20


def test_sentences_are_short(phrases):
    lengths = [len(phrase.en.split()) for phrase in phrases]
    assert max(lengths) <= 20
    assert sum(4 <= length <= 14 for length in lengths) > 0.9 * len(lengths)


def test_each_language_has_at_least_400_distinct_words(phrases):
    for language in ("en", "de"):
        assert len({word.lower() for phrase in phrases for word in words(getattr(phrase, language))}) >= 400


IRREGULAR = {  # English forms that are not formed by an ending
    **{"man": "men", "woman": "women", "policeman": "policemen", "child": "children", "mouse": "mice"},
    **{"buy": "bought", "bring": "brought", "eat": "ate", "see": "saw", "feed": "fed", "drink": "drank"},
    **{"build": "built", "wear": "wore", "write": "wrote", "find": "found", "give": "gave", "hear": "heard"},
    **{"lose": "lost", "meet": "met", "sell": "sold", "send": "sent", "lend": "lent", "forget": "forgot"},
    **{"throw": "threw", "have": "has", "knife": "knives", "understand": "understood"},
}


def test_the_words_of_every_combination_occur_in_the_sentence(phrases):
    for phrase in phrases:
        present = set(words(phrase.en.lower()))
        for word in (part.split()[0] for pair in phrase.combinations for part in pair):
            regular = {word, f"{word}s", f"{word}es", f"{word}d", f"{word}ed", f"{word[:-1]}ies", f"{word[:-1]}ied"}
            assert present & {*regular, IRREGULAR.get(word)}, (word, phrase)


def test_adjectives_and_verbs_form_combinations_with_their_nouns(phrases):
    nouns = "teacher|dog|apple|book|key|shirt|car|table|house|lake"
    for phrase in phrases:
        for adjective, noun in re.findall(rf"\b(big|old|red|young|clever|sweet|interesting) ({nouns})\b", phrase.en):
            assert (adjective, noun) in phrase.combinations, phrase
        for noun in re.findall(rf"\b[Bb]uys (?:a|the|my|his) ({nouns})\b(?!')", phrase.en):
            assert ("buy", noun) in phrase.combinations, phrase


def test_unseen_marks_combinations_that_training_does_not_contain(corpus):
    seen = {pair for phrase in corpus["train"] for pair in phrase.combinations}
    assert not any(phrase.unseen for phrase in corpus["train"])
    for part in (corpus["validation"], corpus["test"]):
        for phrase in part:
            assert phrase.unseen == any(pair not in seen for pair in phrase.combinations)
        assert 0.3 * len(part) <= sum(phrase.unseen for phrase in part) <= 0.5 * len(part)


def test_the_words_of_unseen_combinations_occur_in_training(corpus):
    for language in ("en", "de"):
        seen = Counter(word for phrase in corpus["train"] for word in words(getattr(phrase, language)))
        tested = [word for phrase in corpus["test"] for word in words(getattr(phrase, language))]
        assert sum(word not in seen for word in tested) <= 0.001 * len(tested)
    combined = Counter(word for phrase in corpus["train"] for pair in phrase.combinations for word in pair)
    assert min(combined.values()) >= 50


def test_spacing_punctuation_and_contractions_are_correct(phrases):
    for phrase in phrases:
        for text in (phrase.en, phrase.de):
            assert re.fullmatch(r"[A-ZÄÖÜ][\wäöüß,' ]+[.?]", text), text
            assert not re.search(r"  | ,|,,|,[.?]|\bcan not\b", text), text
        assert not re.search(r"[^,] (weil|dass|obwohl|bevor|wenn|ob) ", phrase.de), phrase
        assert not re.search(r"\b([Ii]n dem|[Ii]n das|[Aa]n dem|zu dem|zu der|von dem)\b", phrase.de), phrase
        assert not re.search(r"\b[Aa] [aeiou]|\b[Aa]n [^aeiou]", phrase.en), phrase
        assert (phrase.en[-1] == "?") == (phrase.de[-1] == "?")


def aligned_words(phrase: Annotated) -> list[tuple[str, str]]:
    """Return the pairs of words that translate each other, in lower case and without punctuation."""
    english, german = ([word.lower().rstrip(".,?") for word in text.split()] for text in phrase[:2])
    return [(english[i], german[j]) for i, j in phrase.alignment]


def test_alignments_are_distinct_pairs_of_existing_words(phrases):
    for phrase in phrases:
        english, german = (len(text.split()) for text in phrase[:2])
        assert len(set(phrase.alignment)) == len(phrase.alignment)
        assert all(0 <= i < english and 0 <= j < german for i, j in phrase.alignment), phrase


def test_every_word_is_aligned_but_articles_without_a_counterpart(phrases):
    for phrase in phrases:
        english, german = (text.split() for text in phrase[:2])
        assert {i for i, _ in phrase.alignment} == set(range(len(english))), phrase
        unaligned = set(range(len(german))) - {j for _, j in phrase.alignment}
        if unaligned:
            assert {german[j].lower() for j in unaligned} <= {"der", "die", "das", "den", "dem"}, phrase
            assert phrase.en.count("'s") >= len(unaligned), phrase


# Some words with their German translations, by part of speech, that no other word of the lexicon shares
DICTIONARY = {
    **{"dog": "hund hunde", "dogs": "hunde hunden", "apple": "apfel", "queen": "königin", "house": "haus hauses"},
    **{"red": "rot rote roter rotes roten rotem", "expensive": "teuer teure teurer teures teuren teurem"},
    **{"two": "zwei", "often": "oft", "never": "nie", "today": "heute", "because": "weil", "although": "obwohl"},
    **{"anna": "anna", "anna's": "annas", "where": "wo", "why": "warum", "many": "viele vielen", "very": "sehr"},
    **{"eats": "isst", "under": "unter", "if": "wenn", "whether": "ob", "monday": "montag"},
}


def test_words_are_aligned_with_their_translations_in_a_dictionary(phrases):
    counts: Counter[str] = Counter()
    for pair in (pair for phrase in phrases for pair in aligned_words(phrase)):
        if pair[0] in DICTIONARY:
            assert pair[1] in DICTIONARY[pair[0]].split(), pair
            counts[pair[0]] += 1
    assert sum(counts.values()) > 10_000
    assert counts.keys() == DICTIONARY.keys()


@pytest.mark.parametrize(
    ("english", "german", "expected"),
    [
        # an auxiliary without a counterpart, and a separable verb
        ("does open", "macht auf", {"does=macht", "does=auf", "open=macht", "open=auf"}),
        ("helped", "hat geholfen", {"helped=hat", "helped=geholfen"}),
        ("next to", "neben", {"next=neben", "to=neben"}),
        ("to the", "zum", {"to=zum", "the=zum"}),
        ("cannot any", "kann keine", {"cannot=kann", "cannot=keine", "any=keine"}),
    ],
)
def test_words_of_one_meaning_are_aligned_together(phrases, english, german, expected):
    matching = 0
    for phrase in phrases:
        words_of = ({word.lower().rstrip(".,?") for word in text.split()} for text in phrase[:2])
        if all(set(part.split()) <= own for part, own in zip((english, german), words_of, strict=True)):
            matching += expected <= {f"{source}={target}" for source, target in aligned_words(phrase)}
    assert matching >= 5
