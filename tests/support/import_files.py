"""Files of every format that `import` reads, with the same pairs, written by other programs' libraries or by hand."""

import gzip
import json
import struct
import zipfile
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


def write_xls(path: Path, pairs: Pairs) -> None:
    """Write BIFF8 in a compound file, as Excel 97 to 2003 did."""

    def record(kind: int, content: bytes) -> bytes:
        return struct.pack("<HH", kind, len(content)) + content

    cells = [
        (row, column, text.encode("utf-16-le"))
        for row, pair in enumerate([("en", "de"), *pairs])
        for column, text in enumerate(pair)
    ]
    labels = (record(0x204, struct.pack("<4HB", *at, 0, len(text) // 2, 1) + text) for *at, text in cells)
    begins = [record(0x809, struct.pack("<4H8x", 0x600, kind, 0, 1997)) for kind in (5, 16)]
    ends = record(0xA, b"")
    # the first part says where the sheet begins, after 13 bytes of its own and its name
    place = len(begins[0]) + 4 + 13 + len(ends)
    first = begins[0] + record(0x85, struct.pack("<I2x2B", place, 5, 0) + b"Words") + ends
    stream = first + begins[1] + b"".join(labels) + ends
    stream += bytes(max(4096, len(stream) + -len(stream) % 512) - len(stream))

    none = 0xFFFFFFFF
    end = 0xFFFFFFFE
    sectors = [0xFFFFFFFD, end, *range(3, len(stream) // 512 + 2), end]
    head = bytes.fromhex("d0cf11e0a1b11ae1") + struct.pack("<16x5H6x", 62, 3, 0xFFFE, 9, 6)
    head += struct.pack("<9I", 0, 1, 1, 0, 4096, end, 0, end, 0) + struct.pack("<109I", 0, *[none] * 108)
    entries = (("Root Entry", 5, 1, end, 0), ("Workbook", 2, none, 2, len(stream)))
    folder = b"".join(
        name.encode("utf-16-le").ljust(64, b"\0")
        + struct.pack("<HBBIII36xIQ", 2 * len(name) + 2, kind, 1, none, none, child, start, size)
        for name, kind, child, start, size in entries
    )
    table = struct.pack(f"<{len(sectors)}I", *sectors)
    path.write_bytes(head + table.ljust(512, b"\xff") + folder.ljust(512, b"\0") + stream)


def write_ods(path: Path, pairs: Pairs) -> None:
    """Write a sheet as LibreOffice does, with the empty rest of its million rows."""
    names = "urn:oasis:names:tc:opendocument:xmlns"
    rest = '<table:table-cell table:number-columns-repeated="1022"/>'
    rows = "".join(
        "<table:table-row>"
        + "".join(
            f'<table:table-cell office:value-type="string"><text:p>{escape(c)}</text:p></table:table-cell>'
            for c in row
        )
        + f"{rest}</table:table-row>"
        for row in [("en", "de"), *pairs]
    )
    rows += f'<table:table-row table:number-rows-repeated="1048000">{rest}</table:table-row>'
    kinds = "".join(f' xmlns:{kind}="{names}:{kind}:1.0"' for kind in ("office", "table", "text"))
    kind = "application/vnd.oasis.opendocument.spreadsheet"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("mimetype", kind)
        archive.writestr(
            "content.xml",
            f"<office:document-content{kinds}><office:body><office:spreadsheet>"
            f'<table:table table:name="Words">{rows}</table:table>'
            "</office:spreadsheet></office:body></office:document-content>",
        )
        manifest = f'<m:manifest xmlns:m="{names}:manifest:1.0"><m:file-entry m:full-path="/" m:media-type="{kind}"/>'
        archive.writestr("META-INF/manifest.xml", f"{manifest}</m:manifest>")


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
    "words.xls": write_xls,
    "words.ods": write_ods,
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
