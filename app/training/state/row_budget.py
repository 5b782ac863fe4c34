"""Keeps the next base of the log within its part of `log_bytes`: beyond it, the rows seen longest ago expire."""

import logging
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from springtide.app.version_log.disk_budget import LEAST_ROWS_SHARE, base_row_bytes
from springtide.embeddings.policy.live_row_sample import LiveRowSample
from springtide.embeddings.rows import TableDelta
from springtide_client.format.tensors import HEAD_BYTES
from springtide_client.log.base import (
    DENSE,
    ID_STRINGS,
    ITEMS,
    MODEL,
    ONNX,
    STATE,
    Base,
    BaseManifest,
)

KEPT = 0.85  # of the rows that fit, so that rows do not expire with every version

logger = logging.getLogger(__name__)


class RowsOfDelta(NamedTuple):
    """A version's rows as the budget needs them; of many rows, those with a key hash up to a bound are enough."""

    num_rows: int
    delta: TableDelta

    @staticmethod
    def of(delta: TableDelta, last_key_hash: int | None = None) -> "RowsOfDelta":
        """Return those of a delta."""
        rows, forgotten = delta.rows.keys_only(), delta.forgotten.keys_only()
        if last_key_hash is not None:
            rows, forgotten = (part.take(part.key_hash <= np.uint64(last_key_hash)) for part in (rows, forgotten))
        return RowsOfDelta(len(delta.rows), TableDelta(rows, forgotten))


class RowBudget:
    """Follows the versions that a trainer writes or reads back, and decides which rows expire with the next one.

    The decision depends on the contents of the log and on the sizes of its newest base; the version that it is made
    for contains it as expiry cutoffs, so followers, bases, spill and the next trainer obey the same one.
    """

    def __init__(self, max_base_bytes: int, *, dim: int, state_width: int, onnx: bool = False) -> None:
        """`onnx`: bases get the net as `model.onnx` too."""
        self.max_base_bytes, self.onnx = max_base_bytes, onnx
        self.sample = LiveRowSample()
        self._row_bytes: float = base_row_bytes(dim, state_width)
        self._num_live = self._num_since = 0  # rows that lived when they were counted; rows of versions since
        self._other_bytes = 0  # of a base: the exported net, the admission sketch
        self._state_bytes = 0  # of a base: the net, its optimizer, scores

    @property
    def max_rows(self) -> int:
        """How many rows fit into a base."""
        return int(
            max(
                self.max_base_bytes - self._other_bytes - self._state_bytes,
                LEAST_ROWS_SHARE * self.max_base_bytes,
            )
            / self._row_bytes
        )

    def read_base(self, base: Base) -> None:
        """Begin with the rows of a base."""
        self.sample.read_base(base.main.rows.key_hash, base.main.rows.feature, base.main.rows.last_seen)
        for name in base.manifest.tables:
            rows = base.tables[name].rows
            self.sample.add(rows.feature, rows.id, rows.last_seen)
        self._num_live = len(base)
        self.measure(base.manifest, len(base))

    def measure(self, manifest: BaseManifest, num_rows: int) -> None:
        """Take the sizes of a newer base: id strings and the net take space too."""
        sizes = {name: file.bytes for name, file in manifest.files.items()}
        files = [file for name in manifest.all_tables for file in manifest.table_files(name)]
        by_rows = sum(sizes.pop(name, 0) for name in (*files, ID_STRINGS, ITEMS))
        if self.onnx:
            sizes.setdefault(ONNX, sizes.get(MODEL, 0))  # the compactor adds it
        self._state_bytes = sizes.pop(DENSE, 0) + sizes.pop(STATE, 0)
        self._other_bytes = sum(sizes.values())
        heads = min(by_rows, HEAD_BYTES * len(files))  # a base of few rows in many files is little else
        self._other_bytes += heads
        if num_rows:
            least = min(base_row_bytes(table.dim, table.state_width) for table in manifest.all_tables.values())
            self._row_bytes = max(least, (by_rows - heads) / num_rows)

    def expect_state(self, num_bytes: int) -> None:
        """Note the bytes of net, optimizer and scores now. The first base has no optimizer's state and no scores."""
        self._state_bytes = max(self._state_bytes, num_bytes)

    def check(self) -> None:
        """Raise ValueError if the net leaves no room for rows: learning would wait for ever."""
        if self._other_bytes + self._state_bytes > (1 - LEAST_ROWS_SHARE) * self.max_base_bytes:
            raise ValueError(
                f"a base may take {self.max_base_bytes:,} bytes, 5/16 of the log, and the net takes "
                f"{self._other_bytes + self._state_bytes:,} of them: raise [table] disk_bytes and [log] log_bytes"
            )

    def add(self, delta: TableDelta) -> None:
        """Note the rows of a version. Within it forgetting comes before rows."""
        self.add_part(RowsOfDelta.of(delta))

    def add_part(self, part: RowsOfDelta) -> None:
        """Note the rows that one rank has in a version."""
        rows, forgotten = part.delta.rows, part.delta.forgotten
        if len(forgotten):
            self.sample.forget(forgotten.feature, forgotten.id)
        if part.num_rows:
            self.sample.add(rows.feature, rows.id, rows.last_seen)
            self._num_since += part.num_rows

    def is_exceeded(self, cutoffs: Mapping[int, int]) -> bool:
        """Return True if rows must expire."""
        if self._num_live + self._num_since > self.max_rows:  # else all of them may be new
            self._num_live, self._num_since = self.sample.num_live(cutoffs), 0
        return self._num_live + self._num_since > self.max_rows

    def raised_cutoffs(self, cutoffs: Mapping[int, int]) -> dict[int, int]:
        """Return the cutoffs, by feature, from which on few enough rows are left; {} if they are few enough."""
        if not self.is_exceeded(cutoffs):
            return {}
        num_live, max_rows = self._num_live, self.max_rows
        cutoff = self.sample.coldest(num_live - int(KEPT * max_rows))
        logger.info(
            "rows expire so that the next base fits into log_bytes",
            extra={"rows": num_live, "max_rows": max_rows, "last_seen_before_ms": cutoff},
        )
        self._num_live = int(KEPT * max_rows)
        return {feature: cutoff for feature in self.sample.features() if cutoff > cutoffs.get(feature, 0)}
