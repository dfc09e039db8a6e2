"""Inflect words and order clauses in English and German: endings, noun phrases and the position of the verb."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from .alignment import MARK, align, mark, new_mark, unmarked
from .lexicon import Noun, Text, Verb, add_s, join_words

MODALS = {
    **{"can": ("können", "kann"), "must": ("müssen", "muss"), "should": ("sollten", "sollte")},
    **{"want": ("wollen", "will"), "will": ("werden", "wird")},
}
BE = {"present": ("am", "are", "is", "are"), "past": ("was", "were", "was", "were")}
SEIN = {"present": ("bin", "bist", "ist", "sind"), "past": ("war", "warst", "war", "waren")}
CONTRACTIONS = {"in dem": "im", "in das": "ins", "an dem": "am", "zu dem": "zum", "zu der": "zur", "von dem": "vom"}
# Endings by gender ("p": plural), in the nominative, accusative, dative and genitive; "-" is no ending.
DER = {"m": "er en em es", "f": "ie ie er er", "n": "as as em es", "p": "ie ie en er"}  # after d-
STRONG = {"m": "er en em es", "f": "e e er er", "n": "es es em es", "p": "e e en er"}
EIN = {**STRONG, "m": "- en em es", "n": "- - em es"}
WEAK = {"m": "e en en en", "f": "e e en en", "n": "e e en en", "p": "en en en en"}
NO_ENDING = dict.fromkeys("mfnp", "- - - -")


def case_ending(table: dict[str, str], gender: str, case: str) -> str:
    """Return an ending of one of the tables above; `case` is "nom", "acc", "dat" or "gen"."""
    return table[gender].split()[("nom", "acc", "dat", "gen").index(case)].strip("-")


class Determiner(NamedTuple):
    en: str
    de: str
    endings: dict[str, str]
    definite: bool = False
    strong_adjectives: bool = False  # adjectives after it have strong endings, even where it has an ending itself


THE, EVERY = Determiner("the", "d", DER, definite=True), Determiner("every", "jed", STRONG, definite=True)
THIS, WHICH = Determiner("this", "dies", STRONG, definite=True), Determiner("which", "welch", STRONG)
A, NOT_A, NO_DETERMINER = Determiner("a", "ein", EIN), Determiner("a", "kein", EIN), Determiner("", "", NO_ENDING)
PLACE_DETERMINERS = (THE, THE, THE, THIS, A)
SOME = Determiner("some", "einig", STRONG, strong_adjectives=True)
MANY = Determiner("many", "viel", STRONG, strong_adjectives=True)
HOW_MANY = Determiner("how many", "wie viel", STRONG, strong_adjectives=True)


def conjugate(infinitive: str, third_person: str, person: int) -> str:
    """Return the present tense of a German verb; `person` is as in `Nominal`.

    A third person that does not end in -t or -d (kann, weiß) is also the first person.
    """
    regular = third_person[-1] in "td"
    stem = third_person[:-1] if regular else third_person
    ich = re.sub("e?n$", "e", infinitive) if regular else third_person
    return (ich, stem + ("t" if stem[-1] in "sßz" else "st"), third_person, infinitive)[person]


def decline(noun: Noun, gender: str, case: str) -> str:
    """Return the German noun in its case; gender "p" asks for the plural."""
    if gender == "p":
        return noun.de_plural + ("n" if case == "dat" and noun.de_plural[-1] not in "ns" else "")
    if noun.gender == "w":
        return noun.de if case == "nom" else noun.de_plural
    syllables = len(re.findall("[aeiouyäöü]+", noun.de.lower()))
    return noun.de + ("" if case != "gen" or gender == "f" else "es" if syllables == 1 else "s")


class Nominal(NamedTuple):
    """A noun phrase or pronoun, already inflected for its case."""

    en: str
    de: str
    person: int = 2  # selects the verb form: 0 for ich, 1 for du, 2 for er, 3 for wir or the plural sie
    definite: bool = True
    pronoun: bool = False


class Clause(NamedTuple):
    """The parts of a clause, before they are put into the word order of each language."""

    subject: Nominal
    verb: Verb
    tense: str  # "present", "past" or a modal
    adverb: Text  # "not" or an adverb of frequency
    time: Text
    objects: Sequence[Nominal]
    complement: Text  # predicate adjective, prepositional object or goal
    place: Text

    def text(self, order: str, inverted: bool = False) -> Text:
        """Return the clause in both languages.

        Args:
            order: position of the German finite verb: "first", "second" or "last".
            inverted: whether the English clause has the word order of a question.
        """
        subject, *objects = (
            item._replace(**align(Text(*item[:2]))._asdict()) for item in (self.subject, *self.objects)
        )
        aligned = {name: align(getattr(self, name)) for name in ("adverb", "time", "complement", "place")}
        clause = self._replace(subject=subject, objects=objects, **aligned)
        finite, main = new_mark(), new_mark()
        if self.tense == "present" or self.verb.frame == "be":
            main = finite
        return Text(clause._english(inverted, finite, main), clause._german(order, finite, main))

    def _english(self, inverted: bool, finite_mark: str, main_mark: str) -> str:
        verb, tense, person = self.verb, self.tense, self.subject.person
        word, rest = ("want", f"to {verb.lemma}") if tense == "want" else (verb.en, verb.particle)
        if verb.frame == "be":
            auxiliary, main = mark(BE[tense][person], finite_mark), ""
        elif tense in MODALS and tense != "want":
            auxiliary, main = mark(tense, finite_mark), mark(verb.lemma, main_mark)
        elif inverted or unmarked(self.adverb.en) == "not":
            auxiliary = mark("did" if tense == "past" else "does" if person == 2 else "do", finite_mark)
            word = mark(word, finite_mark if tense == "want" else main_mark)
            main = join_words(word, mark(rest, main_mark))
        else:
            word = verb.past if tense == "past" else add_s(word) if person == 2 else word
            marks = {"want": (finite_mark,), "present": (main_mark,), "past": (finite_mark, main_mark)}[tense]
            auxiliary, main = "", join_words(mark(word, *marks), mark(rest, main_mark))
        start = (auxiliary, self.subject.en) if inverted else (self.subject.en, auxiliary)
        end = (*(item.en for item in self.objects), self.complement.en, self.place.en, self.time.en)
        return re.sub(f"can({MARK}+) not\\b", r"cannot\1", join_words(*start, self.adverb.en, main, *end))

    def _german(self, order: str, finite_mark: str, main_mark: str) -> str:
        verb, tense, person = self.verb, self.tense, self.subject.person
        if verb.frame == "be":
            finite, closing = SEIN[tense][person], ""
        elif tense == "present":
            finite, closing = conjugate(verb.infinitive, verb.third_person, person), verb.prefix
        elif tense == "past":
            finite = SEIN["present"][person] if verb.uses_sein else conjugate("haben", "hat", person)
            closing = verb.participle
        else:
            finite, closing = conjugate(*MODALS[tense], person), verb.prefix + verb.infinitive
        finite, closing = mark(finite, finite_mark), mark(closing, main_mark)
        # Definite objects come before "nicht" and "oft", indefinite ones after; pronouns come first of all.
        pronouns = (item.de for item in self.objects if item.pronoun)
        definite = (item.de for item in self.objects if item.definite and not item.pronoun)
        indefinite = (item.de for item in self.objects if not item.definite)
        objects = (*pronouns, self.time.de, *definite, self.adverb.de, *indefinite)
        middle = join_words(*objects, self.complement.de, self.place.de)
        if order == "last":
            # A separable prefix rejoins its verb.
            verbs = unmarked(closing) + finite if tense == "present" else join_words(closing, finite)
            return join_words(self.subject.de, middle, verbs)
        start = (finite, self.subject.de) if order == "first" else (self.subject.de, finite)
        return join_words(*start, middle, closing)


def prepositional_phrase(words: str, item: Nominal) -> Text:
    """Return a prepositional phrase in both languages.

    Args:
        words: English preposition, German preposition and German case, separated by spaces.
        item: noun phrase in that case.
    """
    *en, de, _ = words.split()
    item = item._replace(**align(Text(*item[:2]))._asdict())
    own = new_mark()
    first, *others = item.de.split(" ")
    contraction = CONTRACTIONS.get(f"{de} {unmarked(first)}")
    start = contraction + own + "".join(re.findall(MARK, first)) if contraction else f"{de}{own} {first}"
    return Text(join_words(mark(" ".join(en), own), item.en), join_words(start, *others))
