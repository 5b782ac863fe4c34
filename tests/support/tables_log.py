"""The log of `writer_log.py` with three tables: rows of users, wider ones of items, and crosses without states."""

import numpy as np

from springtide.app.version_log.tables import tables_from, tables_of
from springtide.app.version_log.write.writer import LogWriter
from springtide_client.format.records import Tip
from springtide_client.format.tensors import Arrays
from springtide_client.keys import CROSSES
from springtide_client.log.base import Base, TableSpec
from springtide_client.rows.row_layer import RowLayer
from tests.support.writer_log import TABLE, Key, Row, WriterLog, rows_of

ITEMS = TableSpec(dim=3, state_width=2, seed=7, init_scale=0.01, features=[1])
PAIRS = TableSpec(dim=2, state_width=0, seed=7, init_scale=0.0, features=[CROSSES])
TABLES = {"dim3": ITEMS, "crosses": PAIRS}
FEATURES = (0, 1, CROSSES)


class TablesLog(WriterLog):
    """Takes the same arrays as a log of one table, and writes each row into its table, with more or fewer numbers."""

    tables = TABLES

    def open(self, *, take_over: bool = False, wait_seconds: float = 0.2, **changes: object) -> LogWriter:
        writer = super().open(take_over=take_over, wait_seconds=wait_seconds, **changes)
        append = writer.append

        def append_by_table(meta: object, tensors: Arrays) -> Tip:
            return append(meta, by_table(tensors))  # type: ignore[arg-type]

        writer.append = append_by_table  # type: ignore[method-assign, assignment]
        return writer

    def rows_in(self, base: Base) -> dict[Key, Row]:
        found: dict[Key, Row] = {}
        for table in tables_of(base.manifest):
            found |= rows_of_table(table.name, table.base_layer(base))
        return found


def by_table(tensors: Arrays) -> Arrays:
    """Move the rows of a version into their tables; those that are there already stay."""
    found = {name: array for name, array in tensors.items() if not name.startswith("rows.")}
    if not len(tensors.get("rows.id", ())):
        return found
    for table in tables_from(TABLE, TABLES):
        here = np.flatnonzero(table.holds(tensors["rows.feature"]))
        columns = {name: array[here] for name, array in tensors.items() if name.startswith("rows.")}
        if not len(here):
            continue
        if table.name == "dim3":
            columns["rows.value"] = np.pad(columns["rows.value"], ((0, 0), (0, 1)))
            columns["rows.state"] = columns["rows.state"] * np.array([[1, 2]], np.float32)
        elif table.name == "crosses":
            del columns["rows.state"]
        found |= {table.record_tensor(name): array for name, array in columns.items()}
    return found


def rows_of_table(name: str, layer: RowLayer) -> dict[Key, Row]:
    """Return the live rows of a table's layer, after checking that all columns of each belong together."""
    assert layer.state is not None
    states = layer.state
    if name == "dim3":
        assert (layer.value[:, 2] == 0).all()
        assert (states[:, 1] == 2 * states[:, 0]).all()
    elif name == "crosses":
        assert states.shape[1] == 0
        states = layer.value[:, :1] * np.float32(10)
    columns = (layer.mixed, layer.feature, layer.id, layer.value[:, :2], layer.count, layer.last_seen)
    return rows_of(RowLayer(*columns, layer.tombstone, states[:, :1]))
