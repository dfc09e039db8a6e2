#!/usr/bin/env bash
# Back-translation (Sennrich et al. 2016): train a model of the opposite direction, translate monolingual text in the
# target language with it, and train on the given pairs together with the translated ones, whose sources start with the
# tag <bt> (Caswell et al. 2019). With SAMPLE=1, translations are sampled instead of greedy (Edunov et al. 2018).
# TRANSLATE_FLAGS may hold further flags for `translate`, such as "--ray auto".
#
#   bash scripts/recipes/back_translation.sh data/train data/alone.de en de OUT [train flags: --preset tiny ...]
set -euo pipefail
[ $# -ge 5 ] || { sed -n '2,7s/^# //p' "$0" >&2; exit 2; }
pairs=$1 text=$2 source=$3 target=$4 out=$5
shift 5
for file in "$pairs.$source" "$pairs.$target" "$text"; do
  [ -r "$file" ] || { echo "back_translation.sh: cannot read $file." >&2; exit 1; }
done

vanilla-transformer train --train_file "$pairs" --source_lang "$target" --target_lang "$source" "$@" \
  --output_dir "$out/backwards"
# shellcheck disable=SC2086 # TRANSLATE_FLAGS are words
vanilla-transformer translate "$out/backwards" --input_files "$text" --output_dir "$out/synthetic" --num_beams 1 \
  ${SAMPLE:+--do_sample --top_k 10} ${TRANSLATE_FLAGS:-} >&2
vanilla-transformer train --train_file "$pairs" "$out/synthetic" --source_tag "" "<bt>" --source_lang "$source" \
  --target_lang "$target" "$@" --output_dir "$out/model"
