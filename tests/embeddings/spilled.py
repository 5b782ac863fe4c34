"""Rows for the tests of spills, and what they have to be again."""

# N rows
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from embeddings.rows import Int64Array, Rows
from embeddings.spill import ROW, Spill, SpilledRows
from embeddings.spill_rocksdb import RocksSpill


def numbered(ids_N: Int64Array, dim: int, state_width: int, *, version: int = 0, feature: int = 0) -> Rows:
    """Rows that are functions of id and version."""
    ids_N = np.asarray(ids_N, np.int64)
    num = len(ids_N)
    base_N = (ids_N * 31 + version * 7).astype(np.float32)
    return Rows(
        np.full(num, feature, np.uint16),
        ids_N,
        base_N[:, None] + np.arange(dim, dtype=np.float32),
        base_N[:, None] - np.arange(state_width, dtype=np.float32),
        ids_N % 1000 + version,
        ids_N + version,
    )


def find(spill: Spill, rows: Rows) -> SpilledRows:
    return spill.find(rows.features, rows.ids)


def assert_found(spill: Spill, rows: Rows) -> None:
    """All of them, as they are here."""
    found = find(spill, rows)
    assert (found.kinds == ROW).all(), np.bincount(found.kinds)
    for ours, theirs in zip(found.rows.columns(), rows.columns(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@contextmanager
def impatient(spill: RocksSpill) -> Iterator[None]:
    """Half a second must do, once the process has started."""
    patience, spill._keeper.patience_seconds = spill._keeper.patience_seconds, 0.5
    yield
    spill._keeper.patience_seconds = patience


def kill(spill: RocksSpill) -> None:
    """The process, and waits for its end."""
    child = spill._keeper._child
    assert child is not None
    child.process.kill()
    child.process.wait()
