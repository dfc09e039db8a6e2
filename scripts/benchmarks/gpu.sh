#!/usr/bin/env bash
# Measures everything on a GPU, in stages of at most 8 minutes each and 28 minutes together:
#
#   bash scripts/benchmarks/gpu.sh TEXT OUT [STAGE ...]     stages: training decoding recipe launchers tests
#
# TEXT is a folder with multi30k/{train,val}.{en,de} and wmt/train.{en,de}. Results are in OUT/gpu.json and OUT/gpu.md.
# The same command continues where it stopped, and what is not installed is skipped and named. Needs no network if
# $PYTHON (python3) has the package's dependencies; otherwise they are installed into .venv. GPU_FLAGS may hold flags
# for gpu.py: --small for tiny models, --retry to measure rows again that have failed. MINUTES limits the total.
set -uo pipefail
[ $# -ge 2 ] || { sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2; }
text=$(cd "$1" && pwd) || exit 2
mkdir -p "$2" && output=$(cd "$2" && pwd) || exit 2
shift 2
cd "$(dirname "$0")/../.." || exit 2
python=${PYTHON:-python3}
if ! "$python" -c "import accelerate, datasets, evaluate, sacrebleu, tokenizers, transformers" 2>/dev/null; then
  bash scripts/install.sh dev || { echo "gpu.sh: $python lacks the package's dependencies." >&2; exit 1; }
  python=.venv/bin/python
fi
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} HF_HUB_OFFLINE=1
end=$((SECONDS + 60 * ${MINUTES:-28}))
[ $# -gt 0 ] || set -- training decoding recipe launchers tests

for stage in "$@"; do
  stage_end=$((SECONDS + 480 < end ? SECONDS + 480 : end))
  status=1
  # a process that CUDA has killed starts again, after the row that it died in
  while [ $status -ne 0 ] && [ $status -ne 3 ] && [ $status -ne 2 ] && [ $SECONDS -lt $stage_end ]; do
    left=$((stage_end - SECONDS))
    # shellcheck disable=SC2086 # one word per flag
    timeout --kill-after 10 $((left + 40)) "$python" scripts/benchmarks/gpu.py "$stage" --text "$text" \
      --output_dir "$output" --seconds $left ${GPU_FLAGS:-}
    status=$?
  done
  [ $status -ne 2 ] || exit 2
  [ $status -eq 0 ] || echo "gpu.sh: $stage is unfinished; the same command continues it." >&2
done
"$python" scripts/benchmarks/gpu.py table --output_dir "$output" >"$output/gpu.md" && cat "$output/gpu.md"
