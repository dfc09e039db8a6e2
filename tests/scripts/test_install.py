"""scripts/install.sh, on a project with one dependency, whose wheels are on disk."""

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from corpora import ROOT
from script_runs import import_script
from terminal import Terminal

# builds a package without setuptools, which pip would download
BACKEND = """
import zipfile

def build_editable(folder, config_settings=None, metadata_directory=None):
    name = "small-1.0-py3-none-any.whl"
    with zipfile.ZipFile(f"{folder}/{name}", "w") as wheel:
        wheel.writestr("small.py", "def main(): print('it works')")
        metadata = "Metadata-Version: 2.1\\nName: small\\nVersion: 1.0\\nRequires-Dist: torch>=2\\n"
        wheel.writestr("small-1.0.dist-info/METADATA", metadata)
        wheel.writestr("small-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\\nTag: py3-none-any\\n")
        wheel.writestr("small-1.0.dist-info/entry_points.txt", "[console_scripts]\\nsmall = small:main\\n")
        wheel.writestr("small-1.0.dist-info/RECORD", "")
    return name
"""
PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "small"
version = "1.0"
"""
# stands in for Python: makes environments with a link to pip instead of a copy, in a tenth of the time
PYTHON = """#!/bin/sh
[ "$1 $2" = "-m venv" ] || exec "{python}" "$@"
"{python}" -m venv --without-pip --clear "$4" || exit
ln -s "{packages}"/pip "{packages}"/pip-*.dist-info "$4"/lib/python3*/site-packages
echo "#!$(cd "$4" && pwd)/bin/python" >"$4/bin/pip"
"""
# stands in for pip: prints what pip prints, and ends with $STATUS
PIP = """
import os, sys
for number in range(40):
    print("Collecting package-%d>=1 (from hf-vanilla-transformer)" % number)
    print("  Downloading package_%d-1.0-py3-none-any.whl.metadata (3.1 kB)" % number)
    print("  Downloading package_%d-1.0-py3-none-any.whl (2.0 MB)" % number)
print("  Downloading torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl (880.1 MB)")
print("Progress 440050000 of 880100000", flush=True)
if os.environ["STATUS"] == "15":
    os.kill(os.getpid(), 15)
if os.environ["STATUS"] != "0":
    sys.exit("ERROR: no space left")
print("Installing collected packages: " + ", ".join("package-%d" % number for number in range(41)))
print("Successfully installed " + " ".join("package-%d-1.0" % number for number in range(41)))
"""


def write_wheel(folder: Path, name: str, version: str) -> None:
    """Write a wheel of an empty module, at its place in an index of packages."""
    (folder / name).mkdir(parents=True)
    file = f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(folder / name / file, "w") as wheel:
        wheel.writestr(f"{name}/__init__.py", f"__version__ = {version!r}")
        wheel.writestr(
            f"{name}-{version}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        wheel.writestr(f"{name}-{version}.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{name}-{version}.dist-info/RECORD", "")
    (folder / name / "index.html").write_text(f'<a href="{file}">{file}</a>')


class Project:
    """A small project with the scripts under test; its path has a space."""

    def __init__(self, folder: Path):
        self.folder = folder / "a project"
        self.venv = self.folder / ".venv"
        self.python = self.venv / "bin/python"
        (self.folder / "scripts").mkdir(parents=True)
        for name in ("install.sh", "pip_install.py"):
            shutil.copy(ROOT / "scripts" / name, self.folder / "scripts")
        (self.folder / "scripts/constraints.txt").write_text("torch==2.13.0\n")
        (self.folder / "pyproject.toml").write_text(PROJECT)
        (self.folder / "backend.py").write_text(BACKEND)
        write_wheel(folder / "index", "torch", "2.13.0")
        write_wheel(folder / "cpu", "torch", "2.13.0+cpu")
        packages = sysconfig.get_path("purelib")
        self.fast_python = folder / "fast_python"
        self.fast_python.write_text(PYTHON.format(python=sys.executable, packages=packages))
        self.fast_python.chmod(0o755)
        self.index = (folder / "index").as_uri()
        self.cpu_index = (folder / "cpu").as_uri()

    def install(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run install.sh, without network and without the settings of this machine's pip."""
        variables = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "VENV"))}
        variables |= {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": self.index, "PYTHON": str(self.fast_python)}
        command = ["bash", str(self.folder / "scripts/install.sh"), *arguments]
        return subprocess.run(command, env=variables | environment, capture_output=True, text=True)

    def torch(self) -> str:
        """Return the version of torch in the environment."""
        command = [self.python, "-c", "import torch; print(torch.__version__)"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def project(tmp_path):
    return Project(tmp_path)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A project that is installed, and what install.sh printed."""
    project = Project(tmp_path_factory.mktemp("installed"))
    result = project.install(PYTHON=sys.executable)
    assert result.returncode == 0, result.stderr
    return project, result.stdout


def one_line(result: subprocess.CompletedProcess[str]) -> str:
    """Return the only line that a failed installation printed."""
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr


@pytest.mark.slow
def test_an_installation_prints_few_short_lines(installed):
    _, output = installed
    assert "GB on disk" in output
    assert "Installed 2 packages" in output
    assert len(output.splitlines()) <= 6
    assert max(map(len, output.splitlines())) <= 79


def test_commands_work_in_a_folder_with_a_space(installed):
    project, _ = installed
    assert subprocess.run([project.venv / "bin/small"], capture_output=True, text=True).stdout == "it works\n"


def test_nothing_is_done_and_printed_when_all_is_installed(installed):
    project, _ = installed
    log = project.venv / "install.log"
    log.write_text("as it was")
    again = project.install(PYTHON="/no/python", PIP_INDEX_URL="file:///nowhere")
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")
    assert log.read_text() == "as it was"


def test_what_was_uninstalled_is_installed_again(project):
    project.install()
    subprocess.run([project.python, "-m", "pip", "uninstall", "--yes", "--quiet", "torch"], check=True)
    assert project.install().returncode == 0
    assert project.torch() == "2.13.0"


def test_changed_requirements_are_installed(project):
    project.install()
    (project.folder / "scripts/constraints.txt").write_text("torch==2.13.0+cpu\n")
    assert project.install(PIP_INDEX_URL=project.cpu_index).returncode == 0
    assert project.torch() == "2.13.0+cpu"


def test_the_cpu_build_comes_from_the_address_and_is_kept(project):
    first = project.install("--cpu", project.cpu_index)
    assert first.returncode == 0, first.stderr
    assert "2.9 GB" not in first.stdout
    assert project.install().returncode == 0
    assert project.torch() == "2.13.0+cpu"


def test_without_a_cpu_build_the_address_is_asked_for(project):
    result = project.install("--cpu")
    assert result.returncode == 1
    assert "needs the address" in result.stderr.splitlines()[-1]


@pytest.mark.parametrize("arguments", [["--help"], ["--gpu"], ["dev", "--cpu"], ["file:///index"]])
def test_unknown_arguments_show_the_usage(project, arguments):
    result = project.install(*arguments)
    assert result.returncode == 2
    assert "bash scripts/install.sh --cpu ADDRESS" in result.stderr
    assert not project.venv.exists()


def test_an_old_python_is_refused_in_one_line(project, tmp_path):
    old = tmp_path / "python3"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.6.15 && exit\nexit 1\n')
    old.chmod(0o755)
    line = one_line(project.install(PYTHON=str(old)))
    assert "Python 3.6.15" in line
    assert "3.10 or newer" in line
    assert not project.venv.exists()


def test_without_any_python_one_line_says_so(project):
    assert "found no /no/python" in one_line(project.install(PYTHON="/no/python"))


@pytest.mark.slow
def test_a_newer_python_beside_an_old_one_is_taken(project, tmp_path):
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, command in {
        "python3": "exit 1",
        "python3.14": f'touch "{programs}/called"; exec "{sys.executable}" "$@"',
    }.items():
        (programs / name).write_text(f"#!/bin/sh\n{command}\n")
        (programs / name).chmod(0o755)
    result = project.install(PYTHON="", PATH=f"{programs}:{os.environ['PATH']}")
    assert result.returncode == 0, result.stderr
    assert (programs / "called").exists()


def test_a_broken_environment_stays_if_it_cannot_be_replaced(project):
    project.venv.mkdir()
    (project.venv / "pyvenv.cfg").touch()
    one_line(project.install(PYTHON="/no/python"))
    assert (project.venv / "pyvenv.cfg").exists()


@pytest.mark.parametrize("module", ["venv", "ensurepip"])
def test_the_missing_package_is_named(project, tmp_path, module):
    (tmp_path / f"{module}.py").write_text("raise ModuleNotFoundError")
    line = one_line(project.install(PYTHONPATH=str(tmp_path)))
    assert f"apt install python{sys.version_info.major}.{sys.version_info.minor}-venv" in line
    assert not project.venv.exists()


def test_a_folder_that_is_no_environment_is_left_alone(project):
    project.venv.mkdir()
    (project.venv / "thesis.txt").write_text("mine")
    assert "is not a virtual environment" in one_line(project.install())
    assert [path.name for path in project.venv.iterdir()] == ["thesis.txt"]


def remove_pip(project: Project) -> None:
    next(project.venv.glob("lib/python3*/site-packages/pip")).unlink()


def remove_python(project: Project) -> None:
    for program in project.venv.glob("bin/python*"):
        program.unlink()
        program.symlink_to("/no/python")


def make_old(project: Project) -> None:
    project.python.unlink()
    project.python.write_text("#!/bin/sh\nexit 1\n")
    project.python.chmod(0o755)


def move(project: Project) -> None:
    moved = project.folder.with_name("moved")
    project.folder.rename(moved)
    shutil.copytree(moved, project.folder, symlinks=True)
    text = (project.venv / "bin/pip").read_text()
    (project.venv / "bin/pip").write_text(text.replace(str(project.folder), str(moved)))


@pytest.mark.parametrize("damage", [remove_pip, remove_python, make_old, move])
def test_a_broken_environment_is_replaced(project, damage):
    subprocess.run([project.fast_python, "-m", "venv", "--clear", project.venv], check=True)
    (project.venv / "left over").touch()
    damage(project)
    result = project.install()
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("it is replaced") == 1
    assert not (project.venv / "left over").exists()
    assert project.torch() == "2.13.0"


def test_another_folder_is_used_if_named(project, tmp_path):
    assert project.install(VENV=str(tmp_path / "elsewhere")).returncode == 0
    assert (tmp_path / "elsewhere/bin/small").exists()
    assert not project.venv.exists()


def test_readme_states_the_sizes_that_the_script_prints():
    script = (ROOT / "scripts/install.sh").read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for size in ("2.9 GB", "5.6 GB", "0.3 GB", "1.5 GB"):
        assert size in script
        assert size in readme


@pytest.fixture
def pip(tmp_path):
    """A function that runs pip_install.py with a stand-in for pip, and returns the environment and the command."""
    (tmp_path / "pip").mkdir()
    (tmp_path / "pip/__init__.py").touch()
    (tmp_path / "pip/__main__.py").write_text(PIP)

    def run(status: int, **streams):
        command = [sys.executable, str(ROOT / "scripts/pip_install.py"), str(tmp_path / "install.log"), "package"]
        environment = {**os.environ, "PYTHONPATH": str(tmp_path), "STATUS": str(status)}
        return subprocess.run(command, env=environment, **streams)

    return run


def test_without_a_terminal_only_large_downloads_are_named(pip):
    output = pip(0, capture_output=True, text=True).stdout.splitlines()
    assert output[:2] == ["Downloading torch, 880.1 MB ...", "Installing 41 packages ..."]
    assert len(output) == 3
    assert output[2].startswith("Installed 41 packages in 0:")
    assert output[2].endswith(", 960 MB downloaded.")


def test_a_terminal_keeps_one_line(pip):
    with Terminal() as terminal:
        assert pip(0, stdout=terminal.stream).returncode == 0
        text = terminal.read()
    assert text.count("\n") == 1
    assert text.rpartition("\033[K")[2].startswith("Installed 41 packages")


def test_a_failure_shows_the_end_of_pips_output_and_its_status(pip, tmp_path):
    result = pip(3, capture_output=True, text=True)
    assert result.returncode == 1
    lines = result.stderr.splitlines()
    assert len(lines) <= 16
    assert lines[-1] == f"pip failed; its whole output is in {tmp_path / 'install.log'}"
    assert "ERROR: no space left" in lines
    assert "Collecting package-0>=1 (from hf-vanilla-transformer)" in (tmp_path / "install.log").read_text()


def test_a_killed_pip_is_reported_as_by_a_shell(pip):
    assert pip(15, capture_output=True).returncode == 128 + 15


def test_the_line_of_progress_says_what_pip_is_doing(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    progress = import_script("pip_install.py").Progress()
    shown = []
    for line in (
        "Collecting torch==2.13.0",
        "  Downloading https://files.example.org/torch-2.13.0-cp312-none-any.whl (880.1 MB)",
        "Progress 440050000 of 880100000",
        "WARNING: Retrying (Retry(total=4)) after connection broken",
    ):
        progress.read(line)
        capsys.readouterr()
        progress.draw()
        shown.append(capsys.readouterr().out.removeprefix("\r\033[K").rpartition("0:")[0])
    assert shown == [
        "Looking up torch (",
        "Downloading torch, 880.1 MB (1 files, 880 MB; ",
        "Downloading torch, 880.1 MB 50 % (1 files, 880 MB; ",
        "Trying again, as the network or the index does not answer (1 files, 880 MB; ",
    ]


def test_the_line_of_progress_never_wraps(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    progress = import_script("pip_install.py").Progress()
    progress.read("Collecting a-package-with-a-very-long-name-that-does-not-fit==1")
    progress.draw()
    assert len(capsys.readouterr().out.removeprefix("\r\033[K")) == 39
