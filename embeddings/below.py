"""The tiers below memory as one: the spill first, where a mark hides what lies deeper; then the base."""

# U unique keys
from dataclasses import dataclass

import numpy as np

from embeddings.rows import BoolArray, Int64Array, Rows, UInt16Array
from embeddings.source import RowSource
from embeddings.spill import ABSENT, MARK, ROW, Spill


@dataclass(frozen=True)
class Recalled:
    """What the tiers below know of some keys; a row means something only where it was found."""

    rows: Rows
    found_U: BoolArray
    forgotten_U: BoolArray
    from_spill_U: BoolArray


def recall(spill: Spill, base: RowSource | None, features_U: UInt16Array, ids_U: Int64Array) -> Recalled:
    """The rows of unique keys from the highest tier that knows of them; moves nothing."""
    spilled = spill.find(features_U, ids_U)
    rows, found_U = spilled.rows, spilled.kinds == ROW
    from_spill_U = found_U.copy()
    absent = np.flatnonzero(spilled.kinds == ABSENT)
    if base is not None and len(absent):
        deeper = base.find(features_U[absent], ids_U[absent])
        here, there = absent[deeper.found], deeper.found
        rows.values[here], rows.states[here] = deeper.values[there], deeper.states[there]
        rows.counts[here], rows.last_seen[here] = deeper.counts[there], deeper.last_seen[there]
        found_U[here] = True
    return Recalled(rows, found_U, spilled.kinds == MARK, from_spill_U)
