#!/usr/bin/env bash
# Installs the package, then runs the linters and the fast tests. --all adds the slow tests, and loads copies as MarianMT
# with transformers 4, in an environment of its own; --all PATH ... runs only the tests in these files and folders,
# without the linters and that environment, whose Python $TRANSFORMERS_4 may name. --oldest runs the fast tests with the
# oldest supported release of transformers instead, in an environment of its own.
set -euo pipefail
cd "$(dirname "$0")/.."
export HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 # the models are tiny; a second thread is better used by a second process
# each file in one process, for the fixtures that its tests share, and in this order: xdist would start the files with
# the most tests, and leave long ones with few tests to the end, when the other process is idle
parallel=(-n 2 --dist loadfile --no-loadscope-reorder)

if [ "${1:-}" = --oldest ]; then
  export VENV=.venv-oldest
  bash scripts/install.sh dev transformers==5.17.0
  exec "$VENV/bin/python" -m pytest "${parallel[@]}" -m "not slow"
fi

bash scripts/install.sh dev
if [ "${1:-}" = --all ]; then
  selection=("${@:2}")
else
  selection=(-m "not slow")
fi
if [ "$*" = --all ]; then
  # without this package; in .venv, which linters and tests pass over
  export TRANSFORMERS_4=$PWD/.venv/transformers4/bin/python
  [ -x "$TRANSFORMERS_4" ] || python3 -m venv .venv/transformers4
  "$TRANSFORMERS_4" -m pip install --quiet --constraint scripts/constraints.txt \
    transformers==4.57.6 torch sentencepiece sacremoses
fi
if [ $# -lt 2 ]; then
  .venv/bin/ruff check .
  .venv/bin/ruff format --check .
  .venv/bin/mypy
fi
.venv/bin/python -m pytest --durations 15 "${parallel[@]}" ${selection[@]+"${selection[@]}"}
