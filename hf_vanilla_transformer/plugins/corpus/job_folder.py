"""The folder of a corpus job: its manifest, and the notes of tasks on the files that they have written."""

import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ...data.formats import DataError, matches
from ...errors import UserError
from ...files import UNFINISHED, JsonObject, check_folder, read_json, write_whole


class JobFolder(NamedTuple):
    """The folder of a job, whose manifest has its settings and, once every task is done, its totals.

    Args:
        path: absolute path of the folder: new, empty, or of this job.
        manifest: name of the manifest.
        work: name of the subfolder in which tasks note what they have done.
        read: returns the manifest of a folder, checked.
    """

    path: Path
    manifest: str
    work: str
    read: Callable[[Path], JsonObject]

    def resume(self, settings: JsonObject) -> JsonObject | None:
        """Return the manifest of an earlier call for this job, or None if there was none.

        Args:
            settings: everything that determines the output, in types of JSON, with the "version" of the code.

        Raises:
            ValueError: if the folder contains anything else, or is a file; for the same job with different settings,
                the message names these.
        """
        if not (self.path / self.manifest).is_file():
            check_folder(self.path)
            own = (self.work, self.manifest)
            if self.path.is_dir() and not all(entry.name.startswith(own) for entry in self.path.iterdir()):
                raise UserError(f"{self.path} is in use: choose a new or empty folder.")
            return None
        manifest = self.read(self.path)
        earlier = manifest["settings"]
        if manifest["whole"]:
            # a finished folder remains valid if the code changes
            earlier = {**earlier, "version": settings["version"]}
        changed = [name for name, value in settings.items() if earlier.get(name) != value]
        if changed:
            raise UserError(
                f'{self.path} contains the output of different text or settings ({", ".join(changed)}; "version" '
                "identifies the code); choose another folder."
            )
        return manifest

    def start(self, settings: JsonObject, **content: object) -> JsonObject:
        """Write the manifest of a new job, with `content`, and return it."""
        (self.path / self.work).mkdir(parents=True, exist_ok=True)
        manifest = {"settings": settings, "whole": False, **content}
        write_json(self.path / self.manifest, manifest)
        return manifest

    def finish(self, manifest: JsonObject, totals: JsonObject) -> JsonObject:
        """Write and return the manifest with the totals of a job whose tasks are all done."""
        manifest = {**manifest, "whole": True, **totals}
        write_json(self.path / self.manifest, manifest)
        self.remove_leftovers()
        return manifest

    def remove_leftovers(self) -> None:
        """Remove what interrupted tasks have left."""
        # another process may be removing them, and what contains them
        for folder, folders, files in os.walk(self.path):
            for left in (Path(folder, name) for name in (*folders, *files) if name.endswith(UNFINISHED)):
                if left.is_dir():
                    shutil.rmtree(left, ignore_errors=True)
                else:
                    left.unlink(missing_ok=True)


def is_complete(file: Path, note: Path, expected: JsonObject) -> bool:
    """Return whether a task has written its file, whose size is recorded under "bytes" in a note written after it.

    Args:
        expected: what a note must have in addition, in the words of `formats.matches`; a damaged one is written again.
    """
    if not (note.is_file() and file.is_file()):
        return False
    with suppress(ValueError):
        return read_note(note, {"bytes": int, **expected})["bytes"] == file.stat().st_size
    return False


def read_note(note: Path, expected: JsonObject) -> JsonObject:
    """Return what a task has noted about its files.

    Args:
        expected: what a note must have, in the words of `formats.matches`.

    Raises:
        DataError: if it does not.
    """
    content = read_json(note)
    if not matches(content, expected):
        raise damaged(note)
    return content


def damaged(note: Path) -> DataError:
    """Return the error for a note that cannot be true."""
    return DataError(f"{note} is damaged; start the job again in a new folder.")


def write_json(file: Path, content: JsonObject) -> None:
    """Write a JSON file atomically, even if several processes write it at once."""
    write_whole(file, json.dumps(content, indent=2, ensure_ascii=False) + "\n", shared=True)
