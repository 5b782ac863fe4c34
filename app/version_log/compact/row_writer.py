"""Write the rows of one table into a base's files: one, or one after the other for each range of mixed keys."""

# R ranges
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from springtide.app.version_log.failpoints import failpoint
from springtide.app.version_log.tables import LogTable
from springtide_client.format.tensor_writer import TensorWriter
from springtide_client.format.tensors import PLACE_BYTES, TensorShape
from springtide_client.log.base import FileChecksum, TableSpec
from springtide_client.log.row_files import optimizer_files, rows_files
from springtide_client.rows.hash_range import HashRange, owners_of
from springtide_client.rows.row_layer import RowLayer

LEAST_DATA_OF_PADDING = 8  # times the most padding of a file: below, its columns have no places
COLUMNS = ("mixed", "feature", "id", "value", "count", "last_seen")


@dataclass(frozen=True, kw_only=True)
class TableImage:
    """The rows of one table at one version."""

    spec: TableSpec
    num_rows: int = 0
    by_range: tuple[int, ...] = ()  # of these, in each of several ranges, equal parts of all mixed keys; (): one
    blocks: Iterable[RowLayer] = ()  # num_rows rows with states, sorted by (mixed key, feature)

    @staticmethod
    def of(
        spec: TableSpec, rows: Callable[[], Iterable[RowLayer]], keys: Iterable[RowLayer], num_ranges: int
    ) -> "TableImage":
        """Return the image of rows that are counted first: `keys` are the blocks of `rows()` without their values."""
        counts_R = np.zeros(num_ranges, np.int64)
        for block in keys:
            counts_R += np.bincount(owners_of(block.mixed, num_ranges), minlength=num_ranges)
        by_range = tuple(counts_R.tolist()) if num_ranges > 1 else ()
        return TableImage(spec=spec, num_rows=int(counts_R.sum()), by_range=by_range, blocks=rows())


class RowWriter:
    """Writes the files of one table. At any time one file, and that of its states, is open."""

    def __init__(self, folder: Path, table: LogTable, image: TableImage) -> None:
        self._folder, self._table, self._image = folder, table, image
        self._num_rows = image.by_range or (image.num_rows,)  # of each file
        if sum(self._num_rows) != image.num_rows:
            raise ValueError(f"{image.num_rows} rows cannot be {image.by_range} by ranges")
        self._num_ranges = len(self._num_rows)
        self._rows_files = rows_files(table.name, self._num_ranges)
        self._optimizer_files = optimizer_files(table.name, self._num_ranges)

    def write(self) -> dict[str, FileChecksum]:
        """Write all files; return their checksums, computed while writing so that they are not read again.

        ValueError if the rows are not as the image says.
        """
        sums: dict[str, FileChecksum] = {}
        blocks = self._blocks_by_range()
        following, first_row = next(blocks, None), 0
        for index, num_rows in enumerate(self._num_rows):
            with ExitStack() as files:
                written = self._open(index, first_row, files)
                start = 0
                while following is not None and following[0] == index:
                    start += self._write_block(written, start, following[1], num_rows)
                    following = next(blocks, None)
            if start != num_rows:
                raise ValueError(f"got {start} rows for a base of {num_rows}")
            sums |= {
                name: FileChecksum(file.num_bytes, file.crc32)
                for name, file in written.items()
                if file.crc32 is not None
            }
            first_row += num_rows
            failpoint("between two row files of a base")
        return sums

    def _open(self, index: int, first_row: int, files: ExitStack) -> dict[str, TensorWriter]:
        """Open the files of one range, whose first row is that many rows behind the first of the table."""
        n, spec = self._num_rows[index], self._image.spec
        contents = {self._rows_files[index]: row_shapes(n, spec.dim)}
        if self._table.has_optimizer_file:
            contents[self._optimizer_files[index]] = {"state": TensorShape(np.dtype("<f4"), (n, spec.state_width))}
        return {
            name: files.enter_context(
                closing(TensorWriter(self._folder / name, shapes, places=self._places(shapes, first_row)))
            )
            for name, shapes in contents.items()
        }

    def _places(self, shapes: dict[str, TensorShape], first_row: int) -> dict[str, int] | None:
        """Return where each column would be if all ranges were one array: so readers map it as one.

        None for a file so small that the padding before its columns would matter: readers copy it.
        """
        num_bytes = sum(shape.num_bytes for shape in shapes.values())
        if self._num_ranges == 1 or num_bytes < LEAST_DATA_OF_PADDING * PLACE_BYTES * len(shapes):
            return None
        return {
            name: first_row * TensorShape(shape.dtype, (1, *shape.shape[1:])).num_bytes
            for name, shape in shapes.items()
        }

    def _write_block(self, written: dict[str, TensorWriter], start: int, block: RowLayer, num_rows: int) -> int:
        if start + len(block) > num_rows:
            raise ValueError(f"got more than {num_rows} rows for a base of {num_rows}")
        rows, *states = written.values()
        rows.write_block(start, {name: getattr(block, name) for name in COLUMNS})
        if states:
            assert block.state is not None
            states[0].write("state", start, block.state)
        return len(block)

    def _blocks_by_range(self) -> Iterator[tuple[int, RowLayer]]:
        """Yield the blocks, cut where one range ends, each with the range that it is in, counted from 0."""
        highest = 0
        for block in self._image.blocks:
            if not len(block):
                continue
            self._check(block, highest)
            highest = int(block.mixed[-1])
            first, last = owners_of(block.mixed[[0, -1]], self._num_ranges).tolist()
            for index in range(first, last + 1):
                part = HashRange(index + 1, self._num_ranges).select(block)
                if len(part):
                    yield index, part

    def _check(self, block: RowLayer, highest: int) -> None:
        if block.state is None or (block.tombstone is not None and block.tombstone.any()):
            raise ValueError("a base holds only live rows, with their optimizer states")
        if int(block.mixed[0]) < highest or not bool((block.mixed[1:] >= block.mixed[:-1]).all()):
            raise ValueError("the rows of a base must be sorted by mixed key")
        if not self._table.holds(block.feature).all():
            raise ValueError(f"the {self._table.title} table does not hold the rows of all these features")


def row_shapes(n: int, dim: int) -> dict[str, TensorShape]:
    """Return the columns of a file with n rows."""
    return {
        "mixed": TensorShape(np.dtype("<u8"), (n,)),
        "feature": TensorShape(np.dtype("<u2"), (n,)),
        "id": TensorShape(np.dtype("<i8"), (n,)),
        "value": TensorShape(np.dtype("<f4"), (n, dim)),
        "count": TensorShape(np.dtype("<i8"), (n,)),
        "last_seen": TensorShape(np.dtype("<i8"), (n,)),
    }
