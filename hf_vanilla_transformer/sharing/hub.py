"""Upload a model, its tokenizer and its card to the Hub.

Only what users of the model need is uploaded: no checkpoints, no optimizer state, no paths of this machine.
"""

import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.constants import EVAL_RESULTS_FOLDER
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError
from safetensors.torch import load_file

from ..errors import UserError
from ..files import CARD, RECORD, WEIGHTS, model_files, own_files, weight_files
from ..model.modeling_vanilla_transformer import VanillaTransformerPreTrainedModel
from .card import CardDetails, benchmark_results, model_card
from .convert import MARIAN, from_pretrained

# The base class of all errors of httpx, with which huggingface_hub talks to the Hub. httpx itself is not imported,
# because it is a dependency of theirs and not of this package.
_NETWORK_ERROR: type[BaseException] = HfHubHTTPError.__bases__[0]

# What is in the cards that this package and transformers generate. Every upload replaces these, but no others.
_GENERATED = ("<!-- made by vanilla-transformer", "This model card has been automatically generated")

# Scores on datasets of the Hub. The folder may hold files of others, which stay as they are.
_RESULTS = f"{EVAL_RESULTS_FOLDER}/vanilla_transformer.yaml"

# What an inference endpoint runs, and installs before. The code of the model needs no more than transformers.
_ENDPOINT: dict[str, Path | bytes] = {
    "handler.py": Path(__file__).with_name("endpoint_handler.py"),
    "requirements.txt": b"transformers>=5.17,<6\n",
}

_NO_TOKEN = "the token is missing or invalid; run `hf auth login` or set HF_TOKEN"
_REASONS = {
    401: _NO_TOKEN,
    403: "the token does not have write permission for this repository; use one that has",
    404: "the repository does not exist, or the token has no access to it; check both",
}


@contextmanager
def _shared_files(folder: Path, details: CardDetails) -> Iterator[dict[str, Path | bytes]]:
    """Yield what to upload of a saved model besides its card, by name: its own files, or those of a copy as MarianMT.

    Raises:
        ValueError: if MarianMT has no equivalent of the model, or as `model_files`.
    """
    others = own_files([*weight_files(folder), *(folder / name for name in (f"{WEIGHTS}.index.json", CARD, RECORD))])
    files: dict[str, Path | bytes] = {**model_files(folder), **{file.name: file for file in others}}
    if details.format != MARIAN:
        if results := benchmark_results(folder, details):
            files[_RESULTS] = results.encode()
        yield files
        return
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary, MARIAN)
        from_pretrained(folder, copy, MARIAN)
        # without scores, which are those of the search of this package
        yield {file.name: file for file in copy.iterdir()}


@contextmanager
def hub_errors(repo_id: str) -> Iterator[None]:
    """Turn the errors of an upload into an `OSError` that says how to fix the problem and never contains a token.

    Raises:
        OSError: if the token is missing, invalid or not permitted to write, or the network fails.
        ValueError: if `repo_id` is not a valid repository name.
    """
    try:
        yield
        return
    except HFValidationError:
        raise UserError(f"{repo_id!r} is not a valid repository name; use one like your-name/your-model.") from None
    except LocalTokenNotFoundError:
        reason = _NO_TOKEN
    except RuntimeError as error:
        # in which huggingface_hub wraps the failure of a large file that it uploads without hf_xet
        if not isinstance(error.__cause__, _NETWORK_ERROR):
            raise
        reason = _explain(error.__cause__)
    except (_NETWORK_ERROR, ConnectionError, TimeoutError) as error:
        reason = _explain(error)

    # Raised out here, the error has no context, whose traceback could show a token.
    raise OSError(f"Cannot upload to {repo_id}: {reason}. The local folder is unchanged.")


def _explain(error: BaseException) -> str:
    """Return why an upload failed, without the message of the error, which may quote the request with its token."""
    if isinstance(error, HfHubHTTPError):
        status = error.response.status_code
        return _REASONS.get(status, f"the Hub returned HTTP status {status}; try again later")
    # hf_xet, which uploads large files, raises the same error for any answer, with the status only in its message
    if (answer := re.search(r"HTTP status \w+ error \((\d{3})", str(error))) is None:
        return f"the network failed ({type(error).__name__}); try again later"
    status = int(answer[1])
    if status == 404:
        return "the Hub has no Xet storage for it; set HF_HUB_DISABLE_XET=1 to upload without"
    return _REASONS.get(status, f"the Xet storage returned HTTP status {status}; try again later")


def is_written_by_hand(card: str) -> bool:
    """Return whether a card has text, and none of the marks of a generated one."""
    return card != "" and not any(mark in card for mark in _GENERATED)


def _choose_card(folder: Path, details: CardDetails, api: HfApi, repo_id: str, revision: str | None) -> str:
    """Return the card to upload: that of the folder or else of the Hub if written by hand, and otherwise a new one."""
    card = (folder / CARD).read_text("utf-8") if (folder / CARD).is_file() else ""
    if not is_written_by_hand(card) and api.file_exists(repo_id, CARD, revision=revision):
        card = Path(api.hf_hub_download(repo_id, CARD, revision=revision)).read_text("utf-8")
    return card if is_written_by_hand(card) else str(model_card(folder, replace(details, name=repo_id)))


def push(
    folder: str | Path,
    repo_id: str,
    details: CardDetails | None = None,
    private: bool | None = None,
    token: str | bool | None = None,
    revision: str | None = None,
    create_pr: bool | None = None,
    commit_message: str | None = None,
    commit_description: str | None = None,
    endpoint: bool = False,
) -> str:
    """Upload the model saved in `folder`, with its card, to the Hub in one commit and return its URL.

    A card written by hand, in the folder or otherwise in the repository, is kept. The folder is never changed.

    Args:
        repo_id: the repository, which is created if it does not exist.
        details: details of the card, and the format of the model; its name is always `repo_id`.
        private: whether a new repository is private.
        token: a token with write permission; by default the one of `hf auth login` or HF_TOKEN.
        revision: a branch, which is created if it does not exist, or a reference such as refs/pr/1.
        create_pr, commit_message, commit_description: as in `HfApi.create_commit`.
        endpoint: whether to add the handler with which an inference endpoint of the Hub serves the model.

    Raises:
        OSError: if the folder contains no model or the upload fails.
        ValueError: if the training record or the scores are damaged, a file is a link to one elsewhere, MarianMT has
            no equivalent of the model, or `repo_id` is not a valid repository name.
    """
    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{folder} does not contain a model (no config.json).")
    details = replace(details or CardDetails(), name=repo_id)
    # Made here once too, so that damaged files fail before a repository is created.
    model_card(folder, details)

    with _shared_files(folder, details) as files, hub_errors(repo_id):
        api = HfApi(token=token)
        # With the name of the user, if the caller gave none.
        repo_id = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
        # References such as refs/pr/1 are not branches, and exist already.
        if revision and not revision.startswith("refs/"):
            api.create_branch(repo_id, branch=revision, exist_ok=True)

        if endpoint:
            files.update(_ENDPOINT)
        files[CARD] = _choose_card(folder, details, api, repo_id, revision).encode()
        # Results of an earlier upload may be those of other weights
        outdated = _RESULTS not in files and api.file_exists(repo_id, _RESULTS, revision=revision)
        additions = [CommitOperationAdd(name, content) for name, content in files.items()]
        api.create_commit(
            repo_id=repo_id,
            operations=[*additions, CommitOperationDelete(_RESULTS)] if outdated else additions,
            commit_message=commit_message or "Upload the model, its tokenizer and its card",
            commit_description=commit_description,
            revision=revision,
            create_pr=create_pr,
        )
    return f"{api.endpoint}/{repo_id}"


def push_model(
    model: VanillaTransformerPreTrainedModel, repo_id: str, max_shard_size: int | str = "50GB", **kwargs
) -> str:
    """Upload a model in memory and return its URL; the implementation of `model.push_to_hub`.

    The training record in the folder from which the model was loaded, if there is one, is uploaded with it, unless the
    model has been trained since.

    Args:
        model: the model to upload.
        repo_id: the repository, which is created if it does not exist.
        max_shard_size: the maximum size of each weight file, as for `save_pretrained`.
        kwargs: fields of `CardDetails` (`license`, `scores`, `tags`) and arguments of `push`.

    Raises:
        OSError, ValueError: as for `push`.
        TypeError: for unknown arguments, before the Hub is contacted.
    """
    details = CardDetails(**{name: kwargs.pop(name) for name in ("license", "scores", "tags") if name in kwargs})
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder, max_shard_size=max_shard_size)
        # Empty for a model that was not loaded: Path("") would be the current folder, with a record of another run.
        origin = Path(model.config._name_or_path or folder)
        if (origin / "config.json").is_file() and (origin / RECORD).is_file() and _has_weights_of(model, origin):
            shutil.copy(origin / RECORD, folder)
        return push(folder, repo_id, details, **kwargs)


def _has_weights_of(model: torch.nn.Module, folder: Path) -> bool:
    """Return whether the weights of a model are those saved in `folder`, possibly in another dtype."""
    weights = model.state_dict()
    # Each shard is read, compared and forgotten before the next. What is tied is saved under one of its names only.
    for file in weight_files(folder):
        for name, saved in load_file(file).items():
            weight = weights.get(name)
            if weight is None or not torch.equal(weight.cpu(), saved.to(weight.dtype)):
                return False
    return True
