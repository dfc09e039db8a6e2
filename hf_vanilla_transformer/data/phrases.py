"""The built-in English-German corpus: a grammar that writes both sides of a sentence pair at once.

With it the package can train and score a translator offline, in minutes, against exact answers. A clause is drawn
once, as subject, verb, objects, adverb and time, and then set out twice: by English rules (do-support, verb before
object) and by German ones (case, gender, adjective endings, the verb in second place or last). No English sentence
has two readings, so each has exactly one translation. `splits` holds back a share of the adjective-noun and
verb-object combinations, which tells a translator that composes words from one that remembers sentences.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from random import Random
from typing import Any, NamedTuple, TypeVar
from zlib import crc32

from .grammar import (
    BARE,
    BE,
    DER,
    EIN,
    EVERY,
    HOW_MANY,
    MANY,
    MODALS,
    NO_ENDING,
    NOT_A,
    PLACED,
    SOME,
    STRONG,
    THE,
    THIS,
    WEAK,
    WHICH,
    A,
    Clause,
    Determiner,
    Nominal,
    case_ending,
    decline,
    prepositional_phrase,
)
from .lexicon import (
    COMMON_FRAMES,
    CONJUNCTIONS,
    DEGREES,
    NAMES,
    NUMBERS,
    OFTEN,
    POSSESSIVES,
    PRONOUNS,
    SPOTS,
    SPOUSES,
    TIMES,
    WEATHER,
    Noun,
    Text,
    Verb,
    adjectives_for,
    all_adjectives,
    find_nouns,
    find_verbs,
    join_texts,
    join_words,
    word_pairs,
)

T = TypeVar("T")


class Phrase(NamedTuple):
    """An English sentence with its one German translation."""

    en: str
    de: str
    combinations: frozenset[tuple[str, str]]  # the adjective-noun and verb-object pairs, as English lemmas
    unseen: bool = False  # it contains a combination that the training split never shows


class _Writer:
    """Draws sentences; `Random.random` is its only source, as its sequence is the same on every Python."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed).random
        self.pairs: set[tuple[str, str]] = set()

    def pick(self, items: Sequence[T]) -> T:
        return items[int(self.random() * len(items))]

    def chance(self, share: float) -> bool:
        return self.random() < share

    def sentence(self) -> Phrase:
        self.pairs = set()
        kinds = (*[(self.statement, ".")] * 6, *[(self.question, "?")] * 4, (self.compound, "."), (self.reported, "."))
        write, mark = self.pick(kinds)
        en, de = write()
        en = re.sub(r"\ba (?=[aeiou])", "an ", en) + mark
        de = de.rstrip(",") + mark  # a relative clause that ends the sentence has left its comma
        return Phrase(en[0].upper() + en[1:], de[0].upper() + de[1:], frozenset(self.pairs))

    def statement(self) -> Text:
        clause = self.clause(self.tense(), mode="rich")
        if self.chance(0.35) or clause.verb.frame == "be" or not (clause.time.en or clause.place.en):
            return clause.text("second")
        if clause.time.en:
            return join_texts(clause.time, clause._replace(time=Text()).text("first"))
        return join_texts(clause.place, clause._replace(place=Text()).text("first"))

    def question(self) -> Text:
        word, tense = self.pick(("", "", "", "", "who", "what", "what", "where", "when", "why")), self.tense()
        if word == "who":
            who = Nominal("who", "wer")
            if self.chance(0.5):
                who = self.nominal("nom", self.pick(find_nouns("person")), determiner=WHICH)
            return self.clause(tense, find_verbs(COMMON_FRAMES), who, "plain").text("second")
        if word == "what":
            clause = self.clause(tense, find_verbs("acc,dat"), mode="gap")
            front = self.asked(clause.verb)
        elif word == "where":
            clause, front = self.clause(tense, find_verbs("acc,rest,stay"), mode="placeless"), Text("where", "wo")
        elif word:
            clause = self.clause(tense, find_verbs(COMMON_FRAMES), mode="plain")._replace(time=Text())
            front = Text(word, {"when": "wann", "why": "warum"}[word])
        else:
            clause, front = self.clause(tense, mode="plain"), Text()
        return join_texts(front, clause.text("first", asking=True))

    def asked(self, verb: Verb) -> Text:
        """The object a question is about."""
        noun = self.pick(verb.nouns)
        if noun.kind == "person" and self.chance(0.4):
            return Text("whom", "wem" if verb.frame == "dat" else "wen")
        if noun.kind not in ("person", "animal") and verb.frame == "acc" and self.chance(0.4):
            return Text("what", "was")
        determiner = HOW_MANY if noun.de_plural and self.chance(0.4) else WHICH
        item = self.nominal(verb.frame, noun, verb.lemma, determiner)
        return Text(item.en, item.de)

    def compound(self) -> Text:
        """A main clause with a subordinate clause after it or before it."""
        tense = self.pick(("past", "present", "present"))
        word = self.pick(word_pairs(CONJUNCTIONS[tense]))
        # "While he is old" and "before he does not come" would be odd.
        pool = find_verbs(COMMON_FRAMES) if word.en in ("before", "while") else ()
        if word.en != "before" and self.chance(0.25):
            said = join_texts(word, self.pick(word_pairs(WEATHER[tense])))
        else:
            said = join_texts(word, self.clause(tense, pool, mode="plain" if word.en == "before" else "").text("last"))
        if self.chance(0.5):
            en, de = self.clause(tense, pool).text("second")
            return Text(f"{en} {said.en}", f"{de}, {said.de}")
        en, de = self.clause(tense, pool).text("first")
        return Text(f"{said.en}, {en}", f"{said.de}, {de}")

    def reported(self) -> Text:
        """What somebody says, knows or asks."""
        tense = self.pick(("past", "present", "present"))
        main = self.clause(tense, find_verbs("that"))
        doubt = main.verb.en == "ask" or main.adverb.en == "not"
        word = Text("whether", "ob") if doubt else Text("that", "dass")
        said, (en, de) = join_texts(word, self.clause(tense).text("last")), main.text("second")
        return Text(f"{en} {said.en}", f"{de}, {said.de}")

    def tense(self) -> str:
        return self.pick(("present", "present", "past", self.pick(tuple(MODALS))))

    def clause(self, tense: str, pool: Sequence[Verb] = (), subject: Nominal | None = None, mode: str = "") -> Clause:
        """A clause with a verb of the pool.

        The `mode` is "rich" for relative clauses too, "plain" for none of "not" and "often", "placeless" and "gap" for
        a plain one without place or object.
        """
        pool = pool or find_verbs("be" if tense in BE and self.chance(0.25) else COMMON_FRAMES)
        verb = self.pick([verb for verb in pool if verb.past or tense != "past"])
        frame, adverb, time, rest, place = verb.frame, Text(), Text(), Text(), Text()
        rich, plain = mode == "rich", mode in ("plain", "placeless", "gap")
        if not plain and frame not in ("be", "that") and tense in BE and self.chance(0.12):
            adverb = self.pick(word_pairs(OFTEN))
        elif not plain and tense != "must" and (frame != "that" or verb.en == "know") and self.chance(0.2):
            adverb = Text("not", "nicht")
        if adverb.en in ("", "not") and frame not in ("be", "that") and self.chance(0.35):
            times = word_pairs(TIMES["any" if self.chance(0.5) else tense if tense in BE else "modal"])
            # "not every day" would be another order of words
            time = self.pick([time for time in times if not adverb.en or not time.en.startswith("every")])

        known = plain or adverb.en != "" or frame == "be"  # "A man does not sleep" would be odd
        noun, trait = self.pick(find_nouns("animal" if verb.animals and self.chance(0.4) else "person")), ""
        if frame == "be":
            adjective = self.pick(all_adjectives())
            noun, trait = self.pick(adjective.nouns), adjective.en
            degree = self.pick(word_pairs(DEGREES)) if self.chance(0.3) else Text()
            rest = join_texts(degree, Text(trait, adjective.de))
        subject = subject or self.someone("nom", noun, trait, known=known, related=rich and self.chance(0.2))

        objects = []
        known = adverb.en in ("not", "never")
        noun = self.pick(verb.nouns or find_nouns("person"))
        if frame == "give":
            objects.append(self.someone("dat", self.pick(find_nouns("person")), rival=subject, known=True))
        if frame in ("acc", "dat", "give") and mode != "gap":
            none = adverb.en == "not" and noun.kind != "person" and self.chance(0.5)  # "nicht ein" is "kein"
            # A relative clause only where the object ends the sentence in both languages.
            last = rich and tense == "present" and not (adverb.en or time.en or verb.prefix) and self.chance(0.4)
            case, determiner = "dat" if frame == "dat" else "acc", NOT_A if none else None
            objects.append(self.someone(case, noun, verb.lemma, determiner, known, last, rival=subject))
            adverb = Text("not") if none else adverb
            if frame == "acc" and not last and noun.kind not in SPOTS and mode != "placeless" and self.chance(0.2):
                place = self.location(find_nouns("in at on"))
        elif frame == "stay" or (frame == "rest" and verb.nouns and self.chance(0.5)):
            place = self.location(verb.nouns) if mode != "placeless" else place
        elif frame == "move":
            goal = "into in acc" if noun.kind == "in" else "to zu dat"
            rest = prepositional_phrase(goal, self.nominal(goal[-3:], noun, determiner=self.pick(PLACED)))
        elif " " in frame:
            rest = prepositional_phrase(frame, self.someone(frame[-3:], noun, verb.lemma, known=known, rival=subject))
        return Clause(subject, verb, tense, adverb, time, objects, rest, place)

    def location(self, nouns: Sequence[Noun]) -> Text:
        noun = self.pick(nouns)
        en, de = self.pick(word_pairs(SPOTS[noun.kind]))
        return prepositional_phrase(f"{en} {de} dat", self.nominal("dat", noun, determiner=self.pick(PLACED)))

    def someone(self, case: str, noun: Noun, *args: Any, rival: Nominal | None = None, **options: Any) -> Nominal:
        """The noun, or for a person sometimes a pronoun or a name."""
        if noun.kind != "person" or self.chance(0.6):
            return self.nominal(case, noun, *args, **options)
        if self.chance(0.3):
            name = self.pick(NAMES)
            return Nominal(name, name)
        near = rival is not None and rival.en in ("I", "you", "we")  # "I see me" would have to be "myself"
        choice = self.pick(PRONOUNS[3:] if near else PRONOUNS + PRONOUNS[:2])
        person, nominative, other, *forms = choice.split()
        en = nominative if case == "nom" else other
        return Nominal(en, forms[("nom", "acc", "dat").index(case)], int(person), pronoun=True)

    def nominal(
        self,
        case: str,
        noun: Noun,
        partner: str = "",
        determiner: Determiner | None = None,
        known: bool = False,
        related: bool = False,
    ) -> Nominal:
        """The noun with determiner and perhaps an adjective; `partner` is the word it makes a combination with."""
        single = case == "gen" or determiner is A or not noun.de_plural
        plural = determiner is HOW_MANY or (not single and self.chance(0.15 if determiner in PLACED else 0.35))
        gender = "p" if plural else noun.gender.replace("w", "m")
        owner = ""
        ownable = noun.kind not in SPOTS and noun.en not in SPOUSES
        if not determiner and case != "gen" and ownable and self.chance(0.07):
            keeper = self.nominal("gen", self.pick(find_nouns("person")), known=True)
            determiner, owner = THE._replace(en=f"{keeper.en}'s"), keeper.de
        determiner = determiner or self.determiner(noun, plural, known, case)
        if determiner.en == "a" and (plural or not noun.de_plural):
            determiner = determiner._replace(en="any") if determiner is NOT_A else BARE
        ending = case_ending(determiner.endings, gender, case)
        en, de = "these" if plural and determiner is THIS else determiner.en, determiner.de + ending
        if partner:
            self.pairs.add((partner, noun.en))
        if self.chance(0.45) and not (case == "nom" and partner):
            choices = self.pick(adjectives_for(noun)), self.pick(adjectives_for(noun))
            adjective = min(choices, key=lambda item: len(item.nouns))  # evens out how often each is used
            self.pairs.add((adjective.en, noun.en))
            endings = STRONG if determiner.strong or not ending else WEAK
            en, de = join_words(en, adjective.en), join_words(de, adjective.stem + case_ending(endings, gender, case))
        relative = self.relative(noun, gender) if related and not owner else Text()
        en = join_words(en, noun.en_plural if plural else noun.en, relative.en)
        de = join_words(de, decline(noun, gender, case), owner) + relative.de
        return Nominal(en, de, 3 if plural else 2, determiner.known)

    def determiner(self, noun: Noun, plural: bool, known: bool, case: str) -> Determiner:
        if not known and self.chance(0.45):
            number = Determiner(*self.pick(word_pairs(NUMBERS)), NO_ENDING)
            return self.pick((A, SOME, MANY, number, number, number)) if plural else A
        if self.chance(0.3) and noun.en not in SPOUSES:
            return Determiner(*self.pick(word_pairs(POSSESSIVES)), EIN, known=True)
        if case in ("nom", "acc") and noun.en not in SPOUSES and self.chance(0.1):
            name = self.pick(NAMES)
            return Determiner(f"{name}'s", f"{name}s", NO_ENDING, known=True)
        every = THE if known or plural or not noun.de_plural else EVERY
        return self.pick((THE, THE, THE, THE, THIS, every))

    def relative(self, noun: Noun, gender: str) -> Text:
        """A relative clause in which the noun is the subject or the object."""
        person, tense = noun.kind == "person", self.pick(("present", "past", "can"))
        takers = [verb for verb in find_verbs("acc,dat") if noun in verb.nouns]
        if noun.kind in ("person", "animal") and self.chance(0.6):
            pool = [verb for verb in find_verbs(COMMON_FRAMES) if person or verb.animals]
            number = 3 if gender == "p" else 2
            subject = Nominal("who" if person else "that", "d" + case_ending(DER, gender, "nom"), number)
            said = self.clause(tense, pool, subject).text("last")
        elif takers:
            clause = self.clause(tense, takers, mode="gap")
            self.pairs.add((clause.verb.lemma, noun.en))
            case = clause.verb.frame
            pronoun = "denen" if gender == "p" and case == "dat" else "d" + case_ending(DER, gender, case)
            said = join_texts(Text("whom" if person else "that", pronoun), clause.text("last"))
        else:
            return Text()
        return Text(said.en, f", {said.de},")


def _distinct(seed: int) -> Iterator[Phrase]:
    """Endless sentences of a readable length, each once."""
    writer, written = _Writer(seed), set()
    while True:
        phrase = writer.sentence()
        if phrase.en not in written and phrase.en.count(" ") < 18:
            written.add(phrase.en)
            yield phrase


def generate(count: int, seed: int = 0) -> list[Phrase]:
    """`count` distinct sentence pairs, always the same for a seed; ValueError if `count` is negative."""
    if count < 0:
        raise ValueError(f"count must not be negative, got {count}")
    return list(islice(_distinct(seed), count))


def splits(train: int = 30_000, validation: int = 500, test: int = 1_000, seed: int = 0) -> dict[str, list[Phrase]]:
    """Disjoint splits "train", "validation" and "test" of the sizes asked for; ValueError if one is negative.

    An eighth of all combinations is held out of "train", and two of five sentences in the other splits contain one.
    """
    if min(train, validation, test) < 0:
        raise ValueError(f"sizes must not be negative, got {train}, {validation}, {test}")
    new = [index % 5 < 2 for size in (validation, test) for index in range(size)]  # does it hold such a combination?
    wanted = {True: sum(new), False: train + len(new) - sum(new)}
    found: dict[bool, list[Phrase]] = {True: [], False: []}
    stream = _distinct(seed)
    while any(len(found[held]) < wanted[held] for held in found):
        phrase = next(stream)
        held = any(crc32(f"{seed} {pair[0]} {pair[1]}".encode()) % 8 == 0 for pair in phrase.combinations)
        if len(found[held]) < wanted[held]:
            found[held].append(phrase)
    shown = found[False][:train]
    seen = {pair for phrase in shown for pair in phrase.combinations}
    pools = {True: iter(found[True]), False: iter(found[False][train:])}
    exams = [phrase._replace(unseen=not phrase.combinations <= seen) for phrase in (next(pools[held]) for held in new)]
    return {"train": shown, "validation": exams[:validation], "test": exams[validation:]}
