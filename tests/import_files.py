"""Files of every format that `import` reads, with the same pairs, written by other programs' libraries or by hand."""

import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

import xlsxwriter

Pairs = Sequence[tuple[str, str]]


def write_xlsx(path: Path, pairs: Pairs, header: Sequence[str] = ("en", "de")) -> None:
    workbook = xlsxwriter.Workbook(str(path))
    sheet = workbook.add_worksheet("Words")
    for number, row in enumerate([header, *pairs]):
        sheet.write_row(number, 0, row)
    workbook.close()


def write_csv(path: Path, pairs: Pairs) -> None:
    rows = [("en", "de"), *pairs]
    quoted = (";".join('"' + cell.replace('"', '""') + '"' for cell in row) for row in rows)
    path.write_text("".join(f"{row}\r\n" for row in quoted), "utf-8", newline="")


def write_unicode_text(path: Path, pairs: Pairs) -> None:
    path.write_text(
        "".join(f"{source}\t{target}\r\n" for source, target in [("en", "de"), *pairs]), "utf-16", newline=""
    )


def write_tmx(path: Path, pairs: Pairs) -> None:
    def segment(language: str, text: str) -> str:
        return f'<tuv xml:lang="{language}"><seg>{escape(text)}</seg></tuv>'

    units = "".join(f"<tu>{segment('en-US', source)}{segment('DE', target)}</tu>" for source, target in pairs)
    head = '<?xml version="1.0" encoding="utf-8"?><!DOCTYPE tmx SYSTEM "tmx14.dtd"><tmx version="1.4">'
    path.write_text(f'{head}<header srclang="en"/><body>{units}</body></tmx>', "utf-8")


def write_xliff(path: Path, pairs: Pairs) -> None:
    units = "".join(
        f'<trans-unit id="{i}"><source>{escape(source)}</source><target>{escape(target)}</target></trans-unit>'
        for i, (source, target) in enumerate(pairs)
    )
    head = '<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2"><file original="x" datatype="plaintext"'
    path.write_text(
        f'{head} source-language="en-GB" target-language="de"><body>{units}</body></file></xliff>', "utf-8"
    )


def write_xliff2(path: Path, pairs: Pairs) -> None:
    units = "".join(
        f'<unit id="{i}"><segment><source>{escape(source)}</source><target>{escape(target)}</target></segment></unit>'
        for i, (source, target) in enumerate(pairs)
    )
    head = '<xliff version="2.0" xmlns="urn:oasis:names:tc:xliff:document:2.0" srcLang="en" trgLang="de">'
    path.write_text(f'{head}<file id="f">{units}</file></xliff>', "utf-8")


def write_po(path: Path, pairs: Pairs) -> None:
    head = 'msgid ""\nmsgstr "Language: de\\nContent-Type: text/plain; charset=UTF-8\\n"\n'
    entries = (
        f"\nmsgid {json.dumps(s, ensure_ascii=False)}\nmsgstr {json.dumps(t, ensure_ascii=False)}\n" for s, t in pairs
    )
    path.write_text(head + "".join(entries), "utf-8")


def write_eaf(path: Path, pairs: Pairs) -> None:
    slots = "".join(f'<TIME_SLOT TIME_SLOT_ID="ts{i}" TIME_VALUE="{100 * i}"/>' for i in range(len(pairs) + 1))

    def annotation(i: int, text: str, side: int) -> str:
        attributes = f'ANNOTATION_ID="a{2 * i + side}" TIME_SLOT_REF1="ts{i}" TIME_SLOT_REF2="ts{i + 1}"'
        value = f"<ANNOTATION_VALUE>{escape(text)}</ANNOTATION_VALUE>"
        return f"<ANNOTATION><ALIGNABLE_ANNOTATION {attributes}>{value}</ALIGNABLE_ANNOTATION></ANNOTATION>"

    tiers = "".join(
        f'<TIER TIER_ID="{name}@A" LINGUISTIC_TYPE_REF="t">'
        + "".join(annotation(i, pair[side], side) for i, pair in enumerate(pairs))
        + "</TIER>"
        for side, name in enumerate(("en", "de"))
    )
    schema = 'xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:noNamespaceSchemaLocation="x"'
    head = f'<ANNOTATION_DOCUMENT AUTHOR="" DATE="2024-01-01T00:00:00+00:00" FORMAT="3.0" VERSION="3.0" {schema}>'
    kinds = '<LINGUISTIC_TYPE LINGUISTIC_TYPE_ID="t" TIME_ALIGNABLE="true"/>'
    path.write_text(
        f'<?xml version="1.0" encoding="UTF-8"?>{head}<HEADER MEDIA_FILE="" TIME_UNITS="milliseconds"/>'
        f"<TIME_ORDER>{slots}</TIME_ORDER>{tiers}{kinds}</ANNOTATION_DOCUMENT>",
        "utf-8",
    )


def write_json(path: Path, pairs: Pairs) -> None:
    path.write_text(json.dumps({"data": [{"en": source, "de": target} for source, target in pairs]}), "utf-8")


def write_json_lines(path: Path, pairs: Pairs) -> None:
    rows = (json.dumps({"translation": {"en": source, "de": target}}) for source, target in pairs)
    path.write_text("".join(f"{row}\n" for row in rows), "utf-8")


def write_compressed(path: Path, pairs: Pairs) -> None:
    plain = path.with_suffix("")
    WRITERS[plain.name](plain, pairs)
    path.write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()


WRITERS: dict[str, Callable[[Path, Pairs], None]] = {
    "words.xlsx": write_xlsx,
    "words.csv": write_csv,
    "words.txt": write_unicode_text,
    "memory.tmx": write_tmx,
    "memory.tmx.gz": write_compressed,
    "words.xlsx.gz": write_compressed,
    "tape.eaf.gz": write_compressed,
    "app.xlf": write_xliff,
    "app2.xliff": write_xliff2,
    "app.po": write_po,
    "tape.eaf": write_eaf,
    "words.json": write_json,
    "words.jsonl": write_json_lines,
}
