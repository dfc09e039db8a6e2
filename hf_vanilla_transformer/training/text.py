"""The text of a run: from its flags to sources, and from these to rows of token ids and a vocabulary."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from ..data.batching import Rows
from ..data.cleaning import Cleaning
from ..data.formats import names_languages
from ..data.languages import check_known
from ..data.shards import is_prepared
from ..data.source import (
    BuiltInPhrases,
    DirectedLines,
    HubDataset,
    Languages,
    PreparedFolder,
    Source,
    Text,
    TextFile,
    Tokenization,
)
from ..data.tokenizer import adapt_tokenizer, add_tags, save_tokenizer, train_tokenizer
from ..errors import UserError
from ..files import JsonObject, digest
from ..flags import Settings
from ..loading import load_tokenizer
from ..model.text_rules_vanilla_transformer import LANGUAGE_TAG, language_tag, max_source_tokens, parse_language_pair
from .arguments import TEXT, VALIDATION, DataArguments, Recipe

_Value = TypeVar("_Value")


@dataclass
class TokenizedText:
    """The text of a run as token ids.

    Args:
        train: rows for `VanillaTransformerTrainer`.
        validation: rows, or several by name; None if there is no validation text.
        sources: what the card says about each source of training text.
        directions: the direction of each validation text by name.
        contents: the digests of the training and validation text, as settings of the run.
    """

    tokenizer: PreTrainedTokenizerBase
    train: Any  # `Rows`, with a length unless they are a stream, which no type can say
    validation: Rows | dict[str, Rows] | None = None
    sources: list[JsonObject] = field(default_factory=list)
    directions: dict[str, str] = field(default_factory=dict)
    contents: Settings = field(default_factory=dict)


def _for_each(flag: str, values: Sequence[_Value] | None, count: int, default: _Value) -> list[_Value]:
    """Return one value per source: those given, or the only one given for all, or the default.

    Raises:
        ValueError: if the number of values fits neither.
    """
    if not values:
        return [default] * count
    if len(values) not in (1, count):
        raise UserError(f"--{flag} takes one value per source ({count}), or one for all, but has {len(values)}.")
    return list(values) * (count if len(values) == 1 else 1)


def prepared_folder(data: DataArguments) -> str | None:
    """Return the first prepared folder among the training texts, whose tokenizer the run uses, or None."""
    return next(filter(is_prepared, data.train_file or ()), None)


def _directions(data: DataArguments) -> list[Languages]:
    """Return the different directions of the run, in order."""
    if data.language_pairs:
        return list(dict.fromkeys(map(parse_language_pair, data.language_pairs)))
    assert data.source_lang is not None
    assert data.target_lang is not None
    return [(data.source_lang, data.target_lang)]


def _origins(data: DataArguments) -> list[str]:
    """Return the files and datasets with training text, or "" for the built-in phrases."""
    return [*(data.train_file or ()), *(data.dataset_name or ())] or [""]


def _source_languages(data: DataArguments) -> list[Languages | None]:
    """Return the languages of each source, None for JSON lines that name their own."""
    origins = _origins(data)
    if not data.language_pairs:
        return [*_directions(data)] * len(origins)
    pairs = [parse_language_pair(pair) for pair in data.language_pairs]
    directed = [names_languages(origin) for origin in origins]
    # The pairs are then those that may occur in the lines, and need not be one per source
    if all(directed):
        pairs = pairs[:1]
    languages = _for_each("language_pairs", pairs, len(origins), pairs[0])
    return [None if own else pair for own, pair in zip(directed, languages, strict=True)]


def _sources_in(path: str, languages: Languages | None, data: DataArguments) -> list[Text]:
    """Return the source in a file or folder, or one for each direction of JSON lines that name their languages."""
    if languages is not None:
        return [PreparedFolder(languages, path, data.streaming) if is_prepared(path) else TextFile(languages, path)]
    directions = _directions(data)
    expected = tuple(map("-".join, directions))
    lines = [DirectedLines(direction, path, expected) for direction in directions]
    # A file need not have all directions of the run, and a source without pairs is an error
    return [source for source in lines if len(source.pairs())]


def training_sources(data: DataArguments) -> list[Text]:
    """Return the sources that the flags name, files before datasets; without any, the built-in phrases.

    Args:
        data: the flags, with both languages set unless there are several directions.

    Raises:
        ValueError: if the number of weights, tags, languages or configurations does not fit the sources, or if these
            cannot be streamed.
    """
    origins = _origins(data)
    count = len(origins)
    # With a temperature, the sizes of the sources decide, which are known only once they are tokenised
    weights = _for_each("train_weights", data.train_weights, count, None if data.sampling_temperature else 1.0)
    tags = _for_each("source_tag", data.source_tag, count, "")
    configs = _for_each("dataset_config_name", data.dataset_config_name, len(data.dataset_name or ()), None)

    sources: list[Text] = []
    for i, (origin, languages) in enumerate(zip(origins, _source_languages(data), strict=True)):
        if languages is None or i < len(data.train_file or ()):
            parts = _sources_in(origin, languages, data)
        elif origin:
            # Datasets come last, hence an index from the end
            parts = [HubDataset(languages, origin, configs[i - count])]
        else:
            parts = [BuiltInPhrases(languages)]
        for source in parts:
            source.tag = tags[i] or None
            source.weight = weights[i]
        sources += parts
    is_plain = not (any(tags) or weights != [1.0] or data.language_pairs or data.bpe_dropout)
    if data.streaming and not (prepared_folder(data) and count == 1 and is_plain):
        raise UserError(
            "--streaming reads a single folder made by `prepare`, given as --train_file, without tags, weights or BPE "
            "dropout."
        )
    return sources


def validation_sources(data: DataArguments, training: Sequence[Text] = ()) -> list[Text]:
    """Return the validation texts: one for each training source, one for every direction, or those of the datasets.

    Raises:
        ValueError: if the number of files does not fit the training sources, or one is a prepared folder.
    """
    files = data.validation_file
    if not files:
        return [text for source in training if (text := source.validation()) is not None]
    for file in filter(is_prepared, files):
        raise UserError(f"--validation_file {file}: a prepared folder cannot be used for validation.")
    if len(files) == 1:
        languages: list[Languages | None] = [None] if names_languages(files[0]) else [*_directions(data)]
        files = files * len(languages)
    else:
        languages = _source_languages(data)
        files = _for_each("validation_file", files, len(languages), "")
    return [source for file, pair in zip(files, languages, strict=True) for source in _sources_in(file, pair, data)]


def read_contents(data: DataArguments) -> Settings:
    """Return the digests of the text that the flags name, under the names by which the settings of a run record them.

    Raises:
        ValueError: as `training_sources` and `validation_sources`.
    """
    training = training_sources(data)
    return _contents(training, validation_sources(data, training))


def _contents(training: Sequence[Text], validation: Sequence[Text]) -> Settings:
    texts = {TEXT: training, VALIDATION: validation}
    return {name: digest(Source(sources).identity()) for name, sources in texts.items() if sources}


def all_tags(config: PreTrainedConfig, data: DataArguments) -> list[str]:
    """Return every tag that the sources of a run need, those of the target languages first.

    Raises:
        ValueError: if the tag of a source is that of a language.
    """
    own = [tag for tag in data.source_tag or () if tag]
    for tag in own:
        if tag.startswith(LANGUAGE_TAG):
            raise UserError(f"--source_tag {tag}: tags that start with <2 are those of target languages.")
    targets = [parse_language_pair(pair)[1] for pair in config.language_pairs or ()]
    return list(dict.fromkeys([*map(language_tag, targets), *own]))


def tokenize_text(
    recipe: Recipe, folder: str, tokenizer_path: str | None, report: Callable[[str], None]
) -> TokenizedText:
    """Return the tokenised text of a run, and its tokenizer.

    Args:
        tokenizer_path: the tokenizer to load; if None, one is learned from the training text and saved in `folder`.
        report: called with each message for the user.
    """
    data = recipe.data
    args = recipe.args
    tags = all_tags(recipe.config, data)
    if data.bpe_dropout and recipe.model.tokenizer_model not in ("bpe", "subword-nmt"):
        raise UserError("--bpe_dropout needs --tokenizer_model bpe or subword-nmt.")
    # The main process first, which caches what it reads: the others then find it instead of doing the same work
    with args.main_process_first(desc="reading the text"):
        training = Source(training_sources(data), data.sampling_temperature)
        validation = validation_sources(data, training.parts)
        # so that every problem in the text is found before a vocabulary is learned
        for source in (*training.parts, *validation):
            if source.has_text:
                source.pairs()
        if data.filter_language:
            check_known(*(language for source in training.parts for language in source.languages))
        if args.process_index == 0 and not tokenizer_path:
            tokenizer = _learn_tokenizer(training.parts, recipe, tags, report)
            save_tokenizer(tokenizer, folder)
    # Process 0 has saved the tokenizer, perhaps on another machine, but main_process_first waits only within a machine
    args.distributed_state.wait_for_everyone()
    with args.main_process_first(desc="tokenising the text"):
        tokenizer = _load_tokenizer(tokenizer_path or folder, recipe.config, tags)
        how = Tokenization(
            tokenizer=tokenizer,
            config=recipe.config,
            max_tokens=args.max_tokens,
            report=report,
            cleaning=Cleaning(data.max_sentence_tokens, data.max_length_ratio) if data.clean else None,
            filter_language=data.filter_language,
            bpe_dropout=data.bpe_dropout,
            seed=args.batch_seed,
            rank=args.process_index,
            world_size=args.world_size,
        )
        train = training.tokenize(how, "train")
        # Scores are of the whole validation text, however unclean
        how = replace(how, cleaning=None)
        texts = dict(zip(_names(validation), validation, strict=True))
        rows = {name: text.tokenize(how, f"validation, {name}".removesuffix(", ")) for name, text in texts.items()}
    return TokenizedText(
        tokenizer=tokenizer,
        train=train,
        validation=rows.get("", rows or None),
        sources=[_about(source) for source in training.parts],
        directions={name: "-".join(text.languages) for name, text in texts.items()},
        contents=_contents(training.parts, validation),
    )


def _load_tokenizer(path: str, config: PreTrainedConfig, tags: list[str]) -> PreTrainedTokenizerBase:
    """Return a tokenizer with what training needs, the tags of the run, and the limit on length of its model."""
    tokenizer = load_tokenizer(path)
    adapt_tokenizer(tokenizer, path)
    add_tags(tokenizer, tags)
    # saved with the model, so that whoever truncates a text does so at its limit
    tokenizer.model_max_length = max_source_tokens(config, tokenizer)
    return tokenizer


def _about(source: Text) -> JsonObject:
    """Return what the card says about a source of training text."""
    return {
        "name": source.name,
        "pairs": source.counts.used,
        "read": source.counts.read,
        "dropped": dict(source.counts.dropped),
        "direction": "-".join(source.languages),
        "tag": source.tag,
        "weight": round(source.weight or 1.0, 4),
    }


def _names(sources: Sequence[Text]) -> list[str]:
    """Return a different name for each text: none for a single one, else direction, file, both, or these numbered."""
    for form in ("", "{direction}", "{name}", "{name}_{direction}"):
        names = [form.format(direction="-".join(source.languages), name=source.name) for source in sources]
        if len(set(names)) == len(names):
            return names
    return [f"{name}_{number}" for number, name in enumerate(names, start=1)]


def _learn_tokenizer(
    sources: Sequence[Text], recipe: Recipe, tags: list[str], report: Callable[[str], None]
) -> PreTrainedTokenizerBase:
    """Learn a joint vocabulary, the tags included, from the training texts.

    Raises:
        ValueError: if its size was given as a flag, but the texts allow only a smaller vocabulary.
    """
    model = recipe.model
    size = recipe.config.vocab_size
    report(f"Learning a joint vocabulary of {size:,} tokens ...")
    batches = (batch for source in sources for batch in source.pairs().iter(1000))
    columns = (batch[column] for batch in batches for column in ("source", "target"))
    sentences = (sentence for column in columns for sentence in column if sentence)
    learned = train_tokenizer(sentences, size - len(tags), model.tokenizer_model, model.normalization, model.bpe_codes)
    add_tags(learned, tags)
    # Saved now: if a resumed run loaded another limit, `datasets` would not find the text that it cached
    learned.model_max_length = recipe.config.max_position_embeddings
    if len(learned) < size and not model.bpe_codes:
        message = f"The training text allows a vocabulary of {len(learned):,} tokens, not of {size:,}"
        if model.vocab_size is not None:
            raise UserError(f"{message}; set --vocab_size to at most {len(learned)}.")
        report(f"{message} as in the preset.")
    return learned
