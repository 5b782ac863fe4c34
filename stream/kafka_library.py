"""kafka-python, imported once, for stream/kafka*.py and raw_batches.py; nothing else in Springtide imports it."""

import logging
import warnings

with warnings.catch_warnings():
    # its schema loader calls importlib.resources.read_text, which Python 3.11 and 3.12 call deprecated
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    import kafka.admin
    import kafka.codec
    import kafka.consumer.fetcher
    import kafka.errors
    import kafka.record.default_records
    import kafka.record.legacy_records
    import kafka.structs

__all__ = ["kafka", "quiet"]


def quiet() -> None:
    """Keep kafka-python from logging every lost connection with a traceback: states and reasons are told by us.

    A level that somebody set is left alone.
    """
    logger = logging.getLogger("kafka")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.CRITICAL + 1)
