"""Find and load plugins, this package's own and those of other packages."""

import subprocess
import sys
from importlib.metadata import EntryPoint, entry_points

import pytest

from hf_vanilla_transformer import plugins
from hf_vanilla_transformer.cli import find_verbs, main
from hf_vanilla_transformer.errors import UserError

BROKEN = """raise RuntimeError("made of glass")"""
GREET = '''"""`vanilla-transformer greet`: say hello."""

from dataclasses import dataclass


@dataclass
class Flags:
    pass


def run(args: Flags) -> None:
    print("hello")
'''


@pytest.fixture
def other_plugins(tmp_path, monkeypatch):
    """The plugins of another package: `greet`, which works, and `glass`, which does not."""
    (tmp_path / "other_greet.py").write_text(GREET)
    (tmp_path / "other_glass.py").write_text(BROKEN)
    monkeypatch.syspath_prepend(tmp_path)
    points = [EntryPoint(name, f"other_{name}", plugins.VERBS) for name in ("greet", "glass")]
    monkeypatch.setattr(plugins, "entry_points", lambda group: [*entry_points(group=group), *points])
    for cache in (plugins.find, find_verbs):
        cache.cache_clear()
    yield
    for cache in (plugins.find, find_verbs):
        cache.cache_clear()
    for name in ("other_greet", "other_glass"):
        sys.modules.pop(name, None)


def test_a_verb_of_another_package_is_one_of_the_command_line(other_plugins, capsys):
    assert main(["greet"]) == 0
    assert capsys.readouterr().out == "hello\n"


def test_a_broken_plugin_costs_only_itself(other_plugins, capsys):
    assert main(["glass"]) == 1
    assert "Cannot load glass, of other_glass: RuntimeError: made of glass" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    text = capsys.readouterr().out
    assert "say hello" in text
    assert "made of glass" in text
    assert main(["greet"]) == 0


def test_an_unknown_plugin_is_named_with_those_that_are_installed():
    with pytest.raises(UserError, match=r"'teapot' among its hf_vanilla_transformer.verbs; installed: \w+, .*"):
        plugins.load(plugins.VERBS, "teapot")


def test_finding_plugins_imports_none_of_them():
    assert all(isinstance(point, EntryPoint) for point in plugins.find(plugins.VERBS).values())
    assert list(plugins.find(plugins.VERBS)) == sorted(plugins.find(plugins.VERBS))


@pytest.mark.slow
def test_the_core_works_without_installed_metadata(tmp_path):
    """From a checkout on PYTHONPATH, as on a cluster: only plugins are missing."""
    (tmp_path / "letter.docx").touch()
    code = """if True:
        import importlib.metadata as metadata
        installed = metadata.entry_points
        metadata.entry_points = lambda **kind: [] if "hf_vanilla" in kind.get("group", "") else installed(**kind)
        from hf_vanilla_transformer.cli import find_verbs, main
        print(*find_verbs())
        print(main(["translate", "nowhere", "letter.docx"]), main(["translate", "nowhere"]))
        main(["translate", "--help"])
    """
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    verbs, statuses, *help = run.stdout.splitlines()
    assert {"train", "evaluate", "translate"} <= {*verbs.split()}
    assert not {"serve", "demo", "import"} & {*verbs.split()}
    assert statuses == "2 1"
    document, model = run.stderr.splitlines()
    assert "letter.docx is a file, not a model" in document
    assert "nowhere" in model
    assert help[-1] == "Plugins are missing, because the package is not installed but imported from its folder."
