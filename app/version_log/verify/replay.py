"""Whether a base is what its predecessor becomes by the versions between them: every row, parameter, text and count.

Written apart from the merger, so that a mistake of the merger's is not repeated here. Memory is bounded.
"""

# n rows of a chunk, B blocks of the sketch
from collections.abc import Iterator

import msgspec
import numpy as np
from springtide_client.format.records import version_name
from springtide_client.format.tensors import Array, Arrays
from springtide_client.log.base import DENSE, ID_STRINGS, OPTIMIZER, ROWS, SKETCH, Base
from springtide_client.rows.disk_layer import aligned_chunks
from springtide_client.rows.layers import RowLayer, merge_layers

from app.version_log.read.id_dictionary import feature_name, find_id_strings
from app.version_log.read.index import LogIndex
from app.version_log.read.version_range import RANGE_BYTES, KeyRange, VersionRange, split_keys
from app.version_log.verify.report import VerifyReport, plural

SCORES = "state.scores."  # sums and a window, which the trainer's settings make: not replayed here
CHUNK_ROWS = 1 << 18
CONSEQUENCE = "followers that begin here differ from those that came by the log: remove the base, and it is made anew"


class ReplayCheck:
    """From one base to the next one."""

    def __init__(self, index: LogIndex, older: Base, newer: Base, findings: VerifyReport) -> None:
        self._older, self._newer, self._findings = older, newer, findings
        self._stretch = VersionRange(index, older.tip.number, newer.tip.number)
        self._meta = newer.manifest.meta
        self._next = 0

    def run(self, range_bytes: int = RANGE_BYTES) -> None:
        """Compares all; the first difference of each kind is told. LogError where the versions cannot be read."""
        num_wrong = len(self._findings.errors)
        self._compare_rows(range_bytes)
        self._compare_arrays()
        self._compare_texts()
        self._compare_sketch()
        self._compare_meta()
        if len(self._findings.errors) == num_wrong:
            names = version_name(self._older.tip.number), version_name(self._newer.tip.number)
            self._findings.ok(
                f"base {names[0]} and {plural(len(self._stretch.entries), 'version')} give base {names[1]}: "
                f"{plural(len(self._newer), 'row')} compared"
            )

    def _compare_rows(self, range_bytes: int) -> None:
        for part in split_keys(self._stretch.num_bytes, range_bytes):
            for expected in self._expected(part):
                found = self._newer.layer.take(slice(self._next, self._next + len(expected)))
                if not self._is_equal(expected, found):
                    return
                self._next += len(expected)
        if self._next < len(self._newer):
            self._tell_row(self._next, self._newer.rows, self._next, "it is in the base, and should not be")

    def _expected(self, part: KeyRange) -> Iterator[RowLayer]:
        table = self._older.manifest.table
        changes = self._stretch.changes(part, table.dim, state_width=table.state_width)
        for old, new in aligned_chunks([part.select(self._older.layer), changes]):
            merged = merge_layers(old, new)
            alive = np.flatnonzero(merged.live_mask(self._meta.expiry_cutoffs))
            for start in range(0, len(alive), CHUNK_ROWS):
                yield merged.take(alive[start : start + CHUNK_ROWS])

    def _is_equal(self, expected: RowLayer, found: RowLayer) -> bool:
        n = min(len(expected), len(found))
        same_key = (expected.feature[:n] == found.feature[:n]) & (expected.id[:n] == found.id[:n])
        if len(found) < len(expected) or not same_key.all():
            row = n if same_key.all() else int(np.flatnonzero(~same_key)[0])
            self._tell_row(self._next + row, expected, row, "it should stand here, and does not")
            return False
        for column in ("mixed", "value", "count", "last_seen", "state"):
            differs = _differs(getattr(expected, column), getattr(found, column))
            if differs.any():
                row = int(np.flatnonzero(differs)[0])
                what = f"its {column.replace('_', ' ')} is not that of the log"
                self._tell_row(self._next + row, expected, row, what, OPTIMIZER if column == "state" else ROWS)
                return False
        return True

    def _compare_arrays(self) -> None:
        for prefix in ("dense.", "state."):
            older = self._older.dense if prefix == "dense." else self._older.trainer_state
            newer = self._newer.dense if prefix == "dense." else self._newer.trainer_state
            expected = self._stretch.newest_arrays(prefix)
            if not self._stretch.restores:
                expected = older | expected
            for name in sorted({*expected, *newer}):
                if not name.startswith(SCORES) and not _same(expected.get(name), newer.get(name)):
                    self._tell(DENSE, f"{name} is not that of the log")
                    break

    def _compare_texts(self) -> None:
        """Of every id that has a row, the text is there."""
        there = self._newer.id_strings
        for texts in self._texts():
            features, ids = texts["feature"], texts["id"]
            wanted = self._newer.rows.find(features, ids) >= 0
            missing = wanted if there is None else wanted & (find_id_strings(there, features, ids) < 0)
            if missing.any():
                k = int(np.flatnonzero(missing)[0])
                self._tell(ID_STRINGS, f"the text of {self._key(int(features[k]), int(ids[k]))} is missing")
                return

    def _texts(self) -> Iterator[Arrays]:
        if self._older.id_strings is not None:
            yield self._older.id_strings
        for tensors in self._stretch.tensors_with("texts.id"):
            yield {"feature": tensors["texts.feature"], "id": tensors["texts.id"]}

    def _compare_sketch(self) -> None:
        num_blocks = self._older.manifest.meta.sketch_blocks
        sketch: Array | None = None if self._older.sketch is None else np.array(self._older.sketch)
        for entry in self._stretch.entries:
            head = entry.read_head()
            if head.meta.sketch_blocks != num_blocks:
                num_blocks, sketch = head.meta.sketch_blocks, None  # begun anew
            if head.shapes.get("sketch.block", (0,))[0]:
                tensors = entry.read().tensors()
                if sketch is None:
                    sketch = np.zeros((num_blocks, tensors["sketch.bytes"].shape[1]), np.uint8)
                sketch[tensors["sketch.block"]] = tensors["sketch.bytes"]
        if not _same(sketch, self._newer.sketch):
            self._tell(SKETCH, "the counts of ids without a row are not those of the log")

    def _compare_meta(self) -> None:
        if not self._stretch.entries:
            return
        told = self._stretch.entries[-1].read_head().meta
        recorded, in_base = (msgspec.structs.replace(meta, executed_commands=[]) for meta in (told, self._meta))
        if recorded != in_base:
            self._tell("manifest.json", "what it says of its version is not what the log says")
        ids = [entry.id for entry in self._meta.executed_commands]
        if any(entry.id not in ids for entry in told.executed_commands):
            self._tell("manifest.json", "an executed order is missing: it would be executed again")

    def _tell_row(self, place: int, layer: RowLayer, row: int, what: str, file: str = ROWS) -> None:
        key = self._key(int(layer.feature[row]), int(layer.id[row]))
        self._tell(file, f"row {place:,} ({key}): {what}")

    def _tell(self, file: str, what: str) -> None:
        self._findings.error(f"{self._newer.path.name}/{file}", None, what, CONSEQUENCE)

    def _key(self, feature: int, row_id: int) -> str:
        return f"{feature_name(self._newer.manifest.decode_schema(), feature)} = {row_id}"


def _differs(expected: Array, found: Array) -> Array:
    """Bit by bit, so that NaN equals itself."""
    if not expected.size:
        return np.zeros(len(expected), np.bool_)
    bits = [np.ascontiguousarray(array).reshape(len(array), -1).view(np.uint8) for array in (expected, found)]
    return np.asarray((bits[0] != bits[1]).any(axis=1))


def _same(expected: Array | None, found: Array | None) -> bool:
    if expected is None or found is None:
        return expected is found
    return expected.dtype == found.dtype and expected.shape == found.shape and expected.tobytes() == found.tobytes()
