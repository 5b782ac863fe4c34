import asyncio

import pytest

from tests.support.waiting import wait_until, wait_until_async


def test_the_first_true_value_is_returned() -> None:
    values = iter([0, None, [], "ready"])
    assert wait_until(lambda: next(values)) == "ready"
    values = iter([0, "ready"])
    assert asyncio.run(wait_until_async(lambda: next(values))) == "ready"


def test_after_the_deadline_the_error_names_the_event_and_the_final_state() -> None:
    with pytest.raises(AssertionError, match=r"not within 0\.01 s: the server's readiness"):
        wait_until(lambda: False, "the server's readiness", seconds=0.01)
    with pytest.raises(AssertionError, match="two of three"):
        asyncio.run(wait_until_async(lambda: False, lambda: "two of three", seconds=0.01))
