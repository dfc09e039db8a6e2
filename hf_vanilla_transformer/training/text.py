"""Read, clean and tokenise the text of a run, and learn a vocabulary if none is given."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from ..data.bpe_dropout import BpeDropout
from ..data.cleaning import Cleaning, describe_drops, tokenize_pairs
from ..data.formats import names_languages
from ..data.hub_datasets import load_hub_pairs
from ..data.language_filter import check_known
from ..data.mixture import Mixture, TokenSource
from ..data.phrases import splits
from ..data.readers import load_directed_pairs, load_pairs
from ..data.sampling import temperature_weights
from ..data.shards import ShardStream, check_prepared_languages, is_prepared, load_shards, read_manifest
from ..data.tags import add_tags, prefix_ids
from ..data.tokenizer import adapt_tokenizer, train_tokenizer
from ..model.loading import load
from ..model.text_rules_vanilla_transformer import parse_language_pair
from .arguments import DataArguments, ModelArguments, VanillaTransformerTrainingArguments
from .sources import Languages, TextSource, all_tags, language_pairs, text_sources


@dataclass
class Text:
    """Parallel text in one direction.

    Args:
        source: where it comes from; its languages are set.
        pairs: the text; None for a prepared folder.
    """

    source: TextSource
    pairs: Dataset | None

    @property
    def languages(self) -> Languages:
        """Return source and target language."""
        assert self.source.languages is not None
        return self.source.languages


@dataclass
class TokenizedText:
    """The text of a run as token ids.

    Args:
        train: rows for `VanillaTransformerTrainer`.
        validation: a dataset, or several by name; None if there is no validation text.
        sources: what the card says about each source of training text.
        directions: the direction of each validation text by name.
    """

    tokenizer: PreTrainedTokenizerBase
    train: Any = None
    validation: Any = None
    sources: list[dict[str, Any]] = field(default_factory=list)
    directions: dict[str, str] = field(default_factory=dict)

    @property
    def num_pairs(self) -> int:
        """Return the number of training pairs, streamed or not."""
        return self.train.pairs if isinstance(self.train, ShardStream) else len(self.train)


def read_texts(data: DataArguments, directions: list[Languages]) -> tuple[list[Text], list[Text]]:
    """Return the training texts and the validation texts; prepared folders are not read.

    Args:
        directions: the directions of the run.

    Raises:
        ValueError: if a text cannot be read or does not contain both languages.
    """
    training: list[Text] = []
    validation: list[Text] = []
    sources = text_sources(data)
    for source in sources:
        train, held_out = _read_source(source, directions, data.validation_file is None)
        training += train
        validation += held_out
    for source in _validation_sources(data, sources, directions):
        if is_prepared(source.file):
            raise ValueError(f"--validation_file {source.file}: a prepared folder cannot be used for validation.")
        validation += _read_file(source, directions)
    return training, validation


def _validation_sources(
    data: DataArguments, sources: list[TextSource], directions: list[Languages]
) -> list[TextSource]:
    """Return the validation files: one for each source, or one for every direction."""
    files = data.validation_file or []
    if len(files) == 1:
        languages: list[Languages | None] = [None] if names_languages(files[0]) else [*directions]
        files = files * len(languages)
    elif len(files) == len(sources):
        languages = [source.languages for source in sources]
    elif files:
        raise ValueError(
            f"--validation_file takes one value per source ({len(sources)}), or one for all, but has {len(files)}."
        )
    return [
        TextSource(Path(file).name, file, None, pair, None, None)
        for file, pair in zip(files, languages if files else [], strict=True)
    ]


def _read_source(
    source: TextSource, directions: list[Languages], with_validation: bool
) -> tuple[list[Text], list[Text]]:
    """Return the texts of a source for training and, if requested and if there is any, for validation."""
    if source.file:
        return ([Text(source, None)] if source.is_prepared else _read_file(source, directions)), []
    wanted = ("train", "validation") if with_validation else ("train",)
    assert source.languages is not None
    if source.dataset:
        found = load_hub_pairs(*source.dataset, *source.languages, wanted)
        if "train" not in found:
            raise ValueError(f"{source.dataset[0]} has no train split.")
    else:
        if sorted(source.languages) != ["de", "en"]:
            raise ValueError(
                "The built-in phrases are English and German (en, de); other languages need --train_file."
            )
        found = {}
        for name in wanted:
            sides = [[getattr(phrase, language) for phrase in splits()[name]] for language in source.languages]
            found[name] = Dataset.from_dict(dict(zip(("source", "target"), sides, strict=True)))
    texts = {name: [Text(source, pairs)] for name, pairs in found.items()}
    return texts["train"], texts.get("validation", [])


def _read_file(source: TextSource, directions: list[Languages]) -> list[Text]:
    assert source.file is not None
    if source.languages:
        return [Text(source, load_pairs(source.file, *source.languages))]
    found = load_directed_pairs(source.file, tuple(map("-".join, directions)))
    return [Text(replace(source, languages=parse_language_pair(name)), pairs) for name, pairs in found.items()]


def tokenize_text(
    model: ModelArguments,
    data: DataArguments,
    args: VanillaTransformerTrainingArguments,
    config: Any,
    tokenizer_path: str | None,
    report: Callable[[str], None],
) -> TokenizedText:
    """Return the tokenised text of a run, and its tokenizer.

    Args:
        tokenizer_path: the tokenizer to load; if None, one is learned from the training text and saved in
            `args.output_dir`.
        report: called with each message for the user.
    """
    directions = language_pairs(data) or [(config.source_lang, config.target_lang)]
    tags = all_tags(config, text_sources(data))
    if data.bpe_dropout and model.tokenizer_model != "bpe":
        raise ValueError("--bpe_dropout needs --tokenizer_model bpe.")
    with args.main_process_first(desc="reading the text"):
        training, validation = read_texts(data, directions)
        if data.filter_language:
            check_known(*(language for text in training for language in text.languages))
        if args.process_index == 0 and not tokenizer_path:
            tokenizer = _learn_tokenizer([text.pairs for text in training if text.pairs], model, config, tags, report)
            tokenizer.save_pretrained(str(args.output_dir))
    args.distributed_state.wait_for_everyone()  # process 0, which saves the tokenizer, may be on another machine
    with args.main_process_first(desc="tokenising the text"):
        tokenizer = load(AutoTokenizer, tokenizer_path or str(args.output_dir))
        adapt_tokenizer(tokenizer, tokenizer_path or "just learned")
        add_tags(tokenizer, tags)
        result = TokenizedText(tokenizer)
        text = _Tokenizing(data, args, config, tokenizer, report)
        result.train, result.sources = text.training(training)
        result.validation = text.validation(validation)
        names = _names(validation) if len(validation) > 1 else ["" for _ in validation]
        result.directions = {name: "-".join(each.languages) for name, each in zip(names, validation, strict=True)}
    return result


@dataclass
class _Tokenizing:
    """Tokenise the texts of a run with its settings."""

    data: DataArguments
    args: VanillaTransformerTrainingArguments
    config: Any
    tokenizer: PreTrainedTokenizerBase
    report: Callable[[str], None]

    @property
    def seed(self) -> int:
        """Return the seed of everything that is random in the text."""
        return self.args.seed if self.args.data_seed is None else self.args.data_seed

    def training(self, texts: list[Text]) -> tuple[Any, list[dict[str, Any]]]:
        """Return the training rows, and what the card says about each text."""
        sources, counts = [], []
        if self.data.streaming:
            return self._stream(texts)
        for text in texts:
            prefix = self._prefix(text, text.source.tag)
            name = "train" if len(texts) == 1 else f"train, {_describe(text)}"
            if text.pairs is None:
                tokens, count = self._load_prepared(text, name)
            else:
                tokens, count = self._tokenize(text, name, prefix, clean=self.data.clean)
            sources.append(TokenSource(name, tokens, prefix, text.source.weight or 1.0))
            counts.append({**count, "direction": "-".join(text.languages), "tag": text.source.tag})
        if self.data.sampling_temperature:
            weights = temperature_weights([len(source.tokens) for source in sources], self.data.sampling_temperature)
            sources = [replace(source, weight=weight) for source, weight in zip(sources, weights, strict=True)]
        for source, count in zip(sources, counts, strict=True):
            count["weight"] = round(source.weight, 4)
        dropout = None
        if self.data.bpe_dropout:
            dropout = BpeDropout(self.tokenizer, self.data.bpe_dropout, self.seed)
        if dropout is None and len(sources) == 1 and not sources[0].prefix and sources[0].weight == 1.0:
            return sources[0].tokens, counts
        return Mixture(sources, dropout), counts

    def validation(self, texts: list[Text]) -> Any:
        """Return the validation text, or several by name, or None."""
        found: dict[str, Dataset] = {}
        for text, name in zip(texts, _names(texts), strict=True):
            label = "validation" if len(texts) == 1 else f"validation, {name}"
            prefix = self._prefix(text, None)
            tokens, _ = self._tokenize(text, label, prefix, clean=False)
            found[name] = _with_prefix(tokens, prefix)
        return next(iter(found.values()), None) if len(found) < 2 else found

    def _prefix(self, text: Text, tag: str | None) -> list[int]:
        source_lang, target_lang = text.languages
        return prefix_ids(self.config, self.tokenizer, source_lang, target_lang, tag)

    def _tokenize(self, text: Text, name: str, prefix: list[int], clean: bool) -> tuple[Dataset, dict[str, Any]]:
        data, pairs = self.data, text.pairs
        assert pairs is not None
        languages = text.languages if data.filter_language else None
        cleaning = Cleaning(data.max_sentence_tokens, data.max_length_ratio, languages) if clean else None
        limit = self.args.max_tokens
        if self.config.position_embedding == "learned":
            limit = min(limit, self.config.max_position_embeddings)
        tokens, drops = tokenize_pairs(pairs, self.tokenizer, limit - len(prefix), cleaning)
        self.report(f"{name}: {len(tokens):,} of {len(pairs):,} pairs; dropped: {describe_drops(drops)}")
        return tokens, _count(text, len(tokens), len(pairs), drops)

    def _load_prepared(self, text: Text, name: str) -> tuple[Dataset, dict[str, Any]]:
        folder = str(text.source.file)
        self._check_prepared(folder, text.languages)
        tokens = load_shards(folder)
        self.report(f"{name}: {len(tokens):,} prepared pairs")
        return tokens, _count_prepared(text, folder)

    def _check_prepared(self, folder: str, languages: Languages) -> None:
        """Check that a prepared folder has these languages, and the tokens of this run's tokenizer.

        Raises:
            ValueError: if it does not.
        """
        check_prepared_languages(folder, languages)
        if self.data.filter_language:
            raise ValueError(f"{folder} is already cleaned: give --filter_language to `prepare` instead.")
        if not load(AutoTokenizer, folder).get_vocab().items() <= self.tokenizer.get_vocab().items():
            raise ValueError(f"{folder} was prepared with another vocabulary; prepare it with this run's tokenizer.")

    def _stream(self, texts: list[Text]) -> tuple[ShardStream, list[dict[str, Any]]]:
        text = texts[0]
        folder = str(text.source.file)
        if len(texts) > 1 or text.source.weight != 1.0 or self._prefix(text, text.source.tag) or self.data.bpe_dropout:
            raise ValueError("--streaming reads a single prepared folder, without tags, weights or BPE dropout.")
        stream = ShardStream(folder, self.args.max_tokens, self.seed, self.args.process_index, self.args.world_size)
        self._check_prepared(folder, text.languages)
        self.report(f"train: {stream.pairs:,} prepared pairs")
        about = {"direction": "-".join(text.languages), "tag": None, "weight": 1.0}
        return stream, [{**_count_prepared(text, folder), **about}]


def _count(text: Text, used: int, read: int | None = None, drops: Counter[str] | None = None) -> dict[str, Any]:
    """Return what the card says about the pairs of a text."""
    return {"name": text.source.name, "pairs": used, "read": read, "dropped": dict(drops or {})}


def _count_prepared(text: Text, folder: str) -> dict[str, Any]:
    """Return what the card says about the pairs of a prepared folder."""
    manifest = read_manifest(folder)
    return _count(text, manifest["pairs"], manifest.get("read"), Counter(manifest.get("drops") or {}))


def _describe(text: Text) -> str:
    """Return the name, direction and tag of a text."""
    return " ".join(filter(None, [text.source.name, "-".join(text.languages), text.source.tag]))


def _names(texts: list[Text]) -> list[str]:
    """Return a different name for each text: its direction, its file, both, or these and a number."""
    for parts in (lambda text: ["-".join(text.languages)], lambda text: [text.source.name], _name_parts):
        names = ["_".join(parts(text)) for text in texts]
        if len(set(names)) == len(names):
            return names
    return [f"{name}_{number}" for number, name in enumerate(names, start=1)]


def _name_parts(text: Text) -> list[str]:
    return [text.source.name, "-".join(text.languages)]


def _with_prefix(tokens: Dataset, prefix: list[int]) -> Dataset:
    """Return the tokenised text with `prefix` at the start of every source."""
    if not prefix:
        return tokens

    def add(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        lengths = [length + len(prefix) for length in batch["source_length"]]
        return {"input_ids": [prefix + ids for ids in batch["input_ids"]], "source_length": lengths}

    return tokens.map(add, batched=True, desc="Adding tags")


def _learn_tokenizer(
    texts: Iterable[Dataset], model: ModelArguments, config: Any, tags: list[str], report: Callable[[str], None]
) -> PreTrainedTokenizerBase:
    """Learn a joint vocabulary, the tags included, from the training texts.

    Raises:
        ValueError: if its size was given as a flag, but the texts allow only a smaller vocabulary.
    """
    size = config.vocab_size
    report(f"Learning a joint vocabulary of {size:,} tokens ...")
    learned = train_tokenizer(_sentences(texts), size - len(tags), model.tokenizer_model, model.normalization)
    add_tags(learned, tags)
    if len(learned) < size:
        message = f"The training text allows a vocabulary of {len(learned):,} tokens, not of {size:,}"
        if model.vocab_size is not None:
            raise ValueError(f"{message}; set --vocab_size to at most {len(learned)}.")
        report(f"{message} as in the preset.")
    return learned


def _sentences(texts: Iterable[Dataset]) -> Iterator[str]:
    for pairs in texts:
        for batch in pairs.iter(1000):
            for column in ("source", "target"):
                yield from (sentence for sentence in batch[column] if sentence)
