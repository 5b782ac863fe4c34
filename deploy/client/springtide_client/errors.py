"""The errors a follower's user may catch; every text says what to do."""


class SpringtideError(Exception):
    """Anything the world did to Springtide."""


class EncodeError(SpringtideError):
    """A record or an instance that cannot be encoded; `reason` is the dead letter's reason."""

    def __init__(self, reason: str, message: str, *, field: str | None = None, index: int | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.field = field
        self.index = index


class LogError(SpringtideError):
    """The version log cannot be read or followed."""


class CorruptRecordError(LogError):
    """Bytes of the log that do not match their checksum."""


class GapError(LogError):
    """A version whose parent is not the version at hand: the follower must start again from a base."""


class NoModelError(SpringtideError):
    """No version has been published yet."""


class StaleModelError(SpringtideError):
    """The model is older than the caller allows."""


StaleModel = StaleModelError
