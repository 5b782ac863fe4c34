"""The errors that users of the client may catch. Every text says what to do."""


class SpringtideError(Exception):
    """Base of all errors that are not bugs."""


class EncodeError(SpringtideError):
    """A record or an instance cannot be encoded.

    `reason` is a short code, as in the headers of a dead letter; `field` and `index` say where.
    """

    def __init__(self, reason: str, message: str, *, field: str | None = None, index: int | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.field = field
        self.index = index

    def in_field(self, name: str) -> "EncodeError":
        """Return the same error for a field."""
        return EncodeError(self.reason, f"{name}: {self}", field=name)

    def in_instance(self) -> "EncodeError":
        """Return the same error with a text that begins with the instance's index."""
        return EncodeError(self.reason, f"instance {self.index}: {self}", field=self.field, index=self.index)


class LogError(SpringtideError):
    """The version log cannot be read or followed."""


class CorruptRecordError(LogError):
    """Bytes of the log do not match their checksum."""


class GapError(LogError):
    """A version is not a child of the current one: the follower must start again from a base."""


class NoModelError(SpringtideError):
    """No version has been published yet."""


class StaleModelError(SpringtideError):
    """The model is older than the caller allows."""


class PartError(SpringtideError):
    """A part of the rows cannot be had: its server does not answer, or refuses. The text names it."""


class VersionsDifferError(PartError):
    """The servers of the parts serve no version in common for now."""
