"""The built-in corpus: reproducibility, combinations, splits, surface form and the variety of sentences."""

import re
import subprocess
import sys
from collections import Counter

import pytest

from hf_vanilla_transformer.data.phrases import generate, splits


@pytest.fixture(scope="module")
def corpus():
    return splits()


def words(text):
    return re.findall(r"\w+", text)


def test_a_seed_always_produces_the_same_phrases():
    assert generate(300, seed=3) == generate(300, seed=3)
    assert generate(300, seed=3)[:100] == generate(100, seed=3)
    assert generate(300, seed=3) != generate(300, seed=4)


def test_phrases_do_not_depend_on_the_hash_seed():
    code = "from hf_vanilla_transformer.data.phrases import generate; print([p[:2] for p in generate(300, 3)])"
    expected = str([phrase[:2] for phrase in generate(300, seed=3)])
    for hash_seed in ("0", "1"):
        environment = {"PYTHONHASHSEED": hash_seed, "PYTHONIOENCODING": "utf-8"}
        run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True)
        assert run.stdout.decode().strip() == expected


def test_counts_are_respected_and_must_not_be_negative():
    assert generate(0) == []
    with pytest.raises(ValueError, match="-1"):
        generate(-1)
    with pytest.raises(ValueError, match="-1"):
        splits(10, -1, 10)
    sizes = {name: len(part) for name, part in splits(20, 0, 7).items()}
    assert sizes == {"train": 20, "validation": 0, "test": 7}


def test_sentences_are_distinct_and_short(phrases):
    assert len({phrase.en for phrase in phrases}) == len(phrases)
    lengths = [len(phrase.en.split()) for phrase in phrases]
    assert max(lengths) <= 20
    assert sum(4 <= length <= 14 for length in lengths) > 0.9 * len(lengths)


def test_an_english_sentence_has_one_translation():
    german, repeated = {}, 0
    for seed in range(6):
        for phrase in generate(10_000, seed):
            repeated += phrase.en.lower() in german
            assert german.setdefault(phrase.en.lower(), phrase.de) == phrase.de
    assert repeated > 500


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
        found = set(words(phrase.en.lower()))
        for word in (part.split()[0] for pair in phrase.combinations for part in pair):
            regular = {word, f"{word}s", f"{word}es", f"{word}d", f"{word}ed", f"{word[:-1]}ies", f"{word[:-1]}ied"}
            assert found & {*regular, IRREGULAR.get(word)}, (word, phrase)


def test_adjectives_and_verbs_form_combinations_with_their_nouns(phrases):
    nouns = "teacher|dog|apple|book|key|shirt|car|table|house|lake"
    for phrase in phrases:
        for adjective, noun in re.findall(rf"\b(big|old|red|young|clever|sweet|interesting) ({nouns})\b", phrase.en):
            assert (adjective, noun) in phrase.combinations, phrase
        for noun in re.findall(rf"\b[Bb]uys (?:a|the|my|his) ({nouns})\b(?!')", phrase.en):
            assert ("buy", noun) in phrase.combinations, phrase


def test_splits_are_disjoint_and_reproducible(corpus):
    assert {name: len(part) for name, part in corpus.items()} == {"train": 30_000, "validation": 500, "test": 1_000}
    assert len({phrase.en for part in corpus.values() for phrase in part}) == 31_500
    assert splits(2_000, 50, 100, seed=5) == splits(2_000, 50, 100, seed=5)


def test_unseen_marks_combinations_that_training_does_not_contain(corpus):
    seen = Counter(pair for phrase in corpus["train"] for pair in phrase.combinations)
    assert not any(phrase.unseen for phrase in corpus["train"])
    for part in (corpus["validation"], corpus["test"]):
        for phrase in part:
            assert phrase.unseen == any(pair not in seen for pair in phrase.combinations)
        assert 0.3 * len(part) <= sum(phrase.unseen for phrase in part) <= 0.5 * len(part)


def test_unseen_is_correct_in_small_splits():
    parts = splits(200, 20, 40, seed=9)
    seen = {pair for phrase in parts["train"] for pair in phrase.combinations}
    for phrase in parts["validation"] + parts["test"]:
        assert phrase.unseen == (not phrase.combinations <= seen)


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


@pytest.mark.parametrize(
    ("pattern", "share"),
    [
        (r"\bnicht\b", 0.05),
        (r"\bkein", 0.01),
        (r", (weil|dass|wenn|obwohl|bevor|während|ob) ", 0.05),
        (r"^(Weil|Wenn|Obwohl|Bevor|Während) .*, (ist|hat|\w+t|\w+n|\w+e|kann) ", 0.01),
        (r", (der|die|das|den|dem|denen) ", 0.04),
        (r" (auf|zu|an|ein|ab|weg|mit|zurück)[.?]$", 0.03),
        (r"^(Wer|Wen|Wem|Was|Wo|Wann|Warum|Welche\w*|Wie viele\w*) ", 0.1),
        (r"^(Hat|Ist|Sind|Haben|Kann|Will|Muss|Wird|\w+t|\w+en) .*\?$", 0.1),
        (r"\b(zwei|drei|vier|fünf|sechs|sieben|acht|neun|zehn|elf|zwölf)\b", 0.02),
        (r"\b(ins|im|am|zum|zur)\b", 0.05),
        (r"\b(die|der|das) \w+ (des|dieses|meines|seines|ihres|der) ", 0.01),
        (r"\b(ich|Ich)\b", 0.03),
        (r"\b(du|Du)\b", 0.03),
    ],
)
def test_each_grammatical_phenomenon_is_frequent(phrases, pattern, share):
    assert sum(bool(re.search(pattern, phrase.de)) for phrase in phrases) >= share * len(phrases)


def test_phrases_have_the_expected_translations():
    expected = """
        He is hungry. = Er ist hungrig.
        I laugh. = Ich lache.
        You invite him. = Du lädst ihn ein.
        I close the box. = Ich mache die Kiste zu.
        I help his cat. = Ich helfe seiner Katze.
        Why do I greet her? = Warum grüße ich sie?
        Where do you paint the houses? = Wo malst du die Häuser?
        Which uncles find the lamps? = Welche Onkel finden die Lampen?
        Does she drive to the station now? = Fährt sie jetzt zum Bahnhof?
        We helped a hungry horse. = Wir haben einem hungrigen Pferd geholfen.
        The duck did not follow the tired dogs. = Die Ente ist den müden Hunden nicht gefolgt.
        Which poor friend does he thank on Monday? = Welchem armen Freund dankt er am Montag?
        In the garden you will close my window. = Im Garten wirst du mein Fenster zumachen.
        Today the tired teacher does not open a box. = Heute macht der müde Lehrer keine Kiste auf.
        The kitchen that you tidied up is dark. = Die Küche, die du aufgeräumt hast, ist dunkel.
        If our lions often play, the cats are tired. = Wenn unsere Löwen oft spielen, sind die Katzen müde.
        How many birds did the nice man help? = Wie vielen Vögeln hat der nette Mann geholfen?
    """
    german = {phrase.en: phrase.de for phrase in generate(20_000, seed=0)}
    known = [line.strip().split(" = ") for line in expected.strip().splitlines()]
    assert sum(english in german for english, _ in known) >= 5  # which of them are sampled depends on the lexicon
    for english, translation in known:
        assert german.get(english, translation) == translation
