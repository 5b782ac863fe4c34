"""Keeps views within a memory limit by moving their changed rows to disk."""

from dataclasses import dataclass, replace
from pathlib import Path

from springtide_client.errors import LogError
from springtide_client.model.view import View
from springtide_client.rows.disk_layer import write_disk_layer

DISK_BYTES = 20 << 30


@dataclass(frozen=True, kw_only=True)
class MemoryLimit:
    """A limit on the memory of each view, and on the disk space that rows moved out of memory may take."""

    memory_bytes: int
    disk_bytes: int = DISK_BYTES  # of one view's files; while the next ones are written there are two of each
    folder: Path | None = None  # for the files; None: the system's temporary folder

    def is_exceeded_by(self, view: View) -> bool:
        """Return True if the view takes more memory than allowed."""
        return view.num_bytes > self.memory_bytes

    def apply(self, view: View) -> View:
        """Return the same version within the limit: if it exceeds it, the layers of each table become one mapped file.

        LogError when dense parameters and counts alone are too large, or the file would be; OSError when the disk is
        full.
        """
        if not self.is_exceeded_by(view):
            return view
        if view.fixed_bytes > self.memory_bytes:
            needed = 2 * view.fixed_bytes
            what = "the dense parameters" + (" and the admission sketch" if view.admission_counts.num_bytes else "")
            raise LogError(f"{what} do not fit into cache_bytes: give more than {needed:,}")
        tables, left = dict(view.tables), self.disk_bytes
        for name, table in view.tables.items():
            if table.layers:
                disk_layer = write_disk_layer(table.changed_layers, table.dim, self.folder, max_bytes=left)
                tables[name] = replace(table, layers=(), disk_layer=disk_layer)
            if (on_disk := tables[name].disk_layer) is not None:
                left -= on_disk.num_bytes
        return replace(view, tables=tables)
