"""Read, clean and tokenise the text of a run, and learn a vocabulary if none is given."""

from collections.abc import Callable, Iterator
from typing import Any

from datasets import Dataset
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from ..data.cleaning import Cleaning, describe_drops, tokenize_pairs
from ..data.hub_datasets import load_hub_pairs
from ..data.phrases import splits
from ..data.readers import load_pairs
from ..data.shards import ShardStream, check_prepared_languages, is_prepared, load_shards
from ..data.tokenizer import train_tokenizer
from ..model.loading import load
from .arguments import DataArguments, ModelArguments, VanillaTransformerTrainingArguments


def read_pairs(data: DataArguments, languages: tuple[str, str]) -> dict[str, Dataset]:
    """Return the pairs of "train" and, if there is any, "validation" text; prepared folders are not read.

    Raises:
        ValueError: if a text cannot be read or does not contain both languages.
    """
    pairs: dict[str, Dataset] = {}
    if data.dataset_name:
        wanted = ("train",) if data.validation_file else ("train", "validation")
        pairs = load_hub_pairs(data.dataset_name, data.dataset_config_name, *languages, wanted)
    elif data.train_file is None:
        if sorted(languages) != ["de", "en"]:
            raise ValueError(
                "The built-in phrases are English and German (en, de); other languages need --train_file."
            )
        phrases = splits()
        for name in ("train", "validation"):
            source, target = ([getattr(phrase, language) for phrase in phrases[name]] for language in languages)
            pairs[name] = Dataset.from_dict({"source": source, "target": target})
    if is_prepared(data.validation_file):
        raise ValueError(f"--validation_file {data.validation_file}: a prepared folder cannot be used for validation.")
    for name, file in {"train": data.train_file, "validation": data.validation_file}.items():
        if file and not is_prepared(file):
            pairs[name] = load_pairs(file, *languages)
    if "train" not in pairs and not is_prepared(data.train_file):
        raise ValueError(f"{data.dataset_name} has no train split.")
    return pairs


def tokenize_text(
    model: ModelArguments,
    data: DataArguments,
    args: VanillaTransformerTrainingArguments,
    config: Any,
    tokenizer_path: str | None,
    report: Callable[[str], None],
) -> tuple[PreTrainedTokenizerBase, dict[str, Any]]:
    """Return the tokenizer and the tokenised "train" and, if there is any, "validation" text.

    Args:
        tokenizer_path: the tokenizer to load; if None, one is learned from the training text and saved in
            `args.output_dir`.
        report: called with each message for the user.
    """
    cleaning = Cleaning(data.max_sentence_tokens, data.max_length_ratio) if data.clean else None
    languages, folder = (config.source_lang, config.target_lang), str(args.output_dir)
    with args.main_process_first(desc="reading the text"):
        pairs = read_pairs(data, languages)
        if args.process_index == 0 and not tokenizer_path:
            exact = model.vocab_size is not None
            _learn_tokenizer(pairs["train"], config.vocab_size, exact, report).save_pretrained(folder)
        tokenizer = load(AutoTokenizer, tokenizer_path or folder)
        tokens: dict[str, Any] = {}
        if data.train_file and is_prepared(data.train_file):
            tokens["train"] = _load_prepared(data.train_file, data.streaming, args)
            check_prepared_languages(data.train_file, languages)
            report(f"train: {count_pairs(tokens['train']):,} prepared pairs")
        for name, split in pairs.items():
            tokens[name], drops = tokenize_pairs(
                split, tokenizer, args.max_tokens, cleaning if name == "train" else None
            )
            report(f"{name}: {len(tokens[name]):,} of {len(split):,} pairs; dropped: {describe_drops(drops)}")
    return tokenizer, tokens


def _load_prepared(folder: str, streaming: bool, args: VanillaTransformerTrainingArguments) -> Dataset | ShardStream:
    if not streaming:
        return load_shards(folder)
    seed = args.seed if args.data_seed is None else args.data_seed
    return ShardStream(folder, args.max_tokens, seed, args.process_index, args.world_size)


def count_pairs(tokens: Dataset | ShardStream) -> int:
    """Return the number of pairs in tokenised text, streamed or not."""
    return tokens.pairs if isinstance(tokens, ShardStream) else len(tokens)


def _learn_tokenizer(
    pairs: Dataset, vocab_size: int, exact: bool, report: Callable[[str], None]
) -> PreTrainedTokenizerBase:
    """Learn a joint vocabulary from the training text.

    Raises:
        ValueError: if the size must be `exact` but the text allows only a smaller vocabulary.
    """
    report(f"Learning a joint vocabulary of {vocab_size:,} tokens ...")
    tokenizer = train_tokenizer(_texts(pairs), vocab_size)
    if len(tokenizer) < vocab_size:
        message = f"The training text allows a vocabulary of {len(tokenizer):,} tokens, not of {vocab_size:,}"
        if exact:
            raise ValueError(f"{message}; set --vocab_size to at most {len(tokenizer)}.")
        report(f"{message} as in the preset.")
    return tokenizer


def _texts(pairs: Dataset) -> Iterator[str]:
    for batch in pairs.iter(1000):
        for column in ("source", "target"):
            yield from (text for text in batch[column] if text)
