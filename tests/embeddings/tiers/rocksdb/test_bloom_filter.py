"""The filter finds every added key, and few others, while it grows."""

import numpy as np
import pytest

from springtide.embeddings.tiers.rocksdb.bloom_filter import KeyFilter


@pytest.mark.parametrize("num_keys", [1, 1000, 40_000, 600_000])
def test_added_keys_are_found_and_few_others(num_keys: int) -> None:
    rng = np.random.default_rng(num_keys)
    stored, strange = rng.integers(0, 2**64, num_keys, np.uint64), rng.integers(0, 2**64, 100_000, np.uint64)
    keys = KeyFilter()
    for start in range(0, num_keys, 7000):
        keys.add(stored[start : start + 7000])
    assert keys.contains(stored).all()
    assert keys.contains(strange).mean() < 0.01


def test_an_empty_filter_contains_nothing_and_takes_no_memory() -> None:
    assert not KeyFilter().contains(np.arange(10, dtype=np.uint64)).any()
    assert KeyFilter().num_bytes() == 0


def test_keys_added_again_take_no_more_memory() -> None:
    keys, stored = KeyFilter(), np.random.default_rng(0).integers(0, 2**64, 30_000, np.uint64)
    for _ in range(10):
        keys.add(stored)
    assert keys.num_bytes() == 2 * (1 << 15)


def test_it_takes_about_two_bytes_a_key_if_their_number_is_known() -> None:
    stored = np.random.default_rng(0).integers(0, 2**64, 100_000, np.uint64)
    keys = KeyFilter(len(stored))
    keys.add(stored)
    assert keys.num_bytes() < 2.1 * len(stored)
