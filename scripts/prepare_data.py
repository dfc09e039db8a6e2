"""Tokenises parallel text larger than memory once, into Arrow shards that `train --train_file FOLDER` reads.

python scripts/prepare_data.py data/europarl data/news.jsonl.gz --source_lang en --target_lang de --output_dir prepared
python scripts/prepare_data.py --dataset_name wmt/wmt14 --dataset_config_name de-en --source_lang en \\
  --target_lang de --output_dir prepared

In parallel and in constant memory. Cut off, it goes on where it was when it is started again.
"""

import argparse
import json
import sys

from tqdm import tqdm
from transformers import AutoTokenizer

from hf_vanilla_transformer.data.cleaning import Cleaning
from hf_vanilla_transformer.data.preparation import Preparation, prepare
from hf_vanilla_transformer.data.readers import HubRows
from hf_vanilla_transformer.model.loading import load
from hf_vanilla_transformer.training.safeguards import explain_failures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "files", nargs="*", metavar="P", help="Moses prefixes, .jsonl, .tsv, .csv (.gz, .zst), .parquet"
    )
    parser.add_argument("--dataset_name", help="a data set of the Hub instead, streamed")
    parser.add_argument("--dataset_config_name", help="its configuration")
    parser.add_argument("--source_lang", required=True)
    parser.add_argument("--target_lang", required=True)
    parser.add_argument("--output_dir", required=True)
    parser.add_argument(
        "--tokenizer_name", help="a tokenizer to use; else one is learned from the first million pairs"
    )
    parser.add_argument("--vocab_size", type=int, default=37_000, help="of the one that is learned (default: 37000)")
    parser.add_argument("--max_tokens", type=int, default=25_000, help="longer sentences are dropped (default: 25000)")
    parser.add_argument("--max_sentence_tokens", type=int, default=256, help="longest side of a pair (default: 256)")
    parser.add_argument(
        "--max_length_ratio", type=float, default=4.0, help="of the longer side to the other (default: 4)"
    )
    parser.add_argument("--no_clean", action="store_true", help="drop only what cannot be used")
    parser.add_argument("--shard_pairs", type=int, default=100_000, help="pairs read for one shard (default: 100000)")
    parser.add_argument("--num_workers", type=int, help="processes (default: one for each core)")
    args = parser.parse_args()
    if bool(args.files) == bool(args.dataset_name):
        parser.error("give either files or --dataset_name")
    languages = (args.source_lang, args.target_lang)
    cleaning = None if args.no_clean else Cleaning(args.max_sentence_tokens, args.max_length_ratio)
    try:
        sources = args.files or HubRows(args.dataset_name, args.dataset_config_name, languages)
        tokenizer = load(AutoTokenizer, args.tokenizer_name) if args.tokenizer_name else None
        with explain_failures(), tqdm(unit=" pairs", unit_scale=True, desc="Preparing") as bar:
            preparation = Preparation(languages, args.vocab_size, args.max_tokens, cleaning, args.shard_pairs)
            manifest = prepare(sources, preparation, args.output_dir, tokenizer, args.num_workers, bar.update)
    except (ValueError, OSError) as error:
        sys.exit(f"prepare_data.py: {error}")
    print(
        json.dumps({name: value for name, value in manifest.items() if name not in ("settings", "shards")}, indent=2)
    )


if __name__ == "__main__":
    main()
