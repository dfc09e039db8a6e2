"""Download parallel text for recipes and tests, and check it; `get_multi30k.sh` and `get_wmt_sample.sh` call this.

A file that is already there is downloaded again only if its checksum is wrong. The text is complete or not at all.
"""

import gzip
import hashlib
import http.client
import sys
import urllib.request
import zlib
from pathlib import Path
from typing import NamedTuple


class _Text(NamedTuple):
    """A text, and where to find it.

    Attributes:
        title: its name in messages.
        variable: the environment variable that names a mirror.
        files: for each file of the text, its name at the URL and the SHA-256 checksum of its content, decompressed.
    """

    title: str
    variable: str
    files: dict[str, tuple[str, str]]


def _multi30k(name: str, checksums: dict[str, str]) -> _Text:
    """Return a version of Multi30k whose files are named like `name` at the URL."""
    files = {}
    for file, checksum in checksums.items():
        part, language = file.rsplit(".", 1)
        files[file] = (name.format(part=part, language=language), checksum)
    return _Text("Multi30k", "MULTI30K_URL", files)


TEXTS = {
    "tok": _multi30k(
        "{part}.lc.norm.tok.{language}",
        {
            "train.en": "08925f8e0572bcd5a006702fc5fe20e2d77c6917d4eebd576fc20de6693c2119",
            "train.de": "cb5a23529b65ec2061f1dc446192a9c37382b63cc75f81a0be59d34894b3a505",
            "val.en": "46573ce391ae227f1c72f873392436a20ef18e0a6d518098cfbd70b77c8572ec",
            "val.de": "97232bd273eceb7207f689527386a97e4be2616b18ada47576bdaf96c8ae1f00",
            "test_2016_flickr.en": "5b7f32627cf99eced828311b955dae9800bb52bc8b91cf8b6526829e605b29d2",
            "test_2016_flickr.de": "c6a33d39d48f9f510de147651316cd9d918e09ad0219df734a2f16b6baccacc4",
        },
    ),
    "raw": _multi30k(
        "{part}.{language}.gz",
        {
            "train.en": "460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6",
            "train.de": "2c2b73fd2b548fbcde3a875e0a78d6ee94d498bfdee6bd3eae3945779e9ddf72",
            "val.en": "1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227",
            "val.de": "660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660",
            "test_2016_flickr.en": "399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182",
            "test_2016_flickr.de": "4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16",
        },
    ),
    "wmt-sample": _Text(
        "sample of WMT",
        "WMT_SAMPLE_URL",
        {
            "train.en": ("src-train.txt", "a4deafe1eb225d98f196ad87e90eec8494a729690c06e0186ee9d2793667a0d2"),
            "train.de": ("tgt-train.txt", "fe1f824a189baa650eec46269e66eef07f7304ba7572598ebbe61c55eeff7d01"),
            "val.en": ("src-val.txt", "85704d386b7acc53956d1c12acae707834895735801ed4e827e778648114d62a"),
            "val.de": ("tgt-val.txt", "22c0153b1d9ed72abe24bcacd0100d22f89559b88e1c059bf8b7be9572649171"),
        },
    ),
}


def _download(url: str, text: _Text, checksum: str) -> bytes:
    """Return the content of a file, decompressed; end the program with one line if that fails."""
    print(f"Downloading {url}", file=sys.stderr, flush=True)
    try:
        with urllib.request.urlopen(url, timeout=60) as response:
            content: bytes = response.read()
        if url.endswith(".gz"):
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error, http.client.HTTPException) as error:
        sys.exit(f"Cannot download {url}: {error}. Set {text.variable} to the URL of a mirror.")
    if hashlib.sha256(content).hexdigest() != checksum:
        sys.exit(
            f"{url} is not the {text.title} text: its SHA-256 checksum is wrong. Set {text.variable} to the URL of "
            "another mirror."
        )
    return content


def main(name: str, url: str, folder: Path) -> None:
    text = TEXTS[name]
    contents = {}
    for file_name, (remote, checksum) in text.files.items():
        file = folder / file_name
        if file.is_file() and hashlib.sha256(file.read_bytes()).hexdigest() == checksum:
            continue
        contents[file] = _download(f"{url.rstrip('/')}/{remote}", text, checksum)
    folder.mkdir(parents=True, exist_ok=True)
    for file, content in contents.items():
        unfinished = file.with_name(f"{file.name}.unfinished")
        unfinished.write_bytes(content)
        unfinished.replace(file)
    print(f"The {text.title} text is in {folder}", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
