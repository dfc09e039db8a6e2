"""What `vanilla-transformer train` and `accelerate launch scripts/train.py` run: from text to a model folder."""

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from datasets import Dataset
from transformers import AutoTokenizer, HfArgumentParser, set_seed

from .arguments import DataArguments, ModelArguments, VanillaTransformerTrainingArguments
from .data import describe_drops, load_pairs, tokenize_pairs
from .modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from .phrases import splits
from .presets import paper_config, preset
from .tokenizer import train_tokenizer
from .trainer import VanillaTransformerTrainer


def parse_arguments(
    argv: Sequence[str],
) -> tuple[ModelArguments, DataArguments, VanillaTransformerTrainingArguments]:
    """Flags win over the preset, the preset over the defaults. Wrong flags end the program with status 2."""
    types: Any = (ModelArguments, DataArguments, VanillaTransformerTrainingArguments)
    known: Any = HfArgumentParser(types[:2], add_help=False)
    model, data, _ = known.parse_args_into_dataclasses(list(argv), return_remaining_strings=True)
    parser: Any = HfArgumentParser(
        types,
        prog="vanilla-transformer train",
        description="Train the original Transformer on parallel text.",
    )
    next(action for action in parser._actions if action.dest == "output_dir").required = True
    parser.set_defaults(**preset(model.preset).training)
    if data.validation_file or not data.train_file:
        parser.set_defaults(eval_strategy="steps")
    return parser.parse_args_into_dataclasses(list(argv))


def _read(data: DataArguments) -> dict[str, Dataset]:
    """The pairs of "train" and, where there are any, of "validation": the files named, or the built-in phrases."""
    if data.train_file is None:
        columns = {"source": data.source_lang, "target": data.target_lang}
        if sorted(columns.values()) != ["de", "en"]:
            raise ValueError(
                "The built-in phrases are English and German (en, de); other languages need --train_file."
            )
        phrases = splits()
        return {
            name: Dataset.from_dict(
                {column: [getattr(phrase, lang) for phrase in phrases[name]] for column, lang in columns.items()}
            )
            for name in ("train", "validation")
        }
    files = {"train": data.train_file, "validation": data.validation_file}
    return {name: load_pairs(file, data.source_lang, data.target_lang) for name, file in files.items() if file}


def _texts(pairs: Dataset) -> Iterator[str]:
    for batch in pairs.iter(1000):
        yield from batch["source"]
        yield from batch["target"]


def run_train(
    model_arguments: ModelArguments, data: DataArguments, args: VanillaTransformerTrainingArguments
) -> VanillaTransformerTrainer:
    """Trains a tokenizer and a model from nothing and leaves both in `args.output_dir`.

    Raises:
        ValueError: for data or settings that cannot be used, saying which and why.
    """

    def report(message: str) -> None:
        if args.process_index == 0:
            print(message, file=sys.stderr, flush=True)

    assert args.output_dir is not None  # transformers has set it where nobody else has
    set_seed(args.seed)
    languages = {"source_lang": data.source_lang, "target_lang": data.target_lang}
    config = paper_config(model_arguments.preset, **model_arguments.overrides(), **languages)
    with args.main_process_first(desc="reading the text"):
        pairs = _read(data)
        if args.process_index == 0:
            report(f"Learning a joint vocabulary of up to {config.vocab_size:,} tokens ...")
            train_tokenizer(_texts(pairs["train"]), config.vocab_size).save_pretrained(args.output_dir)
        tokenizer = AutoTokenizer.from_pretrained(args.output_dir)
        tokens = {}
        for name, split in pairs.items():
            tokens[name], drops = tokenize_pairs(split, tokenizer, args.max_tokens)
            report(f"{name}: {len(tokens[name]):,} pairs; dropped: {describe_drops(drops)}")

    config.vocab_size = len(tokenizer)
    model = VanillaTransformerForConditionalGeneration(config)
    report(f"{model.num_parameters():,} parameters, a vocabulary of {len(tokenizer):,}")
    trainer = VanillaTransformerTrainer(
        model,
        args,
        train_dataset=tokens["train"],
        eval_dataset=tokens.get("validation"),
        processing_class=tokenizer,
    )
    trainer.train()
    trainer.save_model()
    trainer.save_state()
    report(f"The model and its tokenizer are in {args.output_dir}")
    return trainer
