"""Translates kafka-python's exceptions into the StreamErrors of stream/errors.py."""

from springtide.stream.errors import (
    BrokerUnavailableError,
    CorruptBatchError,
    OffsetOutOfRangeError,
    RetriableError,
    StreamError,
)
from springtide.stream.kafka.config import KafkaConfig
from springtide.stream.kafka.library import kafka
from springtide.stream.positions import Partition


def translate_error(error: BaseException, config: KafkaConfig) -> StreamError:
    """The StreamError that a kafka-python error means; its text is one line. A StreamError is returned unchanged."""
    if isinstance(error, StreamError):
        return error
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    if isinstance(error, kafka.errors.OffsetOutOfRangeError):
        requested = error.args[0] if error.args and isinstance(error.args[0], dict) else {}
        offsets = {Partition(*topic_partition): offset for topic_partition, offset in requested.items()}
        positions = ", ".join(f"{partition} offset {offset}" for partition, offset in offsets.items())
        return OffsetOutOfRangeError(f"the broker no longer holds {positions or 'the position'}", tuple(offsets))
    if isinstance(error, kafka.errors.CorruptRecordError):
        return CorruptBatchError(f"a record batch is corrupt: {text}")
    if isinstance(
        error,
        (
            kafka.errors.SaslAuthenticationFailedError,
            kafka.errors.AuthorizationError,
            kafka.errors.UnsupportedSaslMechanismError,
        ),
    ):
        return StreamError(f"the broker at {config.bootstrap_servers} refused access: {text}; check the credentials")
    if isinstance(
        error, kafka.errors.KafkaConnectionError | kafka.errors.KafkaTimeoutError | kafka.errors.NodeNotReadyError
    ):
        return BrokerUnavailableError(
            f"no Kafka broker answers at {config.bootstrap_servers}: start it, or correct the address"
        )
    if isinstance(error, kafka.errors.KafkaConfigurationError):
        return StreamError(f"invalid Kafka options: {text}")
    return RetriableError(f"Kafka at {config.bootstrap_servers}: {text}")
