"""The error that is meant for users; `errors.py` of the package exports it."""


class UserError(ValueError):
    """What users give cannot be used; the message, of one line, says what is wrong, where, and what to do."""
