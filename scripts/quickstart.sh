#!/usr/bin/env bash
# From a fresh clone to a trained, evaluated and used translation model. Needs Python 3.10+ and pip; takes under 8 minutes.
set -euo pipefail
cd "$(dirname "$0")/.."

bash scripts/install.sh
out=${1:-out/quickstart}
rm -rf "$out" # a quickstart starts from nothing, also the second time

echo "== Train the tiny preset on the built-in English-German phrases"
.venv/bin/vanilla-transformer train --preset tiny --dropout 0.1 --vocab_size 1500 --max_steps 700 --save_steps 350 \
  --output_dir "$out"

echo "== Evaluate on held-out phrases, and on those with combinations that training never showed"
.venv/bin/vanilla-transformer evaluate "$out" | tee "$out/evaluation.json"

echo "== Translate"
sentences='The old man reads a book.
She does not buy the red car.
Today the children must help the teacher.
He says that the small dog sees a cat.
Where do the four women live?'
paste -d'\n' <(echo "$sentences") <(echo "$sentences" | .venv/bin/vanilla-transformer translate "$out")

echo "== Load it with transformers alone"
.venv/bin/python - "$out" <<'PYTHON'
import sys

from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import hf_vanilla_transformer  # registers the model

model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(sys.argv[1]), AutoTokenizer.from_pretrained(sys.argv[1])
output = model.generate(**tokenizer("The young woman sees the old house.", return_tensors="pt"))
print(type(model).__name__, "->", tokenizer.decode(output[0], skip_special_tokens=True))
PYTHON
