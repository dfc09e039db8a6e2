#!/usr/bin/env bash
# Measures everything on a GPU, in stages of at most 8 minutes each and 30 minutes together:
#
#   bash scripts/benchmarks/gpu.sh TEXT OUT [STAGE ...] # devices graphs compiled training ...
#
# TEXT is a folder with multi30k/{train,val}.{en,de} and wmt/train.{en,de}. Results are in OUT/gpu.json and OUT/gpu.md.
# The same command continues where it stopped, and what is missing is named. Needs no network if $PYTHON (python3) has
# the package's dependencies; otherwise they are installed into .venv. GPU_FLAGS may hold flags for gpu.py: --small for
# tiny models (in an OUT of their own), --retry to measure rows again that have failed. MINUTES limits the total.
set -uo pipefail
[ $# -ge 2 ] || { sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2; }
text=$(cd "$1" && pwd) || exit 2
mkdir -p "$2" && output=$(cd "$2" && pwd) || exit 2
shift 2
cd "$(dirname "$0")/../.." || exit 2
python=${PYTHON:-python3} flags=${GPU_FLAGS:-}
if ! "$python" -c "import accelerate, datasets, evaluate, sacrebleu, tokenizers, transformers"; then
  bash scripts/install.sh dev || { echo "gpu.sh: $python lacks the package's dependencies." >&2; exit 1; }
  python=.venv/bin/python
fi
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} HF_HUB_OFFLINE=1
end=$((SECONDS + 60 * ${MINUTES:-30}))
[ $# -gt 0 ] || set -- devices graphs compiled training decoding profile recipe launchers tests

for stage in "$@"; do
  stage_end=$((SECONDS + 480 < end ? SECONDS + 480 : end))
  before=none stage_flags=$flags
  # if CUDA ends the process, it starts again and continues after the failed row
  while [ "$before" != "$(cksum "$output/gpu.json" 2>/dev/null)" ]; do
    before=$(cksum "$output/gpu.json" 2>/dev/null)
    left=$((stage_end - SECONDS))
    # shellcheck disable=SC2086 # one word per flag
    timeout --kill-after 10 $((left > 0 ? left + 40 : 40)) "$python" scripts/benchmarks/gpu.py "$stage" \
      --text "$text" --output_dir "$output" --seconds $left $stage_flags
    status=$?
    stage_flags=${flags/--retry/} # only once
    case $status in 0 | 3) break ;; 2) exit 2 ;; esac
  done
  [ $status -eq 0 ] || echo "gpu.sh: $stage is unfinished; the same command continues it." >&2
done
"$python" scripts/benchmarks/gpu.py table --output_dir "$output" >"$output/gpu.md" && cat "$output/gpu.md"
