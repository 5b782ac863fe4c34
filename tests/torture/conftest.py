"""One process pool for all tests."""

from collections.abc import Iterator

import pytest

from tests.torture.cluster.process_pool import ProcessPool


@pytest.fixture(scope="session")
def process_pool() -> Iterator[ProcessPool]:
    made = ProcessPool()
    yield made
    made.close()
