"""The built-in English-German corpus: a grammar that writes both sides of a sentence pair at once.

With it the package can train and score a translator offline, in minutes, against exact answers. A clause is drawn
once, as subject, verb, objects, adverb and time, and then set out twice: by English rules (do-support, verb before
object) and by German ones (case, gender, adjective endings, the verb in second place or last). No English sentence
has two readings, so each has exactly one translation. `splits` holds back a share of the adjective-noun and
verb-object combinations, which tells a translator that composes words from one that remembers sentences.
"""

import re
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import islice
from random import Random
from typing import Any, NamedTuple, TypeVar
from zlib import crc32

T = TypeVar("T")

# kind: English[/plural] German[/plural] gender, ... A "w" is a weak masculine (der Junge, den Jungen); a noun without
# a German plural is a mass noun. The kinds "in", "at" and "on" are places, named after their preposition.
_NOUNS = """
person: man/men Mann/Männer m, boy Junge/Jungen w, father Vater/Väter m, brother Bruder/Brüder m, son Sohn/Söhne m,
uncle Onkel/Onkel m, friend Freund/Freunde m, teacher Lehrer/Lehrer m, doctor Arzt/Ärzte m, king König/Könige m,
student Student/Studenten w, neighbour Nachbar/Nachbarn w, policeman/policemen Polizist/Polizisten w,
farmer Bauer/Bauern w, guest Gast/Gäste m, woman/women Frau/Frauen f, aunt Tante/Tanten f, girl Mädchen/Mädchen n,
mother Mutter/Mütter f, sister Schwester/Schwestern f, daughter Tochter/Töchter f, queen Königin/Königinnen f,
child/children Kind/Kinder n; animal: dog Hund/Hunde m, cat Katze/Katzen f, horse Pferd/Pferde n, cow Kuh/Kühe f,
bird Vogel/Vögel m, mouse/mice Maus/Mäuse f, bear Bär/Bären w, lion Löwe/Löwen w, pig Schwein/Schweine n,
duck Ente/Enten f; food: apple Apfel/Äpfel m, egg Ei/Eier n, cake Kuchen/Kuchen m, potato Kartoffel/Kartoffeln f,
pear Birne/Birnen f, tomato Tomate/Tomaten f, cookie Keks/Kekse m, bread Brot n, cheese Käse m, soup Suppe f,
meat Fleisch n; drink: water Wasser n, milk Milch f, coffee Kaffee m, tea Tee m, juice Saft m, wine Wein m;
text: book Buch/Bücher n, letter Brief/Briefe m, newspaper Zeitung/Zeitungen f, story Geschichte/Geschichten f,
poem Gedicht/Gedichte n; thing: picture Bild/Bilder n, lamp Lampe/Lampen f, key Schlüssel/Schlüssel m,
bag Tasche/Taschen f, clock Uhr/Uhren f, cup Tasse/Tassen f, plate Teller/Teller m, knife/knives Messer/Messer n,
ball Ball/Bälle m, ring Ring/Ringe m, flower Blume/Blumen f, gift Geschenk/Geschenke n, box Kiste/Kisten f,
bottle Flasche/Flaschen f; clothes: shirt Hemd/Hemden n, coat Mantel/Mäntel m, dress Kleid/Kleider n, hat Hut/Hüte m,
shoe Schuh/Schuhe m, jacket Jacke/Jacken f; vehicle: car Auto/Autos n, bicycle Fahrrad/Fahrräder n, bus Bus/Busse m,
train Zug/Züge m, boat Boot/Boote n; furniture: table Tisch/Tische m, chair Stuhl/Stühle m, bed Bett/Betten n,
cupboard Schrank/Schränke m; opening: door Tür/Türen f, window Fenster/Fenster n, gate Tor/Tore n;
tree: tree Baum/Bäume m, bush Busch/Büsche m; in: garden Garten/Gärten m, kitchen Küche/Küchen f,
school Schule/Schulen f, city Stadt/Städte f, park Park/Parks m, village Dorf/Dörfer n, forest Wald/Wälder m,
house Haus/Häuser n, hotel Hotel/Hotels n, church Kirche/Kirchen f, museum Museum/Museen n, castle Schloss/Schlösser n,
room Zimmer/Zimmer n; at: station Bahnhof/Bahnhöfe m, beach Strand/Strände m, lake See/Seen m, river Fluss/Flüsse m;
on: street Straße/Straßen f, bridge Brücke/Brücken f, mountain Berg/Berge m, island Insel/Inseln f
"""
# kinds or single nouns it may describe: English German[/stem before an ending], ...
_ADJECTIVES = """
person animal: young jung, tired müde/müd, hungry hungrig, friendly freundlich, clever klug, lazy faul, strong stark,
happy glücklich, sad traurig, sick krank; person: famous berühmt, rich reich, poor arm, nice nett;
person animal thing text clothes vehicle furniture tree opening in bridge street: old alt;
animal thing clothes vehicle furniture tree opening in at on cake egg tomato potato child: big groß, small klein;
person animal thing clothes text tree in at on: beautiful schön;
text thing clothes vehicle furniture opening hotel house museum school street bridge room: new neu;
thing clothes vehicle furniture hotel wine cheese meat: expensive teuer/teur, cheap billig;
thing clothes vehicle furniture opening: red rot, blue blau, green grün;
animal thing clothes furniture opening: white weiß, black schwarz; bag box gift furniture gate book: heavy schwer;
text dress coat street bridge: long lang; text dress coat street: short kurz;
text city museum: interesting interessant, boring langweilig; food drink: good gut; food milk juice: fresh frisch;
soup tea coffee milk water: hot heiß; drink soup meat: cold kalt; bread milk water tea cake: warm warm;
apple cake cookie pear tea wine juice: sweet süß;
clothes vehicle cup plate knife bottle window street kitchen room: dirty schmutzig, clean sauber;
cup plate bottle box bag room park street station beach: empty leer; in street: quiet ruhig;
forest church room kitchen street: dark dunkel/dunkl
"""
# frame: English[/past] [particle]=[*][prefix+]German infinitive [he-form participle]=kinds or nouns it goes with, ...
# German forms left out are regular; "*" is for the perfect with sein; "/-" for no past tense, where the English form
# would not differ from the present. Frames: acc and dat take one object, give a receiver and an object, rest a place
# if it likes, stay a place always, move a goal, that a clause; three words are two prepositions and the German case.
# Animals can do what stands after "@".
_VERBS = """
acc: visit=besuchen=person city village castle museum church island, meet/met=treffen trifft getroffen=person,
look for=suchen=person animal thing, need=brauchen=thing vehicle food furniture, ask=fragen=person,
have/-=haben hat gehabt=animal thing vehicle text, buy/bought=kaufen=food drink clothes vehicle text furniture,
sell/sold=verkaufen=vehicle thing clothes food, eat/ate=essen isst gegessen=food, order=bestellen=food drink,
drink/drank=trinken trinkt getrunken=drink, read/-=lesen liest gelesen=text, greet=grüßen=person,
write/wrote=schreiben schreibt geschrieben=text, paint=malen=person animal flower tree house garden at on,
wash=waschen wäscht gewaschen=clothes cup plate car window dog, wear/wore=tragen trägt getragen=clothes ring,
repair=reparieren=vehicle clock lamp furniture door, lose/lost=verlieren verliert verloren=key bag ring ball clothes,
forget/forgot=vergessen vergisst vergessen=thing text, build/built=bauen=house boat bridge hotel castle furniture,
understand/understood=verstehen versteht verstanden=person text, feed/fed=füttern=animal, close=zu+machen=opening box,
open=auf+machen=opening box bottle bag cupboard letter, call=an+rufen ruft gerufen=person, try on=an+probieren=clothes,
invite=ein+laden lädt geladen=person, fetch=ab+holen=person letter gift car,
tidy up=auf+räumen=room kitchen house school garden cupboard table,
throw/threw away=weg+werfen wirft geworfen=text thing shoe hat,
bring/brought along=mit+bringen bringt gebracht=food drink gift flower book;
acc@: see/saw=sehen sieht gesehen=person animal vehicle tree castle church mountain river,
find/found=finden findet gefunden=thing animal, hear/heard=hören=person animal train, love=lieben=person animal,
like=mögen mag gemocht=person animal food, chase=jagen=animal; dat: help=helfen hilft geholfen=person animal,
thank=danken=person, answer=antworten=person, listen to=zu+hören=person bird story;
dat@: follow=*folgen=person animal vehicle; give: give/gave=geben gibt gegeben=thing food text,
show=zeigen=thing text clothes vehicle, send/sent=schicken=text gift ring,
bring/brought=bringen bringt gebracht=food drink thing text,
lend/lent=leihen leiht geliehen=text vehicle clothes knife; for auf acc: wait=warten=person vehicle letter;
to mit dat: talk=sprechen spricht gesprochen=person; of von dat: dream=träumen=animal vehicle cake castle island;
rest: work=arbeiten=in, laugh=lachen=in at on, dance=tanzen=in at on, sing/sang=singen singt gesungen=in at on,
get/got up=*auf+stehen steht gestanden=hotel village, arrive=*an+kommen kommt gekommen=in at;
rest@: sleep/slept=schlafen schläft geschlafen=house room hotel beach tree, play=spielen=in at street tree,
swim/swam=*schwimmen schwimmt geschwommen=lake river beach, wake/woke up=*auf+wachen=in tree,
fall/fell asleep=*ein+schlafen schläft geschlafen=in beach tree;
stay: live=wohnen=city village house hotel castle island lake river;
stay@: sit/sat=sitzen sitzt gesessen=garden park room station beach furniture tree,
stand/stood=stehen steht gestanden=garden room at street bridge furniture tree;
move: drive/drove=*fahren fährt gefahren=city village forest at bridge mountain island;
move@: go/went=*gehen geht gegangen=in at on, run/ran=*laufen läuft gelaufen=in at on,
come/came=*kommen kommt gekommen=in at on; that: say/said=sagen=, know/knew=wissen weiß gewusst=,
think/thought=denken denkt gedacht=, believe=glauben=, hope=hoffen=, ask=fragen=; be: be/was=sein ist gewesen=
"""
_COMMON = "acc,dat,give,for auf acc,to mit dat,of von dat,rest,stay,move"  # the frames of an ordinary clause

# English=German, ...
_TIMES = {
    "any": "today=heute, on Monday=am Montag, on Friday=am Freitag, on Sunday=am Sonntag, in the morning=am Morgen, "
    "in the evening=am Abend",
    "present": "now=jetzt, every day=jeden Tag, every year=jedes Jahr",
    "past": "yesterday=gestern, last week=letzte Woche, last year=letztes Jahr",
    "modal": "tomorrow=morgen, next week=nächste Woche, next year=nächstes Jahr, soon=bald",
}
_NUMBERS = """two=zwei, three=drei, four=vier, five=fünf, six=sechs, seven=sieben, eight=acht, nine=neun, ten=zehn, \
eleven=elf, twelve=zwölf"""
_POSSESSIVES = "my=mein, your=dein, his=sein, her=ihr, our=unser, their=ihr"
_OFTEN = "often=oft, always=immer, never=nie, sometimes=manchmal"
_DEGREES = "very=sehr, too=zu, really=wirklich"
_CONJUNCTIONS = {  # "when" only in the present, as in the past it would sometimes be "als" and sometimes "wenn"
    "past": "because=weil, although=obwohl, before=bevor, while=während",
    "present": "because=weil, although=obwohl, if=wenn, when=wenn, before=bevor, while=während",
}
_WEATHER = {  # the German in the order of a subordinate clause
    "past": "it was raining=es geregnet hat, it was snowing=es geschneit hat, it was dark=es dunkel war",
    "present": "it is raining=es regnet, it is snowing=es schneit, it is dark=es dunkel ist",
}
_SPOTS = {  # where one is in relation to a noun of this kind; the German takes the dative
    "in": "in=in",
    "at": "at=an",
    "on": "on=auf",
    "furniture": "on=auf, under=unter, next to=neben, behind=hinter, in front of=vor",
    "tree": "under=unter, next to=neben, behind=hinter, in front of=vor",
}
_PRONOUNS = (  # person, English subject and object, German nominative, accusative and dative
    *("0 I me ich mich mir", "1 you you du dich dir", "3 we us wir uns uns"),
    *("2 he him er ihn ihm", "2 she her sie sie ihr", "3 they them sie sie ihnen"),
)
_SPOUSES = ("man", "woman")  # with an owner they would be: "meine Frau" is my wife
_NAMES = ("Anna", "Peter", "Maria", "Paul", "Julia", "Martin")
_MODALS = {
    **{"can": ("können", "kann"), "must": ("müssen", "muss"), "should": ("sollten", "sollte")},
    **{"want": ("wollen", "will"), "will": ("werden", "wird")},
}
_BE = {"present": ("am", "are", "is", "are"), "past": ("was", "were", "was", "were")}
_SEIN = {"present": ("bin", "bist", "ist", "sind"), "past": ("war", "warst", "war", "waren")}
_CONTRACTIONS = {"in dem": "im", "in das": "ins", "an dem": "am", "zu dem": "zum", "zu der": "zur", "von dem": "vom"}

# Endings by gender ("p": plural) for nominative, accusative, dative and genitive.
_DER = {"m": "er en em es", "f": "ie ie er er", "n": "as as em es", "p": "ie ie en er"}  # after d-
_STRONG = {"m": "er en em es", "f": "e e er er", "n": "es es em es", "p": "e e en er"}
_EIN = {**_STRONG, "m": "- en em es", "n": "- - em es"}
_WEAK = {"m": "e en en en", "f": "e e en en", "n": "e e en en", "p": "en en en en"}
_NONE = dict.fromkeys("mfnp", "- - - -")


def _ending(table: dict[str, str], gender: str, case: str) -> str:
    return table[gender].split()[("nom", "acc", "dat", "gen").index(case)].strip("-")


class Phrase(NamedTuple):
    """An English sentence with its one German translation."""

    en: str
    de: str
    combinations: frozenset[tuple[str, str]]  # the adjective-noun and verb-object pairs, as English lemmas
    unseen: bool = False  # it contains a combination that the training split never shows


class _Text(NamedTuple):
    en: str = ""
    de: str = ""


class _Noun(NamedTuple):
    kind: str
    en: str
    en_plural: str
    de: str
    de_plural: str
    gender: str


class _Adjective(NamedTuple):
    en: str
    de: str
    stem: str
    nouns: tuple[_Noun, ...]


class _Verb(NamedTuple):
    frame: str
    animals: bool  # they do it too
    nouns: tuple[_Noun, ...]
    en: str
    past: str
    particle: str
    infinitive: str
    he: str
    participle: str = ""
    prefix: str = ""
    sein: bool = False

    @property
    def lemma(self) -> str:
        return _join(self.en, self.particle)


class _Determiner(NamedTuple):
    en: str
    de: str
    endings: dict[str, str]
    known: bool = False  # definite
    strong: bool = False  # takes strong adjective endings after it even where it has an ending itself


_THE, _EVERY = _Determiner("the", "d", _DER, known=True), _Determiner("every", "jed", _STRONG, known=True)
_THIS, _WHICH = _Determiner("this", "dies", _STRONG, known=True), _Determiner("which", "welch", _STRONG)
_A, _NOT_A, _BARE = _Determiner("a", "ein", _EIN), _Determiner("a", "kein", _EIN), _Determiner("", "", _NONE)
_PLACED = (_THE, _THE, _THE, _THIS, _A)  # for places
_SOME, _MANY = _Determiner("some", "einig", _STRONG, strong=True), _Determiner("many", "viel", _STRONG, strong=True)
_HOW_MANY = _Determiner("how many", "wie viel", _STRONG, strong=True)


class _Nominal(NamedTuple):
    """A noun phrase or pronoun, already in its case."""

    en: str
    de: str
    person: int = 2  # 0 ich, 1 du, 2 er, 3 wir or sie: picks the verb form
    known: bool = True
    pronoun: bool = False


class _Clause(NamedTuple):
    """What a clause says, before either language puts it in order."""

    subject: _Nominal
    verb: _Verb
    tense: str  # "present", "past" or a modal
    adverb: _Text  # "not" or how often
    time: _Text
    objects: Sequence[_Nominal]
    rest: _Text  # predicate adjective, prepositional object or goal
    place: _Text

    def text(self, order: str, asking: bool = False) -> _Text:
        """Both languages; `order` is the place of the German finite verb, `asking` inverts the English clause."""
        return _Text(self._english(asking), self._german(order))

    def _english(self, asking: bool) -> str:
        verb, tense, person = self.verb, self.tense, self.subject.person
        helper, main = ("want", f"to {verb.lemma}") if tense == "want" else (verb.en, verb.particle)
        if verb.frame == "be":
            auxiliary, main = _BE[tense][person], ""
        elif tense in _MODALS and tense != "want":
            auxiliary, main = tense, verb.lemma
        elif asking or self.adverb.en == "not":
            auxiliary, main = "did" if tense == "past" else "does" if person == 2 else "do", _join(helper, main)
        else:
            helper = verb.past if tense == "past" else _with_s(helper) if person == 2 else helper
            auxiliary, main = "", _join(helper, main)
        start = (auxiliary, self.subject.en) if asking else (self.subject.en, auxiliary)
        end = (*(item.en for item in self.objects), self.rest.en, self.place.en, self.time.en)
        return _join(*start, self.adverb.en, main, *end).replace("can not", "cannot")

    def _german(self, order: str) -> str:
        verb, tense, person = self.verb, self.tense, self.subject.person
        if verb.frame == "be":
            finite, closing = _SEIN[tense][person], ""
        elif tense == "present":
            finite, closing = _conjugate(verb.infinitive, verb.he, person), verb.prefix
        elif tense == "past":
            finite = _SEIN["present"][person] if verb.sein else _conjugate("haben", "hat", person)
            closing = verb.participle
        else:
            finite, closing = _conjugate(*_MODALS[tense], person), verb.prefix + verb.infinitive
        # Known things come before "nicht" and "oft", new ones after; a pronoun comes before everything.
        pronouns = (item.de for item in self.objects if item.pronoun)
        known = (item.de for item in self.objects if item.known and not item.pronoun)
        new = (item.de for item in self.objects if not item.known)
        middle = _join(*pronouns, self.time.de, *known, self.adverb.de, *new, self.rest.de, self.place.de)
        if order == "last":  # where a separable prefix rejoins its verb
            return _join(self.subject.de, middle, closing + finite if tense == "present" else _join(closing, finite))
        start = (finite, self.subject.de) if order == "first" else (self.subject.de, finite)
        return _join(*start, middle, closing)


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

    def statement(self) -> _Text:
        clause = self.clause(self.tense(), mode="rich")
        if self.chance(0.35) or clause.verb.frame == "be" or not (clause.time.en or clause.place.en):
            return clause.text("second")
        if clause.time.en:
            return _glue(clause.time, clause._replace(time=_Text()).text("first"))
        return _glue(clause.place, clause._replace(place=_Text()).text("first"))

    def question(self) -> _Text:
        word, tense = self.pick(("", "", "", "", "who", "what", "what", "where", "when", "why")), self.tense()
        if word == "who":
            who = _Nominal("who", "wer")
            if self.chance(0.5):
                who = self.nominal("nom", self.pick(_nouns("person")), determiner=_WHICH)
            return self.clause(tense, _verbs(_COMMON), who, "plain").text("second")
        if word == "what":
            clause = self.clause(tense, _verbs("acc,dat"), mode="gap")
            front = self.asked(clause.verb)
        elif word == "where":
            clause, front = self.clause(tense, _verbs("acc,rest,stay"), mode="placeless"), _Text("where", "wo")
        elif word:
            clause = self.clause(tense, _verbs(_COMMON), mode="plain")._replace(time=_Text())
            front = _Text(word, {"when": "wann", "why": "warum"}[word])
        else:
            clause, front = self.clause(tense, mode="plain"), _Text()
        return _glue(front, clause.text("first", asking=True))

    def asked(self, verb: _Verb) -> _Text:
        """The object a question is about."""
        noun = self.pick(verb.nouns)
        if noun.kind == "person" and self.chance(0.4):
            return _Text("whom", "wem" if verb.frame == "dat" else "wen")
        if noun.kind not in ("person", "animal") and verb.frame == "acc" and self.chance(0.4):
            return _Text("what", "was")
        determiner = _HOW_MANY if noun.de_plural and self.chance(0.4) else _WHICH
        item = self.nominal(verb.frame, noun, verb.lemma, determiner)
        return _Text(item.en, item.de)

    def compound(self) -> _Text:
        """A main clause with a subordinate clause after it or before it."""
        tense = self.pick(("past", "present", "present"))
        word = self.pick(_pairs(_CONJUNCTIONS[tense]))
        # "While he is old" and "before he does not come" would be odd.
        pool = _verbs(_COMMON) if word.en in ("before", "while") else ()
        if word.en != "before" and self.chance(0.25):
            said = _glue(word, self.pick(_pairs(_WEATHER[tense])))
        else:
            said = _glue(word, self.clause(tense, pool, mode="plain" if word.en == "before" else "").text("last"))
        if self.chance(0.5):
            en, de = self.clause(tense, pool).text("second")
            return _Text(f"{en} {said.en}", f"{de}, {said.de}")
        en, de = self.clause(tense, pool).text("first")
        return _Text(f"{said.en}, {en}", f"{said.de}, {de}")

    def reported(self) -> _Text:
        """What somebody says, knows or asks."""
        tense = self.pick(("past", "present", "present"))
        main = self.clause(tense, _verbs("that"))
        doubt = main.verb.en == "ask" or main.adverb.en == "not"
        word = _Text("whether", "ob") if doubt else _Text("that", "dass")
        said, (en, de) = _glue(word, self.clause(tense).text("last")), main.text("second")
        return _Text(f"{en} {said.en}", f"{de}, {said.de}")

    def tense(self) -> str:
        return self.pick(("present", "present", "past", self.pick(tuple(_MODALS))))

    def clause(
        self, tense: str, pool: Sequence[_Verb] = (), subject: _Nominal | None = None, mode: str = ""
    ) -> _Clause:
        """A clause with a verb of the pool.

        The `mode` is "rich" for relative clauses too, "plain" for none of "not" and "often", "placeless" and "gap" for
        a plain one without place or object.
        """
        pool = pool or _verbs("be" if tense in _BE and self.chance(0.25) else _COMMON)
        verb = self.pick([verb for verb in pool if verb.past or tense != "past"])
        frame, adverb, time, rest, place = verb.frame, _Text(), _Text(), _Text(), _Text()
        rich, plain = mode == "rich", mode in ("plain", "placeless", "gap")
        if not plain and frame not in ("be", "that") and tense in _BE and self.chance(0.12):
            adverb = self.pick(_pairs(_OFTEN))
        elif not plain and tense != "must" and (frame != "that" or verb.en == "know") and self.chance(0.2):
            adverb = _Text("not", "nicht")
        if adverb.en in ("", "not") and frame not in ("be", "that") and self.chance(0.35):
            times = _pairs(_TIMES["any" if self.chance(0.5) else tense if tense in _BE else "modal"])
            # "not every day" would be another order of words
            time = self.pick([time for time in times if not adverb.en or not time.en.startswith("every")])

        known = plain or adverb.en != "" or frame == "be"  # "A man does not sleep" would be odd
        noun, trait = self.pick(_nouns("animal" if verb.animals and self.chance(0.4) else "person")), ""
        if frame == "be":
            adjective = self.pick(_adjectives())
            noun, trait = self.pick(adjective.nouns), adjective.en
            degree = self.pick(_pairs(_DEGREES)) if self.chance(0.3) else _Text()
            rest = _glue(degree, _Text(trait, adjective.de))
        subject = subject or self.someone("nom", noun, trait, known=known, related=rich and self.chance(0.2))

        objects = []
        known = adverb.en in ("not", "never")
        noun = self.pick(verb.nouns or _nouns("person"))
        if frame == "give":
            objects.append(self.someone("dat", self.pick(_nouns("person")), rival=subject, known=True))
        if frame in ("acc", "dat", "give") and mode != "gap":
            none = adverb.en == "not" and noun.kind != "person" and self.chance(0.5)  # "nicht ein" is "kein"
            # A relative clause only where the object ends the sentence in both languages.
            last = rich and tense == "present" and not (adverb.en or time.en or verb.prefix) and self.chance(0.4)
            case, determiner = "dat" if frame == "dat" else "acc", _NOT_A if none else None
            objects.append(self.someone(case, noun, verb.lemma, determiner, known, last, rival=subject))
            adverb = _Text("not") if none else adverb
            if frame == "acc" and not last and noun.kind not in _SPOTS and mode != "placeless" and self.chance(0.2):
                place = self.location(_nouns("in at on"))
        elif frame == "stay" or (frame == "rest" and verb.nouns and self.chance(0.5)):
            place = self.location(verb.nouns) if mode != "placeless" else place
        elif frame == "move":
            goal = "into in acc" if noun.kind == "in" else "to zu dat"
            rest = _phrase(goal, self.nominal(goal[-3:], noun, determiner=self.pick(_PLACED)))
        elif " " in frame:
            rest = _phrase(frame, self.someone(frame[-3:], noun, verb.lemma, known=known, rival=subject))
        return _Clause(subject, verb, tense, adverb, time, objects, rest, place)

    def location(self, nouns: Sequence[_Noun]) -> _Text:
        noun = self.pick(nouns)
        en, de = self.pick(_pairs(_SPOTS[noun.kind]))
        return _phrase(f"{en} {de} dat", self.nominal("dat", noun, determiner=self.pick(_PLACED)))

    def someone(self, case: str, noun: _Noun, *args: Any, rival: _Nominal | None = None, **options: Any) -> _Nominal:
        """The noun, or for a person sometimes a pronoun or a name."""
        if noun.kind != "person" or self.chance(0.6):
            return self.nominal(case, noun, *args, **options)
        if self.chance(0.3):
            name = self.pick(_NAMES)
            return _Nominal(name, name)
        near = rival is not None and rival.en in ("I", "you", "we")  # "I see me" would have to be "myself"
        choice = self.pick(_PRONOUNS[3:] if near else _PRONOUNS + _PRONOUNS[:2])
        person, nominative, other, *forms = choice.split()
        en = nominative if case == "nom" else other
        return _Nominal(en, forms[("nom", "acc", "dat").index(case)], int(person), pronoun=True)

    def nominal(
        self,
        case: str,
        noun: _Noun,
        partner: str = "",
        determiner: _Determiner | None = None,
        known: bool = False,
        related: bool = False,
    ) -> _Nominal:
        """The noun with determiner and perhaps an adjective; `partner` is the word it makes a combination with."""
        single = case == "gen" or determiner is _A or not noun.de_plural
        plural = determiner is _HOW_MANY or (not single and self.chance(0.15 if determiner in _PLACED else 0.35))
        gender = "p" if plural else noun.gender.replace("w", "m")
        owner = ""
        ownable = noun.kind not in _SPOTS and noun.en not in _SPOUSES
        if not determiner and case != "gen" and ownable and self.chance(0.07):
            keeper = self.nominal("gen", self.pick(_nouns("person")), known=True)
            determiner, owner = _THE._replace(en=f"{keeper.en}'s"), keeper.de
        determiner = determiner or self.determiner(noun, plural, known, case)
        if determiner.en == "a" and (plural or not noun.de_plural):
            determiner = determiner._replace(en="any") if determiner is _NOT_A else _BARE
        ending = _ending(determiner.endings, gender, case)
        en, de = "these" if plural and determiner is _THIS else determiner.en, determiner.de + ending
        if partner:
            self.pairs.add((partner, noun.en))
        if self.chance(0.45) and not (case == "nom" and partner):
            choices = self.pick(_describing(noun)), self.pick(_describing(noun))
            adjective = min(choices, key=lambda item: len(item.nouns))  # evens out how often each is used
            self.pairs.add((adjective.en, noun.en))
            endings = _STRONG if determiner.strong or not ending else _WEAK
            en, de = _join(en, adjective.en), _join(de, adjective.stem + _ending(endings, gender, case))
        relative = self.relative(noun, gender) if related and not owner else _Text()
        en = _join(en, noun.en_plural if plural else noun.en, relative.en)
        de = _join(de, _decline(noun, gender, case), owner) + relative.de
        return _Nominal(en, de, 3 if plural else 2, determiner.known)

    def determiner(self, noun: _Noun, plural: bool, known: bool, case: str) -> _Determiner:
        if not known and self.chance(0.45):
            number = _Determiner(*self.pick(_pairs(_NUMBERS)), _NONE)
            return self.pick((_A, _SOME, _MANY, number, number, number)) if plural else _A
        if self.chance(0.3) and noun.en not in _SPOUSES:
            return _Determiner(*self.pick(_pairs(_POSSESSIVES)), _EIN, known=True)
        if case in ("nom", "acc") and noun.en not in _SPOUSES and self.chance(0.1):
            name = self.pick(_NAMES)
            return _Determiner(f"{name}'s", f"{name}s", _NONE, known=True)
        every = _THE if known or plural or not noun.de_plural else _EVERY
        return self.pick((_THE, _THE, _THE, _THE, _THIS, every))

    def relative(self, noun: _Noun, gender: str) -> _Text:
        """A relative clause in which the noun is the subject or the object."""
        person, tense = noun.kind == "person", self.pick(("present", "past", "can"))
        takers = [verb for verb in _verbs("acc,dat") if noun in verb.nouns]
        if noun.kind in ("person", "animal") and self.chance(0.6):
            pool = [verb for verb in _verbs(_COMMON) if person or verb.animals]
            number = 3 if gender == "p" else 2
            subject = _Nominal("who" if person else "that", "d" + _ending(_DER, gender, "nom"), number)
            said = self.clause(tense, pool, subject).text("last")
        elif takers:
            clause = self.clause(tense, takers, mode="gap")
            self.pairs.add((clause.verb.lemma, noun.en))
            case = clause.verb.frame
            pronoun = "denen" if gender == "p" and case == "dat" else "d" + _ending(_DER, gender, case)
            said = _glue(_Text("whom" if person else "that", pronoun), clause.text("last"))
        else:
            return _Text()
        return _Text(said.en, f", {said.de},")


def _join(*parts: str) -> str:
    return " ".join(filter(None, parts))


def _glue(*texts: _Text) -> _Text:
    return _Text(_join(*(text.en for text in texts)), _join(*(text.de for text in texts)))


def _phrase(words: str, item: _Nominal) -> _Text:
    """A prepositional phrase: "preposition Präposition case" and a noun phrase in that case."""
    *en, de, _ = words.split()
    first, *others = item.de.split(" ")
    start = f"{de} {first}"
    return _Text(_join(*en, item.en), _join(_CONTRACTIONS.get(start, start), *others))


def _with_s(word: str) -> str:
    """The he-form of an English verb, or the plural of a noun."""
    if word == "have":
        return "has"
    return re.sub("([^aeiou])y$", r"\1ie", re.sub("(s|sh|ch|x|o)$", r"\1e", word)) + "s"


def _conjugate(infinitive: str, he: str, person: int) -> str:
    """The present of a German verb; a he-form without -t (kann, weiß) is also that of ich."""
    regular = he[-1] in "td"
    stem = he[:-1] if regular else he
    ich = re.sub("e?n$", "e", infinitive) if regular else he
    return (ich, stem + ("t" if stem[-1] in "sßz" else "st"), he, infinitive)[person]


def _decline(noun: _Noun, gender: str, case: str) -> str:
    if gender == "p":
        return noun.de_plural + ("n" if case == "dat" and noun.de_plural[-1] not in "ns" else "")
    if noun.gender == "w":
        return noun.de if case == "nom" else noun.de_plural
    syllables = len(re.findall("[aeiouyäöü]+", noun.de.lower()))
    return noun.de + ("" if case != "gen" or gender == "f" else "es" if syllables == 1 else "s")


def _entries(table: str) -> Iterator[tuple[str, str]]:
    """The label and text of each entry of a table."""
    for section in " ".join(table.split()).split("; "):
        label, entries = section.split(": ")
        for entry in entries.split(", "):
            yield label, entry


@cache
def _pairs(table: str) -> tuple[_Text, ...]:
    return tuple(_Text(*entry.split("=")) for entry in table.split(", "))


@cache
def _nouns(spec: str) -> tuple[_Noun, ...]:
    """The nouns that are named or whose kind is named."""
    nouns = []
    for kind, entry in _entries(_NOUNS):
        en, de, gender = entry.split()
        en, _, en_plural = en.partition("/")
        de, _, de_plural = de.partition("/")
        if {kind, en} & set(spec.split()):
            nouns.append(_Noun(kind, en, en_plural or _with_s(en), de, de_plural, gender))
    return tuple(nouns)


@cache
def _adjectives() -> tuple[_Adjective, ...]:
    parts = [(spec, *re.split("[ /]", entry)) for spec, entry in _entries(_ADJECTIVES)]
    return tuple(_Adjective(en, de, stem[0] if stem else de, _nouns(spec)) for spec, en, de, *stem in parts)


@cache
def _describing(noun: _Noun) -> tuple[_Adjective, ...]:
    return tuple(adjective for adjective in _adjectives() if noun in adjective.nouns)


@cache
def _verbs(frames: str) -> tuple[_Verb, ...]:
    """The verbs of some frames."""
    verbs = []
    for label, entry in _entries(_VERBS):
        english, german, spec = entry.split("=")
        forms, _, particle = english.partition(" ")
        en, _, past = forms.partition("/")
        past = past or re.sub("([^aeiou])y$", r"\1ie", en).removesuffix("e") + "ed"
        infinitive, *irregular = german.split()
        prefix, _, infinitive = infinitive.strip("*").rpartition("+")
        stem = re.sub("e?n$", "", infinitive)
        he, participle = irregular or (stem + ("et" if stem[-1] in "dt" else "t"), "")
        if not participle:
            participle = he if re.match("be|ver|.*ieren$", infinitive) else f"ge{he}"
        frame, animals, sein = label.strip("@"), "@" in label, "*" in german
        verb = _Verb(frame, animals, _nouns(spec), en, past.strip("-"), particle, infinitive, he)
        if frame in frames.split(","):
            verbs.append(verb._replace(participle=prefix + participle, prefix=prefix, sein=sein))
    return tuple(verbs)


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
