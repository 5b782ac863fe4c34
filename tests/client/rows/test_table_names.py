"""Every key has one table; a record is split at them."""

import numpy as np
import pytest

from springtide_client.keys import SHARED_ROW_OFFSET
from springtide_client.rows.layers import record_layer
from springtide_client.rows.table_names import MAIN_TABLE, ONE_TABLE, TableNames

TABLES = TableNames({"dim8": [1, 3], "crosses": [32767]})


def test_a_feature_lives_in_the_table_that_names_it_with_the_row_that_its_ids_share() -> None:
    assert [TABLES.name_of(feature) for feature in (0, 1, 2, 3, 32767)] == ["", "dim8", "", "dim8", "crosses"]
    assert TABLES.name_of(SHARED_ROW_OFFSET + 3) == "dim8"
    assert TABLES.name_of(SHARED_ROW_OFFSET + 2) == MAIN_TABLE
    assert TABLES.holds("dim8", np.array([0, 1, 3], np.uint16)).tolist() == [False, True, True]
    assert ONE_TABLE.name_of(65535) == MAIN_TABLE
    with pytest.raises(ValueError, match="two tables hold the rows of feature 3"):
        TableNames({"dim8": [3], "dim4": [3]})


def test_a_record_is_split_into_the_layers_of_its_tables() -> None:
    tensors = {"forgotten.feature": np.array([0, 1], np.uint16), "forgotten.id": np.array([9, 9])}
    for prefix, feature, dim in (("", 0, 4), ("dim8/", 3, 8)):
        tensors |= {
            f"{prefix}rows.feature": np.array([feature], np.uint16),
            f"{prefix}rows.id": np.array([5]),
            f"{prefix}rows.value": np.full((1, dim), 2, np.float32),
            f"{prefix}rows.count": np.array([1]),
            f"{prefix}rows.last_seen": np.array([7]),
        }
    tensors["rows.state"] = np.ones((1, 2), np.float32)
    layers = {
        name: record_layer(tensors, dim, width, tables=TABLES, table=name)
        for name, dim, width in (("", 4, 2), ("dim8", 8, 0), ("crosses", 2, 0))
    }
    keys = {name: sorted(zip(layer.feature.tolist(), layer.id.tolist(), strict=True)) for name, layer in layers.items()}
    assert keys == {"": [(0, 5), (0, 9)], "dim8": [(1, 9), (3, 5)], "crosses": []}
    assert layers["dim8"].value.shape == (2, 8)
    assert layers["dim8"].state.shape == (2, 0)
    assert layers["dim8"].tombstone is not None
    assert layers["dim8"].id[layers["dim8"].tombstone].tolist() == [9]
