"""Verbs that are killed just before each file or folder that they put in place, and then run again.

A power cut is a kill after which what was not synced is lost, so the undisturbed runs also check what was.
"""

import os
import signal
import sys
from pathlib import Path

import pytest
from corpora import ROOT
from small import model_flags, write_phrases
from training_runs import FORKS

from hf_vanilla_transformer.data.phrases import splits

LANGUAGES = ["--source_lang", "en", "--target_lang", "de"]
TRAIN = [
    *("train", *model_flags(), "--vocab_size", "300", "--max_tokens", "256", "--disable_tqdm", "true"),
    *("--max_steps", "2", "--save_steps", "1", "--warmup_steps", "1"),
]
COMMANDS = {
    "train": [*TRAIN, "--train_file", "TEXT", "--output_dir", "OUT"],
    "average": ["average", "RUN", "--last", "2", "--output_dir", "OUT"],
    "convert": ["convert", "RUN", "OUT", "--to", "marian"],
    "export": ["export", "RUN", "OUT", "--format", "ctranslate2"],
    "import": ["import", "TEXT", *LANGUAGES, "--output_dir", "OUT"],
    "prepare": ["prepare", "TEXT", *LANGUAGES, "--vocab_size", "300", "--workers", "1", "--output_dir", "OUT"],
    "translate": ["translate", "RUN", "--input_files", "ENGLISH", "--workers", "1", "--output_dir", "OUT"],
}
# Files whose content depends on the time or the folder
TIMED = ("settings.yaml", "training.json", "README.md", "trainer_state.json")


def _run(words: list[str], place: Path, survived: list[str] | None, log: Path) -> None:
    """Run a verb in this new process, and kill it before the first rename that is not among those `survived`."""
    with log.open("wb") as output:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(output.fileno(), stream.fileno())
    os.chdir(ROOT)
    os.environ.update({"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"})
    renames = log.with_name("renames").open("w", buffering=1)
    unsynced = log.with_name("unsynced").open("w", buffering=1)
    synced: dict[int, int] = {}  # by inode: when it was changed before it was synced
    sync = os.fsync
    moved: set[Path] = set()  # folders with new names

    def note_sync(descriptor: int) -> None:
        status = os.fstat(descriptor)
        synced[status.st_ino] = status.st_mtime_ns
        moved.difference_update([folder for folder in moved if folder.stat().st_ino == status.st_ino])
        sync(descriptor)

    os.fsync = note_sync

    def check_synced(source: Path, target: Path) -> None:
        for path in (source, *source.rglob("*")):
            status = path.stat()
            if synced.get(status.st_ino) != status.st_mtime_ns:
                print(path, file=unsynced)
        moved.add(target.parent)

    def on_event(event: str, args: tuple) -> None:
        # raised for os.replace as well, in every version of Python
        if event != "os.rename" or not (target := Path(args[1])).is_relative_to(place) or "unfinished" in str(target):
            return
        check_synced(Path(args[0]), target)
        # a run writes its tokenizer at its start and at its end
        rename = f"{target.relative_to(place)}, {len(list(place.glob('checkpoint-[0-9]*')))} checkpoints"
        print(rename, file=renames)
        if survived is not None and rename not in survived:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(on_event)

    from hf_vanilla_transformer.cli import main

    status = main(words)
    unsynced.writelines(f"{folder}\n" for folder in moved)
    unsynced.close()
    sys.exit(status)


class Command:
    """A verb that writes the folder `place`."""

    def __init__(self, verb: str, place: Path, **names: Path):
        names["OUT"] = place
        self.words = [str(names.get(word, word)) for word in COMMANDS[verb]]
        self.place = place
        self.log = place.with_name("log")

    def run(self, survived: list[str] | None = None) -> int:
        """Run it and return the exit status; kill it before the first rename not in `survived`, if given."""
        process = FORKS.Process(target=_run, args=(self.words, self.place, survived, self.log))
        process.start()
        process.join(timeout=800)
        if process.exitcode is None:
            process.kill()
            raise AssertionError("the verb does not end")
        return process.exitcode

    def renames(self) -> list[str]:
        """The renames of the latest run, the last of which may have been prevented."""
        return self.log.with_name("renames").read_text().splitlines()

    def unsynced(self) -> str:
        """The files of the latest run that could be empty after a power cut, and the folders that could lack them."""
        return self.log.with_name("unsynced").read_text()

    def output(self) -> dict[str, bytes]:
        """The files in the folder by path."""
        files = (file for file in self.place.rglob("*") if file.is_file())
        return {str(file.relative_to(self.place)): file.read_bytes() for file in files}


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    return write_phrases(tmp_path_factory.mktemp("text") / "train", splits()["train"][:60])


@pytest.fixture(scope="module")
def finished(text, tmp_path_factory) -> Command:
    """An undisturbed training run."""
    command = Command("train", tmp_path_factory.mktemp("undisturbed") / "out", TEXT=text)
    assert command.run() == 0, command.log.read_text()
    return command


def test_a_run_replaces_every_file_of_its_folder_atomically(finished):
    renamed = {Path(line.split(",")[0]).name for line in finished.renames()}
    assert {file.name for file in finished.place.iterdir()} == renamed


@pytest.mark.parametrize(
    ("verb", "folder"),
    [
        ("train", "new"),
        ("average", "new"),
        ("convert", "new"),
        ("export", "new"),
        # filled file by file, because it may be a mount point
        ("export", "empty"),
        ("import", "new"),
        ("prepare", "new"),
        ("translate", "new"),
    ],
)
def test_a_verb_killed_before_each_of_its_renames_ends_with_the_same_files(verb, folder, finished, text, tmp_path):
    names = {"TEXT": text, "ENGLISH": Path(f"{text}.en"), "RUN": finished.place}
    undisturbed = Command(verb, tmp_path / "undisturbed" / "out", **names)
    killed = Command(verb, tmp_path / "killed" / "out", **names)
    for command in (undisturbed, killed):
        (command.place if folder == "empty" else command.place.parent).mkdir(parents=True)
    assert undisturbed.run() == 0, undisturbed.log.read_text()
    assert not undisturbed.unsynced()
    survived: list[str] = []
    while (status := killed.run(survived)) == -signal.SIGKILL:
        survived.append(killed.renames()[-1])
    assert status == 0, killed.log.read_text()
    assert set(undisturbed.renames()) <= set(survived)
    files, expected = killed.output(), undisturbed.output()
    assert files.keys() == expected.keys()
    for name in files:
        if Path(name).name not in TIMED:
            assert files[name] == expected[name], name
