#!/usr/bin/env bash
# Sequence-level distillation (Kim and Rush 2016): a model learns from what a better one makes of the sources, beside the
# references. TEACHER may be several models in quotes: they translate as an ensemble.
#
#   bash scripts/recipes/distillation.sh TEACHER multi30k/tok/train en de OUT [flags of train: --preset tiny ...]
set -euo pipefail
teacher=$1 pairs=$2 source=$3 target=$4 out=$5
shift 5

mkdir -p "$out"
if [ ! -e "$out/text.$target" ]; then
  # shellcheck disable=SC2086 # several models are several words
  vanilla-transformer translate $teacher <"$pairs.$source" >"$out/translations"
  cat "$pairs.$source" "$pairs.$source" >"$out/text.$source"
  cat "$pairs.$target" "$out/translations" >"$out/text.$target.unfinished"
  mv "$out/text.$target.unfinished" "$out/text.$target"
fi
vanilla-transformer train --train_file "$out/text" --source_lang "$source" --target_lang "$target" "$@" \
  --output_dir "$out/model"
