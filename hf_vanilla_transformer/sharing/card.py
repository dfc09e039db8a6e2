"""Write the model card of a saved model from the files in its folder."""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import yaml
from huggingface_hub import EvalResult, EvalResultEntry, ModelCard, ModelCardData, eval_result_entries_to_yaml
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id
from jinja2 import TemplateError
from safetensors import SafetensorError, safe_open

from .. import files
from ..data.languages import base_code, full_tag
from ..errors import UserError
from ..files import CARD, RECORD, JsonObject
from ..loading import load_config
from ..model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..model.generation_vanilla_transformer import has_limit
from ..model.text_rules_vanilla_transformer import Directions
from ..version import install_command

_METRICS = {"bleu": "BLEU", "chrf": "chrF", "chrf++": "chrF++", "ter": "TER"}
_OF_ONE_MODEL = ("scores", "validation")  # in a training record
_SCORE_KEYS = {"bleu", "chrf", "ter", "signatures", "text", "sentences"}  # which the card needs of a text


@dataclass(frozen=True)
class CardDetails:
    """Details of a model card that override or complement what is in the folder of the model.

    Args:
        name: the repository id; by default the name of the folder.
        license: the licence of the model; by default the one given to `train`.
        scores: the output of `vanilla-transformer evaluate`, one object per text; by default the scores on the
            validation text.
        tags: tags for the Hub in addition to the standard ones.
        format: the class of the model that is shared, "vanilla_transformer" or "marian" for a copy as MarianMT.
    """

    name: str | None = None
    license: str | None = None
    scores: list[JsonObject] | None = None
    tags: list[str] | None = None
    format: str = VanillaTransformerConfig.model_type


def model_card(folder: str | Path, details: CardDetails | None = None) -> ModelCard:
    """Return the card of the model saved in `folder`.

    Raises:
        OSError: if the configuration of the model cannot be loaded.
        ValueError: if the training record, the scores or the generation config are damaged.
    """
    with _damage_errors(Path(folder)):
        return _fill_card(Path(folder), details or CardDetails())


def benchmark_results(folder: str | Path, details: CardDetails | None = None) -> str:
    """Return the scores on datasets of the Hub as the YAML of their leaderboards, or "" if there are none.

    Scores on other texts, such as those of training on its validation text, are only in the card: a result belongs to
    a dataset of the Hub.

    Raises:
        ValueError: as for `model_card`.
    """
    entries: list[EvalResultEntry] = []
    with _damage_errors(Path(folder)):
        for scores in _scores(_read_object(Path(folder) / RECORD), details or CardDetails()):
            if dataset := scores.get("dataset"):
                validate_repo_id(dataset["id"])
                # A result has one value, without a name for the metric
                notes = f"BLEU ({scores['signatures']['bleu']}), {scores['direction']}, split {dataset['split']}"
                task = dataset["config"] or "default"
                entries.append(EvalResultEntry(dataset["id"], task, round(scores["bleu"], 2), notes=notes))
    return yaml.safe_dump(eval_result_entries_to_yaml(entries), sort_keys=False) if entries else ""


@contextmanager
def _damage_errors(folder: Path) -> Iterator[None]:
    """Turn what a damaged training record or damaged scores raise into a `ValueError` that says so."""
    try:
        yield
    except (TypeError, LookupError, AttributeError, ArithmeticError, TemplateError, HFValidationError) as error:
        damaged = folder / RECORD
        raise UserError(f"Cannot write a model card: {damaged} or the scores are damaged ({error}).") from error


def _scores(training: JsonObject, details: CardDetails) -> list[JsonObject]:
    """Return the scores on each text; what the caller gives wins over what the training recorded."""
    return details.scores or training.get("scores") or []


def _fill_card(folder: Path, details: CardDetails) -> ModelCard:
    config = load_config(str(folder))
    generation = _read_object(folder / "generation_config.json")
    if not has_limit(generation):
        generation.pop("max_length", None)
    training = _read_object(folder / RECORD)

    license = details.license or training.get("license")
    scores = _scores(training, details)
    base_model = training.get("base_model")
    seconds = training.get("seconds", 0)
    title = (details.name or folder.resolve().name).split("/")[-1]
    pairs = Directions(config).pairs
    languages = [language for pair in pairs for language in pair]
    in_words = partial(_in_words, pairs=pairs)
    return ModelCard.from_template(
        ModelCardData(
            # The Hub accepts only codes of ISO 639 there, and a full tag such as pt-BR in the other field
            language=_different(map(base_code, languages)),
            language_bcp47=_different(map(full_tag, languages)),
            license=license,
            library_name="transformers",
            pipeline_tag="translation",
            tags=[details.format, "translation", *(details.tags or ())],
            # A base model without a user's name was a local folder, to which the Hub cannot link.
            base_model=base_model if base_model and "/" in base_model else None,
            datasets=training.get("dataset_name"),
            # Empty fields are None, because ModelCardData leaves only those out of the card.
            metrics=["bleu", "chrf"] if scores else None,
            model_name=title,
            eval_results=[result for part in scores for result in _eval_results(part, in_words)] or None,
        ),
        template_str=Path(__file__).with_name("card_template.md").read_text("utf-8"),
        name=title,
        # Not the path of a local folder, which says something about this machine.
        location=json.dumps(details.name or title),
        repository=details.name or title,
        install=install_command(),
        directions=in_words(None),
        in_words=in_words,
        pairs=pairs,
        parameters=f"{_count_parameters(folder):,}",
        config=config,
        format=details.format,
        generation={"num_beams": 1, "length_penalty": 1.0, **generation},
        training=training,
        settings=yaml.safe_dump(training.get("settings", {}), sort_keys=False, allow_unicode=True).strip(),
        time=f"{seconds / 3600:.1f} hours" if seconds >= 5400 else f"{seconds / 60:.0f} minutes",
        license=license,
        validation=training.get("validation", [])[-10:],
        scores=scores,
        metrics=_METRICS,
    )


def _different(texts: Iterable[str | None]) -> list[str] | None:
    """Return each text once, in order, or None if there are none."""
    return list(dict.fromkeys(filter(None, texts))) or None


def _in_words(direction: str | None, pairs: Sequence[tuple[str, str]]) -> str:
    """Return a direction such as "en-de" as "en to de", and "" if a name in it is that of no language.

    Args:
        direction: None for the directions of the model.
        pairs: source and target language of each direction of the model.
    """
    if direction is None:
        return ", ".join(filter(None, (_in_words("-".join(pair), pairs) for pair in pairs)))
    # A language of the only direction may contain a hyphen
    pair = next((pair for pair in pairs if "-".join(pair) == direction), direction.split("-", 1))
    return " to ".join(pair) if all(map(base_code, pair)) else ""


def _eval_results(scores: JsonObject, in_words: Callable[[str | None], str]) -> list[EvalResult]:
    """Return the scores on one text in the format of the Hub's model index.

    Args:
        in_words: returns a direction in words, as `_in_words`.
    """
    # Models of several directions have scores in each; scores from a file may not say in which they are.
    direction = in_words(scores.get("direction"))
    # The Hub links the id of a dataset
    dataset: str = scores["dataset"]["id"] if scores.get("dataset") else scores["text"]
    return [
        EvalResult(
            task_type="translation",
            task_name=f"Translation {direction}".strip(),
            dataset_type=dataset,
            dataset_name=scores["text"],
            dataset_config=direction.replace(" to ", "-") or None,
            metric_type=metric,
            metric_name=f"{label} ({scores['signatures'][metric]})",
            metric_value=round(scores[metric], 2),
        )
        for metric, label in _METRICS.items()
        if metric in scores
    ]


def _read_object(file: Path) -> JsonObject:
    """Return the JSON object in `file`, or an empty one if the file does not exist."""
    content = files.read_json(file) if file.is_file() else {}
    if not isinstance(content, dict):
        raise UserError(f"{file} is damaged: it does not contain a JSON object.")
    return content


def _count_parameters(folder: Path) -> int:
    """Return the number of parameters in the safetensors files of `folder`; tied weights are saved only once.

    Raises:
        ValueError: if a file is damaged.
    """
    count = 0
    for file in files.weight_files(folder):
        try:
            # The header has the shapes, so that no weights are read.
            with safe_open(file, "pt") as weights:
                count += sum(math.prod(weights.get_slice(name).get_shape()) for name in weights.keys())  # noqa: SIM118
        except SafetensorError as error:
            raise UserError(f"{file} is damaged: {error}") from None
    return count


def read_scores(file: str) -> list[JsonObject]:
    """Return the scores in `file`, which holds the output of `vanilla-transformer evaluate`: one or more JSON objects.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if it does not contain such scores.
    """
    scores: list[JsonObject] = []
    # JSONDecodeError is a ValueError; AttributeError is for a part that is not an object.
    with suppress(ValueError, AttributeError, RecursionError):
        text = files.read_document(Path(file), files.MAX_JSON_BYTES).strip()
        # Several objects follow each other without a comma, so the file as a whole is not JSON.
        while text:
            part, end = json.JSONDecoder().raw_decode(text)
            scores.append(part)
            text = text[end:].lstrip()
        files.check_nesting(scores)
        if scores and all(part.keys() >= _SCORE_KEYS for part in scores):
            return scores
    raise UserError(f"{file} does not contain the JSON output of `vanilla-transformer evaluate`.")


def conversion(folder: str | Path) -> JsonObject:
    """Return what the record of a converted model says about its source; nothing for any other model."""
    record = _read_object(Path(folder, RECORD))
    names = ("base_model", "converted", "converted_license", "license")
    return {name: record.get(name) for name in names} if record.get("converted") else {}


def write_record(folder: str | Path, record: JsonObject) -> None:
    """Write the training record, from which the card is made, into `folder`."""
    files.write_whole(Path(folder, RECORD), json.dumps(record, indent=2, ensure_ascii=False) + "\n")


def write_card(folder: str | Path, details: CardDetails | None = None) -> None:
    """Write the card of the model saved in `folder` into the same folder."""
    files.write_whole(Path(folder, CARD), str(model_card(folder, details)))


def record_average(run: str | Path, output_dir: str | Path, count: int) -> None:
    """Write the training record and the card of the average of `count` checkpoints of a run."""
    # The scores are those of the run's own model
    record = {name: value for name, value in _read_object(Path(run, RECORD)).items() if name not in _OF_ONE_MODEL}
    if record:
        write_record(output_dir, {**record, "averaged": count})
    write_card(output_dir)
