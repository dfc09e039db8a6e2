#!/usr/bin/env bash
# Installs the package, then runs the linters and the fast tests.
#
#   --all [PATH ...]    all tests, or all in these files and folders; also loads copies as MarianMT with transformers 4,
#                       in an environment of its own, whose Python $TRANSFORMERS_4 may name
#   --rest [PATH ...]   of these, only the slow ones and those that need real text: what the fast tests leave out
#   --oldest            the fast tests with the oldest supported release of transformers, in an environment of its own
#
# The linters run unless PATHs are given, or --rest.
set -euo pipefail
cd "$(dirname "$0")/.."
export HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 # the models are tiny; a second thread is better used by a second process
# each file in one process, for the fixtures that its tests share, and in this order: xdist would start the files with
# the most tests, and leave long ones with few tests to the end, when the other process is idle
options=(-n 2 --dist loadfile --no-loadscope-reorder --durations 15 -r fEs)
kind=${1:-}
paths=("${@:2}")

if [ "$kind" = --oldest ]; then
  export VENV=.venv-oldest
  bash scripts/install.sh dev transformers==5.17.0
  exec "$VENV/bin/python" -m pytest "${options[@]}" -m "not slow"
fi

bash scripts/install.sh dev
case $kind in
  "") options+=(-m "not slow") ;;
  --all) ;;
  --rest) options+=(-m "slow or real_text") ;;
  *) echo "test.sh: unknown option $kind; see the first lines of $0" >&2; exit 2 ;;
esac
if [ ${#paths[@]} -eq 0 ]; then
  if [ -n "$kind" ]; then
    # without this package; in .venv, which linters and tests pass over
    export TRANSFORMERS_4=$PWD/.venv/transformers4/bin/python
    [ -x "$TRANSFORMERS_4" ] || .venv/bin/python -m venv .venv/transformers4
    "$TRANSFORMERS_4" -m pip install --quiet --constraint scripts/constraints.txt \
      transformers==4.57.6 torch sentencepiece sacremoses
  fi
  if [ "$kind" != --rest ]; then
    .venv/bin/ruff check .
    .venv/bin/ruff format --check .
    # the newest transformers, whose types it checks against, needs Python 3.11
    if .venv/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then .venv/bin/mypy; fi
  fi
fi
.venv/bin/python -m pytest "${options[@]}" ${paths[@]+"${paths[@]}"}
