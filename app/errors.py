"""Errors that the user causes. Errors of the running system are springtide_client.errors.SpringtideError."""


class UserError(Exception):
    """A mistake in the command line or the configuration: one line that says what to change. Exit code 2."""
