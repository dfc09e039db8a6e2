#!/usr/bin/env bash
# Data diversification (Nguyen et al. 2020), with an ensemble: two models of the given direction and one of the opposite
# direction translate their own training text, and a model of the same size is trained on the given pairs and on those
# of the first model, the second, both as an ensemble, and the backward model. No other text is needed. Run the command
# again to resume. The train flags may begin with a recipe; they cannot choose the kind of tokenizer. TRANSLATE_FLAGS may
# hold further flags for `translate`.
#
#   bash scripts/recipes/diversification.sh data/multi30k/train en de OUT [train flags: --preset tiny ...]
set -euo pipefail
[ $# -ge 4 ] || { sed -n '2,8s/^# //p' "$0" >&2; exit 2; }
pairs=$1 source=$2 target=$3 out=$4
shift 4
for file in "$pairs.$source" "$pairs.$target"; do
  [ -r "$file" ] || { echo "diversification.sh: cannot read $file." >&2; exit 1; }
done

train() { # NAME SOURCE TARGET SEED [flags]
  vanilla-transformer train ${flags[@]+"${flags[@]}"} --train_file "$pairs" --source_lang "$2" --target_lang "$3" \
    --seed "$4" --output_dir "$out/$1" "${@:5}"
}
translate() { # NAME SIDE MODEL...
  # shellcheck disable=SC2086 # TRANSLATE_FLAGS are words
  vanilla-transformer translate "${@:3}" --input_files "$pairs.$2" --output_dir "$out/$1" ${TRANSLATE_FLAGS:-} >&2
}
flags=("$@")
train first "$source" "$target" 42
train second "$source" "$target" 43 --tokenizer_name "$out/first" # an ensemble has one vocabulary
train backward "$target" "$source" 42 --tokenizer_name "$out/first"
translate by-first "$source" "$out/first"
translate by-second "$source" "$out/second"
translate by-both "$source" "$out/first" "$out/second"
translate by-backward "$target" "$out/backward"
train model "$source" "$target" 44 --tokenizer_name "$out/first" \
  --train_file "$pairs" "$out/by-first" "$out/by-second" "$out/by-both" "$out/by-backward"
