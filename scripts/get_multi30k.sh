#!/usr/bin/env bash
# Download Multi30k, task 1, English-German (Elliott et al. 2016), lower-cased, normalised and tokenised, into
# data/multi30k or the given folder; with --raw, as it was written, into data/multi30k-raw or the given folder.
# The text may be used for non-commercial research and education.
#
#   bash scripts/get_multi30k.sh [--raw] [FOLDER]
set -euo pipefail

kind=tok name=multi30k
[ "${1:-}" != --raw ] || { kind=raw name=multi30k-raw; shift; }
url=${MULTI30K_URL:-https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/$kind}
folder=${1:-$(cd "$(dirname "$0")/.." && pwd)/data/$name}

python3 - "$url" "$folder" "$kind" <<'PYTHON'
import gzip
import hashlib
import http.client
import sys
import urllib.request
import zlib
from pathlib import Path

CHECKSUMS = {  # of the text, not of the compressed files
    "tok": {
        "train.en": "08925f8e0572bcd5a006702fc5fe20e2d77c6917d4eebd576fc20de6693c2119",
        "train.de": "cb5a23529b65ec2061f1dc446192a9c37382b63cc75f81a0be59d34894b3a505",
        "val.en": "46573ce391ae227f1c72f873392436a20ef18e0a6d518098cfbd70b77c8572ec",
        "val.de": "97232bd273eceb7207f689527386a97e4be2616b18ada47576bdaf96c8ae1f00",
        "test_2016_flickr.en": "5b7f32627cf99eced828311b955dae9800bb52bc8b91cf8b6526829e605b29d2",
        "test_2016_flickr.de": "c6a33d39d48f9f510de147651316cd9d918e09ad0219df734a2f16b6baccacc4",
    },
    "raw": {
        "train.en": "460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6",
        "train.de": "2c2b73fd2b548fbcde3a875e0a78d6ee94d498bfdee6bd3eae3945779e9ddf72",
        "val.en": "1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227",
        "val.de": "660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660",
        "test_2016_flickr.en": "399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182",
        "test_2016_flickr.de": "4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16",
    },
}
url, folder, kind = sys.argv[1].rstrip("/"), Path(sys.argv[2]), sys.argv[3]
contents = {}
for name, expected in CHECKSUMS[kind].items():
    file = folder / name
    if file.is_file() and hashlib.sha256(file.read_bytes()).hexdigest() == expected:
        continue
    part, language = name.rsplit(".", 1)
    file_url = f"{url}/{part}.{language}.gz" if kind == "raw" else f"{url}/{part}.lc.norm.tok.{language}"
    print(f"Downloading {file_url}", file=sys.stderr, flush=True)
    try:
        with urllib.request.urlopen(file_url, timeout=60) as response:
            content = response.read()
        contents[file] = gzip.decompress(content) if kind == "raw" else content
    except (OSError, EOFError, zlib.error, http.client.HTTPException) as error:
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
