"""One nursery for all."""

from collections.abc import Iterator

import pytest

from tests.torture.cluster.process_pool import Nursery


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    made = Nursery()
    yield made
    made.close()
