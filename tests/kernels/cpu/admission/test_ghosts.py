"""The ghosts against the oracle."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from springtide.kernels.backend import backend
from tests.kernels.oracle import Ghosts

OPS = backend()
WORDS = st.integers(0, 2**64 - 1) | st.tuples(st.integers(0, 7), st.integers(0, 3)).map(
    lambda pair: pair[0] << 61 | pair[1]
)
STEPS = st.lists(st.tuples(st.lists(WORDS, max_size=10), st.booleans(), st.integers(0, 3)), max_size=15)


@settings(deadline=None)
@given(STEPS, st.sampled_from([1, 2, 7, 100]), st.sampled_from([0, 2**32 - 5, 2**40 - 40]))
def test_ghosts_equal_the_oracle(steps: list[Any], num: int, first_tick: int) -> None:
    ghosts, oracle = OPS.new_ghosts(num), Ghosts(num)
    for tick, (batch, leaving, window) in enumerate(steps, first_tick):
        mixed = np.array(batch, np.uint64)
        if leaving:
            OPS.ghosts_add(ghosts, mixed, tick)
            for word in batch:
                oracle.add(word, tick)
        else:
            since = max(0, tick - window)
            assert OPS.ghosts_count(ghosts, mixed, since) == sum(oracle.count(word, since) for word in batch)


def test_a_key_that_comes_back_is_counted_once() -> None:
    ghosts, mixed = OPS.new_ghosts(1000), np.array([5, 7 << 61], np.uint64)
    OPS.ghosts_add(ghosts, mixed, 9)
    assert OPS.ghosts_count(ghosts, mixed, 10) == 0
    assert OPS.ghosts_count(ghosts, mixed[[0, 0]], 9) == 1
    assert OPS.ghosts_count(ghosts, mixed, 9) == 1


def test_nothing_has_left_at_first() -> None:
    assert OPS.ghosts_count(OPS.new_ghosts(10), np.zeros(1, np.uint64), 0) == 0
    with pytest.raises(ValueError, match="not 0"):
        OPS.new_ghosts(0)
