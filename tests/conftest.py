"""What every test runs under: laws are checked without a stop-watch, and in CI with the same examples every time."""

import logging
import os
import signal
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.support.broker import USES_APACHE
from tests.support.process_pool import ProcessPool

settings.register_profile(
    "springtide",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="CI" in os.environ,
    print_blob=True,
)
settings.load_profile("springtide")


def pytest_sessionfinish() -> None:
    if USES_APACHE:
        from tests.support.apache_kafka import stop_shared_node

        stop_shared_node()


@pytest.fixture(autouse=True)
def _process_as_it_was() -> Iterator[None]:
    """A command sets up the logging, the signals and the turns of threads of its process, and here that is pytest's."""
    loggers = [logging.root, *(found for found in logging.root.manager.loggerDict.values() if hasattr(found, "level"))]
    levels, handlers, switch_seconds = (
        [found.level for found in loggers],
        logging.root.handlers[:],
        sys.getswitchinterval(),
    )
    answers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, answer in answers.items():
        signal.signal(number, answer)
    for handler in logging.root.handlers[:]:
        if handler not in handlers and type(handler) is logging.StreamHandler:
            logging.root.removeHandler(handler)  # it writes to a stream that is closed after the test
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)
    sys.setswitchinterval(switch_seconds)


@pytest.fixture(scope="session")
def process_pool() -> Iterator[ProcessPool]:
    """One pool for all tests that start commands."""
    made = ProcessPool()
    yield made
    made.close()
