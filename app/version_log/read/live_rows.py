"""Every living row of a view, in the order of the mixed keys, a bounded number at a time."""

from collections.abc import Iterator

import numpy as np
from springtide_client.keys import SHARED_ROW_OFFSET
from springtide_client.model.view import View
from springtide_client.rows.disk_layer import aligned_chunks, keys_only, merge_newest_first
from springtide_client.rows.layers import RowLayer


def live_rows(view: View, *, with_values: bool = True) -> Iterator[RowLayer]:
    """The rows that a look-up of this view would find, each once."""
    stack = list(view.all_layers)
    if not stack:
        return
    if not with_values:
        stack = [keys_only(layer) for layer in stack]
    for part in aligned_chunks(stack):
        rows = merge_newest_first(part)
        # the rows shared by keys that are not admitted are nobody's
        alive = rows.live_mask(view.meta.expiry_cutoffs) & (rows.feature < SHARED_ROW_OFFSET)
        yield rows if alive.all() else rows.take(np.flatnonzero(alive))


def count_live_rows(view: View) -> int:
    """How many there are."""
    return sum(len(rows) for rows in live_rows(view, with_values=False))
