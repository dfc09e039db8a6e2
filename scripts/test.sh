#!/usr/bin/env bash
# Installs the package, then runs the linters and the fast tests. --all adds the slow tests; --all PATH ... runs only the
# tests in these files and folders, without the linters; --oldest runs the fast tests with the oldest supported release
# of transformers instead, in an environment of its own.
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
if [ $# -lt 2 ]; then
  .venv/bin/ruff check .
  .venv/bin/ruff format --check .
  .venv/bin/mypy
fi
.venv/bin/python -m pytest --durations 15 "${parallel[@]}" ${selection[@]+"${selection[@]}"}
