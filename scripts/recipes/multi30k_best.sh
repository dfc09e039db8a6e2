#!/usr/bin/env bash
# The best small model of Multi30k, in either direction, from nothing but its 29,000 pairs:
#
#   bash scripts/get_multi30k.sh
#   bash scripts/recipes/multi30k_best.sh data/multi30k en de OUT
#
# trains OUT/model in about 4 hours on 2 CPU cores, or in 3 hours with `--bf16 --use_cpu` if they have native bfloat16,
# up to two models at a time. Two models translate the training text as an ensemble, and the first continues training on
# their translations (Kim and Rush 2016). A model of the opposite direction translates the text back (Sennrich et al. 2016),
# and training continues on that, too. The length penalty is chosen on val, unless one is given. Run the command again to
# resume. Further arguments are flags for `train`, for all five models (no texts, no other kind of tokenizer). The output
# of background training is in OUT/*.log.
set -euo pipefail
[ $# -ge 4 ] || { sed -n '2,12s/^# \{0,1\}//p' "$0" >&2; exit 2; }
text=$1 source=$2 target=$3 out=$4
flags=("${@:5}")
for file in "$text"/{train,val}."$source" "$text"/{train,val}."$target"; do
  [ -r "$file" ] || { echo "multi30k_best.sh: cannot read $file." >&2; exit 1; }
done
mkdir -p "$out"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
trap 'kill $(jobs -p) 2>/dev/null && wait || true' EXIT # training saves a checkpoint then

train() { # NAME SOURCE TARGET SEED UPDATES [flags]
  ${launch-} vanilla-transformer train --preset tiny --max_tokens 2048 --lr_scheduler_type cosine --adam_epsilon 1e-8 \
    --ema_decay 0.999 --num_beams 5 --length_penalty 1.4 --generation_num_beams 1 --bleu_tokenize none \
    --eval_steps 600 --save_steps 600 --save_total_limit 2 \
    --source_lang "$2" --target_lang "$3" --seed "$4" --max_steps "$5" \
    --train_file "$text/train" --validation_file "$text/val" --output_dir "$out/$1" "${@:6}" ${flags[@]+"${flags[@]}"}
}
start() { # NAME SOURCE TARGET SEED UPDATES FLAGS: a model from nothing
  train "$@" --learning_rate 0.003 --warmup_steps 800 --dropout 0.2
}
continue_training() { # NAME FROM SEED UPDATES TEXT...
  train "$1" "$source" "$target" "$3" "$4" --model_name_or_path "$out/$2" --train_file "$text/train" "${@:5}" \
    --learning_rate 0.0015 --warmup_steps 300 --dropout 0.15
}
background() { # FUNCTION NAME ...
  (launch=exec && "$@") >>"$out/$2.log" 2>&1 & # exec, so that the trap ends the training itself
}
await() { # NAME
  wait $! || { echo "multi30k_best.sh: $1 failed; the end of $out/$1.log:" && tail -n 3 "$out/$1.log"; exit 1; } >&2
}
translate() { # NAME SIDE MODEL...
  vanilla-transformer translate "${@:3}" --input_files "$text/train.$2" --output_dir "$out/$1" --length_penalty 1.0 \
    --shard_lines 1000 >&2
}

background start second "$source" "$target" 43 7200
start first "$source" "$target" 42 6000 --d_ff 512
await second
translate forward "$source" "$out/first" "$out/second"
background start backward "$target" "$source" 46 4800
continue_training student first 44 6600 "$out/forward"
await backward
translate back "$target" "$out/backward"
continue_training model student 47 9600 "$out/forward" "$out/back"
[[ " ${flags[*]-}" == *" --length"[-_]"penalty"* ]] ||
  python3 "$(dirname "$0")/choose_length_penalty.py" "$out/model" --validation_file "$text/val"
