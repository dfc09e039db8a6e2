"""Put both languages of a clause in order: inflection, noun phrases, and the places of the verb."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from .lexicon import Noun, Text, Verb, join_words, with_s

MODALS = {
    **{"can": ("können", "kann"), "must": ("müssen", "muss"), "should": ("sollten", "sollte")},
    **{"want": ("wollen", "will"), "will": ("werden", "wird")},
}
BE = {"present": ("am", "are", "is", "are"), "past": ("was", "were", "was", "were")}
SEIN = {"present": ("bin", "bist", "ist", "sind"), "past": ("war", "warst", "war", "waren")}
CONTRACTIONS = {"in dem": "im", "in das": "ins", "an dem": "am", "zu dem": "zum", "zu der": "zur", "von dem": "vom"}
# Endings by gender ("p": plural) for nominative, accusative, dative and genitive.
DER = {"m": "er en em es", "f": "ie ie er er", "n": "as as em es", "p": "ie ie en er"}  # after d-
STRONG = {"m": "er en em es", "f": "e e er er", "n": "es es em es", "p": "e e en er"}
EIN = {**STRONG, "m": "- en em es", "n": "- - em es"}
WEAK = {"m": "e en en en", "f": "e e en en", "n": "e e en en", "p": "en en en en"}
NO_ENDING = dict.fromkeys("mfnp", "- - - -")


def case_ending(table: dict[str, str], gender: str, case: str) -> str:
    return table[gender].split()[("nom", "acc", "dat", "gen").index(case)].strip("-")


class Determiner(NamedTuple):
    en: str
    de: str
    endings: dict[str, str]
    known: bool = False  # definite
    strong: bool = False  # takes strong adjective endings after it even where it has an ending itself


THE, EVERY = Determiner("the", "d", DER, known=True), Determiner("every", "jed", STRONG, known=True)
THIS, WHICH = Determiner("this", "dies", STRONG, known=True), Determiner("which", "welch", STRONG)
A, NOT_A, BARE = Determiner("a", "ein", EIN), Determiner("a", "kein", EIN), Determiner("", "", NO_ENDING)
PLACED = (THE, THE, THE, THIS, A)  # for places
SOME, MANY = Determiner("some", "einig", STRONG, strong=True), Determiner("many", "viel", STRONG, strong=True)
HOW_MANY = Determiner("how many", "wie viel", STRONG, strong=True)


def conjugate(infinitive: str, he: str, person: int) -> str:
    """The present of a German verb; a he-form without -t (kann, weiß) is also that of ich."""
    regular = he[-1] in "td"
    stem = he[:-1] if regular else he
    ich = re.sub("e?n$", "e", infinitive) if regular else he
    return (ich, stem + ("t" if stem[-1] in "sßz" else "st"), he, infinitive)[person]


def decline(noun: Noun, gender: str, case: str) -> str:
    if gender == "p":
        return noun.de_plural + ("n" if case == "dat" and noun.de_plural[-1] not in "ns" else "")
    if noun.gender == "w":
        return noun.de if case == "nom" else noun.de_plural
    syllables = len(re.findall("[aeiouyäöü]+", noun.de.lower()))
    return noun.de + ("" if case != "gen" or gender == "f" else "es" if syllables == 1 else "s")


class Nominal(NamedTuple):
    """A noun phrase or pronoun, already in its case."""

    en: str
    de: str
    person: int = 2  # 0 ich, 1 du, 2 er, 3 wir or sie: picks the verb form
    known: bool = True
    pronoun: bool = False


class Clause(NamedTuple):
    """What a clause says, before either language puts it in order."""

    subject: Nominal
    verb: Verb
    tense: str  # "present", "past" or a modal
    adverb: Text  # "not" or how often
    time: Text
    objects: Sequence[Nominal]
    rest: Text  # predicate adjective, prepositional object or goal
    place: Text

    def text(self, order: str, asking: bool = False) -> Text:
        """Both languages; `order` is the place of the German finite verb, `asking` inverts the English clause."""
        return Text(self._english(asking), self._german(order))

    def _english(self, asking: bool) -> str:
        verb, tense, person = self.verb, self.tense, self.subject.person
        helper, main = ("want", f"to {verb.lemma}") if tense == "want" else (verb.en, verb.particle)
        if verb.frame == "be":
            auxiliary, main = BE[tense][person], ""
        elif tense in MODALS and tense != "want":
            auxiliary, main = tense, verb.lemma
        elif asking or self.adverb.en == "not":
            auxiliary, main = "did" if tense == "past" else "does" if person == 2 else "do", join_words(helper, main)
        else:
            helper = verb.past if tense == "past" else with_s(helper) if person == 2 else helper
            auxiliary, main = "", join_words(helper, main)
        start = (auxiliary, self.subject.en) if asking else (self.subject.en, auxiliary)
        end = (*(item.en for item in self.objects), self.rest.en, self.place.en, self.time.en)
        return join_words(*start, self.adverb.en, main, *end).replace("can not", "cannot")

    def _german(self, order: str) -> str:
        verb, tense, person = self.verb, self.tense, self.subject.person
        if verb.frame == "be":
            finite, closing = SEIN[tense][person], ""
        elif tense == "present":
            finite, closing = conjugate(verb.infinitive, verb.he, person), verb.prefix
        elif tense == "past":
            finite = SEIN["present"][person] if verb.sein else conjugate("haben", "hat", person)
            closing = verb.participle
        else:
            finite, closing = conjugate(*MODALS[tense], person), verb.prefix + verb.infinitive
        # Known things come before "nicht" and "oft", new ones after; a pronoun comes before everything.
        pronouns = (item.de for item in self.objects if item.pronoun)
        known = (item.de for item in self.objects if item.known and not item.pronoun)
        new = (item.de for item in self.objects if not item.known)
        middle = join_words(*pronouns, self.time.de, *known, self.adverb.de, *new, self.rest.de, self.place.de)
        if order == "last":  # where a separable prefix rejoins its verb
            return join_words(
                self.subject.de, middle, closing + finite if tense == "present" else join_words(closing, finite)
            )
        start = (finite, self.subject.de) if order == "first" else (self.subject.de, finite)
        return join_words(*start, middle, closing)


def prepositional_phrase(words: str, item: Nominal) -> Text:
    """A prepositional phrase: "preposition Präposition case" and a noun phrase in that case."""
    *en, de, _ = words.split()
    first, *others = item.de.split(" ")
    start = f"{de} {first}"
    return Text(join_words(*en, item.en), join_words(CONTRACTIONS.get(start, start), *others))
