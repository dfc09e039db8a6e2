"""Where the tests find real text: what scripts/get_multi30k.sh fetched, or what lies beside the project."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
PLACES = (ROOT / "data" / "multi30k", ROOT.parent / "shared" / "data" / "multi30k" / "tok")
MULTI30K = next((place for place in PLACES if (place / "train.en").is_file()), PLACES[0])
NO_MULTI30K = "no Multi30k text: bash scripts/get_multi30k.sh fetches it"
