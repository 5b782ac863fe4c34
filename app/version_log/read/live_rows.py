"""Stream the live rows of one table of a view in the order of their mixed keys, a bounded number at a time."""

from collections.abc import Iterator

import numpy as np

from springtide_client.keys import SHARED_ROW_OFFSET
from springtide_client.model.view_table import ViewTable
from springtide_client.rows.layers import aligned_chunks, merge_layers
from springtide_client.rows.row_layer import RowLayer


def live_rows(table: ViewTable, *, with_values: bool = True) -> Iterator[RowLayer]:
    """Yield every row that a look-up in this table would find, once."""
    stack = list(table.all_layers)
    if not stack:
        return
    if not with_values:
        stack = [layer.keys_only() for layer in stack]
    for part in aligned_chunks(stack):
        rows = merge_layers(*reversed(part))
        # rows shared by ids that are not admitted belong to no id
        alive = rows.live_mask(table.meta.expiry_cutoffs) & (rows.feature < SHARED_ROW_OFFSET)
        yield rows if alive.all() else rows.take(np.flatnonzero(alive))


def count_live_rows(table: ViewTable) -> int:
    """Return the number of live rows."""
    return sum(len(rows) for rows in live_rows(table, with_values=False))
