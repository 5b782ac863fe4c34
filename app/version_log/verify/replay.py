"""Check that a base equals the base before it with the versions between them replayed: every row, parameter and count.

Rows are read as exports and rollbacks read them, by ranges of keys; counts and strings by code of its own. With the
compactor it shares how a record is decoded and how two versions are merged (`merge_layers`, `fold_net`): a bug in these
is found by their tests and by those that compare a log with what was learned, not here. Memory is bounded.
"""

from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate

import msgspec
import numpy as np

from springtide.app.version_log.read.id_dictionary import feature_name, find_id_strings
from springtide.app.version_log.read.index import LogIndex
from springtide.app.version_log.read.version_range import RANGE_BYTES, VersionImage, VersionRange, differing_bits
from springtide.app.version_log.tables import LogTable, tables_of
from springtide.app.version_log.verify.report import VerifyReport, plural
from springtide_client.format.records import version_name
from springtide_client.format.tensors import Array, Arrays, map_tensors
from springtide_client.log.base import DENSE, ID_STRINGS, SKETCH, STATE, Base
from springtide_client.rows.hash_range import owners_of
from springtide_client.rows.row_block import RowBlock

SCORES = "state.scores."  # not replayed here: they depend on the trainer's configured window
CONSEQUENCE = (
    "followers that start here differ from those that followed the log: remove the base, and it is written again"
)


class RowPlaces:
    """The files of one table of a base."""

    def __init__(self, base: Base, table: LogTable) -> None:
        manifest = base.manifest
        self._folder, self._num_ranges = base.path, manifest.num_ranges
        self._rows_files = manifest.rows_files(table.name)
        self._optimizer_files = manifest.optimizer_files(table.name)
        self._key_hash = [map_tensors(base.path / name)["mixed"] for name in self._rows_files]
        self._starts = [0, *accumulate(map(len, self._key_hash))][:-1]

    def name(self, row: int, *, of_state: bool = False) -> str:
        """Return the file with a row, or with its state, by the row's place in the whole table."""
        return (self._optimizer_files if of_state else self._rows_files)[self._index(row)]

    def in_file(self, row: int) -> int:
        """Return the row's place in that file."""
        return row - self._starts[self._index(row)]

    def misplaced(self) -> str | None:
        """Return the first file that has rows of another range than its own."""
        for index, key_hash in enumerate(self._key_hash):
            if len(key_hash) and (owners_of(key_hash[[0, -1]], self._num_ranges) != index).any():
                return self._rows_files[index]
        return None

    def _index(self, row: int) -> int:
        return bisect_right(self._starts, row) - 1


class ReplayCheck:
    """Replays the versions from one base to the next and compares."""

    def __init__(self, index: LogIndex, older: Base, newer: Base, report: VerifyReport) -> None:
        self._older, self._newer, self._report = older, newer, report
        self._index, self._versions = index, VersionRange(index, older.head.number, newer.head.number)
        self._meta = newer.manifest.meta
        self._num_rows = 0  # compared

    def run(self, range_bytes: int = RANGE_BYTES) -> None:
        """Compare everything and report the first difference of each kind. LogError if the versions cannot be read."""
        num_wrong = len(self._report.errors)
        tables = tables_of(self._older.manifest)
        if [table.name for table in tables] != [table.name for table in tables_of(self._newer.manifest)]:
            self._report_error("manifest.json", "its tables differ from those of the base before it")
            return
        for table in tables:
            self._compare_rows(table, range_bytes)
        self._compare_arrays()
        self._compare_id_strings()
        self._compare_sketch()
        self._compare_meta()
        if len(self._report.errors) == num_wrong:
            names = version_name(self._older.head.number), version_name(self._newer.head.number)
            self._report.ok(
                f"base {names[0]} and {plural(len(self._versions.entries), 'version')} replay to base {names[1]}: "
                f"{plural(self._num_rows, 'row')} compared"
            )

    def _compare_rows(self, table: LogTable, range_bytes: int) -> None:
        in_base, start = table.base_layer(self._newer), 0
        image = VersionImage(self._index, self._newer.head.number, base=self._older, range_bytes=range_bytes)
        for expected in image.live_rows(table):
            found = in_base.take(slice(start, start + len(expected)))
            if not self._is_equal(expected, found, table, start):
                return
            start += len(expected)
        self._num_rows += start
        if start < len(in_base):
            self._report_row(table, start, in_base, start, "it should not be in the base")

    def _is_equal(self, expected: RowBlock, found: RowBlock, table: LogTable, start: int) -> bool:
        n = min(len(expected), len(found))
        same_key = (expected.feature[:n] == found.feature[:n]) & (expected.id[:n] == found.id[:n])
        if len(found) < len(expected) or not same_key.all():
            row = n if same_key.all() else int(np.flatnonzero(~same_key)[0])
            self._report_row(table, start + row, expected, row, "it should be here, but is not")
            return False
        for column in ("key_hash", "value", "count", "last_seen", "state"):
            differs = differing_bits(getattr(expected, column), getattr(found, column))
            if differs.any():
                row = int(np.flatnonzero(differs)[0])
                what = f"its {column.replace('_', ' ')} differs from the log"
                self._report_row(table, start + row, expected, row, what, of_state=column == "state")
                return False
        return True

    def _compare_arrays(self) -> None:
        # an exact state that is not in the records is in a file of its own, and the base links it
        in_records = self._meta.exact_state <= self._older.head.number
        for prefix in ("dense.", "state.") if in_records else ("dense.",):
            older = self._older.dense if prefix == "dense." else self._older.trainer_state
            newer = self._newer.dense if prefix == "dense." else self._newer.trainer_state
            expected = self._versions.newest_net(older, prefix)
            file = STATE if prefix == "state." and STATE in self._newer.manifest.files else DENSE
            for name in sorted({*expected, *newer}):
                if not name.startswith(SCORES) and not _same(expected.get(name), newer.get(name)):
                    self._report_error(file, f"{name} differs from the log")
                    break

    def _compare_id_strings(self) -> None:
        """Check that the base has the string of every id that has a row."""
        in_base = self._newer.id_strings
        for strings in self._id_strings():
            features, ids = strings["feature"], strings["id"]
            wanted = np.zeros(len(ids), np.bool_)
            for table in tables_of(self._newer.manifest):
                wanted |= table.base_rows(self._newer).find(features, ids) >= 0
            missing = wanted if in_base is None else wanted & (find_id_strings(in_base, features, ids) < 0)
            if missing.any():
                k = int(np.flatnonzero(missing)[0])
                self._report_error(ID_STRINGS, f"the string of {self._key(int(features[k]), int(ids[k]))} is missing")
                return

    def _id_strings(self) -> Iterator[Arrays]:
        if self._older.id_strings is not None:
            yield self._older.id_strings
        for tensors in self._versions.tensors_with("texts.id"):
            yield {"feature": tensors["texts.feature"], "id": tensors["texts.id"]}

    def _compare_sketch(self) -> None:
        num_blocks = self._older.manifest.meta.sketch_blocks
        sketch: Array | None = None if self._older.sketch is None else np.array(self._older.sketch)
        for entry in self._versions.entries:
            summary = entry.read_summary()
            if summary.meta.sketch_blocks != num_blocks:
                num_blocks, sketch = summary.meta.sketch_blocks, None  # a new sketch
            if summary.shapes.get("sketch.block", (0,))[0]:
                tensors = entry.read().tensors()
                if sketch is None:
                    sketch = np.zeros((num_blocks, tensors["sketch.bytes"].shape[1]), np.uint8)
                sketch[tensors["sketch.block"]] = tensors["sketch.bytes"]
        if not _same(sketch, self._newer.sketch):
            self._report_error(SKETCH, "the counts of ids without a row differ from the log")

    def _compare_meta(self) -> None:
        if not self._versions.entries:
            return
        last = self._versions.entries[-1].read_summary().meta
        recorded, in_base = (msgspec.structs.replace(meta, executed_commands=[]) for meta in (last, self._meta))
        if recorded != in_base:
            self._report_error("manifest.json", "its meta differs from that of its version in the log")
        ids = [entry.id for entry in self._meta.executed_commands]
        if any(entry.id not in ids for entry in last.executed_commands):
            self._report_error("manifest.json", "an executed command is missing: it would be executed again")

    def _report_row(
        self, table: LogTable, place: int, layer: RowBlock, row: int, what: str, *, of_state: bool = False
    ) -> None:
        key, places = self._key(int(layer.feature[row]), int(layer.id[row])), RowPlaces(self._newer, table)
        self._report_error(places.name(place, of_state=of_state), f"row {places.in_file(place):,} ({key}): {what}")

    def _report_error(self, file: str, what: str) -> None:
        self._report.error(f"{self._newer.path.name}/{file}", None, what, CONSEQUENCE)

    def _key(self, feature: int, row_id: int) -> str:
        return f"{feature_name(self._newer.manifest.decode_schema(), feature)} = {row_id}"


def _same(expected: Array | None, found: Array | None) -> bool:
    if expected is None or found is None:
        return expected is found
    return expected.dtype == found.dtype and expected.shape == found.shape and expected.tobytes() == found.tobytes()
