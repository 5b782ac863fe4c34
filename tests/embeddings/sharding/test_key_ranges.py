"""Every key has one owner, and the owners' ranges are contiguous and equal."""

import numpy as np
import pytest

from embeddings.sharding.key_ranges import owners_of


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 7, 1024])
def test_each_rank_owns_a_range_of_the_mixed_hash(num_ranks: int) -> None:
    steps = 1 << 16
    owners = owners_of(np, np.arange(steps, dtype=np.uint64) << np.uint64(48), num_ranks)
    assert (np.diff(owners.astype(np.int64)) >= 0).all()
    counts = np.bincount(owners, minlength=num_ranks)
    assert counts.max() - counts.min() <= 1
    assert owners_of(np, np.array([2**64 - 1], np.uint64), num_ranks).tolist() == [num_ranks - 1]
