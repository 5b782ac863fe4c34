"""What the world may do to a stream: every text is one line and says how to mend it."""

from springtide_client.errors import SpringtideError

from stream.positions import Partition


class StreamError(SpringtideError):
    """The stream cannot go on as it is."""


class RetriableError(StreamError):
    """Something is absent that may come back by itself: a broker, a topic. Worth waiting for."""


class BrokerUnavailableError(RetriableError):
    """Nobody answers at the address."""


class TopicNotFoundError(RetriableError):
    """The broker is there, the topic is not."""


class TopicResetError(StreamError):
    """The topic is not the one, or no longer holds the records, that the positions speak of."""


class OffsetOutOfRangeError(StreamError):
    """The broker does not hold the offset that was asked for."""

    def __init__(self, message: str, partitions: tuple[Partition, ...]) -> None:
        super().__init__(message)
        self.partitions = partitions


class CodecMissingError(StreamError):
    """Records are compressed by a codec whose library is not installed."""


class CorruptBatchError(StreamError):
    """A record batch does not match its checksum, or contradicts itself."""


class ProduceError(StreamError):
    """A message was not taken by the broker."""


class EmbeddedBrokerError(StreamError):
    """The embedded broker cannot be started."""
