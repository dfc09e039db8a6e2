"""Errors meant for users: the command line prints their message in one line. Any other `ValueError` is a bug."""

import pickle
from collections.abc import Iterator
from contextlib import contextmanager

# defined in a file that travels with saved models, which cannot import the package
from .model.errors_vanilla_transformer import UserError as UserError


class MissingExtraError(ImportError, UserError):
    """A package that this needs is not installed; the message names the extra to install."""


@contextmanager
def checking_settings() -> Iterator[None]:
    """Turn the errors with which another package refuses settings, given to it in this block, into a `UserError`."""
    try:
        yield
    except UserError:
        raise
    except ImportError as error:
        raise MissingExtraError(_one_line(error)) from error
    except (ValueError, ArithmeticError) as error:
        raise UserError(_one_line(error)) from error


def damage(error: BaseException) -> str:
    """Return in one line why a file cannot be loaded; torch advises to run the code that it may contain."""
    if isinstance(error, pickle.UnpicklingError):
        return "a file in it is damaged or contains code, which is never run"
    return _one_line(error)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
