"""Errors whose message is for the user: one line, ``<key or file>: <what is wrong>; <what to do>``.

Programs print them without a traceback and exit with status 1; any other exception is a bug.
"""


class UserError(ValueError):
    """The base class of errors that the user can fix."""


class ConfigError(UserError):
    """A setting is wrong."""


class DataError(UserError):
    """A text, a tokenizer or a prepared token file is missing, damaged or too short."""


class CheckpointError(UserError):
    """A checkpoint cannot be read, written or used."""


def described(error: BaseException) -> str:
    """Return type and first line of an error: ``KeyError: 'x'``."""
    return ": ".join(filter(None, [type(error).__name__, str(error).strip().partition("\n")[0]]))
