"""Errors of starting or continuing to write a log."""

from springtide.app.errors import UserError
from springtide_client.errors import LogError


class LogBusyError(LogError):
    """Another trainer is writing this log."""


class FencedError(LogError):
    """A higher epoch is claimed: this trainer has been replaced, and readers ignore what it still writes."""


class OtherSchemaError(LogError, UserError):
    """The log was written with a different [schema] than the configuration has now."""
