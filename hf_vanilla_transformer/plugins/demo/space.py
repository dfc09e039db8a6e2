"""Publish the page of a model as a Space on the Hub (the extra `demo`)."""

from importlib.metadata import requires
from pathlib import Path

from huggingface_hub import CommitOperationAdd, HfApi, SpaceCardData
from packaging.requirements import Requirement

from ...files import CARD, import_extra
from ...sharing.hub import hub_errors

_APP = """from hf_vanilla_transformer.inference.attention import Explorer
from hf_vanilla_transformer.plugins.demo.gradio_page import build_page

build_page(Explorer.load("{repo_id}")).launch()
"""

_PACKAGE = Path(__file__).parents[2]
_PACKAGE_SUFFIXES = (".py", ".yaml", ".html", ".bz2")


def create_space(repo_id: str, private: bool | None = None, token: str | bool | None = None) -> str:
    """Create a Space with the page for the model `repo_id`, under the same name, and return its URL.

    Raises:
        ImportError: if Gradio, whose version the Space uses, is not installed.
        OSError, ValueError: as for `sharing.hub.push`.
    """
    gradio = import_extra("gradio", "demo").__version__
    with hub_errors(repo_id):
        api = HfApi(token=token)
        # The name comes back with that of the user in front, if it had none.
        repo_id = api.create_repo(
            repo_id, private=private, repo_type="space", space_sdk="gradio", exist_ok=True
        ).repo_id
        name = repo_id.split("/")[-1]
        metadata = SpaceCardData(title=name, sdk="gradio", sdk_version=gradio, app_file="app.py", models=[repo_id])
        link = f"[{repo_id}](https://huggingface.co/{repo_id})"
        files = {
            **_package_files(),
            "app.py": _APP.format(repo_id=repo_id).encode(),
            "requirements.txt": _requirements().encode(),
            CARD: f"---\n{metadata}\n---\n\nTranslate with {link} and explore its attention weights.\n".encode(),
        }
        api.create_commit(
            repo_id=repo_id,
            repo_type="space",
            operations=[CommitOperationAdd(name, content) for name, content in files.items()],
            commit_message="Add a translation page for the model",
        )
    return f"{api.endpoint}/spaces/{repo_id}"


def _package_files() -> dict[str, bytes]:
    """Return the files of this package by their paths in a Space, which needs no release of it then."""
    # Only its own kinds of file: a clone may contain others that are not meant to be shared
    files = [file for file in _PACKAGE.rglob("*") if file.suffix in _PACKAGE_SUFFIXES]
    return {file.relative_to(_PACKAGE.parent).as_posix(): file.read_bytes() for file in files}


def _requirements() -> str:
    """Return the requirements of this package with the extra `demo`, one per line."""
    requirements = map(Requirement, requires("hf-vanilla-transformer") or ())
    return "".join(
        f"{requirement.name}{requirement.specifier}\n"
        for requirement in requirements
        if not requirement.marker or requirement.marker.evaluate({"extra": "demo"})
    )
