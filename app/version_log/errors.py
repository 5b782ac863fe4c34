"""What can go wrong between trainers."""

from springtide_client.errors import LogError

from app.errors import UserError


class LogBusyError(LogError):
    """Another trainer writes this log."""


class FencedError(LogError):
    """A higher epoch is claimed: this trainer has been replaced, and nothing it writes will be read."""


class OtherSchemaError(LogError, UserError):
    """The log was begun with another [schema]: a mistake of the settings."""
