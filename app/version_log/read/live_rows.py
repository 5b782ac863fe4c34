"""Every living row of a view, in the order of the mixed keys, a bounded number at a time."""

from collections.abc import Iterator

import numpy as np
from springtide_client.keys import SHARED_FEATURE
from springtide_client.model.view import View
from springtide_client.rows.disk_layer import chunks, merge_all, without_values
from springtide_client.rows.layers import RowLayer


def living_rows(view: View, *, with_values: bool = True) -> Iterator[RowLayer]:
    """The rows that a look-up of this view would find, each once."""
    stack = list(view.all_layers)
    if not stack:
        return
    if not with_values:
        stack = [without_values(layer) for layer in stack]
    for part in chunks(stack):
        rows = merge_all(part)
        # the rows shared by keys that are not admitted are nobody's
        alive = rows.alive(view.meta.horizons) & (rows.feature < SHARED_FEATURE)
        yield rows if alive.all() else rows.take(np.flatnonzero(alive))


def count_rows(view: View) -> int:
    """How many there are."""
    return sum(len(rows) for rows in living_rows(view, with_values=False))
