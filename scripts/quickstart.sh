#!/usr/bin/env bash
# Install the package, then train, evaluate and use a translation model. Requires Python 3.10+ and pip; takes less than
# 5 minutes.
set -euo pipefail
cd "$(dirname "$0")/.."

bash scripts/install.sh
out=out/quickstart
rm -rf "$out" # always start from scratch

echo "== Train the tiny preset on the built-in English-German phrases"
.venv/bin/vanilla-transformer train scripts/recipes/phrases.yaml --bf16 auto --logging_steps 200 --eval_steps 700 \
  --output_dir "$out/run"
.venv/bin/vanilla-transformer average "$out/run" --last 5 --output_dir "$out"

echo "== Evaluate on held-out phrases"
# The JSON goes to the file, and the table of scores to the terminal, if there is one
.venv/bin/vanilla-transformer evaluate "$out" > "$out/evaluation.json"
[ -t 2 ] || cat "$out/evaluation.json"

echo "== Translate"
sentences='Today the children must help the teacher.
He says that the small dog sees a cat.
Where do your friends live?'
translations=$(echo "$sentences" | .venv/bin/vanilla-transformer translate "$out")
paste -d'\n' <(echo "$sentences") <(echo "$translations")

echo "== Load the model with transformers"
.venv/bin/python - "$out" <<'PYTHON'
import sys

from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import hf_vanilla_transformer  # registers the model with transformers

model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(sys.argv[1]), AutoTokenizer.from_pretrained(sys.argv[1])
output = model.generate(**tokenizer("The young woman sees the old house.", return_tensors="pt"))
print(type(model).__name__)
print(tokenizer.decode(output[0], skip_special_tokens=True))
PYTHON

echo "== To use it yourself: source .venv/bin/activate, then vanilla-transformer translate $out"
