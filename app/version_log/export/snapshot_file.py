"""The snapshot file: one model at one version in one self-contained file, in the safetensors layout.

It holds dense parameters, the exported program, live rows and id strings; its manifest is in the file's metadata.
Equal versions of a log give equal bytes, so a download may be resumed at another server.

"""

# n rows, D dimension
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from springtide.app.version_log.read.id_dictionary import id_strings_of, merge_id_strings, take_strings
from springtide_client.errors import SpringtideError
from springtide_client.format.tensor_writer import TensorWriter
from springtide_client.format.tensors import TensorShape, tensor_layout
from springtide_client.keys import SHARED_ROW_OFFSET
from springtide_client.log.base import MODEL
from springtide_client.log.directory import LogDirectory
from springtide_client.log.listing import base_number
from springtide_client.model.view import View
from springtide_client.model.view_table import ViewTable
from springtide_client.rows.layers import aligned_chunks, merge_layers
from springtide_client.rows.row_block import RowBlock, column_shapes
from springtide_client.rows.search import KNOWN
from springtide_client.rows.table_names import record_tensor
from springtide_client.wide.parameters import PREFIX

# tensor -> column of a layer, whose states are the wide part's alone
COLUMNS = {
    "rows.feature": "feature",
    "rows.id": "id",
    "rows.value": "value",
    "rows.count": "count",
    "rows.last_seen": "last_seen",
    "rows.wide": "state",
}


def live_rows(table: ViewTable, *, with_values: bool = True) -> Iterator[RowBlock]:
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
        yield rows.where(alive)


def count_live_rows(table: ViewTable) -> int:
    """Return the number of live rows."""
    return sum(len(rows) for rows in live_rows(table, with_values=False))


class SnapshotCancelledError(SpringtideError):
    """Writing was stopped before the file was complete."""


class SnapshotFile(NamedTuple):
    """The planned contents of a snapshot file: everything but the rows in memory, the rows by shape only."""

    view: View
    small: dict[str, npt.NDArray[Any]]
    shapes: dict[str, TensorShape]
    metadata: dict[str, str]
    with_rows: bool
    num_rows: int  # how many rows the file will hold, of all tables

    @staticmethod
    def of(view: View, directory: LogDirectory, *, with_rows: bool) -> "SnapshotFile":
        """Plan the file of a view; the strings behind its ids are read from the log that the view belongs to."""
        strings = {f"texts.{name}": array for name, array in live_id_strings(view, directory).items()}
        small = dense_tensors(view) | strings
        shapes = {name: TensorShape(array.dtype, array.shape) for name, array in small.items()}
        num_rows = 0
        for table in view.tables.values():
            num = count_live_rows(table) if with_rows else 0
            num_rows += num
            shapes |= {record_tensor(table.name, name): shape for name, shape in row_shapes(table, num).items()}
        base = view.base.manifest
        manifest: dict[str, Any] = {
            "version": view.version,
            "checksum": f"{view.head.checksum:016x}",
            "schema": base.schema,
            "table": base.table,
            "tables": base.tables,
            "model": base.model,
            "meta": view.meta,
        }
        metadata = {"manifest": msgspec.json.encode(manifest).decode(), "format": "springtide-snapshot-1"}
        return SnapshotFile(view, small, shapes, metadata, with_rows, num_rows)

    @property
    def num_bytes(self) -> int:
        """The size of the file."""
        return tensor_layout(self.shapes, self.metadata).num_bytes

    def write(self, path: Path, *, is_cancelled: Callable[[], bool] = lambda: False) -> None:
        """Write the file with a bounded number of rows in memory at a time.

        Raises SnapshotCancelledError once `is_cancelled` returns True, OSError where the disk refuses.
        """
        writer = TensorWriter(path, self.shapes, self.metadata)
        try:
            for name, array in self.small.items():
                writer.write(name, 0, array)
            for table in self.view.tables.values() if self.with_rows else ():
                start = 0
                for rows in live_rows(table):
                    if is_cancelled():
                        raise SnapshotCancelledError(f"the snapshot {path.name} was cancelled")
                    for name in row_shapes(table, 0):
                        writer.write(record_tensor(table.name, name), start, getattr(rows, COLUMNS[name]))
                    start += len(rows)
        finally:
            writer.close()


def row_shapes(table: ViewTable, num_rows: int) -> dict[str, TensorShape]:
    """Return the tensors of a table's rows; `rows.wide` exists where rows have numbers of the wide part."""
    width = table.spec.wide_width
    columns = column_shapes(num_rows, table.dim, width)
    return {name: columns[column] for name, column in COLUMNS.items() if column != "state" or width}


def view_at_version(directory: LogDirectory, version: int) -> View | None:
    """Replay the log from the newest base at or before a version; None if the log no longer reaches that version."""
    with suppress(SpringtideError, FileNotFoundError):
        for path in reversed(directory.bases()):
            if base_number(path) > version:
                continue
            view = View.open(path)
            if view.version == version:
                return view
            for record in directory.records(view.head):
                view = view.apply(record).merged()
                if view.version >= version:
                    return view if view.version == version else None
            return None
    return None


def dense_tensors(view: View) -> dict[str, npt.NDArray[Any]]:
    """The parameters of the net and the wide part as `dense.<name>`, and the bytes of the program as `model.pt2`."""
    parameters = view.model.named_arrays(view.parameters)
    if view.wide is not None:
        parameters |= {PREFIX + name: array for name, array in view.wide.named().items()}
    program = np.frombuffer((view.base.path / MODEL).read_bytes(), np.uint8)
    return {**{f"dense.{name}": array for name, array in parameters.items()}, MODEL: program}


def live_id_strings(view: View, directory: LogDirectory) -> dict[str, npt.NDArray[Any]]:
    """The strings behind ids that have a row, sorted by (feature, id).

    They are equal at equal versions, whatever base the view was replayed from.
    """
    base = view.base
    parts = [base.id_strings]
    if view.version != base.head.number:
        for record in directory.records(base.head):
            if record.number > view.version:
                break
            parts.append(id_strings_of(record.tensors()))
    known = merge_id_strings(parts)
    if known is None:
        return {}
    _, status = view.lookup(known["feature"], known["id"])
    if bool(np.all(status == KNOWN)):
        return known
    alive = np.flatnonzero(status == KNOWN)
    return take_strings(known, alive) if len(alive) else {}
