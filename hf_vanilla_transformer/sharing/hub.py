"""Upload a model, its tokenizer and its card to the Hub.

Only what a user of the model needs is uploaded: no checkpoints, no optimizer, no paths of the machine.
"""

import importlib.metadata
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, HfApi
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError

from ..files import CARD, MODEL_FILES, RECORD, WEIGHT_FILES
from .card import CardDetails, model_card

_NETWORK_ERROR: Any = HfHubHTTPError.__bases__[0]  # of whichever HTTP library the Hub's client uses
_MARK = "<!-- made by vanilla-transformer"  # in the cards made here, which are made again at each upload
_STOCK = "This model card has been automatically generated"  # in the cards that transformers makes

_APP = '''"""A page to translate with {repo_id} and to look at its attention."""

from hf_vanilla_transformer.serving.page import build_page

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


@contextmanager
def hub_errors(repo_id: str) -> Iterator[None]:
    """Turn the errors of an upload into an `OSError` that says what is missing and never shows a token."""
    try:
        yield
    except HFValidationError:
        raise ValueError(f"{repo_id!r} is not the name of a repository, such as your-name/your-model.") from None
    except LocalTokenNotFoundError:
        raise OSError(f"Cannot upload to {repo_id}: no token; run `hf auth login` or set HF_TOKEN.") from None
    except HfHubHTTPError as error:
        status = error.response.status_code
        why = {
            401: "the token is missing or invalid; run `hf auth login` or set HF_TOKEN",
            403: "the token may not write there; it needs the permission to write to this repository",
            404: "the repository does not exist, or the token may not see it",
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
    details: CardDetails | None = None,
    private: bool | None = None,
    token: str | bool | None = None,
    **commit: Any,
) -> str:
    """Upload the model saved in `folder` to the Hub in one commit, with its card, and return its address.

    A card that somebody wrote by hand, in the folder or else in the repository, is kept.

    Args:
        details: for the card; its name is `repo_id`.
        commit: arguments of `HfApi.create_commit`: `revision`, `create_pr`, `commit_message`, `commit_description`.

    Raises:
        OSError: if the upload fails, saying what is missing; the folder stays as it is in any case.
        ValueError: if `repo_id` is not the name of a repository.
    """
    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{folder} holds no model.")
    uploaded = (CARD, RECORD, WEIGHT_FILES, *MODEL_FILES)
    files: dict[str, Any] = {file.name: file for pattern in uploaded for file in sorted(folder.glob(pattern))}
    details = replace(details or CardDetails(), name=repo_id)
    model_card(folder, details)  # errors in the folder show before a repository is created
    commit["commit_message"] = commit.get("commit_message") or "Upload the model, its tokenizer and its card"
    with hub_errors(repo_id):
        api = HfApi(token=token)
        repo_id = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
        card = (folder / CARD).read_text("utf-8") if (folder / CARD).is_file() else None
        if card is None and api.file_exists(repo_id, CARD):
            card = Path(api.hf_hub_download(repo_id, CARD)).read_text("utf-8")
        if card is None or not _is_written_by_hand(card):
            card = str(model_card(folder, replace(details, name=repo_id)))
        files[CARD] = card.encode()
        operations = [CommitOperationAdd(name, content) for name, content in files.items()]
        api.create_commit(repo_id=repo_id, operations=operations, **commit)
    return f"{api.endpoint}/{repo_id}"


def push_model(model: Any, repo_id: str, max_shard_size: int | str = "50GB", **kwargs: Any) -> str:
    """Upload a model in memory, as `model.push_to_hub` does.

    Args:
        kwargs: fields of `CardDetails`, and arguments of `push`.
    """
    details = CardDetails(**{name: kwargs.pop(name) for name in ("license", "scores", "tags") if name in kwargs})
    with tempfile.TemporaryDirectory() as place:
        model.save_pretrained(place, max_shard_size=max_shard_size)
        origin = Path(model.config._name_or_path or place)  # empty for a model built from nothing
        if (origin / "config.json").is_file() and (origin / RECORD).is_file():
            shutil.copy(origin / RECORD, place)
        return push(place, repo_id, details, **kwargs)


def push_space(repo_id: str, private: bool | None = None, token: str | bool | None = None) -> str:
    """Create a Space of the same name, a page to translate with the model `repo_id`, and return its address."""
    gradio = importlib.metadata.version("gradio")
    files = {
        "app.py": _APP.format(repo_id=repo_id),
        "requirements.txt": "hf-vanilla-transformer[demo]\n",
        CARD: _SPACE_CARD.format(repo_id=repo_id, name=repo_id.split("/")[-1], gradio=gradio),
    }
    with hub_errors(repo_id):
        api = HfApi(token=token)
        api.create_repo(repo_id, repo_type="space", space_sdk="gradio", private=private, exist_ok=True)
        api.create_commit(
            repo_id=repo_id,
            repo_type="space",
            operations=[CommitOperationAdd(name, content.encode()) for name, content in files.items()],
            commit_message="A page to translate with the model",
        )
    return f"{api.endpoint}/spaces/{repo_id}"
