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
scripts=$(cd "$(dirname "$0")" && pwd)
python3 "$scripts/download_text.py" "$kind" "$url" "${1:-$scripts/../data/$name}"
