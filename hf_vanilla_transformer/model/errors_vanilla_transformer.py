"""The error that is meant for users; `errors.py` of the package exports it."""


class UserError(ValueError):
    """An input, a flag or a file is wrong; the message, of one line, says what is wrong, where, and what to do."""
