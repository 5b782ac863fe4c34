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
    disk_bytes: int = DISK_BYTES  # of one file; while the next one is written there are two
    folder: Path | None = None  # for the files; None: the system's temporary folder

    def is_exceeded_by(self, view: View) -> bool:
        """Return True if the view takes more memory than allowed."""
        return view.num_bytes > self.memory_bytes

    def apply(self, view: View) -> View:
        """Return the same version within the limit: if it exceeds it, all its layers become one mapped file.

        LogError when dense parameters and counts alone are too large, or the file would be; OSError when the disk is
        full.
        """
        if not self.is_exceeded_by(view):
            return view
        if view.fixed_bytes > self.memory_bytes:
            needed = 2 * view.fixed_bytes
            what = "the dense parameters" + (" and the admission sketch" if view.admission_counts.num_bytes else "")
            raise LogError(f"{what} do not fit into cache_bytes: give more than {needed:,}")
        if not view.layers:
            return view
        older = () if view.disk_layer is None else (view.disk_layer,)
        disk_layer = write_disk_layer((*view.layers, *older), view.dim, self.folder, max_bytes=self.disk_bytes)
        return replace(view, layers=(), disk_layer=disk_layer)
