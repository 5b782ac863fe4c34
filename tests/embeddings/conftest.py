"""Tests that take `ops` run on every device."""

import pytest

from springtide.kernels.ops import Ops
from tests.embeddings.backends import BACKENDS, ops_of


@pytest.fixture(params=BACKENDS)
def ops(request: pytest.FixtureRequest) -> Ops:
    return ops_of(request.param)
