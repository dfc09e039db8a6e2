"""Locate real text for the tests: downloaded by scripts/get_multi30k.sh, or in a shared folder beside the project."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared" / "data" / "multi30k"
NO_MULTI30K = "Multi30k not found; download it with `bash scripts/get_multi30k.sh` (and again with --raw)"


def _find(*places: Path) -> Path:
    """Return the first folder that holds the training text, or else the first."""
    return next((place for place in places if (place / "train.en").is_file()), places[0])


MULTI30K = _find(ROOT / "data" / "multi30k", SHARED / "tok")
MULTI30K_RAW = _find(ROOT / "data" / "multi30k-raw", SHARED / "raw")
