"""What every test runs under: laws are checked without a stop-watch, and in CI with the same examples every time."""

import logging
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "springtide",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="CI" in os.environ,
    print_blob=True,
)
settings.load_profile("springtide")


@pytest.fixture(autouse=True)
def _no_log_handler_outlives_its_test() -> Iterator[None]:
    """A command that ran in this process writes its logs to a stream that is closed after the test."""
    before = list(logging.root.handlers)
    yield
    for handler in logging.root.handlers[:]:
        if handler not in before and type(handler) is logging.StreamHandler:
            logging.root.removeHandler(handler)
