"""The version of the package, and how to install it."""

__version__ = "0.1.0"


def install_command(extra: str = "") -> str:
    """Return the command that installs the package, with an extra or without, in a clone of its repository.

    No release has been published. Until one is, nothing that others read may give pip the name of the package, under
    which anybody could publish other code.
    """
    return f'pip install ".[{extra}]"' if extra else "pip install ."
