"""Write a model's card from what its folder holds."""

import json
import math
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from jinja2 import TemplateError
from safetensors import safe_open

from ..files import CARD, RECORD, WEIGHT_FILES, write_whole
from ..model.loading import load_config

_METRICS = {"bleu": "BLEU", "chrf": "chrF", "ter": "TER"}


@dataclass(frozen=True)
class CardDetails:
    """What a card says beside what is in the model's folder.

    Args:
        name: the repository that the card is for; by default the folder's name.
        license: of the model; by default what `train` was given.
        scores: what `vanilla-transformer evaluate` printed; by default those on the validation text.
        tags: for the Hub's search, in addition to its own.
    """

    name: str | None = None
    license: str | None = None
    scores: dict[str, Any] | None = None
    tags: list[str] | None = None


def model_card(folder: str | Path, details: CardDetails | None = None) -> ModelCard:
    """Return the card of the model saved in `folder`.

    Raises:
        ValueError: if what the folder holds about the model is damaged.
    """
    try:
        return _fill_card(Path(folder), details or CardDetails())
    except (TypeError, LookupError, AttributeError, ArithmeticError, TemplateError) as error:
        raise ValueError(
            f"Cannot make a card from {Path(folder) / RECORD} or the scores: {error}; remove the one that is damaged."
        ) from error


def _fill_card(folder: Path, details: CardDetails) -> ModelCard:
    config, generation = load_config(str(folder)), _read(folder / "generation_config.json")
    training = _read(folder / RECORD)
    scores, license = details.scores or training.get("scores"), details.license or training.get("license")
    title = (details.name or folder.resolve().name).split("/")[-1]
    languages = [config.source_lang, config.target_lang]
    validation = training.get("validation", [])
    return ModelCard.from_template(
        ModelCardData(
            language=[language for language in languages if language] or None,
            license=license,
            library_name="transformers",
            pipeline_tag="translation",
            tags=["vanilla_transformer", "translation", *(details.tags or ())],
            datasets=training.get("dataset_name"),
            metrics=list(_METRICS)[:2] if scores else None,
            model_name=title,
            eval_results=_eval_results(scores, languages) if scores else None,
        ),
        template_str=_template(),
        name=title,
        location=json.dumps(details.name or str(folder)),
        repository=details.name or folder,
        languages=" to ".join(map(str, languages)) if all(languages) else "from one language to another",
        sinusoidal=config.position_embedding == "sinusoidal",
        parameters=f"{_parameters(folder):,}",
        config=config,
        generation={"num_beams": 1, "length_penalty": 1.0, **generation},
        training=training,
        settings=yaml.safe_dump(training.get("settings", {}), sort_keys=False, allow_unicode=True).strip(),
        time=_duration(training.get("seconds", 0)),
        license=license,
        validation=validation[::-1][:: max(1, len(validation) // 10)][::-1],  # about ten rows, the last among them
        example=json.dumps(training.get("example", "Hello!"), ensure_ascii=False),
        scores=scores and {**scores, "metrics": _score_rows(scores)},
    )


def _eval_results(scores: dict[str, Any], languages: list[str | None]) -> list[EvalResult]:
    """Return the scores as the Hub's own records."""
    return [
        EvalResult(
            task_type="translation",
            task_name=f"Translation {' to '.join(map(str, languages))}",
            dataset_type=scores["text"],
            dataset_name=scores["text"],
            dataset_config="-".join(map(str, languages)),
            metric_type=metric,
            metric_name=f"{label} ({scores['signatures'][metric]})",
            metric_value=round(scores[metric], 2),
        )
        for metric, label in _METRICS.items()
    ]


def _score_rows(scores: dict[str, Any]) -> list[dict[str, str]]:
    """Return the rows of the card's table of scores."""
    return [
        {"name": label, "value": f"{scores[metric]:.2f}", "signature": scores["signatures"][metric]}
        for metric, label in _METRICS.items()
    ]


def _template() -> str:
    """Return the card's template, from an installed package or from a checkout."""
    package = Path(__file__).parent.parent
    files = (folder / "model_cards" / "template.md" for folder in (package, package.parent))
    return next(file for file in files if file.is_file()).read_text("utf-8")


def _read(file: Path) -> dict[str, Any]:
    content = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    if not isinstance(content, dict):
        raise ValueError(f"{file} is damaged: it is not a JSON object.")
    return content


def _parameters(folder: Path) -> int:
    count = 0
    for file in folder.glob(WEIGHT_FILES):
        if file.suffix == ".safetensors":
            with safe_open(file, "pt") as weights:
                count += sum(math.prod(weights.get_slice(name).get_shape()) for name in weights.keys())  # noqa: SIM118
    return count


def _duration(seconds: float) -> str:
    return f"{seconds / 3600:.1f} hours" if seconds >= 5400 else f"{seconds / 60:.0f} minutes"


def hardware(processes: int = 1) -> str:
    """Return the accelerators, or the processor, of a training run on this machine."""
    if torch.cuda.is_available():
        return f"{processes} x {torch.cuda.get_device_name()}"
    cpu = platform.processor() or platform.machine()
    information = Path("/proc/cpuinfo")
    if information.is_file():
        models = [line for line in information.read_text().splitlines() if line.startswith("model name")]
        cpu = models[0].split(":", 1)[1].strip() if models else cpu
    return f"{processes} x {torch.get_num_threads()} threads of {cpu}"


def read_scores(file: str) -> dict[str, Any]:
    """Return what `vanilla-transformer evaluate` printed into `file`.

    Raises:
        ValueError: if it is something else.
    """
    try:
        scores = json.loads(Path(file).read_text("utf-8"))
        if {*_METRICS, "signatures", "text", "sentences"} <= scores.keys():
            return scores
    except (json.JSONDecodeError, UnicodeDecodeError, AttributeError):
        pass
    raise ValueError(f"{file} is not what `vanilla-transformer evaluate` prints.")


def write_record(folder: str | Path, record: dict[str, Any]) -> None:
    """Write what the card says about the training into `folder`."""
    write_whole(Path(folder, RECORD), json.dumps(record, indent=2, ensure_ascii=False) + "\n")


def write_card(folder: str | Path) -> None:
    """Write the card of the model in `folder` there."""
    write_whole(Path(folder, CARD), str(model_card(folder)))


def record_average(run: str | Path, output_dir: str | Path, count: int) -> None:
    """Write the card of the mean of `count` checkpoints; the scores of the run's last model are left out."""
    record = {name: value for name, value in _read(Path(run, RECORD)).items() if name != "scores"}
    if record:
        write_record(output_dir, {**record, "averaged": count})
    write_card(output_dir)
