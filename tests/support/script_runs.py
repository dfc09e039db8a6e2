"""Run scripts and read the tables that they print."""

import os
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from corpora import ROOT
from forked_python import forked_python


def run_script(name: str | Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Run a Python script, by its name below scripts/ or its path, in a new process."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    return subprocess.run(
        [forked_python(), str(ROOT / "scripts" / name), *flags],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )


def import_script(name: str) -> ModuleType:
    """Import a Python script below scripts/, with the modules beside it, as if it was run."""
    file = ROOT / "scripts" / name
    spec = spec_from_file_location(f"script_{name.replace('/', '_').removesuffix('.py')}", file)
    module = module_from_spec(spec)
    sys.path.insert(0, str(file.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(file.parent))
    return module


def read_table(text: str) -> dict[str, dict[str, str]]:
    """Return the rows of a Markdown table by their first cell."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    return {row[0]: dict(zip(rows[0], row, strict=True)) for row in rows[2:]}
