"""Fuzz the readers of text and recipes, and the import of files of other programs, with atheris.

python tests/support/fuzz.py {rows,recipe,import} FOLDER [libFuzzer flags]
"""

import sys
from importlib import import_module
from pathlib import Path

import atheris

PARSERS = ("pympi.Elan", *(f"translate.storage.{name}" for name in ("pypo", "tmx", "xliff", "xliff2")))
OURS = ["hf_vanilla_transformer.data", "hf_vanilla_transformer.training.recipes"]
with atheris.instrument_imports(include=[*OURS, "pympi", "translate.storage"]):
    from hf_vanilla_transformer.data.foreign_files import SHEETS
    from hf_vanilla_transformer.data.formats import DataError
    from hf_vanilla_transformer.data.source import TextFile
    from hf_vanilla_transformer.plugins.importing.reader_process import format_of
    from hf_vanilla_transformer.training.recipes import read_recipe

    for parser in PARSERS:
        import_module(parser)

    sys.path.insert(0, str(Path(__file__).parent))
    from damaged_imports import FILES, check_import, damaged

TARGET, FOLDER = sys.argv[1], Path(sys.argv[2])
# without spreadsheets, which are read by compiled code in a process of its own: test_importing.py damages them
IMPORTED = sorted(name for name in FILES if format_of(name) not in SHEETS)
ENDINGS = [".jsonl", ".tsv", ".csv", ".tsv.gz", ".jsonl.zst"]


def fuzz_rows(data: bytes) -> None:
    """Check that any bytes are UTF-8 pairs or a `DataError` that names the file; the first byte selects the format."""
    path = FOLDER / f"fuzzed{ENDINGS[data[0] % len(ENDINGS)] if data else '.tsv'}"
    path.write_bytes(data[1:])
    try:
        for pair in TextFile(("en", "de"), str(path)):
            "".join(pair.values()).encode("utf-8")
    except DataError as error:
        str(error).index(str(path))


def fuzz_recipe(data: bytes) -> None:
    """Check that any bytes are a recipe or a `ValueError` that names the file."""
    path = FOLDER / "fuzzed.yaml"
    path.write_bytes(data)
    try:
        read_recipe(str(path), {"max_steps", "preset"})
    except ValueError as error:
        str(error).index(str(path))


def fuzz_import(data: bytes) -> None:
    """Check that a damaged file of a format is pairs or one line of error; the bytes select format and damage."""
    numbers = atheris.FuzzedDataProvider(data)
    name = IMPORTED[numbers.ConsumeIntInRange(0, len(IMPORTED) - 1)]
    member = numbers.ConsumeIntInRange(0, 12)
    edits = []
    while numbers.remaining_bytes() and len(edits) < 8:
        place = numbers.ConsumeIntInRange(0, 1 << 16)
        edits.append((place, numbers.ConsumeIntInRange(0, 40), numbers.ConsumeBytes(numbers.ConsumeIntInRange(0, 40))))
    check_import(FOLDER / name, damaged(FILES[name], edits, member))


TARGETS = {"rows": fuzz_rows, "recipe": fuzz_recipe, "import": fuzz_import}
atheris.Setup([sys.argv[0], *sys.argv[3:]], TARGETS[TARGET])
atheris.Fuzz()
