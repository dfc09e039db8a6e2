"""The pages of the project, and the code in them."""

import re
from pathlib import Path

import docx
from corpora import ROOT

GUIDE = ROOT / "scripts" / "guide"
PAGES = [ROOT / "README.md", *sorted(GUIDE.glob("*.md"))]  # whose commands and code are tested

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[tuple[str, str]]:
    """Return the language ("" for commands) and the content of each block of code."""
    return _BLOCK.findall(page.read_text(encoding="utf-8"))


def write_documents(folder: Path) -> None:
    """Write the documents that the pages name."""
    (folder / "page.html").write_text("<p>The man sees <b>a book</b>.</p>")
    (folder / "notes.txt").write_text("The man sees a book.\n")
    (folder / "subtitles.srt").write_text("1\n00:00:01,000 --> 00:00:02,000\nThe man sees a book.\n")
    document = docx.Document()
    document.add_paragraph("The man sees a book.")
    document.save(folder / "report.docx")


def prose(page: Path) -> str:
    """Return a page without its blocks of code."""
    return _BLOCK.sub("", page.read_text(encoding="utf-8"))


def commands(page: Path) -> list[str]:
    """Return the commands in the blocks of a page, each on one line."""
    return [command for language, block in blocks(page) if not language for command in split_commands(block)]


def split_commands(block: str) -> list[str]:
    """Return the commands in a block, each on one line."""
    lines = block.replace("\\\n", " ").splitlines()
    return [" ".join(line.split()) for line in lines if line.strip() and not line.startswith("#")]
