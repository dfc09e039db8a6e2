"""The course in scripts/study/course/: its notebooks, their exercises, solutions and wrong answers."""

import ast
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import matplotlib
import matplotlib.pyplot as plt
import pytest
import torch
from corpora import ROOT

COURSE = ROOT / "scripts" / "study" / "course"
LESSONS = sorted(COURSE.glob("[0-9]*.py"))


def cells(lesson: Path) -> list[tuple[str, str]]:
    """Return the kind of each code cell of a lesson ("exercise", "check", "install" or ""), and its code."""
    found = []
    for cell in lesson.read_text(encoding="utf-8").split("# %%")[1:]:
        heading, code = cell.split("\n", 1)
        if "[markdown]" not in heading:
            kind = next((kind for kind in ("exercise", "check", "install") if f'"{kind}"' in heading), "")
            found.append((kind, code))
    return found


def answers(lesson: Path) -> dict:
    return runpy.run_path(str(COURSE / "solutions" / f"lesson_{int(lesson.name[:2])}.py"))


def exercises(lesson: Path) -> list[str]:
    """Return the names of the functions that a lesson asks for."""
    return [node.name for kind, code in cells(lesson) if kind == "exercise" for node in ast.parse(code).body]


@pytest.fixture
def course(monkeypatch, tmp_path):
    """Be in the course of a clone as it lies on Colab, import as a notebook there does, and draw without a screen.

    There is nothing beside the clone but Colab's own folder, and the clone's name cannot be imported.
    """
    folder = tmp_path / "hf-vanilla-transformer" / COURSE.relative_to(ROOT)
    shutil.copytree(COURSE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "sample_data").mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend("")  # the current folder, wherever a cell goes
    monkeypatch.setitem(sys.modules, "google.colab", ModuleType("google.colab"))
    backend = matplotlib.get_backend()
    matplotlib.use("agg")
    # a lesson may switch gradients off
    with torch.enable_grad():
        yield
    torch.set_printoptions(profile="default")
    plt.close("all")
    matplotlib.use(backend)
    for name in [name for name in sys.modules if name.split(".")[0] in ("checks", "broken_models")]:
        del sys.modules[name]


def run(lesson: Path, solved: bool, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Run a lesson with its exercises solved or as they are, and return the messages of its failed checks."""
    namespace: dict = {}
    failures = []
    solutions = answers(lesson) if solved else {}
    course = Path.cwd()
    content = course.parents[3]
    os.chdir(content)
    installed = []
    for kind, code in cells(lesson):
        if kind == "install":
            with monkeypatch.context() as patch:
                patch.setattr(subprocess, "run", lambda command, check: installed.append(command))
                exec(compile(code.replace('"/content"', repr(str(content))), lesson.name, "exec"), namespace)
            assert (Path.cwd(), len(installed)) == (course, 1)
            continue
        try:
            exec(compile(code, lesson.name, "exec"), namespace)
        except AssertionError as error:
            assert kind == "check"
            failures.append(str(error))
        if kind == "exercise":
            names = [node.name for node in ast.parse(code).body]
            namespace.update({name: solutions[name] for name in names if solved})
    return failures


def test_the_notebooks_agree_with_their_sources(monkeypatch):
    pytest.importorskip("jupytext", reason="the extra dev is not installed")
    monkeypatch.syspath_prepend(COURSE)
    made = runpy.run_path(str(COURSE / "make_notebooks.py"))["notebooks"]()
    assert set(made) == {*COURSE.rglob("*.ipynb")}
    for file, content in made.items():
        assert file.read_text(encoding="utf-8") == content, "run scripts/study/course/make_notebooks.py"


@pytest.mark.slow
@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.stem)
def test_every_check_accepts_the_solution(course, lesson, monkeypatch):
    assert run(lesson, solved=True, monkeypatch=monkeypatch) == []


@pytest.mark.slow
@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.stem)
def test_every_check_of_an_unsolved_exercise_fails_with_its_own_message(course, lesson, monkeypatch):
    failures = run(lesson, solved=False, monkeypatch=monkeypatch)
    names = exercises(lesson)
    assert [message.split()[0] for message in failures] == names
    assert len([kind for kind, _ in cells(lesson) if kind == "check"]) == len(names)
    assert 2 <= len(names) <= 4


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.stem)
def test_every_check_rejects_wrong_answers_with_different_messages(course, lesson):
    wrong_answers = answers(lesson)["WRONG_ANSWERS"]
    checks = __import__(f"checks.lesson_{int(lesson.name[:2])}", fromlist=["checks"])
    assert list(wrong_answers) == exercises(lesson)
    for name, answers_by_words in wrong_answers.items():
        assert len(answers_by_words) >= 2, name
        messages = set()
        for words, answer in answers_by_words.items():
            with pytest.raises(AssertionError) as error:
                getattr(checks, f"check_{name}")(answer)
            assert words in str(error.value)
            messages.add(str(error.value))
        assert len(messages) == len(answers_by_words), name


def test_all_lessons_install_the_same_way_and_none_gives_pip_a_name():
    installs = {code for lesson in LESSONS for kind, code in cells(lesson) if kind == "install"}
    assert len(installs) == 1
    assert '"../../..[plots]"' in installs.pop()
    assert all("install" in [kind for kind, _ in cells(lesson)] for lesson in LESSONS)


def test_the_experiments_of_lesson_9_tell_all_faults_apart(course):
    lesson = COURSE / "09_find_the_bug.py"
    namespace = answers(lesson)
    for kind, code in cells(lesson):
        if not kind:
            exec(compile(code, lesson.name, "exec"), namespace)
    models = namespace["healthy"].__globals__
    experiments = [*namespace["EXPERIMENTS"], *(namespace[name] for name in exercises(lesson)[:3])]

    def signature(model) -> tuple[float, ...]:
        return tuple(float(f"{experiment(model).item():.2g}") for experiment in experiments)

    healthy = signature(models["healthy"]())
    signatures = [signature(models["broken_by"](fault)) for fault in models["FAULTS"]]
    assert len({healthy, *signatures}) == 13


def test_on_colab_a_lesson_installs_the_clone_whatever_it_is_called(tmp_path, monkeypatch):
    folder = tmp_path / "hf-vanilla-transformer" / "scripts" / "study" / "course"
    folder.mkdir(parents=True)
    (tmp_path / "sample_data").mkdir()
    [install, *_] = [code for kind, code in cells(LESSONS[0]) if kind == "install"]
    commands = []
    monkeypatch.setattr(subprocess, "run", lambda command, check: commands.append((command, Path.cwd(), check)))
    monkeypatch.chdir(tmp_path)
    assert '"/content"' in install
    code = compile(install.replace('"/content"', repr(str(tmp_path))), "install", "exec")
    exec(code, {})
    assert commands == []
    monkeypatch.setitem(sys.modules, "google.colab", ModuleType("google.colab"))
    exec(code, {})
    [(command, where, check)] = commands
    assert (where, check) == (folder, True)
    path, extras = command[-1].split("[")
    assert (where / path).resolve() == tmp_path / "hf-vanilla-transformer"
    assert extras == "plots]"
    # a clone whose name cannot be imported does not hide the installed package from the lesson
    assert Path.cwd() == folder


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.stem)
def test_a_notebook_shows_only_the_message_of_a_failed_check(course, lesson):
    checks = __import__(f"checks.lesson_{int(lesson.name[:2])}", fromlist=["checks"])
    for name, answers_by_words in answers(lesson)["WRONG_ANSWERS"].items():
        for answer in (lambda *args, **settings: None, *answers_by_words.values()):
            with pytest.raises(AssertionError) as error:
                getattr(checks, f"check_{name}")(answer)
            # what IPython prints instead of a traceback
            assert error.value._render_traceback_() == [str(error.value)], name


def test_the_tables_of_the_write_ups_name_what_exists():
    tables = (COURSE / "write_ups.md").read_text(encoding="utf-8")
    rows = [
        line for line in tables.splitlines() if line.startswith("|") and not line.startswith(("| section |", "|---"))
    ]
    # a title may be wrapped in the comments of its source
    texts = {str(int(lesson.name[:2])): lesson.read_text(encoding="utf-8").replace("\n# ", " ") for lesson in LESSONS}
    tests = "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("*.py"))
    assert len(re.findall(r"^## Write-up \d{3}$", tables, re.MULTILINE)) == 5
    for row in rows:
        section, covered = (cell.strip() for cell in row.strip("|").split("|"))
        assert section, row
        assert covered, row
        lessons = re.findall(r"(?:^|[;,] | to )(\d+)(?=[;,:]|$| \(| to )", covered)
        assert lessons or covered == "nothing to cover", row
        assert set(lessons) <= set(texts), row
        for lesson, exercise in re.findall(r"(\d+), exercises? (\d)", covered):
            assert f"## Exercise {exercise}:" in texts[lesson], row
        for title in re.findall(r'"([^"]+)"', covered):
            assert any(title.removesuffix(" ...") in texts[lesson] for lesson in lessons), row
        for name in re.findall(r"`(test_\w+)`", covered):
            assert f"def {name}(" in tests, row
        for file in re.findall(r"`([\w/]+\.py)`", covered):
            assert (ROOT / file).is_file(), row
