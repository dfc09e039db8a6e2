"""The Markdown pages of the project: links, and lengths."""

import re
from collections import Counter
from pathlib import Path
from urllib.parse import unquote

import pytest
from corpora import ROOT
from guide_pages import GUIDE

IGNORED = {".git", ".venv", ".venv-oldest", "data", "out", "runs", "build", "fixtures"}
PAGES = [page for page in sorted(ROOT.rglob("*.md")) if not IGNORED & set(page.relative_to(ROOT).parts)]


def without_code(text: str) -> str:
    """Return a page without blocks of code and code in lines, in which nothing is a link or a heading."""
    return re.sub(r"^```.*?^```$|`[^`\n]*`", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of a page's headings."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    found: Counter[str] = Counter()
    names = set()
    for heading in re.findall(r"^#{1,6} +(.+?) *#*$", text, re.MULTILINE):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        name = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        names.add(f"{name}-{found[name]}" if found[name] else name)
        found[name] += 1
    return names


def links(page: Path) -> list[str]:
    """Return the targets of a page's links and pictures that are in the project."""
    targets = re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text(encoding="utf-8")))
    return [unquote(target) for target in targets if not re.match(r"\w+:", target)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading_of_it(page):
    for link in links(page):
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


def test_links_and_anchors_are_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A `b`, c\n## A b c\n```\n# No\n[no](no.md)\n```\n[a](x.md#y) `[no](no)` [w](https://w.org)\n")
    assert anchors(page) == {"a-b-c", "a-b-c-1"}
    assert links(page) == ["x.md#y"]


def test_pages_are_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 160
    for page in GUIDE.glob("*.md"):
        assert len(page.read_text(encoding="utf-8").splitlines()) < 150, page.name


def test_contributing_names_only_files_that_exist():
    text = (ROOT / ".github" / "CONTRIBUTING.md").read_text(encoding="utf-8")
    names = set(re.findall(r"(?<![\w./-])(?:[\w.*-]+/)+[\w.*-]*|[\w-]+\.(?:py|yaml)", text)) - {".venv/bin/activate"}
    folders = [ROOT, ROOT / ".github", ROOT / "hf_vanilla_transformer"]
    assert {"tests/support/", "data/formats.py", "training/presets.yaml"} <= names
    assert [name for name in names if not any(list(folder.glob(name)) for folder in folders)] == []


def rows(text: str) -> list[list[str]]:
    """Return the cells of each line of the tables in a page."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:2] == "| "]


def numbers(text: str) -> list[float]:
    return [float(number.replace(",", "")) for number in re.findall(r"\d[\d,]*\.?\d*", text)]


def test_the_first_score_of_the_readme_is_that_of_the_papers_recipe_and_all_are_measured():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    recipes = {re.search(r"\[`?([^]`]+)", cells[0])[1]: cells[1:] for cells in rows(text) if "recipes/" in cells[0]}
    what, bleu = next(iter(recipes.values()))
    assert "**the paper's recipe**" in what
    measured = rows((ROOT / "model_cards" / "README.md").read_text(encoding="utf-8"))
    for recipe, (_, scores) in recipes.items():
        exact = [score for cells in measured if recipe in cells[0] for score in numbers(cells[-1])]
        for score in numbers(scores):
            assert any(score == pytest.approx(other, abs=0.051) for other in exact), recipe
    assert numbers(bleu) == [38.8]


def test_the_index_of_the_guide_names_every_page():
    index = links(ROOT / "scripts" / "README.md")
    assert {page.name for page in GUIDE.glob("*.md")} <= {Path(link.partition("#")[0]).name for link in index}


CACHES = {"__pycache__", ".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache"}
FILES = [
    file for file in ROOT.rglob("*") if file.is_file() and not (IGNORED | CACHES) & set(file.relative_to(ROOT).parts)
]


@pytest.mark.parametrize(
    "pattern",
    [
        # which has no release: anybody could publish other code under this name; see version.install_command
        rb"install\W+hf-vanilla",
        rb"://[\w.-]*(pypi|pythonhosted|pytorch|anaconda)|index[-]url",
    ],
    ids=["name of this package", "address of an index"],
)
def test_no_file_of_the_project_gives_pip(pattern):
    assert {"Dockerfile", "README.md", "constraints.txt", "cluster.yaml", "hub.py"} <= {file.name for file in FILES}
    assert not [file for file in FILES if re.search(pattern, file.read_bytes())]
