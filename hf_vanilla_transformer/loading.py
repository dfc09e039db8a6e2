"""Load models and tokenizers from untrusted sources without running their code, with one clear error on failure.

What their files make other packages compute and allocate is bounded, and checked beforehand.
"""

import base64
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from math import prod
from pathlib import Path
from reprlib import repr as shortened
from typing import TYPE_CHECKING, Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
)
from transformers.utils import (
    CONFIG_NAME,
    GENERATION_CONFIG_NAME,
    SAFE_WEIGHTS_INDEX_NAME,
    SAFE_WEIGHTS_NAME,
    cached_file,
    find_adapter_config_file,
)

from .errors import MissingExtraError, UserError, damage
from .files import JsonObject, check_nesting, inside, read_document, read_json
from .model.configuration_vanilla_transformer import MAX_POSITIONS, VanillaTransformerConfig
from .model.text_rules_vanilla_transformer import Directions

if TYPE_CHECKING:
    from .model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration

# What a saved model may say about decoding, besides transformers' defaults; the other settings of `generate` may fail
# anywhere in it, or load code
_TOKENS = ("pad_token_id", "bos_token_id", "decoder_start_token_id")
_TOKEN_LISTS = (
    *("eos_token_id", "forced_bos_token_id", "forced_eos_token_id"),
    *("suppress_tokens", "begin_suppress_tokens"),
)
_LENGTHS = ("max_length", "max_new_tokens", "min_length", "min_new_tokens")
# the least and the most, whose type is that of the setting; penalties may be exponents
_RANGES: dict[str, tuple[int, float]] = {
    **dict.fromkeys(("num_beams", "num_return_sequences"), (1, 1000)),
    **dict.fromkeys(("top_k", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size"), (0, MAX_POSITIONS)),
    **dict.fromkeys(("length_penalty", "repetition_penalty", "encoder_repetition_penalty"), (-1000, 1000.0)),
    **dict.fromkeys(("temperature", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff"), (-1000, 1000.0)),
    **dict.fromkeys(("top_h", "max_time"), (-1000, 1000.0)),
}
_SWITCHES = (
    *("do_sample", "use_cache", "renormalize_logits", "remove_invalid_values", "disable_compile"),
    *("output_attentions", "output_hidden_states", "output_scores", "output_logits", "return_dict_in_generate"),
)
_CHECKED_BY_TRANSFORMERS = ("early_stopping", "transformers_version")
# how `generate` computes, but not what; some of them need another model, or a single sentence
_WITHOUT_EFFECT = {
    *("cache_implementation", "cache_config", "max_cache_len", "prefill_chunk_size", "compile_config", "low_memory"),
    *("is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold"),
    *("prompt_lookup_num_tokens", "max_matching_ngram_size", "assistant_early_exit", "assistant_lookbehind"),
    *("target_lookbehind", "assistant_ensemble_weight", "speculation_type", "use_mtp", "continuous_batching_config"),
}
# with these values, settings that are not supported do nothing; older releases of transformers write them
_NEUTRAL = {"guidance_scale": 1, "token_healing": False, "penalty_alpha": 0}
_LARGEST_DECAY = 1.9  # whose powers are finite for a thousand tokens
_MAX_LENGTH = 10_000  # tokens
_ADAPTER_WEIGHTS = "adapter_model.safetensors"
_MAX_LABELS = 1000  # a translation model has none

# Bounds on the files of a model
MAX_SETTINGS_BYTES = 1 << 22  # of a file of settings; the largest, of tokenizers with many added tokens, have 1 MB
MAX_SETTINGS = 1000  # by name, which transformers sorts and compares; a configuration has some 100
MAX_GROWTH = 1000  # how many times as long a tokenizer may make a text
MAX_RANK = 1024  # of an adapter; one beyond the width of the model adds nothing
MAX_SIZE = 100_000  # of its other sizes, such as the number of virtual tokens
MAX_ENTRIES = 1000  # of a list in an adapter, such as names of modules
_MAX_PATTERN = 200  # characters of a regular expression
_MAX_CHOICES = 3  # repetitions, and groups, in a regular expression

_RANKS = ("r", "rank", "init_r", "target_r", "rank_pattern")
# Fields of an adapter by which PEFT chooses modules, with regular expressions
_PATTERNS = (
    *("target_modules", "exclude_modules", "modules_to_save", "layers_pattern", "target_parameters"),
    *("rank_pattern", "alpha_pattern", "feedforward_modules"),
)
# Fields of an adapter with which PEFT would import a module, or read files or models elsewhere, or copy layers
_REFUSED = ("megatron_config", "adapters", "shadow_model", "prompt_tuning_init_state_dict_path", "layer_replication")
_COUNTERS = re.compile("alpha|seed|key|step|init|final|delta|interval", re.IGNORECASE)  # numbers that are not sizes
# How much longer a normaliser makes a text at most, by the Unicode standard; those with a content are computed
_UNICODE_GROWTH = {"NFKC": 18, "NFKD": 18, "NFC": 3, "NFD": 4, "Lowercase": 3, "BertNormalizer": 4}
_PARTS = ("normalizers", "pretokenizers", "processors", "decoders")  # of a sequence


def load(auto_class: Any, name: str, **kwargs) -> Any:
    """Return `auto_class.from_pretrained(name)` without running code from `name`.

    Raises:
        OSError: If loading fails for any reason other than a missing package or a lack of memory.
    """
    with loading_errors(name):
        return auto_class.from_pretrained(name, trust_remote_code=False, **kwargs)


@contextmanager
def loading_errors(name: str, file: str = "") -> Iterator[None]:
    """Turn any error while loading `name` into an `OSError` that names it, and the file in it, if one is given.

    Errors for lack of memory pass through unchanged; one for a missing package becomes a `MissingExtraError`.
    """
    try:
        yield
    except (MissingExtraError, torch.OutOfMemoryError, MemoryError):
        raise
    except ImportError as error:
        raise MissingExtraError(str(error)) from error
    except Exception as error:
        # damaged files can raise any exception
        where = name if Path(name).is_dir() else f"{name} (not a local folder)"
        raise OSError(f"Cannot load {where}: {file and f'in its {file}, '}{damage(error)}") from error


def read_model_type(name: str) -> str:
    """Return the type of a model, a local folder or a repository on the Hub, before anything is built from its config.

    Raises:
        OSError: If it cannot be read, or the configuration cannot be that of a translation model.
    """
    _check_settings(name, CONFIG_NAME)
    with loading_errors(name):
        fields, _ = PreTrainedConfig.get_config_dict(name)
        labels = fields.get("num_labels")
        if isinstance(labels, int) and labels > _MAX_LABELS:
            # transformers would make a name for each
            raise UserError(f"num_labels in its config.json must be at most {_MAX_LABELS:,}, but is {labels:,}")
    return str(fields.get("model_type", "unknown"))[:100]


def load_config(name: str) -> VanillaTransformerConfig:
    """Return the configuration of the model `name`, a local folder or a repository on the Hub.

    Raises:
        OSError: If it cannot be loaded.
        ValueError: If it belongs to a different model type.
    """
    _check_model_type(read_model_type(name), name)
    config = load(AutoConfig, name)
    check_config(config, name)
    return config


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """Return the tokenizer of the model `name`, a local folder or a repository on the Hub.

    Raises:
        OSError: If it cannot be loaded.
    """
    _check_settings(name, "tokenizer_config.json")
    _check_settings(name, "special_tokens_map.json")
    with loading_errors(name):
        if file := _find_file(name, "tokenizer.json"):
            _check_growth(file)
    tokenizer = load(AutoTokenizer, name)
    with loading_errors(name):
        check_nesting(tokenizer.init_kwargs)
        if not isinstance(tokenizer.model_max_length, (int, float)):
            raise UserError(f"its model_max_length must be a number, but is {shortened(tokenizer.model_max_length)}")
    return tokenizer


def _check_model_type(model_type: str, name: str) -> None:
    if model_type != VanillaTransformerConfig.model_type:
        hint = f"; convert it with `vanilla-transformer convert {name} OUT`" if model_type == "marian" else ""
        raise UserError(f"{name} is a {model_type} model, not a vanilla_transformer model{hint}.")


def _find_file(name: str, file: str) -> Path | None:
    """Return a file of a model, a local folder or a repository on the Hub, or None if it has none."""
    path = cached_file(name, file, _raise_exceptions_for_missing_entries=False)
    return Path(path) if path else None


def _check_settings(name: str, file: str) -> None:
    """Check the size and the characters of a JSON file of settings, if the model has it.

    Raises:
        OSError: If the model cannot be found, or the file is too large, has too many settings, or text that cannot be
            saved; one that is damaged is left to its reader.
    """
    with loading_errors(name, file):
        path = _find_file(name, file)
        text = read_document(path, MAX_SETTINGS_BYTES) if path else "{}"
        try:
            settings = json.loads(text)
            json.dumps(settings, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            # JSON can escape it, but it could not be saved with another model
            half = ascii(error.object[error.start])
            raise UserError(f"it has half of a character, {half}; remove it") from None
        except (ValueError, RecursionError):
            return
        if isinstance(settings, dict) and len(settings) > MAX_SETTINGS:
            raise UserError(
                f"it has {len(settings):,} settings, more than {MAX_SETTINGS:,}; remove those that are unknown"
            )


def load_model(name: str, **kwargs) -> "VanillaTransformerForConditionalGeneration":
    """Return the translation model `name`, a local folder or a repository on the Hub.

    Args:
        kwargs: arguments of `from_pretrained`, for example `dtype` or `config`.

    Raises:
        OSError: If it cannot be loaded or its weights are incomplete.
        ValueError: If it is a different type of model.
    """
    with loading_errors(name):
        # an adapter's folder has no configuration
        adapter = find_adapter_config_file(name)
        base = _read_adapter(name, adapter) if adapter else name
    # fail early, before memory is allocated for the weights
    config = load_config(base)
    if adapter:
        _check_settings(name, "adapter_config.json")
        with loading_errors(name, "adapter_config.json"):
            _check_adapter(read_json(Path(adapter)), config.d_model)
    _check_settings(base, GENERATION_CONFIG_NAME)
    with loading_errors(base):
        # before transformers would take others
        find_weights(base)
    model = load_complete(AutoModelForSeq2SeqLM, name, exact=True, **{"config": config, **kwargs})
    _check_model_type(model.config.model_type, name)
    # an adapter has no settings of its own
    check_decoding(model.generation_config, config, base)
    return model


def _read_adapter(name: str, config_file: str) -> str:
    """Return the name of the base model of an adapter, after checking that PEFT reads and imports nothing else.

    Raises:
        ValueError: If it would, or the name is missing.
    """
    fields = read_json(Path(config_file))
    base = fields.get("base_model_name_or_path")
    if not isinstance(base, str):
        raise UserError("its adapter_config.json has no base_model_name_or_path")
    if cached_file(name, _ADAPTER_WEIGHTS, _raise_exceptions_for_missing_entries=False) is None:
        raise UserError(f"it has no {_ADAPTER_WEIGHTS}, and other weights, which may run code, are never loaded")
    return base


def load_complete(auto_class: Any, name: str, exact: bool = False, **kwargs) -> Any:
    """Return the model `name`, after checking that its weights are complete, and if `exact`, that there are no others.

    It does not depend on its files any more.

    Raises:
        OSError: If it cannot be loaded, or they are not.
    """
    model, report = load(auto_class, name, output_loading_info=True, use_safetensors=True, **kwargs)
    problems = {"missing_keys": "do not contain {} of the model's tensors"}
    if exact:
        problems["unexpected_keys"] = "contain {} tensors that the model of its config.json does not have"
    for kind, problem in problems.items():
        if tensors := sorted(report[kind]):
            details = f"{problem.format(len(tensors))}, for example {tensors[0]}"
            raise OSError(f"Cannot load {name}: its weights {details}. Download or save the model again.")
    # transformers maps the file into memory, so that who replaces or truncates it changes or ends this process
    for tensor in chain(model.parameters(), model.buffers()):
        tensor.data = tensor.data.clone()
    return model


def find_weights(name: str) -> list[str]:
    """Return the safetensors files of a model, which may have several shards.

    Raises:
        ValueError: If it has none, or their index names a file outside the folder.
    """
    optional = {"_raise_exceptions_for_missing_entries": False}
    if file := cached_file(name, SAFE_WEIGHTS_NAME, **optional):
        return _readable([file])
    index = cached_file(name, SAFE_WEIGHTS_INDEX_NAME, **optional)
    if index is None:
        # transformers would have a service of the Hub convert others, or take a pull request of anybody
        raise UserError(
            f"it has no {SAFE_WEIGHTS_NAME}, and other weights, which may run code, are never loaded. Where you trust "
            "them, save the model again with transformers: from_pretrained(...).save_pretrained(...)"
        )
    shards = {str(shard) for shard in read_json(Path(index))["weight_map"].values()}
    for shard in shards:
        inside(Path(index).parent, shard)
    return _readable([str(cached_file(name, shard)) for shard in sorted(shards)])


def _readable(files: list[str]) -> list[str]:
    """Return the files, after opening each: safetensors says of any that it cannot open that it does not exist."""
    for file in files:
        with open(file, "rb"):
            pass
    return files


def check_config(config: VanillaTransformerConfig, name: str) -> None:
    """Check what the class of a configuration does not: its languages, its tokens, and what it inherits.

    Raises:
        OSError: If the configuration cannot be that of a model.
    """
    with loading_errors(name, "config.json"):
        check_nesting(vars(config))
        # that of a file could be code on the Hub
        config._attn_implementation = "sdpa"
        # the results of a model are read by name
        config.return_dict = True
        config.validate()
        Directions(config)
        if config.pad_token_id is None:
            raise UserError("pad_token_id is missing")
        for field in (*_TOKENS, "eos_token_id"):
            _check_tokens(field, getattr(config, field), config.vocab_size)


def _check_tokens(field: str, value: object, vocab_size: int) -> None:
    for token in value if isinstance(value, list) else [value]:
        if token is not None and not (type(token) is int and 0 <= token < vocab_size):
            raise UserError(f"{field} must be from 0 to {vocab_size - 1:,}, but is {shortened(value)}")


def check_decoding(settings: GenerationConfig, config: VanillaTransformerConfig, name: str) -> None:
    """Check that the decoding settings saved with a model are of those that it may have, and in range.

    Settings that do not change translations are removed.

    Raises:
        OSError: If they are not.
    """
    for field in vars(settings).keys() & _WITHOUT_EFFECT:
        setattr(settings, field, None)
    with loading_errors(name, "generation_config.json"):
        check_search(settings.to_diff_dict(), config)


def load_generation_config(name: str, config: VanillaTransformerConfig) -> GenerationConfig:
    """Return the decoding settings saved in the local folder `name`, checked as by `check_decoding`.

    Raises:
        OSError: If they cannot be loaded, or are not of those that a model may have.
    """
    with loading_errors(name):
        settings = GenerationConfig.from_pretrained(name)
    check_decoding(settings, config, name)
    return settings


def check_search(settings: Mapping[str, object], config: VanillaTransformerConfig) -> None:
    """Check decoding settings by name, as `check_decoding` does.

    Raises:
        ValueError: If one is not of those that a saved model may have, or out of range.
    """
    # twice the positions seen in training: an export has as many
    longest = max(2 * config.max_position_embeddings, _MAX_LENGTH)
    ranges = {**_RANGES, **dict.fromkeys(_LENGTHS, (0, longest))}
    known = vars(GenerationConfig())
    # which Seq2SeqTrainer writes into the settings of a model
    defaults = GenerationConfig._get_default_generation_params()
    for field, value in settings.items():
        default = defaults.get(field)
        if type(value) is type(default) and value == default:
            continue
        if field in ranges:
            _check_range(field, value, *ranges[field])
        elif field in (*_TOKENS, *_TOKEN_LISTS):
            _check_tokens(field, value, config.vocab_size)
        elif field == "bad_words_ids":
            if not (isinstance(value, list) and value and all(isinstance(word, list) and word for word in value)):
                raise UserError(f"{field} must be a list of lists of tokens, but is {shortened(value)}")
            _check_tokens(field, [token for word in value for token in word], config.vocab_size)
        elif field == "exponential_decay_length_penalty":
            if not (isinstance(value, (list, tuple)) and len(value) == 2):
                raise UserError(f"{field} must be a position and a factor, but is {shortened(value)}")
            _check_range(field, value[0], 0, longest)
            _check_range(field, value[1], 0, _LARGEST_DECAY)
        elif field in _SWITCHES:
            if not isinstance(value, bool):
                raise UserError(f"{field} must be true or false, but is {shortened(value)}")
        elif field in known and not field.startswith("_") and field not in _CHECKED_BY_TRANSFORMERS:
            if field in _NEUTRAL and value == _NEUTRAL[field]:
                continue
            raise UserError(f"{field} is not supported; remove it")


def _check_range(field: str, value: Any, least: int, most: float) -> None:
    is_number = isinstance(value, (int, type(most))) and not isinstance(value, bool)
    if not is_number or not least <= value <= most:
        kind = "a number" if isinstance(most, float) else "an integer"
        raise UserError(f"{field} must be {kind} from {least:,} to {most:,}, but is {shortened(value)}")


def _check_adapter(fields: JsonObject, d_model: int) -> None:
    """Check that PEFT can build an adapter in memory and time like those of its model, and from its own files alone.

    Args:
        fields: its configuration.
        d_model: width of its model.

    Raises:
        ValueError: if it cannot.
    """
    for field in _REFUSED:
        if fields.get(field):
            raise UserError(f"{field} names code or other files, or copies layers; remove it")

    for name, number in _numbers(fields):
        is_rank = name in _RANKS
        largest = max(MAX_RANK, d_model) if is_rank else MAX_SIZE
        if number > largest and (is_rank or not _COUNTERS.search(name)):
            raise UserError(f"{name} must be at most {largest:,}, but is {shortened(number)}")
    initial = fields.get("init_lora_weights", True)
    if isinstance(initial, str) and not initial.isalpha():
        # such as pissa_niter_N, with a number of steps
        raise UserError(f"init_lora_weights must be a name, but is {shortened(initial)}")

    for field, value in fields.items():
        if isinstance(value, (list, dict)) and len(value) > MAX_ENTRIES:
            raise UserError(f"{field} must have at most {MAX_ENTRIES:,} entries, but has {len(value):,}")
    for field in _PATTERNS:
        value = fields.get(field) or ()
        for pattern in (value,) if isinstance(value, str) else value:
            if not isinstance(pattern, str) or not _is_cheap(pattern):
                raise UserError(
                    f"{field} must be names of modules or a short regular expression with at most {_MAX_CHOICES} "
                    f"repetitions, but has {shortened(pattern)}; list the names instead"
                )


def _numbers(fields: JsonObject) -> Iterator[tuple[str, float]]:
    """Yield the name and value of each number of an adapter, also of those in dictionaries."""
    for name, value in fields.items():
        for number in value.values() if isinstance(value, dict) else (value,):
            if isinstance(number, (int, float)):
                yield name, number


def _is_cheap(pattern: str) -> bool:
    """Return whether a regular expression is matched in a time that grows no faster than a power of the length.

    Nothing but characters is repeated, and few times: a group that is repeated can match in exponentially many ways.
    """
    repetitions = re.findall(r"(?<!\()[*+?{]", pattern)
    return (
        len(pattern) <= _MAX_PATTERN
        and max(len(repetitions), pattern.count("(")) <= _MAX_CHOICES
        and not re.search(r"\)[*+?{]", pattern)
    )


def _check_growth(file: Path) -> None:
    """Check that a tokenizer cannot make a text many times as long, neither before nor after it cuts it into tokens.

    Args:
        file: its `tokenizer.json`.

    Raises:
        OSError: if it cannot be read.
        ValueError: if it can.
    """
    tokenizer = read_json(file)
    if not isinstance(tokenizer, dict):
        # its reader says more
        return
    for name in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        growth = prod(map(_growth, _steps(tokenizer.get(name))))
        if growth > MAX_GROWTH:
            raise UserError(f"its {name} can make a text {growth:.3g} times as long, more than {MAX_GROWTH:,} times")


def _steps(part: Any) -> Iterator[JsonObject]:
    """Yield the steps of a part of a tokenizer, which may be sequences of others."""
    if isinstance(part, dict):
        yield part
        for name in _PARTS:
            for step in part.get(name) or ():
                yield from _steps(step)


def _growth(step: JsonObject) -> float:
    """Return how many times as long a step makes a text at most."""
    match step:
        case {"type": "Replace", "content": str(content), "pattern": {"String": str(replaced)}}:
            return max(1.0, len(content) / max(1, len(replaced)))
        case {"type": "Replace", "content": str(content)}:
            # at every place between two characters
            return 1.0 + len(content)
        case {"type": "Prepend", "prepend": str(text)}:
            return 1.0 + len(text)
        case {"type": "Precompiled", "precompiled_charsmap": str(table)}:
            return _longest_replacement(table)
        case {"type": "TemplateProcessing", "single": list(single), "special_tokens": dict(tokens)}:
            # at most: as if each piece were the special token with the most ids
            return float(max(1, len(single) * max([1, *(len(token["ids"]) for token in tokens.values())])))
        case {"type": str(name)}:
            return float(_UNICODE_GROWTH.get(name, 1))
    return 1.0


def _longest_replacement(table: str) -> float:
    """Return the length of the longest text by which SentencePiece's table replaces a character or several."""
    content = base64.b64decode(table)
    # the size of a trie, the trie, and then all replacements, each of which ends with a NUL
    replacements = content[4 + int.from_bytes(content[:4], "little") :].split(b"\0")
    return float(max(map(len, replacements)) or 1)
