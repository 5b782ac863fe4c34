"""The one import of kafka-python, and its errors as ours; only the modules of this folder use it."""

import logging
import warnings
from contextlib import suppress
from functools import partial
from typing import Any

from springtide.stream.compression import CODEC_NAMES, compress, decompress, decompress_old_lz4
from springtide.stream.errors import (
    AccessError,
    BrokerUnavailableError,
    CorruptBatchError,
    OffsetOutOfRangeError,
    RetriableError,
    StreamError,
)
from springtide.stream.kafka.config import KafkaConfig
from springtide.stream.kafka.oauth import OAuthTokens
from springtide.stream.positions import Partition

with warnings.catch_warnings():
    # its schema loader calls importlib.resources.read_text, which Python 3.11 and 3.12 call deprecated
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    import kafka.admin
    import kafka.codec
    import kafka.consumer.fetcher
    import kafka.errors
    import kafka.net.inet
    import kafka.net.sasl.oauth
    import kafka.net.transport
    import kafka.protocol.api_header
    import kafka.protocol.frame
    import kafka.protocol.parser
    import kafka.record.default_records
    import kafka.record.legacy_records
    import kafka.structs

__all__ = ["kafka", "prepare_library", "translate_error"]


def prepare_library() -> None:
    """Silence kafka-python's logger and let it close refused sockets. Every client calls this before it connects.

    kafka-python logs each lost connection with a traceback; Springtide reports states and reasons itself. A log level
    that the application has set is left alone.
    """
    close_refused_sockets()
    logger = logging.getLogger("kafka")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.CRITICAL + 1)


def install_codecs() -> None:
    """Let kafka-python compress and decompress by stream/compression.py, in every client of this process.

    Its own codecs ask for a package each, and decompress without a limit.
    """
    for module in (kafka.codec, kafka.record.default_records, kafka.record.legacy_records):
        for name in CODEC_NAMES.values():
            for function in (f"{name}_encode", f"{name}_decode"):
                if hasattr(module, function):
                    setattr(module, function, partial(compress if function.endswith("encode") else decompress, name))
    kafka.record.legacy_records.lz4_decode_old_kafka = decompress_old_lz4
    for name in CODEC_NAMES.values():
        setattr(kafka.codec, f"has_{name}", lambda: True)
    compressors = kafka.KafkaProducer._COMPRESSORS
    compressors.update({name: (lambda: True, compressors[name][1]) for name in CODEC_NAMES.values()})


def close_refused_sockets() -> None:
    """Patch kafka-python to close a socket whose connection was refused, or given up.

    kafka-python 3.0 leaves it to the garbage collector, which emits a ResourceWarning: while a broker is away these
    would fill the output of a test, or fail it.
    """
    sockets: Any = kafka.net.inet.KafkaNetSocket
    connect = getattr(sockets, "sock_connect", None)
    if connect is None or getattr(connect, "closes", False):
        return

    async def sock_connect(self: Any, net: Any, sock: Any, *arguments: Any, **options: Any) -> Any:
        try:
            return await connect(self, net, sock, *arguments, **options)
        except BaseException:  # GeneratorExit: a client was closed while it connected
            sock.close()
            raise

    sock_connect.closes = True  # type: ignore[attr-defined]
    sockets.sock_connect = sock_connect


def keep_response_classes() -> None:
    """Patch kafka-python to find a response's class for good.

    kafka-python 3.0 makes a class of each version of a message when it is used first, and registers that one weakly.
    Two threads that connect at once may make it twice: if the one that is dropped is the registered one, no response
    of its kind can be read in this process any more, and no client connects. The class of all versions stays.
    """
    registry: Any = kafka.protocol.api_header.ResponseClassRegistry
    if not hasattr(registry, "register_response_class") or not hasattr(registry, "_response_class_registry"):
        return

    def register(cls: Any, response_class: Any) -> None:
        kept = next(one for one in response_class.mro() if getattr(one, "_class_version", None) is None)
        cls._response_class_registry[kept.API_KEY] = kept

    for response_class in list(registry._response_class_registry.values()):
        with suppress(ReferenceError):
            register(registry, response_class)
    registry.register_response_class = classmethod(register)


install_codecs()
keep_response_classes()
kafka.net.sasl.oauth.AbstractTokenProvider.register(OAuthTokens)


def translate_error(error: BaseException, config: KafkaConfig) -> StreamError:
    """The StreamError that a kafka-python error means; its text is one line. A StreamError is returned unchanged."""
    if isinstance(error, StreamError):
        return error
    text = config.hide_secrets(str(error).splitlines()[0] if str(error) else type(error).__name__)
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
            kafka.errors.IllegalSaslStateError,
        ),
    ):
        return AccessError(f"the broker at {config.bootstrap_servers} refuses access: {text}; check [source] kafka")
    if isinstance(
        error, kafka.errors.KafkaConnectionError | kafka.errors.KafkaTimeoutError | kafka.errors.NodeNotReadyError
    ):
        return BrokerUnavailableError(
            f"no Kafka broker answers at {config.bootstrap_servers}: start it, or correct the address"
        )
    if isinstance(error, kafka.errors.KafkaConfigurationError):
        return AccessError(f"[source] kafka has options that kafka-python does not take: {text}")
    return RetriableError(f"Kafka at {config.bootstrap_servers}: {text}")
