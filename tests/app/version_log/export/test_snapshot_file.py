"""The rows of a version that are alive, which an exported snapshot holds."""

from types import SimpleNamespace

import numpy as np

from springtide.app.version_log.export.snapshot_file import count_live_rows, live_rows
from springtide_client.keys import SHARED_ROW_OFFSET
from tests.support.layers import sorted_layer


def layer(keys, seen_ms=10):
    features, ids = (np.array(column) for column in zip(*keys, strict=True))
    values = np.ones((len(keys), 4), np.float32)
    counts = np.ones(len(keys), np.int64)
    return sorted_layer(features.astype(np.uint16), ids.astype(np.int64), values, counts, counts * seen_ms)


def view(*layers, cutoffs=None):
    return SimpleNamespace(all_layers=layers, meta=SimpleNamespace(expiry_cutoffs=cutoffs or {}))


def live_ids(view):
    return sorted(np.concatenate([rows.id for rows in live_rows(view)]).tolist())


def test_shared_rows_of_ids_that_are_not_admitted_are_left_out():
    one = view(layer([(0, 1), (0, 2), (SHARED_ROW_OFFSET, 0)]))
    assert count_live_rows(one) == 2
    assert live_ids(one) == [1, 2]


def test_a_key_in_several_layers_is_given_once_and_expired_rows_are_left_out():
    both = view(layer([(0, 1), (0, 3)]), layer([(0, 1), (0, 2)], seen_ms=4), cutoffs={"0": 5})
    assert count_live_rows(both) == 2
    assert live_ids(both) == [1, 3]
