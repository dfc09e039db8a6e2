#!/usr/bin/env bash
# Create .venv (or $VENV) with $PYTHON (or the first Python 3.10 or newer on the PATH) and install the package into it,
# editable:
#
#   bash scripts/install.sh                            the package
#   bash scripts/install.sh --cpu ADDRESS              the same with PyTorch's CPU build, from the index at ADDRESS
#   bash scripts/install.sh dev,plots                  with extras, also after --cpu ADDRESS
#   bash scripts/install.sh dev transformers==5.17.0   with extras and further requirements
#
# ADDRESS is the index that PyTorch's instructions for installing it on CPUs name; it can be left out if pip finds a CPU
# build without it. Without --cpu, a PyTorch that is already in the environment is kept.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${VENV:-.venv}

fail() {
  echo "install.sh: $*" >&2
  exit 1
}

cpu=
index=
if [ "${1:-}" = --cpu ]; then
  cpu=yes
  shift
  case ${1:-} in *://*) index=$1 && shift ;; esac
fi
for argument in "$@"; do
  case $argument in
    -* | *://*)
      sed -n '2,/^set/s/^# \{0,1\}//p' scripts/install.sh >&2
      exit 2
      ;;
  esac
done

is_recent() { # 3.10 or newer; any Python can run this
  "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null
}

is_complete() { # has pip, and was not moved, which leaves commands that start another environment's Python
  is_recent "$venv/bin/python" && "$venv/bin/python" - 2>/dev/null <<'PYTHON'
import os
import re
import sys

import pip

with open(os.path.join(sys.prefix, "bin", "pip"), encoding="utf-8") as file:
    home = re.search(r"(/.*)/bin/python", file.read()).group(1)
sys.exit(not os.path.samefile(home, sys.prefix))
PYTHON
}

create() {
  candidates=(python3 python3.14 python3.13 python3.12 python3.11 python3.10)
  if [ -n "${PYTHON:-}" ]; then candidates=("$PYTHON"); fi
  python=
  for candidate in "${candidates[@]}"; do
    if is_recent "$candidate"; then
      python=$candidate
      break
    fi
  done
  if [ -z "$python" ]; then
    found=$("${candidates[0]}" --version 2>&1) || found="no ${candidates[0]}"
    fail "found $found, but Python 3.10 or newer is needed: install it, or name it with PYTHON=/path/to/python3"
  fi
  version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  "$python" -c 'import ensurepip, venv; ensurepip.version()' >/dev/null 2>&1 ||
    fail "Python $version lacks venv; on Debian and Ubuntu: sudo apt install python$version-venv"
  if [ -f "$venv/pyvenv.cfg" ]; then
    echo "$venv is incomplete, was moved, or has a Python older than 3.10; it is replaced."
  fi
  echo "Creating $venv with Python $version."
  "$python" -m venv --clear "$venv"
}

if ! is_complete; then
  if [ ! -f "$venv/pyvenv.cfg" ] && [ -e "$venv" ] && [ -n "$(ls -A "$venv")" ]; then
    fail "$venv is not a virtual environment; move it away, or choose another folder with VENV=/path/to/folder"
  fi
  create
fi

# what this script installed last is not checked again: that takes pip 10 seconds, and the network
done=$venv/installed
key="$(cat pyproject.toml scripts/constraints.txt | cksum) ${cpu:+--cpu }${1:-}"
packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
[ "$done" -nt "$packages" ] || rm -f "$done" # something else was installed or removed since
if [ $# -le 1 ] && [ -f "$done" ] && grep -qxF "$key" "$done"; then exit; fi

if [ ! -d "$packages/torch" ]; then
  if [ "$(uname)" = Linux ] && [ -z "$cpu" ]; then
    echo "Downloading up to 2.9 GB (5.6 GB on disk): PyTorch with CUDA. 5 to 20 minutes."
    echo "Without a GPU, 0.3 GB (1.5 GB on disk) are enough: see --cpu in README.md."
  else
    echo "Downloading about 0.3 GB (1.5 GB on disk). Takes 1 to 5 minutes."
  fi
fi

: >"$venv/install.log"
pip_install() {
  "$venv/bin/python" scripts/pip_install.py "$venv/install.log" --constraint scripts/constraints.txt "$@"
}
if [ -n "$cpu" ]; then
  torch=$(grep '^torch==' scripts/constraints.txt)
  if [ "$(uname)" != Darwin ]; then torch+=+cpu; fi # all builds for macOS are CPU builds, and not marked
  (
    if [ -n "$index" ]; then export PIP_INDEX_URL=$index; fi
    pip_install "$torch"
  ) || fail "found no CPU build of PyTorch; --cpu needs the address of an index (see the top of scripts/install.sh)"
fi
pip_install --editable ".${1:+[$1]}" "${@:2}"
if [ $# -le 1 ]; then echo "$key" >>"$done"; fi
