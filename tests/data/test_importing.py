"""`import`: files of every format, damaged and hostile ones, columns, duplicates, and the cut into three parts."""

import json
import random
import zipfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from import_files import WRITERS, write_csv, write_tmx, write_xlsx

from hf_vanilla_transformer.data.exchange import matches
from hf_vanilla_transformer.data.formats import DataError
from hf_vanilla_transformer.data.importing import Import, Pair, split
from hf_vanilla_transformer.data.source import TextFile

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
    assert job.report.dropped == {"too long": 1}
    # what is kept can be read
    for language, side in zip(("en", "de"), zip(*pairs, strict=True), strict=True):
        (tmp_path / f"train.{language}").write_text("".join(f"{text}\n" for text in side), "utf-8")
    assert len(list(TextFile(("en", "de"), str(tmp_path / "train")))) == 2


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_yields_the_same_pairs(name, tmp_path):
    WRITERS[name](tmp_path / name, PAIRS)
    pairs, job = read(tmp_path / name)
    assert pairs == PAIRS
    assert job.report.read == len(PAIRS)
    assert not job.report.dropped


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("seed", range(8))
def test_a_damaged_file_is_an_error_of_one_line_or_pairs(name, seed, tmp_path):
    rng = random.Random(seed)
    file = tmp_path / name
    WRITERS[name](file, PAIRS)
    content = bytearray(file.read_bytes())
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(content))
        content[place : place + rng.randint(0, 3)] = rng.randbytes(rng.randint(0, 3))
    file.write_bytes(content[: rng.randint(1, len(content))])
    message = str(file)
    try:
        for source, target in Import(("en", "de")).pairs([str(file)]):
            assert "\n" not in source + target
    except DataError as error:
        message = str(error)
    assert str(file) in message
    assert "\n" not in message


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
        assert f"separator: {separator!r}" in " ".join(job.report.notes)
        assert "encoding: cp125" in " ".join(job.report.notes)
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
    assert job.report.dropped == {"untranslated": 1, "duplicate": 1}
    assert job.report.markup == 4


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
    assert job.report.dropped == {"fuzzy": 1, "untranslated": 1}
    reverse = Import(("de", "en"))
    assert next(iter(reverse.pairs([str(po)]))) == Pair("Speichern", "Save")
    with pytest.raises(DataError, match="a catalogue in de, neither in en nor in sw"):
        list(Import(("en", "sw")).pairs([str(po)]))


@pytest.mark.parametrize(("name", "message"), [("a.docx", "unknown format"), ("nothing", "neither a file nor a pair")])
def test_what_cannot_be_imported_says_what_can(name, message, tmp_path):
    if name == "a.docx":
        (tmp_path / name).write_text("x")
    with pytest.raises(DataError, match=message):
        read(tmp_path / name)


def test_language_tags_match_their_variants():
    assert matches("en-US", "en")
    assert matches("pt_BR", "pt-BR")
    assert not matches("eng", "en")
    assert not matches("en", "en-US")
    assert not matches(None, "en")


@given(st.integers(0, 2**31), st.integers(0, 40), st.integers(0, 40))
@settings(max_examples=40, deadline=None, derandomize=True)
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
