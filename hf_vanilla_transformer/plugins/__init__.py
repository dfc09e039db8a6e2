"""Find plugins, this package's own and those of others, by their entry points, and import one when it is used."""

from collections.abc import Iterator
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from ..errors import UserError

VERBS = "hf_vanilla_transformer.verbs"  # modules like those in `commands/`
RUNTIMES = "hf_vanilla_transformer.runtimes"  # `inference.runtime.Format`, of an export
DOCUMENTS = "hf_vanilla_transformer.documents"  # `inference.segments.DocumentFormat`, by the ending of its files


@lru_cache
def find(group: str) -> dict[str, EntryPoint]:
    """Return the plugins of a group by name, in alphabetical order; none of them is imported."""
    found = {point.name: point for point in entry_points(group=group)}
    return dict(sorted(found.items()))


def load(group: str, name: str) -> Any:
    """Import a plugin and return it.

    Raises:
        UserError: if there is none of this name, or it cannot be imported, with the reason.
    """
    points = find(group)
    if name not in points:
        known = ", ".join(points) or "none"
        raise UserError(f"No installed package has {name!r} among its {group}; installed: {known}.")
    try:
        return points[name].load()
    except Exception as error:
        # a plugin of others may fail in any way
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"Cannot load {name}, of {points[name].value}: {reason}") from error


def load_all(group: str) -> Iterator[tuple[str, Any]]:
    """Yield the name and the object of each plugin of a group, without those that cannot be imported."""
    for name in find(group):
        try:
            yield name, load(group, name)
        except UserError:
            continue
