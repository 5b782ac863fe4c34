"""Layers merged by compiled code are those that numpy merges, bit by bit."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from springtide.kernels.cpu.serving.layer_merge import merge_sorted
from springtide_client.rows.layers import merge_layers
from springtide_client.rows.row_block import RowBlock
from tests.kernels.cpu.serving.test_view_search import changes, row_layer
from tests.support.layers import sorted_layer


def assert_same(found: RowBlock, expected: RowBlock) -> None:
    columns, expected_columns = found.columns(), expected.columns()
    assert columns.keys() == expected_columns.keys()
    for name, column in columns.items():
        assert column.dtype == expected_columns[name].dtype
        np.testing.assert_array_equal(column, expected_columns[name], err_msg=name)


@settings(max_examples=200, deadline=None)
@given(st.lists(changes, min_size=1, max_size=6))
def test_a_merge_is_that_of_numpy(changed):
    layers = [row_layer(*change) for change in changed]
    for layer in layers:
        _ = layer.key_hash
    assert_same(merge_sorted(*layers), merge_layers(*layers))


def test_layers_of_many_rows_with_states():
    rng, layers = np.random.default_rng(3), []
    for number, num_rows in enumerate([70_000, 9_000, 40_000, 1]):
        ids_N = rng.choice(100_000, num_rows, replace=False)
        numbers_N = np.full(num_rows, number)
        values_ND, states_NS = (rng.normal(size=(num_rows, width)).astype(np.float32) for width in (5, 2))
        layers.append(sorted_layer(np.ones(num_rows, np.uint16), ids_N, values_ND, numbers_N, numbers_N, states_NS))
        _ = layers[-1].key_hash
    assert_same(merge_sorted(*layers), merge_layers(*layers))


def test_a_layer_alone_is_not_copied():
    layer = row_layer({(0, 1): 2})
    assert merge_sorted(row_layer({}), layer) is layer
