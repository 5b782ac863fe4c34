"""Tests that take `ops` run on every device."""

import pytest

from kernels.spec import Ops
from tests.embeddings.backends import TWINS, verbs_of


@pytest.fixture(params=TWINS)
def ops(request: pytest.FixtureRequest) -> Ops:
    return verbs_of(request.param)
