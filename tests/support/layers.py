"""Layers of rows that a test gives column by column."""

from typing import Any

import numpy as np

from springtide_client.rows.row_block import RowBlock


def sorted_layer(feature: Any, id: Any, value: Any, count: Any, last_seen: Any, state: Any = None) -> RowBlock:
    """Return the rows in key order, by default without states."""
    state = np.empty((len(id), 0), np.float32) if state is None else state
    return RowBlock(feature, id, value, state, count, last_seen).in_key_order()
