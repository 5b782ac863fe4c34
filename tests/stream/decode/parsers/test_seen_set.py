import numpy as np
import pytest

from springtide.stream.decode.parsers.seen_set import SeenSet


def test_a_key_is_new_once():
    seen = SeenSet(1000)
    features, ids = np.array([1, 1, 2, 1], np.uint16), np.array([7, 8, 7, 7], np.int64)
    assert seen.add_all(features, ids).tolist() == [True, True, True, False]
    assert not seen.add_all(features, ids).any()


def test_the_set_is_bounded_and_cleared_when_full():
    seen = SeenSet(100)
    size = len(seen.slots)
    for start in range(0, 10_000, 10):
        is_new = seen.add_all(np.zeros(10, np.uint16), np.arange(start, start + 10))
        assert is_new.all()
        assert seen.num_keys[0] <= size // 2
    assert len(seen.slots) == size
    assert seen.add_all(np.zeros(1, np.uint16), np.zeros(1, np.int64)).all()


def test_a_size_of_zero_is_refused():
    with pytest.raises(ValueError, match="max_keys"):
        SeenSet(0)
