"""`import`: files of every format, damaged and hostile ones, columns, duplicates, and the cut into three parts."""

# ruff: noqa: RUF001

import gzip
import json
import random
import re
import signal
import subprocess
import sys
import zipfile

import pytest
import xlsxwriter
from damaged_imports import FILES, check_import, damaged
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from import_files import WRITERS, write_csv, write_eaf, write_po, write_tmx, write_xliff, write_xlsx

from hf_vanilla_transformer.data.foreign_files import decode
from hf_vanilla_transformer.data.formats import DataError
from hf_vanilla_transformer.data.source import TextFile
from hf_vanilla_transformer.plugins.importing.importing import Import, Pair, split
from hf_vanilla_transformer.plugins.importing.translation_files import matches

PAIRS = [Pair(f"the dog number {i} runs", f"der Hund Nummer {i} läuft") for i in range(12)]


def read(path, **options) -> tuple[list[Pair], Import]:
    job = Import(("en", "de"), **options)
    return list(job.pairs([str(path)])), job


def test_a_sentence_that_is_longer_than_a_line_may_be_is_left_out_and_counted(tmp_path):
    long = "\u4e2d" * 350_000
    rows = [{"en": "a dog", "de": "ein Hund"}, {"en": "long", "de": long}, {"en": long[:349_525], "de": "fits"}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pairs, job = read(tmp_path / "a.jsonl")
    assert pairs == [Pair("a dog", "ein Hund"), Pair(long[:349_525], "fits")]
    assert job.dropped == {"too long": 1}
    # what is kept can be read
    for language, side in zip(("en", "de"), zip(*pairs, strict=True), strict=True):
        (tmp_path / f"train.{language}").write_text("".join(f"{text}\n" for text in side), "utf-8")
    assert len(list(TextFile(("en", "de"), str(tmp_path / "train")))) == 2


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_yields_the_same_pairs(name, tmp_path):
    WRITERS[name](tmp_path / name, PAIRS)
    pairs, job = read(tmp_path / name)
    assert pairs == PAIRS
    assert job.read == len(PAIRS)
    assert not job.dropped


edits = st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 40), st.binary(max_size=20)), max_size=6)


# each is read by a process of its own; one of them is tested in the fast suite
SPREADSHEETS = ("words.xls", "words.ods", "words.xlsx.gz")


@pytest.mark.parametrize(
    "name",
    [
        *(name for name in FILES if name not in SPREADSHEETS),
        *(pytest.param(name, marks=pytest.mark.slow) for name in SPREADSHEETS),
    ],
)
@given(edits=edits, member=st.integers(0, 12), length=st.integers(1, 1 << 16) | st.none())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_file_is_an_error_of_one_line_or_pairs(name, tmp_path, edits, member, length):
    check_import(tmp_path / name, damaged(FILES[name], edits, member)[:length])


def test_an_error_does_not_quote_a_damaged_file_at_length(tmp_path):
    """The length of the first name in an archive is changed, so that the name takes up most of it."""
    content = FILES["words.xlsx"]
    check_import(tmp_path / "words.xlsx", content[:26] + (3000).to_bytes(2, "little") + content[28:])


@pytest.mark.parametrize("name", FILES)
def test_a_truncated_file_is_an_error_or_pairs_in_the_process_of_its_reader_too(name, tmp_path):
    (tmp_path / name).write_bytes(FILES[name][: len(FILES[name]) // 2])
    message = str(tmp_path / name)
    try:
        read(tmp_path / name)
    except DataError as error:
        message = str(error)
    assert message.startswith(str(tmp_path / name))


def test_a_reader_that_waits_indefinitely_is_ended_by_the_clock():
    """A spreadsheet of a million empty rows made calamine wait for a lock, in limited memory."""
    code = "import signal, sys; from hf_vanilla_transformer.plugins.importing.reader_process import _limit_memory;"
    code += "_limit_memory(0);"
    code += "print(signal.getitimer(signal.ITIMER_REAL)[0]); sys.stdout.flush(); signal.raise_signal(signal.SIGALRM)"
    reader = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert 20 < float(reader.stdout) <= 40
    assert reader.returncode == -signal.SIGALRM


def test_entities_are_never_expanded(tmp_path):
    bomb = "".join(f'<!ENTITY {chr(98 + i)} "{f"&{chr(97 + i)};" * 10}">' for i in range(8))
    write_tmx(tmp_path / "a.tmx", PAIRS)
    text = (tmp_path / "a.tmx").read_text("utf-8")
    hostile = text.replace('<!DOCTYPE tmx SYSTEM "tmx14.dtd">', f'<!DOCTYPE tmx [<!ENTITY a "aaaaaaaaaa">{bomb}]>')
    (tmp_path / "a.tmx").write_text(hostile.replace("the dog number 3", "&h;"), "utf-8")
    with pytest.raises(DataError, match=r"a\.tmx: declares XML entities, which are not read"):
        read(tmp_path / "a.tmx")
    (tmp_path / "a.tmx").write_text(text.replace('"tmx14.dtd"', '"file:///etc/passwd"'), "utf-8")
    assert read(tmp_path / "a.tmx")[0] == PAIRS  # the DTD is not loaded


def test_a_spreadsheet_with_two_distant_cells_is_refused(tmp_path):
    """A reader that stores the rectangle between them needs memory for 17 billion cells."""
    write_xlsx(tmp_path / "a.xlsx", PAIRS)
    with zipfile.ZipFile(tmp_path / "a.xlsx") as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    sheet = "xl/worksheets/sheet1.xml"
    distant = b'<row r="1048576"><c r="XFD1048576"><v>1</v></c></row></sheetData>'
    parts[sheet] = parts[sheet].replace(b"</sheetData>", distant)
    with zipfile.ZipFile(tmp_path / "a.xlsx", "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    with pytest.raises(DataError, match="too large"):
        read(tmp_path / "a.xlsx")


def test_a_zip_bomb_is_refused_by_its_unpacked_size(tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "a.xlsx", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("xl/workbook.xml", b"0" * (600 << 20))
    with pytest.raises(DataError, match="larger than 512 MiB when unpacked"):
        read(tmp_path / "a.xlsx")


def test_separators_and_encodings_are_recognised_and_reported(tmp_path):
    for separator in ";,\t|":
        rows = [("en", "de"), *((f"the dög, {i}", f"der Hünd; {i}") for i in range(20))]
        lines = (separator.join(f'"{cell}"' for cell in row) for row in rows)
        (tmp_path / "a.csv").write_text("\n".join(lines), "cp1252")
        pairs, job = read(tmp_path / "a.csv")
        assert pairs == [Pair(*row) for row in rows[1:]]
        assert f"separator: {separator!r}" in " ".join(job.notes)
        assert "encoding: cp125" in " ".join(job.notes)
    with pytest.raises(DataError, match="not utf-8"):
        read(tmp_path / "a.csv", encoding="utf-8")


def test_columns_are_found_by_language_and_named_by_flag(tmp_path):
    write_xlsx(tmp_path / "a.xlsx", [("1", *pair) for pair in PAIRS], header=("id", "en-GB", "de_AT"))
    assert read(tmp_path / "a.xlsx")[0] == PAIRS
    write_xlsx(tmp_path / "b.xlsx", [("1", *pair) for pair in PAIRS], header=("id", "English", "German"))
    with pytest.raises(DataError, match="Words: no column en among 'id', 'English', 'German'; give --columns"):
        read(tmp_path / "b.xlsx")
    assert read(tmp_path / "b.xlsx", columns=("English", "German"))[0] == PAIRS
    # numbers are for tables without a header, whose first row is a pair
    write_csv(tmp_path / "c.csv", PAIRS)
    assert read(tmp_path / "c.csv", columns=("1", "2"))[0] == [Pair("en", "de"), *PAIRS]


def test_line_breaks_in_cells_are_pairs_if_both_sides_have_as_many(tmp_path):
    write_xlsx(tmp_path / "a.xlsx", [("one\ntwo", "eins\nzwei"), ("a\nb c", "x y")])
    assert read(tmp_path / "a.xlsx")[0] == [Pair("one", "eins"), Pair("two", "zwei"), Pair("a b c", "x y")]


def test_markup_blanks_and_duplicates_are_removed_and_counted(tmp_path):
    rows = [
        ("a <b>bold</b> dog", "ein <b>fetter</b> Hund"),
        ("x &amp; y", "x &amp; y"),
        ("", "leer"),
        ("a", "b"),
        ("a", "b"),
    ]
    write_csv(tmp_path / "a.csv", rows)
    pairs, job = read(tmp_path / "a.csv")
    assert pairs == [Pair("a bold dog", "ein fetter Hund"), Pair("x & y", "x & y"), Pair("a", "b")]
    assert job.dropped == {"untranslated": 1, "duplicate": 1}
    assert job.markup == 4


def test_drafts_and_other_languages_are_left_out_and_counted(tmp_path):
    po = tmp_path / "a.po"
    entries = [
        'msgid ""\nmsgstr "Language: de\\n"',
        'msgid "Save"\nmsgstr "Speichern"',
        '#, fuzzy\nmsgid "Open"\nmsgstr "Offen"',
        'msgid "%d file"\nmsgid_plural "%d files"\nmsgstr[0] "%d Datei"\nmsgstr[1] "%d Dateien"',
        'msgid "x"\nmsgstr ""',
    ]
    po.write_text("\n\n".join(entries) + "\n")
    pairs, job = read(po)
    assert pairs == [Pair("Save", "Speichern"), Pair("%d file", "%d Datei"), Pair("%d files", "%d Dateien")]
    assert job.dropped == {"fuzzy": 1, "untranslated": 1}
    reverse = Import(("de", "en"))
    assert next(iter(reverse.pairs([str(po)]))) == Pair("Speichern", "Save")
    with pytest.raises(DataError, match="a catalogue in de, not in en or sw"):
        list(Import(("en", "sw")).pairs([str(po)]))


def test_plural_forms_follow_the_rule_of_the_catalogue(tmp_path):
    """Form 0 is that of nothing in Arabic, and the last one that of fractions in Polish."""
    files = 'msgid "%d file"\nmsgid_plural "%d files"\n'
    arabic = "n==0 ? 0 : n==1 ? 1 : n==2 ? 2 : n%100>=3 && n%100<=10 ? 3 : n%100>=11 ? 4 : 5"
    polish = "n==1 ? 0 : n%10>=2 && n%10<=4 && (n%100<12 || n%100>14) ? 1 : n%1==0 ? 2 : 3"
    for rule, forms, expected in (
        (arabic, ["لا ملفات", "ملف واحد", "ملفان", "%d ملفات", "%d ملفا", "%d ملف"], ["ملف واحد", "%d ملفات"]),
        (polish, ["%d plik", "%d pliki", "%d plików", "%d pliku"], ["%d plik", "%d plików"]),
        ("0", ["%d ファイル"], ["%d ファイル", "%d ファイル"]),
        ("many", ["%d Datei", "%d Dateien"], ["%d Datei", "%d Dateien"]),
    ):
        header = f'msgid ""\nmsgstr "Language: de\\nPlural-Forms: nplurals={len(forms)}; plural={rule};\\n"\n\n'
        translations = "".join(f'msgstr[{number}] "{form}"\n' for number, form in enumerate(forms))
        (tmp_path / "a.po").write_text(header + files + translations, "utf-8")
        assert [pair.target for pair in read(tmp_path / "a.po")[0]] == expected


def test_an_untranslated_catalogue_among_others_is_reported_and_does_not_stop_the_import(tmp_path):
    write_po(tmp_path / "a.po", PAIRS)
    write_po(tmp_path / "b.po", [("Save", "")])
    job = Import(("en", "de"))
    assert list(job.pairs([str(tmp_path / "b.po"), str(tmp_path / "a.po")])) == PAIRS
    assert f"{tmp_path / 'b.po'}: no pairs in en and de" in job.notes
    with pytest.raises(DataError, match=r"b\.po: no pairs in en and de; dropped: 1 untranslated"):
        read(tmp_path / "b.po")


TRADOS = """<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2"
 xmlns:sdl="http://sdl.com/FileTypes/SdlXliff/1.0">
<file original="a.docx" datatype="x" source-language="en-US" target-language="de-DE"><body><group><trans-unit id="1">
<source>One. Two. Three. Four.</source>
<seg-source><g id="1"><mrk mtype="seg" mid="1">One.</mrk> </g><mrk mtype="seg" mid="2">Two.</mrk>
<mrk mtype="seg" mid="3">Th<x id="2"/>ree.</mrk> <mrk mtype="seg" mid="4">Four.</mrk></seg-source>
<target><g id="1"><mrk mtype="seg" mid="1">Eins.</mrk> </g><mrk mtype="seg" mid="2">Entwurf</mrk>
<mrk mtype="seg" mid="3">Dr<x id="2"/>ei.</mrk> <mrk mtype="seg" mid="4"/></target>
<sdl:seg-defs><sdl:seg id="1" conf="Translated"/><sdl:seg id="2" conf="Draft"/><sdl:seg id="3"/></sdl:seg-defs>
</trans-unit></group></body></file></xliff>"""


def test_units_of_trados_are_cut_into_their_segments(tmp_path):
    (tmp_path / "a.docx.sdlxliff").write_text(TRADOS, "utf-8-sig")
    pairs, job = read(tmp_path / "a.docx.sdlxliff")
    assert pairs == [Pair("One.", "Eins."), Pair("Three.", "Drei.")]
    assert job.dropped == {"fuzzy": 1, "untranslated": 1}


def test_line_breaks_of_markup_never_join_two_words(tmp_path):
    write_csv(
        tmp_path / "a.csv", [("one<br>two<p>three</p>", "eins<br />zwei<div class='x'>drei</div>"), ("a<br>b", "c")]
    )
    assert read(tmp_path / "a.csv")[0] == [
        *map(Pair, ("one", "two", "three"), ("eins", "zwei", "drei")),
        Pair("a b", "c"),
    ]
    write_xliff(tmp_path / "a.xlf", [("one@two", "eins@zwei")])
    coded = (tmp_path / "a.xlf").read_text("utf-8").replace("@", '<x id="1" ctype="lb"/>')
    (tmp_path / "a.xlf").write_text(coded, "utf-8")
    assert read(tmp_path / "a.xlf")[0] == [Pair("one", "eins"), Pair("two", "zwei")]


def test_a_quotation_mark_that_is_text_neither_vanishes_nor_swallows_rows(tmp_path):
    """Lists of sentences such as Tatoeba's have tabs and no quoting."""
    pairs = [Pair('"Hello," he said.', '"Hallo", sagte er.'), Pair('"Unbalanced', "Offen"), *PAIRS, Pair('x "', "y")]
    text = "".join(f"{source}\t{target}\n" for source, target in [("en", "de"), *pairs])
    (tmp_path / "a.tsv").write_text(text, "utf-8")
    found, job = read(tmp_path / "a.tsv")
    assert found == pairs
    assert "quotation marks are text" in " ".join(job.notes)
    # one mistake in a quoted table, or its truncation, does not make its quotation marks text
    write_csv(tmp_path / "a.csv", PAIRS)
    (tmp_path / "a.csv").write_bytes((tmp_path / "a.csv").read_bytes()[:-3])
    assert read(tmp_path / "a.csv")[0][:-1] == PAIRS[:-1]
    write_csv(tmp_path / "a.csv", [(f"{source}; or", target) for source, target in PAIRS])
    with (tmp_path / "a.csv").open("a", encoding="utf-8") as file:
        file.write('"a" b;c\r\n')
    assert read(tmp_path / "a.csv")[0] == [*(Pair(f"{s}; or", t) for s, t in PAIRS), Pair("a b", "c")]


def test_the_header_may_follow_titles_and_sheets_without_the_columns_are_left_out(tmp_path):
    workbook = xlsxwriter.Workbook(str(tmp_path / "a.xlsx"))
    sheet = workbook.add_worksheet("Words")
    sheet.merge_range(0, 0, 0, 3, "Field notes, 2024")
    for number, row in enumerate(
        [("No.", "German", "Remarks", "English"), (1, "Hund", "", "dog"), (2, "", "?", "cat")]
    ):
        sheet.write_row(number + 2, 1, row)
    sheet.merge_range(5, 4, 6, 4, "tree")
    sheet.write_column(5, 2, ["Baum", "Bäumchen"])
    workbook.add_worksheet("Notes").write(0, 0, "Collected in the village")
    workbook.add_worksheet("Sheet3")
    workbook.close()
    pairs, job = read(tmp_path / "a.xlsx", columns=("English", "German"))
    assert pairs == [Pair("dog", "Hund"), Pair("tree", "Baum")]
    assert job.dropped == {"untranslated": 2}
    assert "Notes: no column English among 'Collected in the village'" in " ".join(job.notes)
    with pytest.raises(DataError, match=r"Words: no column Swahili among '', 'No\.', 'German'"):
        read(tmp_path / "a.xlsx", columns=("English", "Swahili"))


def test_the_comments_that_anki_writes_above_its_notes_are_no_pairs(tmp_path):
    (tmp_path / "a.txt").write_text("#separator:tab\n#html:true\n#tags column:3\nthe&nbsp;dog\tder Hund\tx\n", "utf-8")
    assert read(tmp_path / "a.txt", columns=("1", "2"))[0] == [Pair("the dog", "der Hund")]


def test_tags_that_are_written_as_references_are_markup(tmp_path):
    rows = [{"en": "&lt;b&gt;OK&lt;/b&gt;", "de": "Gut &amp; <i>schön</i>"}, {"en": "a &lt; b", "de": "c"}]
    (tmp_path / "a.json").write_text(json.dumps(rows))
    pairs, job = read(tmp_path / "a.json")
    assert pairs == [Pair("OK", "Gut & schön"), Pair("a < b", "c")]
    assert job.markup == 3


def test_a_text_that_an_object_leaves_out_is_untranslated(tmp_path):
    rows = [{"en": "a", "de": "b"}, {"en": "c"}, {"en-GB": "d", "de": "e"}, {"en": "f", "de": None}]
    (tmp_path / "a.json").write_text(json.dumps(rows))
    pairs, job = read(tmp_path / "a.json")
    assert pairs == [Pair("a", "b"), Pair("d", "e")]
    assert job.dropped == {"untranslated": 2}
    (tmp_path / "b.json").write_text(json.dumps([{"en": "a"}, {"en": "b"}]))
    with pytest.raises(DataError, match="no column de among 'en'"):
        read(tmp_path / "b.json")


def test_entries_without_texts_are_left_out_and_the_first_is_named(tmp_path):
    rows = [{"id": 7}, {"en": "a", "de": "b"}, {"en": "c", "de": 3}, "x", {"en": "d", "de": "e"}]
    (tmp_path / "a.json").write_text(json.dumps(rows))
    pairs, job = read(tmp_path / "a.json")
    assert pairs == [Pair("a", "b"), Pair("d", "e")]
    assert job.dropped == {"damaged entry": 3}
    assert job.read == 5
    (note,) = job.notes
    assert note.startswith(
        f"{tmp_path / 'a.json'}: 3 of 5 entries dropped; the first one: entry 1: no column en among"
    )
    (tmp_path / "b.json").write_text(json.dumps([{"en": "c", "de": 3}, {"en": "d", "de": ["e"]}]))
    with pytest.raises(DataError, match=r"b\.json: entry 1: the value of 'de' is not a text\.$"):
        read(tmp_path / "b.json")


def test_json_lines_are_recognised_and_named(tmp_path):
    (tmp_path / "a.json").write_text('{"en": "a\u2028b", "de": "c"}\n{"en": "d", "de": "e"}\n', "utf-8")
    assert read(tmp_path / "a.json")[0] == [Pair("a b", "c"), Pair("d", "e")]
    (tmp_path / "a.jsonl").write_text('{"en": "a", "de": "b"}\n\n{"en": \n{"en": "c", "de": "d"}\n[', "utf-8")
    pairs, job = read(tmp_path / "a.jsonl")
    assert pairs == [Pair("a", "b"), Pair("c", "d")]
    assert job.dropped == {"damaged entry": 2}
    assert f"{tmp_path / 'a.jsonl'}: 2 of 4 entries dropped; the first one: line 3: not valid JSON" in job.notes[0]
    (tmp_path / "b.jsonl").write_text('\n{"en": \nx\n', "utf-8")
    with pytest.raises(DataError, match=r"b\.jsonl: line 2: not valid JSON"):
        read(tmp_path / "b.jsonl")


def test_annotations_that_begin_between_two_times_are_pairs(tmp_path):
    """ELAN gives the borders inside a divided annotation no time."""
    write_eaf(tmp_path / "a.eaf", PAIRS)
    text = re.sub(r'(TIME_SLOT_ID="ts[1-9]") TIME_VALUE="\d+"', r"\1", (tmp_path / "a.eaf").read_text("utf-8"))
    (tmp_path / "a.eaf").write_text(text, "utf-8")
    assert read(tmp_path / "a.eaf")[0] == PAIRS


def test_a_compressed_moses_pair_is_found_by_its_prefix(tmp_path):
    for side, language in enumerate(("en", "de")):
        text = "".join(f"{pair[side]}\n" for pair in PAIRS)
        (tmp_path / f"a.{language}.gz").write_bytes(gzip.compress(text.encode()))
    assert read(tmp_path / "a")[0] == PAIRS


# Encoding, language, and a sentence
LEGACY = [
    ("cp1250", "pl", "Źrebię biegnie łąką, a żółw śpi"),
    ("iso8859_2", "cs", "Pes běží ulicí, kočka spí doma, žluťoučký kůň"),
    ("cp1251", "ru", "Собака бежит по улице, а кошка спит дома"),
    ("koi8_r", "ru", "Собака бежит по улице, а кошка спит дома"),
    ("cp1252", "fr", "L'été est là, n° 1 « très » œuvre"),
    ("mac_roman", "fr", "L'été est là, « très » œuvre, ça"),
    ("cp1253", "el", "Ο σκύλος τρέχει στον δρόμο και η γάτα κοιμάται"),
    ("cp1254", "tr", "Köpek sokakta koşuyor, kedi ise evde uyuyor, ışık"),
    ("cp1255", "he", "הכלב רץ ברחוב והחתול ישן בבית"),
    ("cp1256", "ar", "الكلب يجري في الشارع والقطة تنام في البيت"),
    ("cp1257", "lt", "Šuo bėga gatve, o katė miega namuose, ąžuolas"),
    ("cp874", "th", "สุนัขวิ่งบนถนนและแมวนอนที่บ้าน"),
    ("cp932", "ja", "犬は通りを走り、猫は家で眠っています"),
    ("cp949", "ko", "개는 거리를 달리고 고양이는 집에서 잔다"),
    ("gb18030", "zh", "狗在街上跑，猫在家里睡觉"),
    ("big5", "zh-TW", "狗在街上跑，貓在家裡睡覺"),
]


@pytest.mark.parametrize(("encoding", "language", "sentence"), LEGACY)
def test_a_legacy_encoding_is_one_of_those_of_the_languages(encoding, language, sentence, tmp_path):
    rows = [("en", language), *((f"The dog {i} runs", f"{i}: {sentence}") for i in range(20))]
    text = "".join(f"{source};{target}\r\n" for source, target in rows)
    (tmp_path / "a.csv").write_bytes(text.encode(encoding))
    job = Import(("en", language))
    assert list(job.pairs([str(tmp_path / "a.csv")])) == [Pair(*row) for row in rows[1:]]
    assert f"encoding: {encoding}" in job.notes[0]


GERMAN = [
    "Er fragte: „Wo bist du?“",
    "„Ich“, sagte sie, „bin hier.“",
    "Die Straße – sehr schön – führt über die Brücke…",
    "Ärzte und Köche äßen öfter Gemüse für 5 €.",
    "FRÖHLICHE GRÜSSE, ÄUSSERST NETT",
    "Das Café «Été» ist geöffnet, 20 °C.",
]
WESTERN = [
    ("de", GERMAN),
    ("es", ["¿Dónde está el niño?", "¡Qué día! «Él», dijo Ángel", "El señor Núñez comió piña, n.º 5."]),
    ("fr", ["« Très bien », dit-elle à Noël.", "L’œuvre d’Élodie coûte 25 €…", "Ça va, cœur naïf ?"]),
    ("pt", ["Não há “razão” para isso.", "A lição é às três, São João."]),
    ("sv", ["Åsa älskar ”sjön” på våren.", "Öl och kött är här."]),
]


@pytest.mark.parametrize(("language", "sentences"), WESTERN)
def test_text_of_the_west_is_in_the_code_page_of_windows(language, sentences):
    """As whole files and as two rows, of which quotation marks alone were taken for letters of the Macintosh."""
    for start in range(len(sentences)):
        rows = (sentences[start:] + sentences)[:2]
        for text in (rows, rows * 50):
            table = "".join(f"The dog runs;{sentence}\r\n" for sentence in text)
            assert decode(table.encode("cp1252"), None, ("en", language)) == (table, "cp1252")


@pytest.mark.parametrize("encoding", ["mac_roman", "cp850"])
def test_another_code_page_is_recognised_if_it_is_clearly_better(encoding):
    content = "".join(f"The dog runs;{sentence}\r\n" for sentence in GERMAN).encode(encoding, "ignore")
    assert decode(content, None, ("en", "de")) == (content.decode(encoding), encoding)


def test_a_line_that_would_differ_in_another_encoding_is_shown(tmp_path):
    text = "en;de\nWhere?;Wo\nHe asked: Where?;Er fragte: „Wo?“\n"
    (tmp_path / "a.csv").write_text(text, "cp1252")
    pairs, job = read(tmp_path / "a.csv")
    assert pairs[1].target == "Er fragte: „Wo?“"
    line = (
        "line 3 is 'He asked: Where?;Er fragte: „Wo?“', and would be 'He asked: Where?;Er fragte: ÑWo?ì' in mac_roman"
    )
    assert f"encoding: cp1252; {line}" in job.notes[0]
    assert line not in read(tmp_path / "a.csv", encoding="cp1252")[1].notes[0]


def test_text_in_another_language_than_expected_is_not_read_as_letters_of_the_west(tmp_path):
    text = "en;de\n" + "the dog runs;собака бежит по улице, а кошка спит дома\n" * 20
    (tmp_path / "a.csv").write_text(text, "cp1251")
    assert read(tmp_path / "a.csv")[0][0].target == "собака бежит по улице, а кошка спит дома"


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.po", "a.tmx", "a.xlf", "a.de"])
def test_a_pair_with_a_damaged_character_is_left_out_and_counted(name, tmp_path):
    writer = {"a.csv": "words.csv", "a.jsonl": "words.jsonl", "a.po": "app.po", "a.tmx": "memory.tmx"}.get(name)
    for side, language in enumerate(("en", "de")):
        (tmp_path / f"a.{language}").write_text("".join(f"{pair[side]}\n" for pair in PAIRS), "utf-8")
    if name != "a.de":
        WRITERS[writer or "app.xlf"](tmp_path / name, PAIRS)
    damages = [b"Nummer\xff3"]
    damages += [b"Nummer\0"] if name in ("a.csv", "a.de") else []
    damages += [b"Nummer\x02", b"&#x1F;"] if name in ("a.tmx", "a.xlf") else []
    # JSON has escapes, so that its encoding would not be known
    content = (tmp_path / name).read_bytes().replace(b"\\u00e4", "ä".encode())
    for damage in damages:
        (tmp_path / name).write_bytes(content.replace(b"Nummer 3", damage))
        pairs, job = read(tmp_path / ("a" if name == "a.de" else name))
        assert pairs == PAIRS[:3] + PAIRS[4:]
        assert job.dropped == {"damaged character": 1}


MEMORY = '<tmx version="1.4"><header/><body><tu>{}</tu></body></tmx>'


def test_signs_that_xml_reserves_are_text(tmp_path):
    sides = '<tuv xml:lang="en"><seg>R&D &copy;</seg></tuv><tuv xml:lang="de"><seg>3 < 4</seg></tuv>'
    (tmp_path / "a.tmx").write_text(MEMORY.format(sides), "utf-8")
    pairs, job = read(tmp_path / "a.tmx")
    assert pairs[0] == Pair("R&D ©", "3 < 4")
    assert "repaired damaged XML" in job.notes[0]


@pytest.mark.parametrize(
    ("declared", "encoding"),
    [
        ("ISO-8859-1", "iso8859_1"),
        ("ISO-8859-15", "iso8859_15"),
        ("utf-16", "utf-16"),
        ("CHARSET", "cp1252"),
        ("UTF-8", "cp1252"),
        ("ISO-8859-1", "utf-8"),
    ],
)
def test_the_header_of_a_catalogue_names_its_encoding_if_it_is_right(declared, encoding, tmp_path):
    write_po(tmp_path / "a.po", PAIRS)
    text = (tmp_path / "a.po").read_text("utf-8").replace("UTF-8", declared)
    (tmp_path / "a.po").write_bytes(text.encode(encoding))
    assert read(tmp_path / "a.po")[0] == PAIRS


BREAKS = [
    "<ph>&lt;br/&gt;</ph>",
    "<ph>&lt;text:line-break/&gt;</ph>",
    '<ph type="lb"/>',
    '<x ctype="lb"/>',
    "<ph>\n</ph>",
]
XLIFF2_BREAKS = ['<ph id="1" equiv="&#10;"/>', '<ph id="1" equiv="&lt;br&gt;"/>', '<ph id="1" subType="xlf:lb"/>']
THINGS = ["<ph/>", "<ph>{0}</ph>", '<x equiv-text="{{name}}"/>', "<ut>{\\f1 }</ut>", '<ph id="1" equiv="&#160;"/>']
FORMATS = ['<bpt i="1">&lt;b&gt;</bpt>', "<ph>&lt;i&gt;</ph>", '<x id="2"/>', "<hi>", '<it pos="begin">{b</it>']


@pytest.mark.parametrize("code", BREAKS + XLIFF2_BREAKS + THINGS + FORMATS)
def test_codes_between_words_do_not_join_them_and_formats_do_not_cut_them(code, tmp_path):
    close = "</hi>" if code == "<hi>" else ""
    sides = (
        f'<tuv xml:lang="{language}"><seg>one{code}two{close}, x{code}.{close}</seg></tuv>'
        for language in ("en", "de")
    )
    (tmp_path / "a.tmx").write_text(MEMORY.format("".join(sides)), "utf-8")
    words = " ".join(pair.source for pair in read(tmp_path / "a.tmx")[0])
    assert words.replace(" .", ".") == ("onetwo, x." if code in FORMATS else "one two, x.")
    if code in BREAKS + XLIFF2_BREAKS:
        assert len(read(tmp_path / "a.tmx")[0]) == 3


def test_every_translation_of_a_language_makes_a_pair(tmp_path):
    def unit(*sides):
        return "".join(f'<tuv xml:lang="{tag}"><seg>{text}</seg></tuv>' for tag, text in sides)

    several = unit(("eng", "bike"), ("deu", "Rad"), ("deu", "Fahrrad"), ("de-AT", "Radl"), ("fr", "vélo"))
    (tmp_path / "a.tmx").write_text(MEMORY.format(several), "utf-8")
    assert read(tmp_path / "a.tmx")[0] == [Pair("bike", "Rad"), Pair("bike", "Fahrrad")]
    variants = unit(("en-GB", "lift"), ("en-US", "elevator"), ("de-DE", "Aufzug"))
    (tmp_path / "a.tmx").write_text(MEMORY.format(variants), "utf-8")
    assert read(tmp_path / "a.tmx")[0] == [Pair("lift", "Aufzug"), Pair("elevator", "Aufzug")]
    (tmp_path / "a.tmx").write_text(MEMORY.format(unit(("en", "alone"), ("fr", "seul"))), "utf-8")
    with pytest.raises(DataError, match="dropped: 1 untranslated"):
        read(tmp_path / "a.tmx")


@pytest.mark.parametrize(
    "header",
    [
        *('""', '"Language: de\\n"'),
        '"Language: de\\n"\n"Content-Type: text/plain; charset=cp1252\\n"',
        r'"Last-Translator: \"Ann\" <a@b.de>\nLanguage: de\n"' + '\n"Content-Type: text/plain; charset=cp437\\n"',
        r'"X-Name: \"Ann\"\nContent-Type: text/plain; charset=cp437\n"',
    ],
)
def test_only_the_header_of_a_catalogue_names_its_encoding(header, tmp_path):
    message = "Write charset=latin2 there"
    head = f'# the charset=koi8-r of a comment\nmsgid ""\nmsgstr {header}\n'
    text = f'{head}\nmsgid "{message}"\nmsgstr "charset=latin2: schön"\n'
    encoding = next((name for name in ("cp1252", "cp437") if name in header), "utf-8")
    (tmp_path / "a.po").write_bytes(text.encode(encoding))
    pairs, job = read(tmp_path / "a.po")
    assert pairs == [Pair(message, "charset=latin2: schön")]
    assert [note for note in job.notes if encoding not in note] == []


def test_codes_of_three_letters_name_the_same_languages(tmp_path):
    write_csv(tmp_path / "a.csv", PAIRS)
    text = (tmp_path / "a.csv").read_text("utf-8")
    (tmp_path / "a.csv").write_text(text.replace('"en";"de"', '"eng";"ger"'), "utf-8")
    assert read(tmp_path / "a.csv")[0] == PAIRS
    assert list(Import(("eng", "deu")).pairs([str(tmp_path / "a.csv")])) == PAIRS
    write_po(tmp_path / "a.po", PAIRS)
    (tmp_path / "a.po").write_text((tmp_path / "a.po").read_text("utf-8").replace(": de", ": deu_AT"), "utf-8")
    assert read(tmp_path / "a.po")[0] == PAIRS


def test_a_bilingual_file_of_phrase_has_no_drafts(tmp_path):
    write_xliff(tmp_path / "a.mxliff", PAIRS[:2])
    text = (tmp_path / "a.mxliff").read_text("utf-8")
    text = text.replace('id="1"', 'id="1" m:confirmed="0"').replace('id="0"', 'id="0" m:confirmed="1"')
    text = text.replace("<xliff ", '<xliff xmlns:m="http://www.memsource.com/mxlf/2.0" ')
    (tmp_path / "a.mxliff").write_text(text, "utf-8")
    pairs, job = read(tmp_path / "a.mxliff")
    assert pairs == PAIRS[:1]
    assert job.dropped == {"fuzzy": 1}


@pytest.mark.parametrize("separator", [";", ",", "\t"])
def test_quotation_marks_may_be_escaped_with_backslashes(separator, tmp_path):
    pairs = [Pair('He said "hi", then; left', 'Er sagte "hallo"'), Pair("a\\b", "c, d; e")]
    cells = [[cell.replace("\\", "\\\\").replace('"', '\\"') for cell in row] for row in [("en", "de"), *pairs]]
    text = "".join(separator.join(f'"{cell}"' for cell in row) + "\n" for row in cells)
    (tmp_path / "a.csv").write_text(text, "utf-8")
    assert read(tmp_path / "a.csv")[0] == pairs


def test_a_table_of_two_columns_of_sentences_needs_no_header(tmp_path):
    pairs = [
        Pair("the dog, big", "der Hund, groß"),
        Pair("a cat, small", "die Katze, klein"),
        Pair("yes, sure", "ja, klar"),
    ]
    (tmp_path / "a.csv").write_text("".join(f"{source};{target}\n" for source, target in pairs), "utf-8")
    found, job = read(tmp_path / "a.csv")
    assert found == pairs == read(tmp_path / "a.csv", columns=("1", "2"))[0]
    assert "no row names columns" in " ".join(job.notes)
    (tmp_path / "a.csv").write_text("English;German\nthe dog;der Hund\n", "utf-8")
    with pytest.raises(DataError, match="no column en among 'English', 'German'; give --columns"):
        read(tmp_path / "a.csv")
    (tmp_path / "a.csv").write_text("A list, 2024\nen;de\nthe dog;der Hund\n", "utf-8")
    assert read(tmp_path / "a.csv")[0] == [Pair("the dog", "der Hund")]


@pytest.mark.parametrize("header", ["German text;English text", "Deutscher Satz;Englischer Satz"])
def test_a_row_that_names_the_languages_is_no_pair_and_the_order_of_columns_is_asked_for(header, tmp_path):
    (tmp_path / "a.csv").write_text(f"{header}\nder Hund;the dog\n", "utf-8")
    with pytest.raises(DataError, match=r"no column en among .*; give --columns"):
        read(tmp_path / "a.csv")
    # a sentence about one language is none
    (tmp_path / "a.csv").write_text("I speak English;Ich spreche Englisch\n", "utf-8")
    assert read(tmp_path / "a.csv")[0] == [Pair("I speak English", "Ich spreche Englisch")]


def test_the_name_of_a_column_may_have_a_note_in_brackets(tmp_path):
    (tmp_path / "a.csv").write_text("de (DE);en (US)\nder Hund;the dog\n", "utf-8")
    assert read(tmp_path / "a.csv")[0] == [Pair("the dog", "der Hund")]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be"])
@pytest.mark.parametrize("name", ["a.tsv", "a.jsonl"])
def test_every_encoding_of_unicode_is_recognised_without_a_mark_too(name, encoding, tmp_path):
    text = "en\tde\nthe dog\tgroßer Hund\n" if name == "a.tsv" else '{"en": "the dog", "de": "großer Hund"}\n'
    (tmp_path / name).write_bytes(text.encode(encoding))
    pairs, job = read(tmp_path / name)
    assert pairs == [Pair("the dog", "großer Hund")]
    assert f"encoding: {encoding}" in job.notes[0]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_the_version_of_xliff_is_that_of_its_root(encoding, tmp_path):
    newer = (
        f'<?xml version="1.0" encoding="{encoding}"?><!--{"x" * 5000}-->'
        '<xliff version="2.0" xmlns="urn:oasis:names:tc:xliff:document:2.0" srcLang="en" trgLang="de"><file id="f">'
        '<unit id="1"><segment><source>the dog</source><target>der Hund</target></segment></unit></file></xliff>'
    )
    older = (
        f'<?xml version="1.0" encoding="{encoding}"?>'
        '<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2"><file source-language="en" '
        'target-language="de" original="f" datatype="x"><body><trans-unit id="1">'
        "<source>urn:oasis:names:tc:xliff:document:2.0</source><target>der Name</target></trans-unit>"
        "</body></file></xliff>"
    )
    for text, pair in (
        (newer, Pair("the dog", "der Hund")),
        (older, Pair("urn:oasis:names:tc:xliff:document:2.0", "der Name")),
    ):
        (tmp_path / "a.xlf").write_bytes(text.encode(encoding))
        assert read(tmp_path / "a.xlf")[0] == [pair]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Open <file> as List<String>", "Open <file> as List<String>"),
        ("Map<K, V> of <your name>, a <b and c> d", "Map<K, V> of <your name>, a <b and c> d"),
        ("if x <y and z = 3> then", "if x <y and z = 3> then"),
        ("<td nowrap align=left>big</td> <custom-x a='b'>dog", "big dog"),
        ("write to <ann@x.org>", "write to <ann@x.org>"),
        ("a <b>bold</b> <g id='1'>dog</g>, <custom>too</custom></i>", "a bold dog, too"),
        ('first<img src="x">second<x id="1"/>.', "first second."),
        ("one<text:line-break/>two<w:br/>three", "one two three"),
        ("un<b>believ</b>able", "unbelievable"),
    ],
)
def test_only_tags_are_removed_as_tags(text, expected, tmp_path):
    (tmp_path / "a.json").write_text(json.dumps([{"en": text, "de": "x"}]))
    assert read(tmp_path / "a.json")[0] == [Pair(expected, "x")]


def test_text_is_imported_as_translators_read_it(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps([{"en": "\ufeff a\xa0do\xadg\u200b  runs", "de": "\tein Hund\u200e"}]))
    assert read(tmp_path / "a.json")[0] == [Pair("a dog runs", "ein Hund")]


SCRIPTS = [
    "ቤቱ ትልቅ ነው።",
    "বাড়িটা বড়।",
    "အိမ်ကြီး။",
    "ᏣᎳᎩ ᎦᏬᏂᎯᏍᏗ",
    "घर बड़ा है।",
    "Το σπίτι είναι μεγάλο.",
    "סוּס גָּדוֹל",
    "خانه‌ها بزرگ‌اند",
    "ផ្ទះធំ។",
    "집이 크다.",
    "ⵜⴰⴷⴷⴰⵔⵜ ⵜⴰⵎⵇⵔⴰⵏⵜ",
    "வீடு பெரியது.",
    "房子很大。",
    "𞤦𞤭𞤪𞤢 ߞߊ",
]


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_keeps_every_character_of_every_script(name, tmp_path):
    pairs = [Pair(f"house {i}", sentence) for i, sentence in enumerate(SCRIPTS)]
    WRITERS[name](tmp_path / name, pairs)
    assert read(tmp_path / name)[0] == pairs


@pytest.mark.parametrize(("name", "message"), [("a.docx", "unknown format"), ("nothing", "neither a file nor a pair")])
def test_what_cannot_be_imported_says_what_can(name, message, tmp_path):
    if name == "a.docx":
        (tmp_path / name).write_text("x")
    with pytest.raises(DataError, match=message):
        read(tmp_path / name)


def test_language_tags_match_their_variants():
    assert matches("en-US", "en")
    assert matches("pt_BR", "pt-BR")
    assert matches("deu", "de")
    assert matches("ger-AT", "de")
    assert matches("en_GB", "eng")
    assert not matches("eng", "de")
    assert not matches("en", "en-US")
    assert not matches(None, "en")


@given(st.integers(0, 2**31), st.integers(0, 40), st.integers(0, 40))
@settings(max_examples=40, deadline=None)
def test_no_sentence_of_either_side_is_in_two_parts(seed, validation, test):
    rng = random.Random(seed)
    pairs = list(dict.fromkeys(Pair(f"s{rng.randrange(150)}", f"t{rng.randrange(150)}") for _ in range(200)))
    parts = split(pairs, (validation, test), seed)
    assert sorted(pair for part in parts for pair in part) == sorted(pairs)
    assert len(parts[1]) <= validation
    assert len(parts[2]) <= test
    for side in (0, 1):
        sentences = [{pair[side] for pair in part} for part in parts]
        assert sum(map(len, sentences)) == len(set().union(*sentences))


def test_parts_have_the_size_asked_for_and_depend_on_the_seed():
    pairs = [Pair(f"s{i}", f"t{i}") for i in range(5000)]
    train, validation, test = split(pairs, (1000, 500), 0)
    assert (len(train), len(validation), len(test)) == (3500, 1000, 500)
    assert split(pairs, (1000, 500), 0)[2] == test
    assert split(pairs, (1000, 500), 1)[2] != test


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python has no safe path before 3.11")
def test_a_file_of_the_users_named_like_a_module_is_not_run(tmp_path, monkeypatch):
    (tmp_path / "csv.py").write_text("raise SystemExit('run')")
    (tmp_path / "words.tsv").write_text("en\tde\nhouse\tnyumba\n")
    monkeypatch.chdir(tmp_path)
    pairs, _ = read("words.tsv")
    assert pairs == [Pair("house", "nyumba")]
