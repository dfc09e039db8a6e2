#!/usr/bin/env bash
# Sequence-level distillation (Kim and Rush 2016): train a model on the given pairs and on a teacher's translations of
# their sources. TEACHER may be several models in quotes, which translate as an ensemble. TRANSLATE_FLAGS may hold further
# flags for `translate`, such as "--ray auto".
#
#   bash scripts/recipes/distillation.sh TEACHER data/multi30k/train en de OUT [train flags: --preset tiny ...]
set -euo pipefail
[ $# -ge 5 ] || { sed -n '2,6s/^# //p' "$0" >&2; exit 2; }
teacher=$1 pairs=$2 source=$3 target=$4 out=$5
shift 5
for file in "$pairs.$source" "$pairs.$target"; do
  [ -r "$file" ] || { echo "distillation.sh: cannot read $file." >&2; exit 1; }
done

# shellcheck disable=SC2086 # one word per model, and per flag
vanilla-transformer translate $teacher --input_files "$pairs.$source" --output_dir "$out/translated" \
  --source_lang "$source" --target_lang "$target" ${TRANSLATE_FLAGS:-} >&2
vanilla-transformer train --train_file "$pairs" "$out/translated" --source_lang "$source" --target_lang "$target" "$@" \
  --output_dir "$out/model"
