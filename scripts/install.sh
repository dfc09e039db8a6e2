#!/usr/bin/env bash
# Creates .venv (or $VENV) and installs the package into it, editable, with extras (install.sh dev,plots) and further
# requirements (install.sh dev transformers==5.17.0).
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${VENV:-.venv}

[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --constraint scripts/constraints.txt --editable ".${1:+[$1]}" "${@:2}"
