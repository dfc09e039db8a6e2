#!/usr/bin/env bash
# Installs, then runs linters and the fast tests; --all adds the slow ones.
set -euo pipefail
cd "$(dirname "$0")/.."

bash scripts/install.sh dev
export HF_HUB_OFFLINE=1
.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/mypy
if [ "${1:-}" = --all ]; then
  .venv/bin/python -m pytest
else
  .venv/bin/python -m pytest -m "not slow"
fi
