"""Every key has one owner, and the owners' ranges are contiguous and equal."""

import itertools

import numpy as np
import pytest

from embeddings.sharding.key_ranges import owners_of, range_of


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 7, 1024])
def test_ranges_cover_all_keys_and_owners_are_their_ranks(num_ranks: int) -> None:
    ranges = [range_of(rank, num_ranks) for rank in range(num_ranks)]
    assert ranges[0][0] == 0
    assert ranges[-1][1] == 2**64
    for (_, stop), (start, _) in itertools.pairwise(ranges):
        assert stop == start
    sizes = [stop - start for start, stop in ranges]
    assert max(sizes) - min(sizes) <= 2**32
    ends = np.array([[start, stop - 1] for start, stop in ranges], np.uint64)
    assert owners_of(np, ends, num_ranks).tolist() == [[rank, rank] for rank in range(num_ranks)]
