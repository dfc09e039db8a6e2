#!/usr/bin/env bash
# Sequence-level distillation (Kim and Rush 2016): a model learns from what a better one makes of the sources, beside the
# references. TEACHER may be several models in quotes: they translate as an ensemble.
#
#   bash scripts/recipes/distillation.sh TEACHER data/multi30k/train en de OUT [flags of train: --preset tiny ...]
set -euo pipefail
[ $# -ge 5 ] || { sed -n '2,5s/^# //p' "$0" >&2; exit 2; }
teacher=$1 pairs=$2 source=$3 target=$4 out=$5
shift 5
for file in "$pairs.$source" "$pairs.$target"; do
  [ -r "$file" ] || { echo "There is no text $file." >&2; exit 1; }
done

mkdir -p "$out"
if [ ! -e "$out/text.$target" ]; then
  # shellcheck disable=SC2086 # several models are several words
  vanilla-transformer translate $teacher <"$pairs.$source" >"$out/translations"
  awk 1 "$pairs.$source" "$pairs.$source" >"$out/text.$source" # as cat, but every line ends
  awk 1 "$pairs.$target" "$out/translations" >"$out/text.$target.unfinished"
  mv "$out/text.$target.unfinished" "$out/text.$target"
fi
vanilla-transformer train --train_file "$out/text" --source_lang "$source" --target_lang "$target" "$@" \
  --output_dir "$out/model"
