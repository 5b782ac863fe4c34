"""Rows are found by key, counted as live, and put into key order; the key hash is computed once."""

import numpy as np
import pytest

from springtide_client.keys import GOLDEN, hash_keys
from springtide_client.rows.row_block import COLUMNS, RowBlock, expiry_cutoffs_of
from tests.support.layers import sorted_layer

# id 0 of feature 0 and TWIN of feature 1 have one key hash
TWIN = int(np.uint64(GOLDEN).astype(np.int64))


def block(*keys: tuple[int, int]) -> RowBlock:
    features, ids = (np.array(column) for column in zip(*keys, strict=True))
    return RowBlock.of_keys(features.astype(np.uint16), ids.astype(np.int64), 2, 1)


def test_the_key_hash_is_computed_once_and_taken_along() -> None:
    rows = block((0, 5), (1, 6))
    assert rows.known_hash is None
    assert rows.key_hash is rows.key_hash
    np.testing.assert_array_equal(rows.take(slice(1, 2)).known_hash, hash_keys(rows.feature, rows.id)[1:])


def test_keys_of_one_hash_are_in_the_order_of_their_features_and_both_are_found() -> None:
    ordered = block((1, TWIN), (0, 0)).in_key_order()
    assert ordered.key_hash[0] == ordered.key_hash[1]
    assert ordered.feature.tolist() == [0, 1]
    assert ordered.find_rows(block((1, TWIN), (1, 0), (0, 0))).tolist() == [1, -1, 0]
    assert ordered.holds(block((0, TWIN), (0, 0))).tolist() == [False, True]


def test_concatenated_blocks_keep_tombstones_where_one_has_some() -> None:
    joined = RowBlock.concatenate([block((0, 1)), block((0, 2)).deleted()])
    assert joined.tombstones().tolist() == [False, True]
    assert RowBlock.concatenate([block((0, 1)), block((0, 2))]).tombstone is None
    assert set(joined.columns()) == set(COLUMNS) - {"known_hash"}


def test_rows_where_all_are_wanted_are_not_copied() -> None:
    rows = block((0, 1), (0, 2))
    assert rows.where(np.array([True, True])) is rows
    assert rows.where(np.array([False, True])).id.tolist() == [2]


def test_a_row_is_live_unless_forgotten_or_expired() -> None:
    keys = [(0, 1), (0, 7), (2, 1), (1, 7)]
    features, ids = (np.array(column) for column in zip(*keys, strict=True))
    seen = np.array([10, 30, 10, 30])
    rows = RowBlock(features.astype(np.uint16), ids, np.zeros((4, 1)), np.zeros((4, 0)), seen, seen, ids != ids)
    assert rows.live_mask({"0": 11}).tolist() == [False, True, True, True]
    assert rows.deleted().live_mask({}).tolist() == [False] * 4
    assert rows.live_at(np.array([2, 0]), {"0": 11}).tolist() == [True, False]
    cutoffs = expiry_cutoffs_of(np.array([0, 5], np.uint16), {"0": 11})
    assert cutoffs[0] == 11
    assert cutoffs[1] < -(2**62)


@pytest.mark.parametrize("num_keys", [0, 1, 1000])
def test_many_random_keys_are_found_and_others_are_not(num_keys: int) -> None:
    random = np.random.default_rng(3)
    ids = np.arange(10_000, dtype=np.int64) * 7
    features = (ids % 5).astype(np.uint16)
    zeros = np.zeros(len(ids), np.int64)
    layer = sorted_layer(features, ids, np.zeros((len(ids), 1), np.float32), zeros, zeros)
    wanted = random.integers(0, 70_000, num_keys)
    rows = layer.find((wanted % 5).astype(np.uint16), wanted)
    np.testing.assert_array_equal(rows >= 0, wanted % 7 == 0)
    np.testing.assert_array_equal(layer.id[rows[rows >= 0]], wanted[wanted % 7 == 0])
