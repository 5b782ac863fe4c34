"""Every key has one owner, and the owners' ranges are contiguous and equal."""

import itertools

import numpy as np
import pytest
import torch

from springtide.embeddings.sharding.route import (
    are_of_rank,
    blocks_of_rank,
    border_blocks_of_rank,
    owners_of,
    pack_columns,
    unpack_columns,
)
from springtide_client.keys import hash_keys
from springtide_client.rows.admission_counts import blocks_of


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 7, 1024])
def test_each_rank_owns_a_range_of_the_key_hash_hash(num_ranks: int) -> None:
    steps = 1 << 16
    owners = owners_of(np.arange(steps, dtype=np.uint64) << np.uint64(48), num_ranks)
    assert (np.diff(owners.astype(np.int64)) >= 0).all()
    counts = np.bincount(owners, minlength=num_ranks)
    assert counts.max() - counts.min() <= 1
    assert owners_of(np.array([2**64 - 1], np.uint64), num_ranks).tolist() == [num_ranks - 1]


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 8])
def test_a_sketch_is_cut_into_ranges_of_blocks(num_ranks: int) -> None:
    features, ids, num_blocks = np.zeros(4000, np.uint16), np.arange(4000), 64
    blocks = blocks_of(hash_keys(features, ids), num_blocks)
    bounds = [blocks_of_rank(num_blocks, rank, num_ranks) for rank in range(num_ranks)]
    assert (bounds[0][0], bounds[-1][1]) == (0, num_blocks - 1)
    for (_, last), (first, _) in itertools.pairwise(bounds):
        assert first - last == (0 if num_blocks % num_ranks else 1)
    for rank, (first, last) in enumerate(bounds):
        own = blocks[are_of_rank(features, ids, rank, num_ranks)]
        assert own.min() >= first
        assert own.max() <= last
        assert len(np.unique(own)) == last - first + 1
        borders = {first, last} - {0, num_blocks - 1} if num_blocks % num_ranks else set()
        assert border_blocks_of_rank(num_blocks, rank, num_ranks) == tuple(sorted(borders))


def test_columns_of_any_number_of_keys_come_back_from_their_bytes():
    for num_keys in (0, 1, 2):  # the slices of one row are contiguous where they are, at any byte
        features, ids = torch.arange(num_keys, dtype=torch.int16), torch.arange(num_keys) - 2**40
        message = pack_columns([features, ids], torch.arange(num_keys).flip(0))
        assert message.shape == (num_keys, 10)
        found = unpack_columns(message, [torch.int16, torch.int64])
        assert [column.flip(0).tolist() for column in found] == [features.tolist(), ids.tolist()]
