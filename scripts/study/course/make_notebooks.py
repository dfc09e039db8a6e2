"""Make the notebooks of the course from their sources.

python scripts/study/course/make_notebooks.py

The source of lesson N is NN_NAME.py in the percent format, and its notebook NN_NAME.ipynb. solutions/ gets the same
notebook with the exercises solved by the functions of solutions/lesson_N.py.
"""

import ast
from pathlib import Path

import jupytext

COURSE = Path(__file__).parent
LESSONS = sorted(COURSE.glob("[0-9]*.py"))


def answers_file(lesson: Path) -> Path:
    """Return the file with the answers to a lesson."""
    return COURSE / "solutions" / f"lesson_{int(lesson.name[:2])}.py"


def functions(code: str) -> dict[str, str]:
    """Return the code of each top-level function by its name."""
    found = {}
    for node in ast.parse(code).body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = ast.get_source_segment(code, node) or ""
    return found


def notebook(lesson: Path, solved: bool = False) -> str:
    """Return the notebook of a lesson in JSON, optionally with its exercises solved."""
    book = jupytext.read(lesson, fmt="py:percent")
    answers = functions(answers_file(lesson).read_text(encoding="utf-8"))
    for i, cell in enumerate(book.cells):
        # jupytext draws ids at random, but equal sources should have equal notebooks
        cell.id = f"cell-{i}"
        if solved and "exercise" in cell.metadata.get("tags", ()):
            for name, unsolved in functions(cell.source).items():
                cell.source = cell.source.replace(unsolved, answers[name])
    book.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    # the version of jupytext is of no interest to a reader
    book.metadata.pop("jupytext", None)
    return jupytext.writes(book, fmt="ipynb")


def notebooks() -> dict[Path, str]:
    """Return the content of every notebook by its file."""
    files = {}
    for lesson in LESSONS:
        name = lesson.with_suffix(".ipynb").name
        files[COURSE / name] = notebook(lesson)
        files[COURSE / "solutions" / name] = notebook(lesson, solved=True)
    return files


if __name__ == "__main__":
    for file, content in notebooks().items():
        file.write_text(content, encoding="utf-8")
        print(file.relative_to(COURSE))
