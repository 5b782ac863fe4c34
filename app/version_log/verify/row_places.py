"""Where the rows of a base are in its files, as findings name them."""

from bisect import bisect_right
from itertools import accumulate

from springtide.app.version_log.tables import LogTable
from springtide_client.format.tensors import map_tensors
from springtide_client.log.base import Base
from springtide_client.rows.hash_range import owners_of


class RowPlaces:
    """The files of one table of a base."""

    def __init__(self, base: Base, table: LogTable) -> None:
        manifest = base.manifest
        self._folder, self._num_ranges = base.path, manifest.num_ranges
        self._rows_files = manifest.rows_files(table.name)
        self._optimizer_files = manifest.optimizer_files(table.name)
        self._mixed = [map_tensors(base.path / name)["mixed"] for name in self._rows_files]
        self._starts = [0, *accumulate(map(len, self._mixed))][:-1]

    def name(self, row: int, *, of_state: bool = False) -> str:
        """Return the file with a row, or with its state, by the row's place in the whole table."""
        return (self._optimizer_files if of_state else self._rows_files)[self._index(row)]

    def in_file(self, row: int) -> int:
        """Return the row's place in that file."""
        return row - self._starts[self._index(row)]

    def misplaced(self) -> str | None:
        """Return the first file that has rows of another range than its own."""
        for index, mixed in enumerate(self._mixed):
            if len(mixed) and (owners_of(mixed[[0, -1]], self._num_ranges) != index).any():
                return self._rows_files[index]
        return None

    def _index(self, row: int) -> int:
        return bisect_right(self._starts, row) - 1
