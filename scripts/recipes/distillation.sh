#!/usr/bin/env bash
# Sequence-level distillation (Kim and Rush 2016): train a model on the given pairs and on a teacher's translations of
# their sources. TEACHER may be several models in quotes, which translate as an ensemble.
#
#   bash scripts/recipes/distillation.sh TEACHER data/multi30k/train en de OUT [train flags: --preset tiny ...]
set -euo pipefail
[ $# -ge 5 ] || { sed -n '2,5s/^# //p' "$0" >&2; exit 2; }
teacher=$1 pairs=$2 source=$3 target=$4 out=$5
shift 5
for file in "$pairs.$source" "$pairs.$target"; do
  [ -r "$file" ] || { echo "distillation.sh: cannot read $file." >&2; exit 1; }
done

mkdir -p "$out"
if [ ! -e "$out/text.$target" ]; then
  # shellcheck disable=SC2086 # one word per model
  vanilla-transformer translate $teacher <"$pairs.$source" >"$out/translations"
  awk 1 "$pairs.$source" "$pairs.$source" >"$out/text.$source" # like cat, but ends every file with a newline
  awk 1 "$pairs.$target" "$out/translations" >"$out/text.$target.unfinished"
  mv "$out/text.$target.unfinished" "$out/text.$target"
fi
vanilla-transformer train --train_file "$out/text" --source_lang "$source" --target_lang "$target" "$@" \
  --output_dir "$out/model"
