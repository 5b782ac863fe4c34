"""Errors that the user causes. Errors of the running system are springtide_client.errors.SpringtideError."""

from collections.abc import Iterator
from contextlib import contextmanager


class UserError(Exception):
    """A mistake in the command line or the configuration: one line that says what to change. Exit code 2."""


@contextmanager
def user_errors(prefix: str = "") -> Iterator[None]:
    """Raise a ValueError as a UserError, its text after `prefix`."""
    try:
        yield
    except ValueError as error:
        raise UserError(f"{prefix}{error}") from error
