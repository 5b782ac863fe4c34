"""Errors of the stream: every text is one line and says how to fix it."""

from springtide.stream.positions import Partition
from springtide_client.errors import SpringtideError


class StreamError(SpringtideError):
    """Reading or writing the stream failed."""


class RetriableError(StreamError):
    """A broker or a topic is unavailable and may come back by itself: worth waiting for."""


class BrokerUnavailableError(RetriableError):
    """No broker answers at the address."""


class TopicNotFoundError(RetriableError):
    """The broker answers, but has no such topic."""


class FormatError(StreamError):
    """The settings of a format of messages cannot be used: a file is missing or wrong, a library is not installed."""


class AccessError(StreamError):
    """The broker refuses this client, or a secret is missing: waiting does not mend it."""

    ends_launch = True  # ranks that are started again would be refused too


class TopicResetError(StreamError):
    """The topic was re-created, or no longer holds the records at the positions."""


class OffsetOutOfRangeError(StreamError):
    """The broker does not hold the requested offset."""

    def __init__(self, message: str, partitions: tuple[Partition, ...]) -> None:
        super().__init__(message)
        self.partitions = partitions


class UnknownCodecError(StreamError):
    """Records are compressed with a codec that Springtide does not know."""


class BatchTooLargeError(StreamError):
    """A compressed record batch holds more bytes than one batch may."""


class CorruptBatchError(StreamError):
    """A record batch does not match its checksum, cannot be decompressed, or contradicts itself."""


class ProduceError(StreamError):
    """The broker did not take a message."""


class MessageTooLargeError(ProduceError):
    """A message is larger than the client or the topic allows: `limit_bytes`, or None where that is not known."""

    def __init__(self, message: str, limit_bytes: int | None) -> None:
        super().__init__(message)
        self.limit_bytes = limit_bytes


class EmbeddedBrokerError(StreamError):
    """The embedded broker cannot be started."""


class InputFileError(StreamError):
    """A file's rows cannot be read."""


class HistoryError(StreamError):
    """The history that the configuration names is not the one that the log has learned, or cannot be learned."""
