"""kafka-python, imported once, for stream/kafka*.py and raw_batches.py; nothing else in Springtide imports it."""

import logging
import warnings
from typing import Any

with warnings.catch_warnings():
    # its schema loader calls importlib.resources.read_text, which Python 3.11 and 3.12 call deprecated
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    import kafka.admin
    import kafka.codec
    import kafka.consumer.fetcher
    import kafka.errors
    import kafka.net.inet
    import kafka.record.default_records
    import kafka.record.legacy_records
    import kafka.structs

__all__ = ["kafka", "prepare_library"]


def prepare_library() -> None:
    """Keep kafka-python from logging every lost connection with a traceback: states and reasons are told by us.

    A level that somebody set is left alone.
    """
    close_refused_sockets()
    logger = logging.getLogger("kafka")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.CRITICAL + 1)


def close_refused_sockets() -> None:
    """kafka-python 3.0 leaves a refused socket to the garbage collector, which warns: a broker that is away for a while
    would fill a test's output, or fail it."""
    sockets: Any = kafka.net.inet.KafkaNetSocket
    connect = getattr(sockets, "sock_connect", None)
    if connect is None or getattr(connect, "closes", False):
        return

    async def sock_connect(self: Any, net: Any, sock: Any, *arguments: Any, **options: Any) -> Any:
        try:
            return await connect(self, net, sock, *arguments, **options)
        except Exception:
            sock.close()
            raise

    sock_connect.closes = True  # type: ignore[attr-defined]
    sockets.sock_connect = sock_connect
