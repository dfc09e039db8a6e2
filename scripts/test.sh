#!/usr/bin/env bash
# Installs the package, then runs the linters and the fast tests. --all adds the slow tests; --oldest runs the fast tests
# with the oldest supported release of transformers instead, in an environment of its own.
set -euo pipefail
cd "$(dirname "$0")/.."
export HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 # the models are tiny; a second thread is better used by a second process
parallel=(-n 2 --dist loadfile --no-loadscope-reorder) # reordered, long files with few tests would come last

case "${1:-}" in
  --oldest)
    export VENV=.venv-oldest
    bash scripts/install.sh dev transformers==5.17.0
    exec "$VENV/bin/python" -m pytest "${parallel[@]}" -m "not slow"
    ;;
  --all) selection=() ;;
  *) selection=(-m "not slow") ;;
esac
bash scripts/install.sh dev
.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/mypy
.venv/bin/python -m pytest --durations 15 "${parallel[@]}" ${selection[@]+"${selection[@]}"}
