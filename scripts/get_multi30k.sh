#!/usr/bin/env bash
# Download Multi30k, task 1, English-German (Elliott et al. 2016), lower-cased, normalised and tokenised, into
# data/multi30k or the given folder. The text may be used for non-commercial research and education.
#
#   bash scripts/get_multi30k.sh [FOLDER]
set -euo pipefail

url=${MULTI30K_URL:-https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/tok}
folder=${1:-$(cd "$(dirname "$0")/.." && pwd)/data/multi30k}

python3 - "$url" "$folder" <<'PYTHON'
import hashlib
import http.client
import sys
import urllib.request
from pathlib import Path

CHECKSUMS = {
    "train.en": "08925f8e0572bcd5a006702fc5fe20e2d77c6917d4eebd576fc20de6693c2119",
    "train.de": "cb5a23529b65ec2061f1dc446192a9c37382b63cc75f81a0be59d34894b3a505",
    "val.en": "46573ce391ae227f1c72f873392436a20ef18e0a6d518098cfbd70b77c8572ec",
    "val.de": "97232bd273eceb7207f689527386a97e4be2616b18ada47576bdaf96c8ae1f00",
    "test_2016_flickr.en": "5b7f32627cf99eced828311b955dae9800bb52bc8b91cf8b6526829e605b29d2",
    "test_2016_flickr.de": "c6a33d39d48f9f510de147651316cd9d918e09ad0219df734a2f16b6baccacc4",
}
url, folder = sys.argv[1].rstrip("/"), Path(sys.argv[2])
contents = {}
for name, expected in CHECKSUMS.items():
    file = folder / name
    if file.is_file() and hashlib.sha256(file.read_bytes()).hexdigest() == expected:
        continue
    part, language = name.rsplit(".", 1)
    file_url = f"{url}/{part}.lc.norm.tok.{language}"
    print(f"Downloading {file_url}", file=sys.stderr, flush=True)
    try:
        with urllib.request.urlopen(file_url, timeout=60) as response:
            contents[file] = response.read()
    except (OSError, http.client.HTTPException) as error:
        sys.exit(f"get_multi30k.sh: cannot download {file_url}: {error}. Set MULTI30K_URL to the URL of a mirror.")
    if hashlib.sha256(contents[file]).hexdigest() != expected:
        sys.exit(
            f"get_multi30k.sh: {file_url} is not the Multi30k text: its SHA-256 checksum is wrong. "
            "Set MULTI30K_URL to the URL of another mirror."
        )
folder.mkdir(parents=True, exist_ok=True)
for file, content in contents.items():
    unfinished = file.with_name(f"{file.name}.unfinished")
    unfinished.write_bytes(content)
    unfinished.replace(file)
print(f"Multi30k is in {folder}", file=sys.stderr)
PYTHON
