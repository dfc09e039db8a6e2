"""Sample English sentences, each with its unique German translation.

The parts of a clause (subject, verb, objects, adverb, time) are sampled once and then written out twice: by the rules
of English (do-support, verb before object) and by those of German (case, gender, adjective endings, verb in second or
last position). No English sentence is ambiguous.
"""

import re
from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple, TypeVar

from .alignment import MARK, align, new_mark, read_alignment, unmarked
from .grammar import (
    BE,
    DER,
    EIN,
    EVERY,
    HOW_MANY,
    MANY,
    MODALS,
    NO_DETERMINER,
    NO_ENDING,
    NOT_A,
    PLACE_DETERMINERS,
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
    FREQUENCY_ADVERBS,
    NAMES,
    NUMBERS,
    PLACE_PREPOSITIONS,
    POSSESSIVES,
    PRONOUNS,
    SPOUSE_NOUNS,
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
    """An English sentence with its unique German translation."""

    en: str
    de: str
    combinations: frozenset[tuple[str, str]]  # its adjective-noun and verb-object pairs, as English lemmas
    alignment: tuple[tuple[int, int], ...]  # indices of an English and a German word that translate each other
    unseen: bool = False  # whether one of the combinations does not occur in the training split


class SentenceWriter:
    """Sample sentences, using only `Random.random`, whose sequence is the same in every version of Python."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed).random
        self.combinations: set[tuple[str, str]] = set()

    def choose(self, items: Sequence[T]) -> T:
        return items[int(self.random() * len(items))]

    def chance(self, probability: float) -> bool:
        return self.random() < probability

    def sentence(self) -> Phrase:
        self.combinations = set()
        kinds = (*[(self.statement, ".")] * 6, *[(self.question, "?")] * 4, (self.compound, "."), (self.reported, "."))
        write, mark = self.choose(kinds)
        en, de = write()
        en = re.sub(rf"\ba({MARK}*) (?=[aeiou])", r"an\1 ", en) + mark
        de = de.rstrip(",") + mark  # a relative clause at the end of the sentence leaves a trailing comma
        alignment = read_alignment(Text(en, de))
        en, de = unmarked(en), unmarked(de)
        return Phrase(en[0].upper() + en[1:], de[0].upper() + de[1:], frozenset(self.combinations), alignment)

    def statement(self) -> Text:
        clause = self.clause(self.tense(), mode="rich")
        if self.chance(0.35) or clause.verb.frame == "be" or not (clause.time.en or clause.place.en):
            return clause.text("second")
        if clause.time.en:
            return join_texts(align(clause.time), clause._replace(time=Text()).text("first"))
        return join_texts(align(clause.place), clause._replace(place=Text()).text("first"))

    def question(self) -> Text:
        word, tense = self.choose(("", "", "", "", "who", "what", "what", "where", "when", "why")), self.tense()
        if word == "who":
            who = Nominal("who", "wer")
            if self.chance(0.5):
                who = self.nominal("nom", self.choose(find_nouns("person")), determiner=WHICH)
            return self.clause(tense, find_verbs(COMMON_FRAMES), who, "plain").text("second")
        if word == "what":
            clause = self.clause(tense, find_verbs("acc,dat"), mode="gap")
            front = self.question_object(clause.verb)
        elif word == "where":
            clause, front = self.clause(tense, find_verbs("acc,rest,stay"), mode="placeless"), Text("where", "wo")
        elif word:
            clause = self.clause(tense, find_verbs(COMMON_FRAMES), mode="plain")._replace(time=Text())
            front = Text(word, {"when": "wann", "why": "warum"}[word])
        else:
            clause, front = self.clause(tense, mode="plain"), Text()
        return join_texts(align(front), clause.text("first", inverted=True))

    def question_object(self, verb: Verb) -> Text:
        """Return the object that a question asks about."""
        noun = self.choose(verb.nouns)
        if noun.kind == "person" and self.chance(0.4):
            return Text("whom", "wem" if verb.frame == "dat" else "wen")
        if noun.kind not in ("person", "animal") and verb.frame == "acc" and self.chance(0.4):
            return Text("what", "was")
        determiner = HOW_MANY if noun.de_plural and self.chance(0.4) else WHICH
        item = self.nominal(verb.frame, noun, verb.lemma, determiner)
        return Text(item.en, item.de)

    def compound(self) -> Text:
        """Return a main clause with a subordinate clause after or before it."""
        tense = self.choose(("past", "present", "present"))
        word = self.choose(word_pairs(CONJUNCTIONS[tense]))
        # "While he is old" and "before he does not come" would be odd.
        pool = find_verbs(COMMON_FRAMES) if word.en in ("before", "while") else ()
        if word.en != "before" and self.chance(0.25):
            subordinate = join_texts(align(word), align(self.choose(word_pairs(WEATHER[tense]))))
        else:
            mode = "plain" if word.en == "before" else ""
            subordinate = join_texts(align(word), self.clause(tense, pool, mode=mode).text("last"))
        if self.chance(0.5):
            en, de = self.clause(tense, pool).text("second")
            return Text(f"{en} {subordinate.en}", f"{de}, {subordinate.de}")
        en, de = self.clause(tense, pool).text("first")
        return Text(f"{subordinate.en}, {en}", f"{subordinate.de}, {de}")

    def reported(self) -> Text:
        """Return a sentence about what somebody says, knows or asks."""
        tense = self.choose(("past", "present", "present"))
        main = self.clause(tense, find_verbs("that"))
        uses_whether = main.verb.en == "ask" or main.adverb.en == "not"
        word = Text("whether", "ob") if uses_whether else Text("that", "dass")
        subordinate, (en, de) = join_texts(align(word), self.clause(tense).text("last")), main.text("second")
        return Text(f"{en} {subordinate.en}", f"{de}, {subordinate.de}")

    def tense(self) -> str:
        return self.choose(("present", "present", "past", self.choose(tuple(MODALS))))

    def clause(self, tense: str, pool: Sequence[Verb] = (), subject: Nominal | None = None, mode: str = "") -> Clause:
        """Return a clause whose verb is from `pool`, by default from the verbs of an ordinary clause.

        Args:
            mode: "rich" also allows relative clauses, "plain" excludes "not" and "often", "placeless" is plain without
                a place, "gap" is plain without an object.
        """
        pool = pool or find_verbs("be" if tense in BE and self.chance(0.25) else COMMON_FRAMES)
        verb = self.choose([verb for verb in pool if verb.past or tense != "past"])
        frame, complement, place = verb.frame, Text(), Text()
        rich, plain = mode == "rich", mode in ("plain", "placeless", "gap")
        adverb, time = self.adverb_and_time(verb, tense, plain)

        definite = plain or adverb.en != "" or frame == "be"  # "A man does not sleep" would be odd
        kind = "animal" if verb.for_animals and self.chance(0.4) else "person"
        noun, adjective_en = self.choose(find_nouns(kind)), ""
        if frame == "be":
            adjective = self.choose(all_adjectives())
            noun, adjective_en = self.choose(adjective.nouns), adjective.en
            degree = self.choose(word_pairs(DEGREES)) if self.chance(0.3) else Text()
            complement = join_texts(degree, Text(adjective_en, adjective.de))
        if subject is None:
            with_relative = rich and self.chance(0.2)
            subject = self.participant("nom", noun, adjective_en, definite=definite, with_relative=with_relative)

        objects = []
        definite = adverb.en in ("not", "never")
        noun = self.choose(verb.nouns or find_nouns("person"))
        if frame == "give":
            objects.append(self.participant("dat", self.choose(find_nouns("person")), subject=subject, definite=True))
        if frame in ("acc", "dat", "give") and mode != "gap":
            negated = adverb.en == "not" and noun.kind != "person" and self.chance(0.5)  # "nicht ein" is "kein"
            # A relative clause needs an object that ends the sentence in both languages.
            object_is_last = tense == "present" and not (adverb.en or time.en or verb.prefix)
            with_relative = rich and object_is_last and self.chance(0.4)
            case, determiner = "dat" if frame == "dat" else "acc", NOT_A if negated else None
            item = self.participant(case, noun, verb.lemma, determiner, definite, with_relative, subject=subject)
            objects.append(item)
            if negated:
                own = new_mark()  # "not a" is "kein"
                first, *others = item.de.split(" ")
                objects[-1] = item._replace(de=join_words(first + own, *others))
                adverb = Text("not" + own)
            can_have_place = frame == "acc" and not with_relative and noun.kind not in PLACE_PREPOSITIONS
            if can_have_place and mode != "placeless" and self.chance(0.2):
                place = self.location(find_nouns("in at on"))
        elif frame == "stay" or (frame == "rest" and verb.nouns and self.chance(0.5)):
            place = self.location(verb.nouns) if mode != "placeless" else place
        elif frame == "move":
            goal = "into in acc" if noun.kind == "in" else "to zu dat"
            item = self.nominal(goal[-3:], noun, determiner=self.choose(PLACE_DETERMINERS))
            complement = prepositional_phrase(goal, item)
        elif " " in frame:
            item = self.participant(frame[-3:], noun, verb.lemma, definite=definite, subject=subject)
            complement = prepositional_phrase(frame, item)
        return Clause(subject, verb, tense, adverb, time, objects, complement, place)

    def adverb_and_time(self, verb: Verb, tense: str, plain: bool) -> tuple[Text, Text]:
        """Return "not" or an adverb of frequency, and an expression of time; both may be empty."""
        adverb, time = Text(), Text()
        ordinary = verb.frame not in ("be", "that")
        if not plain and ordinary and tense in BE and self.chance(0.12):
            adverb = self.choose(word_pairs(FREQUENCY_ADVERBS))
        elif not plain and tense != "must" and (verb.frame != "that" or verb.en == "know") and self.chance(0.2):
            adverb = Text("not", "nicht")
        if adverb.en in ("", "not") and ordinary and self.chance(0.35):
            times = word_pairs(TIMES["any" if self.chance(0.5) else tense if tense in BE else "modal"])
            # "not every day" would have a different word order
            time = self.choose([time for time in times if not adverb.en or not time.en.startswith("every")])
        return adverb, time

    def location(self, nouns: Sequence[Noun]) -> Text:
        noun = self.choose(nouns)
        en, de = self.choose(word_pairs(PLACE_PREPOSITIONS[noun.kind]))
        item = self.nominal("dat", noun, determiner=self.choose(PLACE_DETERMINERS))
        return prepositional_phrase(f"{en} {de} dat", item)

    def participant(
        self, case: str, noun: Noun, *args: Any, subject: Nominal | None = None, **options: Any
    ) -> Nominal:
        """Return `nominal(case, noun, ...)` or, for a person, sometimes a pronoun or a name.

        Args:
            subject: the subject of the clause if the result is an object, so that no reflexive pronoun is needed.
        """
        if noun.kind != "person" or self.chance(0.6):
            return self.nominal(case, noun, *args, **options)
        if self.chance(0.3):
            name = self.choose(NAMES)
            return Nominal(name, name)
        # With such a subject, "me", "you" or "us" might have to be reflexive: "I see myself".
        avoid_reflexive = subject is not None and subject.en in ("I", "you", "we")
        choice = self.choose(PRONOUNS[3:] if avoid_reflexive else PRONOUNS + PRONOUNS[:2])
        person, nominative, other, *forms = choice.split()
        en = nominative if case == "nom" else other
        return Nominal(en, forms[("nom", "acc", "dat").index(case)], int(person), pronoun=True)

    def nominal(
        self,
        case: str,
        noun: Noun,
        partner: str = "",
        determiner: Determiner | None = None,
        definite: bool = False,
        with_relative: bool = False,
    ) -> Nominal:
        """Return the noun with a determiner and perhaps an adjective.

        Args:
            partner: the verb or adjective with which the noun forms a combination.
            definite: whether the determiner must be definite.
            with_relative: whether to append a relative clause.
        """
        singular_only = case == "gen" or determiner is A or not noun.de_plural
        share_of_plurals = 0.15 if determiner in PLACE_DETERMINERS else 0.35
        plural = determiner is HOW_MANY or (not singular_only and self.chance(share_of_plurals))
        gender = "p" if plural else noun.gender.replace("w", "m")
        genitive = ""
        can_have_owner = noun.kind not in PLACE_PREPOSITIONS and noun.en not in SPOUSE_NOUNS
        if not determiner and case != "gen" and can_have_owner and self.chance(0.07):
            possessor = self.nominal("gen", self.choose(find_nouns("person")), definite=True)
            determiner, genitive = THE._replace(en=f"{possessor.en}'s"), possessor.de
        determiner = determiner or self.determiner(noun, plural, definite, case)
        if determiner.en == "a" and (plural or not noun.de_plural):
            determiner = determiner._replace(en="any") if determiner is NOT_A else NO_DETERMINER
        ending = case_ending(determiner.endings, gender, case)
        en, de = "these" if plural and determiner is THIS else determiner.en, determiner.de + ending
        if not genitive:  # "the king's dog" is "der Hund des Königs", where the article has no counterpart
            en, de = align(Text(en, de))
        if partner:
            self.combinations.add((partner, noun.en))
        if self.chance(0.45) and not (case == "nom" and partner):
            choices = self.choose(adjectives_for(noun)), self.choose(adjectives_for(noun))
            adjective = min(choices, key=lambda item: len(item.nouns))  # balances their frequencies
            self.combinations.add((adjective.en, noun.en))
            endings = STRONG if determiner.strong_adjectives or not ending else WEAK
            pair = align(Text(adjective.en, adjective.stem + case_ending(endings, gender, case)))
            en, de = join_words(en, pair.en), join_words(de, pair.de)
        relative_clause = self.relative_clause(noun, gender) if with_relative and not genitive else Text()
        own = align(Text(noun.en_plural if plural else noun.en, decline(noun, gender, case)))
        en = join_words(en, own.en, relative_clause.en)
        de = join_words(de, own.de, genitive) + relative_clause.de
        return Nominal(en, de, 3 if plural else 2, determiner.definite)

    def determiner(self, noun: Noun, plural: bool, definite: bool, case: str) -> Determiner:
        if not definite and self.chance(0.45):
            number = Determiner(*self.choose(word_pairs(NUMBERS)), NO_ENDING)
            return self.choose((A, SOME, MANY, number, number, number)) if plural else A
        if self.chance(0.3) and noun.en not in SPOUSE_NOUNS:
            return Determiner(*self.choose(word_pairs(POSSESSIVES)), EIN, definite=True)
        if case in ("nom", "acc") and noun.en not in SPOUSE_NOUNS and self.chance(0.1):
            name = self.choose(NAMES)
            return Determiner(f"{name}'s", f"{name}s", NO_ENDING, definite=True)
        every = THE if definite or plural or not noun.de_plural else EVERY
        return self.choose((THE, THE, THE, THE, THIS, every))

    def relative_clause(self, noun: Noun, gender: str) -> Text:
        """Return a relative clause in which the noun is the subject or the object."""
        person, tense = noun.kind == "person", self.choose(("present", "past", "can"))
        verbs = [verb for verb in find_verbs("acc,dat") if noun in verb.nouns]
        if noun.kind in ("person", "animal") and self.chance(0.6):
            pool = [verb for verb in find_verbs(COMMON_FRAMES) if person or verb.for_animals]
            number = 3 if gender == "p" else 2
            subject = Nominal("who" if person else "that", "d" + case_ending(DER, gender, "nom"), number)
            subordinate = self.clause(tense, pool, subject).text("last")
        elif verbs:
            clause = self.clause(tense, verbs, mode="gap")
            self.combinations.add((clause.verb.lemma, noun.en))
            case = clause.verb.frame
            pronoun = "denen" if gender == "p" and case == "dat" else "d" + case_ending(DER, gender, case)
            subordinate = join_texts(align(Text("whom" if person else "that", pronoun)), clause.text("last"))
        else:
            return Text()
        return Text(subordinate.en, f", {subordinate.de},")
