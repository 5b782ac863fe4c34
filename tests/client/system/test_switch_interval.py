"""The switch interval is short while somebody needs it, then as before."""

import sys
from collections.abc import Iterator

import pytest

from springtide_client.system.switch_interval import SHORT_INTERVAL_SECONDS, short_switch_interval


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.005)
    yield
    sys.setswitchinterval(before)


def test_the_last_of_several_contexts_restores_the_interval() -> None:
    with short_switch_interval():
        with short_switch_interval():
            assert sys.getswitchinterval() == pytest.approx(SHORT_INTERVAL_SECONDS)
        assert sys.getswitchinterval() == pytest.approx(SHORT_INTERVAL_SECONDS)
    assert sys.getswitchinterval() == pytest.approx(0.005)


def test_a_shorter_interval_stays() -> None:
    sys.setswitchinterval(0.0001)
    with short_switch_interval():
        assert sys.getswitchinterval() == pytest.approx(0.0001)
    assert sys.getswitchinterval() == pytest.approx(0.0001)


def test_an_interval_that_somebody_set_meanwhile_stays() -> None:
    with short_switch_interval():
        sys.setswitchinterval(0.002)
    assert sys.getswitchinterval() == pytest.approx(0.002)
