#!/usr/bin/env bash
# Makes .venv and installs the package into it, editable, with the extras named (install.sh dev,plots).
set -euo pipefail
cd "$(dirname "$0")/.."

[ -x .venv/bin/python ] || python3 -m venv .venv
.venv/bin/python -m pip install --quiet --constraint scripts/constraints.txt --editable ".${1:+[$1]}"
