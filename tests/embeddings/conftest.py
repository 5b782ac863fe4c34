"""Tests that take `verbs` run on every device."""

import pytest

from kernels.spec import Verbs
from tests.embeddings.backends import TWINS, verbs_of


@pytest.fixture(params=TWINS)
def verbs(request: pytest.FixtureRequest) -> Verbs:
    return verbs_of(request.param)
