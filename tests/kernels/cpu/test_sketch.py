"""The sketch against the oracle and against the client's reader."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from springtide.kernels.backend import backend
from springtide_client.rows.admission_counts import estimates
from tests.kernels.oracle import Ghosts, Sketch

OPS = backend()
# few words, so that keys meet in blocks and in counters
WORDS = st.integers(0, 2**64 - 1) | st.tuples(st.integers(0, 7), st.integers(0, 3)).map(
    lambda pair: pair[0] << 61 | pair[1] << 6
)
OCCURRENCES = st.integers(1, 5) | st.sampled_from([254, 255, 256, 2**62])
STEPS = st.lists(st.tuples(st.lists(st.tuples(WORDS, OCCURRENCES), max_size=20), st.integers(0, 3)), max_size=8)


def words(batch: list[int]) -> Any:
    return np.array(batch, np.uint64)


@settings(deadline=None)
@given(STEPS, st.sampled_from([1, 2, 5, 64]), st.sampled_from([0, 2**32 - 30]))
def test_the_sketch_equals_the_oracle_and_the_clients_reader(steps: list[Any], num_blocks: int, age: int) -> None:
    sketch, oracle = OPS.new_sketch(num_blocks * 64 + 63), Sketch(num_blocks)
    assert sketch.num_blocks == num_blocks
    everything = np.arange(num_blocks)
    for batch, older in steps:
        age += older
        seen = words([word for word, _ in batch])
        ours, touched = OPS.sketch_add(sketch, seen, np.array([n for _, n in batch], np.int64), age)
        assert ours.tolist() == [oracle.add(word, n, age) for word, n in batch]
        assert touched.tolist() == sorted({oracle.block(word) for word, _ in batch})
        blocks = OPS.sketch_read(sketch, everything)
        assert blocks.tobytes() == b"".join(oracle.bytes(block) for block in range(num_blocks))
        for at in (0, age, age + 1, age + 7, age + 8, age + 9, age + 2**40):
            expected = [oracle.estimate(word, at) for word, _ in batch]
            assert OPS.sketch_estimate(sketch, seen, at).tolist() == expected
            assert estimates(blocks, seen, at).tolist() == expected


def test_an_estimate_is_never_below_the_truth() -> None:
    rng = np.random.default_rng(3)
    sketch, seen = OPS.new_sketch(64 * 20), rng.integers(0, 2**64, 500, dtype=np.uint64)
    times = rng.integers(1, 4, (10, 500))
    for occurrences in times:
        OPS.sketch_add(sketch, seen, occurrences, 0)
    assert (OPS.sketch_estimate(sketch, seen, 0) >= times.sum(axis=0)).all()


def test_blocks_that_are_read_and_written_elsewhere_give_the_same_sketch() -> None:
    rng = np.random.default_rng(4)
    one, other = OPS.new_sketch(64 * 50), OPS.new_sketch(64 * 50)
    seen = rng.integers(0, 2**64, 30, dtype=np.uint64)
    _, touched = OPS.sketch_add(one, seen, np.full(30, 7), 2)
    OPS.sketch_write(other, touched, OPS.sketch_read(one, touched))
    everything = np.arange(50)
    assert OPS.sketch_read(one, everything).tobytes() == OPS.sketch_read(other, everything).tobytes()
    assert len(touched) < 50


def test_a_sketch_smaller_than_a_block_and_foreign_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match="not 63"):
        OPS.new_sketch(63)
    sketch = OPS.new_sketch(128)
    for block in (-1, 2):
        with pytest.raises(ValueError, match="of a sketch of 2"):
            OPS.sketch_write(sketch, np.array([block]), np.zeros((1, 64), np.uint8))
    with pytest.raises(ValueError, match="uint8"):
        OPS.sketch_write(sketch, np.array([0]), np.zeros((1, 60), np.uint8))
    with pytest.raises(ValueError, match="uint8"):
        estimates(np.zeros((1, 60), np.uint8), words([1]), 0)


GHOST_STEPS = st.lists(st.tuples(st.lists(WORDS, max_size=10), st.booleans(), st.integers(0, 3)), max_size=15)


@settings(deadline=None)
@given(GHOST_STEPS, st.sampled_from([1, 2, 7, 100]), st.sampled_from([0, 2**32 - 5, 2**40 - 40]))
def test_ghosts_equal_the_oracle(steps: list[Any], num: int, first_tick: int) -> None:
    ghosts, oracle = OPS.new_ghosts(num), Ghosts(num)
    for tick, (batch, leaving, window) in enumerate(steps, first_tick):
        key_hash = np.array(batch, np.uint64)
        if leaving:
            OPS.ghosts_add(ghosts, key_hash, tick)
            for word in batch:
                oracle.add(word, tick)
        else:
            since = max(0, tick - window)
            assert OPS.ghosts_count(ghosts, key_hash, since) == sum(oracle.count(word, since) for word in batch)


def test_a_key_that_comes_back_is_counted_once() -> None:
    ghosts, key_hash = OPS.new_ghosts(1000), np.array([5, 7 << 61], np.uint64)
    OPS.ghosts_add(ghosts, key_hash, 9)
    assert OPS.ghosts_count(ghosts, key_hash, 10) == 0
    assert OPS.ghosts_count(ghosts, key_hash[[0, 0]], 9) == 1
    assert OPS.ghosts_count(ghosts, key_hash, 9) == 1


def test_nothing_has_left_at_first() -> None:
    assert OPS.ghosts_count(OPS.new_ghosts(10), np.zeros(1, np.uint64), 0) == 0
    with pytest.raises(ValueError, match="not 0"):
        OPS.new_ghosts(0)
