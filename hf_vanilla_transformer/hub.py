"""Sharing a model: its card, from what its folder holds, and the upload of model, tokenizer and card to the Hub.

Only what a user of the model needs is uploaded: no checkpoints, no optimizer, no paths of the machine it comes from.
"""

import json
import math
import platform
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import CommitOperationAdd, EvalResult, HfApi, ModelCard, ModelCardData
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError
from jinja2 import TemplateError
from safetensors import safe_open

from .files import write_whole
from .loading import load_config

CARD = "README.md"
TRAINING = "training.json"  # of a trained model: what its card says about the training
_UPLOADED = [CARD, TRAINING, "*config.json", "model*.safetensors*", "tokenizer*", "*_vanilla_transformer.py"]
_NETWORK_ERROR: Any = HfHubHTTPError.__bases__[0]  # of the HTTP library, whichever the Hub's own uses
_METRICS = {"bleu": "BLEU", "chrf": "chrF", "ter": "TER"}
_MARK = "<!-- made by vanilla-transformer"  # in the cards made here, which are made anew at each upload
_STOCK = "This model card has been automatically generated"  # in the cards that transformers makes up

_APP = '''"""A page to translate with {repo_id} and to look at its attention."""

from hf_vanilla_transformer.demo import build_page

build_page("{repo_id}").launch()
'''
_SPACE_CARD = """---
title: {name}
sdk: gradio
sdk_version: {gradio}
app_file: app.py
models:
- {repo_id}
---

Translate with [{repo_id}](https://huggingface.co/{repo_id}) and look at its attention.
"""


def _template() -> str:
    """The card's template: inside an installed package, or beside it in a checkout."""
    package = Path(__file__).parent
    files = (folder / "model_cards" / "template.md" for folder in (package, package.parent))
    return next(file for file in files if file.is_file()).read_text("utf-8")


def hardware(processes: int = 1) -> str:
    """The accelerators, or the processor, of a training run."""
    import torch

    if torch.cuda.is_available():
        return f"{processes} x {torch.cuda.get_device_name()}"
    cpu = platform.processor() or platform.machine()
    information = Path("/proc/cpuinfo")
    if information.is_file():
        models = [line for line in information.read_text().splitlines() if line.startswith("model name")]
        cpu = models[0].split(":", 1)[1].strip() if models else cpu
    return f"{processes} x {torch.get_num_threads()} threads of {cpu}"


def _read(file: Path) -> dict[str, Any]:
    content = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    if not isinstance(content, dict):
        raise ValueError(f"{file} is damaged: it is no JSON object.")
    return content


def _duration(seconds: float) -> str:
    return f"{seconds / 3600:.1f} hours" if seconds >= 5400 else f"{seconds / 60:.0f} minutes"


def _parameters(folder: Path) -> int:
    count = 0
    for file in folder.glob("model*.safetensors"):
        with safe_open(file, "pt") as weights:
            count += sum(math.prod(weights.get_slice(name).get_shape()) for name in weights.keys())  # noqa: SIM118
    return count


def read_scores(file: str) -> dict[str, Any]:
    """What `vanilla-transformer evaluate` printed into `file`.

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


def model_card(
    folder: str | Path,
    name: str | None = None,
    license: str | None = None,
    scores: dict[str, Any] | None = None,
    tags: list[str] | None = None,
) -> ModelCard:
    """The card of the model saved in `folder`.

    Args:
        name: the repository it is for; else the folder's.
        license: of the model; else what `train` was told.
        scores: of `vanilla-transformer evaluate`; else those on the validation text.
        tags: for the Hub's search, beside its own.

    Raises:
        ValueError: if what the folder holds about the model is damaged.
    """
    try:
        return _fill_card(Path(folder), name, license, scores, tags)
    except (TypeError, LookupError, AttributeError, ArithmeticError, TemplateError) as error:
        raise ValueError(f"{Path(folder) / TRAINING}, or the scores, cannot be made a card of: {error}") from error


def _fill_card(
    folder: Path, name: str | None, license: str | None, scores: dict[str, Any] | None, tags: list[str] | None
) -> ModelCard:
    config, generation = load_config(str(folder)), _read(folder / "generation_config.json")
    training = _read(folder / TRAINING)
    scores, license = scores or training.get("scores"), license or training.get("license")
    title, languages = (name or folder.resolve().name).split("/")[-1], [config.source_lang, config.target_lang]
    results = []
    if scores:
        for metric, label in _METRICS.items():
            results.append(
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
            )
    data = ModelCardData(
        language=[language for language in languages if language] or None,
        license=license,
        library_name="transformers",
        pipeline_tag="translation",
        tags=["vanilla_transformer", "translation", *(tags or ())],
        datasets=training.get("dataset_name"),
        metrics=list(_METRICS)[:2] if scores else None,
        model_name=title,
        eval_results=results or None,
    )
    validation = training.get("validation", [])
    return ModelCard.from_template(
        data,
        template_str=_template(),
        name=title,
        location=json.dumps(name or str(folder)),
        repository=name or folder,
        languages=" to ".join(map(str, languages)) if all(languages) else "from one language to another",
        sinusoidal=config.position_embedding == "sinusoidal",
        parameters=f"{_parameters(folder):,}",
        config=config,
        generation={"num_beams": 1, "length_penalty": 1.0, **generation},
        training=training,
        settings=yaml.safe_dump(training.get("settings", {}), sort_keys=False, allow_unicode=True).strip(),
        time=_duration(training.get("seconds", 0)),
        license=license,
        validation=validation[::-1][:: max(1, len(validation) // 10)][::-1],  # about ten, the last among them
        example=json.dumps(training.get("example", "Hello!"), ensure_ascii=False),
        scores=scores
        and {
            **scores,
            "metrics": [
                {"name": label, "value": f"{scores[metric]:.2f}", "signature": scores["signatures"][metric]}
                for metric, label in _METRICS.items()
            ],
        },
    )


def write_record(folder: str | Path, record: dict[str, Any]) -> None:
    """Writes what the card says about the training into `folder`."""
    write_whole(Path(folder, TRAINING), json.dumps(record, indent=2, ensure_ascii=False) + "\n")


def record_average(run: str | Path, output_dir: str | Path, count: int) -> None:
    """Gives the mean of `count` checkpoints of a run its card; its scores are not those of the run's last model."""
    record = {name: value for name, value in _read(Path(run, TRAINING)).items() if name != "scores"}
    if record:
        write_record(output_dir, {**record, "averaged": count})
    write_card(output_dir)


def write_card(folder: str | Path, **about: Any) -> None:
    """Writes the card of the model in `folder` there; arguments as for `model_card`."""
    write_whole(Path(folder, CARD), str(model_card(folder, **about)))


@contextmanager
def explained(repo_id: str) -> Iterator[None]:
    """Turns what an upload may meet into an `OSError` that says what is missing, and never holds a token."""
    try:
        yield
    except HFValidationError:
        raise ValueError(f"{repo_id!r} is not the name of a repository, such as your-name/your-model.") from None
    except LocalTokenNotFoundError:
        raise OSError(f"Cannot upload to {repo_id}: no token; run `hf auth login` or set HF_TOKEN.") from None
    except HfHubHTTPError as error:
        status = error.response.status_code
        why = {
            401: "the Hub does not know the token, or there is none; run `hf auth login` or set HF_TOKEN",
            403: "the token may not write there; it needs the permission to write to this repository",
            404: "there is no such repository or the token may not see it",
        }.get(status, f"the Hub answered {status}; try again later")
        raise OSError(f"Cannot upload to {repo_id}: {why}. Nothing in the folder has changed.") from None
    except (_NETWORK_ERROR, ConnectionError, TimeoutError) as error:
        why = f"the network failed ({type(error).__name__})"
        raise OSError(f"Cannot upload to {repo_id}: {why}. Nothing in the folder has changed.") from None


def _is_written_by_hand(card: str) -> bool:
    return _MARK not in card and _STOCK not in card


def push(
    folder: str | Path,
    repo_id: str,
    private: bool | None = None,
    token: str | bool | None = None,
    revision: str | None = None,
    create_pr: bool = False,
    commit_message: str | None = None,
    commit_description: str | None = None,
    **about: Any,
) -> str:
    """Uploads the model saved in `folder` to the Hub in one commit, with its card; gives the address.

    A card that somebody wrote by hand, in the folder or else in the repository, is the one that counts.

    Args:
        about: `license`, `scores` and `tags`, as for `model_card`.

    Raises:
        OSError: if the upload fails, saying what is missing; the folder stays as it is in any case.
        ValueError: if `repo_id` is no name of a repository.
    """
    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{folder} holds no model.")
    files: dict[str, Any] = {file.name: file for pattern in _UPLOADED for file in sorted(folder.glob(pattern))}
    model_card(folder, name=repo_id, **about)  # what is wrong with the folder shows before anything is created
    with explained(repo_id):
        api = HfApi(token=token)
        repo_id = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
        card = (folder / CARD).read_text("utf-8") if (folder / CARD).is_file() else None
        if card is None and api.file_exists(repo_id, CARD):
            card = Path(api.hf_hub_download(repo_id, CARD)).read_text("utf-8")
        if card is None or not _is_written_by_hand(card):
            card = str(model_card(folder, name=repo_id, **about))
        files[CARD] = card.encode()
        api.create_commit(
            repo_id=repo_id,
            operations=[CommitOperationAdd(name, content) for name, content in files.items()],
            commit_message=commit_message or "Upload the model, its tokenizer and its card",
            commit_description=commit_description,
            revision=revision,
            create_pr=create_pr,
        )
    return f"{api.endpoint}/{repo_id}"


def push_model(model: Any, repo_id: str, max_shard_size: int | str = "50GB", **kwargs: Any) -> str:
    """What `model.push_to_hub` does: `push` of a model in memory. Other arguments as there."""
    with tempfile.TemporaryDirectory() as place:
        model.save_pretrained(place, max_shard_size=max_shard_size)
        origin = Path(model.config._name_or_path or place)  # a model built from nothing comes from no folder
        if (origin / "config.json").is_file() and (origin / TRAINING).is_file():
            shutil.copy(origin / TRAINING, place)
        return push(place, repo_id, **kwargs)


def push_space(repo_id: str, private: bool | None = None, token: str | bool | None = None) -> str:
    """Makes a Space of the same name, a page to translate with the model `repo_id`; gives its address."""
    from importlib.metadata import version

    files = {
        "app.py": _APP.format(repo_id=repo_id),
        "requirements.txt": "hf-vanilla-transformer[demo]\n",
        CARD: _SPACE_CARD.format(repo_id=repo_id, name=repo_id.split("/")[-1], gradio=version("gradio")),
    }
    with explained(repo_id):
        api = HfApi(token=token)
        api.create_repo(repo_id, repo_type="space", space_sdk="gradio", private=private, exist_ok=True)
        api.create_commit(
            repo_id=repo_id,
            repo_type="space",
            operations=[CommitOperationAdd(name, content.encode()) for name, content in files.items()],
            commit_message="A page to translate with the model",
        )
    return f"{api.endpoint}/spaces/{repo_id}"
