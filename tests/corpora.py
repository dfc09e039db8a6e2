"""Locate real text for the tests: downloaded by scripts/get_multi30k.sh, or in a shared folder beside the project."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
PLACES = (ROOT / "data" / "multi30k", ROOT.parent / "shared" / "data" / "multi30k" / "tok")
MULTI30K = next((place for place in PLACES if (place / "train.en").is_file()), PLACES[0])
NO_MULTI30K = "Multi30k not found; download it with `bash scripts/get_multi30k.sh`"
