"""Run Python code in a new process, by default as if `hf_vanilla_transformer` were not installed."""

import os
import subprocess
import sys
from pathlib import Path

_HIDE_THE_PACKAGE = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "hf_vanilla_transformer":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hidden())
"""


def run_python(
    code: str, home: Path, *, package: bool = False, status: int = 0, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run `code` in a new process with `home` as the cache of the Hub, and check its exit status.

    Args:
        package: whether the code can import `hf_vanilla_transformer`.
        environment: additional environment variables.
    """
    variables = {**os.environ, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    variables = {name: value for name, value in variables.items() if name not in ("HF_TOKEN", "HF_ENDPOINT")}
    result = subprocess.run(
        [sys.executable, "-c", code if package else _HIDE_THE_PACKAGE + code],
        env={**variables, **environment},
        cwd=home.parent,
        capture_output=True,
        text=True,
    )
    assert result.returncode == status, result.stderr[-3000:]
    return result
