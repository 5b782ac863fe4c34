"""Prints an error as one line, and says whether it is a bug."""

import sys

from springtide.app.errors import UserError


def report_error(error: Exception) -> int:
    """Print the error in one line and return the exit code."""
    if isinstance(error, UserError):
        print(f"springtide: {one_line(error)}", file=sys.stderr)
        return 2
    if is_expected(error):
        print(f"springtide: {one_line(error)}", file=sys.stderr)
        return 1
    name = type(error).__name__
    print(f"springtide: {name}: {one_line(error)} (a bug: run again with --debug for the traceback)", file=sys.stderr)
    return 1


def is_expected(error: Exception) -> bool:
    """Return True if the error is part of normal operation, its text written for the user; False for a bug."""
    from springtide_client.errors import SpringtideError

    return isinstance(error, (SpringtideError, OSError))


def one_line(error: Exception) -> str:
    """Return the error's text without line breaks."""
    return " ".join(str(error).split())
