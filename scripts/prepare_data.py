"""Tokenise parallel text larger than memory, once, into Arrow shards for `train --train_file FOLDER`.

python scripts/prepare_data.py data/europarl data/news.jsonl.gz --source_lang en --target_lang de --output_dir prepared
python scripts/prepare_data.py --dataset_name wmt/wmt14 --dataset_config_name de-en --source_lang en \\
  --target_lang de --output_dir prepared

Runs in parallel and in constant memory. After an interruption, the same command resumes.
"""

import argparse
import json
import sys

from tqdm import tqdm
from transformers import AutoTokenizer

from hf_vanilla_transformer.data.cleaning import Cleaning
from hf_vanilla_transformer.data.hub_datasets import HubRows
from hf_vanilla_transformer.data.language_filter import check_known
from hf_vanilla_transformer.data.preparation import Preparation, prepare
from hf_vanilla_transformer.data.tokenizer import adapt_tokenizer
from hf_vanilla_transformer.model.loading import load
from hf_vanilla_transformer.training.safeguards import explain_failures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "files",
        nargs="*",
        metavar="PATH",
        help="Moses prefixes, .jsonl, .tsv or .csv files (also compressed as .gz or .zst), .parquet files",
    )
    parser.add_argument("--dataset_name", help="instead of files, a dataset on the Hub, streamed")
    parser.add_argument("--dataset_config_name", help="configuration of the dataset")
    parser.add_argument("--source_lang", required=True, help="source language, named as in the text")
    parser.add_argument("--target_lang", required=True, help="target language, named as in the text")
    parser.add_argument("--output_dir", required=True, help="folder for the shards")
    parser.add_argument("--tokenizer_name", help="tokenizer to use (default: train one on the first million pairs)")
    parser.add_argument("--vocab_size", type=int, default=37_000, help="size of a trained tokenizer (default: 37000)")
    parser.add_argument(
        "--max_tokens", type=int, default=25_000, help="drop pairs longer than a batch of this size (default: 25000)"
    )
    parser.add_argument(
        "--max_sentence_tokens", type=int, default=256, help="drop pairs with a longer side (default: 256)"
    )
    parser.add_argument(
        "--max_length_ratio",
        type=float,
        default=4.0,
        help="drop pairs with a higher ratio of the longer side to the shorter (default: 4)",
    )
    parser.add_argument(
        "--filter_language", action="store_true", help="drop pairs that are in other languages (extra: clean)"
    )
    parser.add_argument("--no_clean", action="store_true", help="drop only unusable pairs")
    parser.add_argument("--shard_pairs", type=int, default=100_000, help="pairs read per shard (default: 100000)")
    parser.add_argument("--num_workers", type=int, help="number of processes (default: one per core)")
    args = parser.parse_args()
    if bool(args.files) == bool(args.dataset_name):
        parser.error("give either files or --dataset_name, not both")
    languages = (args.source_lang, args.target_lang)
    if args.filter_language and args.no_clean:
        parser.error("give either --filter_language or --no_clean, not both")
    try:
        if args.filter_language:
            check_known(*languages)
        limits = (args.max_sentence_tokens, args.max_length_ratio, languages if args.filter_language else None)
        cleaning = None if args.no_clean else Cleaning(*limits)
        sources = args.files or HubRows(args.dataset_name, args.dataset_config_name, languages)
        tokenizer = load(AutoTokenizer, args.tokenizer_name) if args.tokenizer_name else None
        if tokenizer:
            adapt_tokenizer(tokenizer, args.tokenizer_name)
        with explain_failures(), tqdm(unit=" pairs", unit_scale=True, desc="Preparing") as bar:
            preparation = Preparation(languages, args.vocab_size, args.max_tokens, cleaning, args.shard_pairs)
            manifest = prepare(sources, preparation, args.output_dir, tokenizer, args.num_workers, bar.update)
    except (ValueError, OSError, ImportError) as error:
        sys.exit(f"prepare_data.py: {error}")
    summary = {name: value for name, value in manifest.items() if name not in ("settings", "shards")}
    print(json.dumps(summary, indent=2))


if __name__ == "__main__":
    main()
