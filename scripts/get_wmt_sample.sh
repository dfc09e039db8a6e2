#!/usr/bin/env bash
# Download the sample of WMT English-German that OpenNMT-py ships (10,000 pairs, tokenised) into data/wmt-sample or the
# given folder, for the tests of cleaning on real text.
#
#   bash scripts/get_wmt_sample.sh [FOLDER]
set -euo pipefail

url=${WMT_SAMPLE_URL:-https://raw.githubusercontent.com/OpenNMT/OpenNMT-py/master/data}
scripts=$(cd "$(dirname "$0")" && pwd)
python3 "$scripts/download_text.py" wmt-sample "$url" "${1:-$scripts/../data/wmt-sample}"
