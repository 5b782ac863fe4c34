"""Which table of a log holds the rows of a feature: tables differ in the width of their rows."""

# K keys, T tables
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from springtide_client.array_types import BoolArray, UInt8Array, UInt16Array
from springtide_client.keys import SHARED_ROW_OFFSET

MAIN_TABLE = ""  # the name of the table that holds every feature that no other one holds
ROW_TENSORS = ("rows.feature", "rows.id", "rows.value", "rows.state", "rows.count", "rows.last_seen")


class TableNames:
    """The tables of a log by their place, the main one at 0, and the features of each."""

    def __init__(self, features: Mapping[str, Collection[int]]) -> None:
        """`features`: of each table but the main one, the feature numbers that it holds. ValueError if two hold one."""
        self.names = (MAIN_TABLE, *features)
        self.places_F: UInt8Array = np.zeros(1 << 16, np.uint8)  # by feature number
        for place, numbers in enumerate(features.values(), 1):
            for number in numbers:
                if self.places_F[number]:
                    raise ValueError(f"two tables hold the rows of feature {number}: a feature has one table")
                # the row of ids that are not admitted lives beside those of its feature
                self.places_F[[number, number + SHARED_ROW_OFFSET]] = place

    def __len__(self) -> int:
        return len(self.names)

    def name_of(self, feature: int) -> str:
        """Return the name of the table that holds a feature's rows."""
        return self.names[int(self.places_F[feature])]

    def places(self, features_K: UInt16Array) -> UInt8Array:
        """Return the place of each key's table."""
        return self.places_F[features_K]

    def holds(self, table: str, features_K: UInt16Array) -> BoolArray:
        """Return which keys have their rows in this table."""
        held_K: BoolArray = self.places(features_K) == self.names.index(table)
        return held_K

    def tensors_of(self, table: str, tensors: Mapping[str, npt.NDArray[Any]]) -> Mapping[str, npt.NDArray[Any]]:
        """Return what a record says of a table as if it were the only one: `rows.*`, and its keys in `forgotten.*`.

        Where there is one table, these are the record's tensors as they are.
        """
        if len(self) == 1:
            return tensors
        found: dict[str, npt.NDArray[Any]]
        found = {name: tensors[full] for name in ROW_TENSORS if (full := record_tensor(table, name)) in tensors}
        if "rows.id" in found and "rows.state" not in found:
            found["rows.state"] = np.zeros((len(found["rows.id"]), 0), np.float32)
        forgotten: npt.NDArray[np.uint16] = tensors.get("forgotten.feature", np.empty(0, np.uint16))
        held = self.holds(table, forgotten)
        if held.any():
            found |= {name: tensors[name][held] for name in ("forgotten.feature", "forgotten.id")}
        return found


ONE_TABLE = TableNames({})


def record_tensor(table: str, name: str) -> str:
    """Return the name of a table's tensor in a record: `rows.id` of the main one, `dim8/rows.id` of others."""
    return f"{table}/{name}" if table else name
