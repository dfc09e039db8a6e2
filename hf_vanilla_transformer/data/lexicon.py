"""The words of the built-in English-German corpus, in compact tables, and functions that look them up."""

import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

# Format: "kind: English[/plural] German[/plural] gender, ...". Gender "w" is a weak masculine (der Junge, den Jungen).
# Nouns without a German plural are mass nouns. The kinds "in", "at" and "on" are places, named by their preposition.
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
# Format: "kinds or single nouns that it may describe: English German[/stem before an ending], ..."
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
# Format: "frame: English[/past] [particle]=[*][prefix+]German infinitive [third person participle]=kinds or nouns it
# combines with, ...". German forms that are omitted are regular. "*" marks a perfect formed with sein. "/-" marks a
# verb that is not used in the past tense, as where the English past (read) is spelled like the present.
# Frames: "acc" and "dat" take one object in that case, "give" a recipient and an object, "rest" an optional place,
# "stay" a place, "move" a goal, "that" a clause. Three words are an English preposition, a German one and its case.
# A frame with "@" can also have an animal as its subject.
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
COMMON_FRAMES = "acc,dat,give,for auf acc,to mit dat,of von dat,rest,stay,move"  # those of an ordinary clause
# Format: "English=German, ..."
TIMES = {
    "any": "today=heute, on Monday=am Montag, on Friday=am Freitag, on Sunday=am Sonntag, in the morning=am Morgen, "
    "in the evening=am Abend",
    "present": "now=jetzt, every day=jeden Tag, every year=jedes Jahr",
    "past": "yesterday=gestern, last week=letzte Woche, last year=letztes Jahr",
    "modal": "tomorrow=morgen, next week=nächste Woche, next year=nächstes Jahr, soon=bald",
}
NUMBERS = """two=zwei, three=drei, four=vier, five=fünf, six=sechs, seven=sieben, eight=acht, nine=neun, ten=zehn, \
eleven=elf, twelve=zwölf"""
POSSESSIVES = "my=mein, your=dein, his=sein, her=ihr, our=unser, their=ihr"
FREQUENCY_ADVERBS = "often=oft, always=immer, never=nie, sometimes=manchmal"
DEGREES = "very=sehr, too=zu, really=wirklich"
CONJUNCTIONS = {  # "when" only in the present: in the past it is "als" or "wenn", depending on the meaning
    "past": "because=weil, although=obwohl, before=bevor, while=während",
    "present": "because=weil, although=obwohl, if=wenn, when=wenn, before=bevor, while=während",
}
WEATHER = {  # the German has the word order of a subordinate clause
    "past": "it was raining=es geregnet hat, it was snowing=es geschneit hat, it was dark=es dunkel war",
    "present": "it is raining=es regnet, it is snowing=es schneit, it is dark=es dunkel ist",
}
PLACE_PREPOSITIONS = {  # by the kind of noun; the German prepositions take the dative
    "in": "in=in",
    "at": "at=an",
    "on": "on=auf",
    "furniture": "on=auf, under=unter, next to=neben, behind=hinter, in front of=vor",
    "tree": "under=unter, next to=neben, behind=hinter, in front of=vor",
}
PRONOUNS = (  # person, English subject and object, German nominative, accusative and dative
    *("0 I me ich mich mir", "1 you you du dich dir", "3 we us wir uns uns"),
    *("2 he him er ihn ihm", "2 she her sie sie ihr", "3 they them sie sie ihnen"),
)
SPOUSE_NOUNS = ("man", "woman")  # without a possessive, which changes their meaning: "meine Frau" is "my wife"
NAMES = ("Anna", "Peter", "Maria", "Paul", "Julia", "Martin")


class Text(NamedTuple):
    """A word or a piece of a sentence in both languages."""

    en: str = ""
    de: str = ""


class Noun(NamedTuple):
    kind: str
    en: str
    en_plural: str
    de: str
    de_plural: str
    gender: str  # "m", "f", "n", or "w" for a weak masculine


class Adjective(NamedTuple):
    en: str
    de: str
    stem: str  # the German form that endings are added to
    nouns: tuple[Noun, ...]  # those that it may describe


class Verb(NamedTuple):
    frame: str
    for_animals: bool  # the subject may be an animal
    nouns: tuple[Noun, ...]  # possible objects, places or goals
    en: str
    past: str  # empty if the past tense is not used
    particle: str
    infinitive: str  # of the German verb, without its prefix
    third_person: str
    participle: str = ""
    prefix: str = ""  # separable
    uses_sein: bool = False  # forms its perfect with sein

    @property
    def lemma(self) -> str:
        return join_words(self.en, self.particle)


def join_words(*parts: str) -> str:
    return " ".join(filter(None, parts))


def join_texts(*texts: Text) -> Text:
    return Text(join_words(*(text.en for text in texts)), join_words(*(text.de for text in texts)))


def add_s(word: str) -> str:
    """Return the third person singular of an English verb, or the plural of a noun."""
    if word == "have":
        return "has"
    return re.sub("([^aeiou])y$", r"\1ie", re.sub("(s|sh|ch|x|o)$", r"\1e", word)) + "s"


def _entries(table: str) -> Iterator[tuple[str, str]]:
    """Yield the label and the text of each entry of a table."""
    for section in " ".join(table.split()).split("; "):
        label, entries = section.split(": ")
        for entry in entries.split(", "):
            yield label, entry


@cache
def word_pairs(table: str) -> tuple[Text, ...]:
    """Return the entries of a table "English=German, ..."."""
    return tuple(Text(*entry.split("=")) for entry in table.split(", "))


@cache
def find_nouns(spec: str) -> tuple[Noun, ...]:
    """Return the nouns whose English word or kind is listed in `spec`, separated by spaces."""
    nouns = []
    for kind, entry in _entries(_NOUNS):
        en, de, gender = entry.split()
        en, _, en_plural = en.partition("/")
        de, _, de_plural = de.partition("/")
        if {kind, en} & set(spec.split()):
            nouns.append(Noun(kind, en, en_plural or add_s(en), de, de_plural, gender))
    return tuple(nouns)


@cache
def all_adjectives() -> tuple[Adjective, ...]:
    parts = [(spec, *re.split("[ /]", entry)) for spec, entry in _entries(_ADJECTIVES)]
    return tuple(Adjective(en, de, stem[0] if stem else de, find_nouns(spec)) for spec, en, de, *stem in parts)


@cache
def adjectives_for(noun: Noun) -> tuple[Adjective, ...]:
    return tuple(adjective for adjective in all_adjectives() if noun in adjective.nouns)


@cache
def find_verbs(frames: str) -> tuple[Verb, ...]:
    """Return the verbs of the frames listed in `frames`, separated by commas."""
    verbs = []
    for label, entry in _entries(_VERBS):
        english, german, spec = entry.split("=")
        forms, _, particle = english.partition(" ")
        en, _, past = forms.partition("/")
        past = past or re.sub("([^aeiou])y$", r"\1ie", en).removesuffix("e") + "ed"
        infinitive, *irregular = german.split()
        prefix, _, infinitive = infinitive.strip("*").rpartition("+")
        stem = re.sub("e?n$", "", infinitive)
        third_person, participle = irregular or (stem + ("et" if stem[-1] in "dt" else "t"), "")
        if not participle:
            participle = third_person if re.match("be|ver|.*ieren$", infinitive) else f"ge{third_person}"
        frame, for_animals, uses_sein = label.strip("@"), "@" in label, "*" in german
        verb = Verb(frame, for_animals, find_nouns(spec), en, past.strip("-"), particle, infinitive, third_person)
        if frame in frames.split(","):
            verbs.append(verb._replace(participle=prefix + participle, prefix=prefix, uses_sein=uses_sein))
    return tuple(verbs)
