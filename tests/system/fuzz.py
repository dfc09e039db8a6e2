"""Run with a target, a folder to write to, and libFuzzer's flags: atheris against the readers of text and recipes."""

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["hf_vanilla_transformer.data", "hf_vanilla_transformer.training.recipes"]):
    from hf_vanilla_transformer.data.readers import DataError, read_rows
    from hf_vanilla_transformer.training.recipes import read_recipe

TARGET, FOLDER = sys.argv[1], Path(sys.argv[2])
ENDINGS = [".jsonl", ".tsv", ".csv", ".tsv.gz", ".jsonl.zst"]


def read_any_rows(data: bytes) -> None:
    path = FOLDER / f"fuzzed{ENDINGS[data[0] % len(ENDINGS)] if data else '.tsv'}"
    path.write_bytes(data[1:])
    try:
        for pair in read_rows(str(path), "en", "de")[0]:
            "".join(pair.values()).encode("utf-8")
    except DataError as error:
        str(error).index(str(path))


def read_any_recipe(data: bytes) -> None:
    path = FOLDER / "fuzzed.yaml"
    path.write_bytes(data)
    try:
        read_recipe(str(path), {"max_steps", "preset"})
    except ValueError as error:
        str(error).index(str(path))  # whatever is wrong, the file is named


atheris.Setup([sys.argv[0], *sys.argv[3:]], {"rows": read_any_rows, "recipe": read_any_recipe}[TARGET])
atheris.Fuzz()
