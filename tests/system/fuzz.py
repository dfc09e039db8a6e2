"""Fuzz the readers of text and recipes with atheris.

python tests/system/fuzz.py {rows,recipe} FOLDER [libFuzzer flags]
"""

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["hf_vanilla_transformer.data", "hf_vanilla_transformer.training.recipes"]):
    from hf_vanilla_transformer.data.formats import DataError
    from hf_vanilla_transformer.data.source import TextFile
    from hf_vanilla_transformer.training.recipes import read_recipe

TARGET, FOLDER = sys.argv[1], Path(sys.argv[2])
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


atheris.Setup([sys.argv[0], *sys.argv[3:]], {"rows": fuzz_rows, "recipe": fuzz_recipe}[TARGET])
atheris.Fuzz()
