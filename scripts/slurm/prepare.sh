#!/usr/bin/env bash
# Prepares text in five job arrays, one after the other: read it, train a tokenizer, clean it, find duplicates, and write
# the shards. Flags for sbatch go into SBATCH_FLAGS. Run it again to resume: what is finished is skipped.
#
#   bash scripts/slurm/prepare.sh 16 data/europarl data/news.jsonl.zst --source_lang en --target_lang de --output_dir prepared
set -euo pipefail
[ $# -ge 2 ] || { sed -n '2,5s/^# //p' "$0" >&2; exit 2; }
elements=$1
shift
job=""
for _ in read tokenizer clean deduplicate write; do
  # shellcheck disable=SC2086 # SBATCH_FLAGS are words
  job=$(sbatch --parsable ${job:+--dependency=afterany:$job} ${SBATCH_FLAGS:-} --array="0-$((elements - 1))" \
    "$(dirname "$0")/prepare.sbatch" "$@")
  echo "Submitted $job"
done
