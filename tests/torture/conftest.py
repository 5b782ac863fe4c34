"""One nursery for all."""

from collections.abc import Iterator

import pytest

from tests.torture.cluster.process_pool import ProcessPool


@pytest.fixture(scope="session")
def nursery() -> Iterator[ProcessPool]:
    made = ProcessPool()
    yield made
    made.close()
