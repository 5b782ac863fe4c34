"""Rows for tests of spills, checks of what is found, and a spill of dictionaries."""

# N rows
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import pytest

from springtide.embeddings.errors import SpillError
from springtide.embeddings.rows import Int64Array, UInt16Array
from springtide.embeddings.tiers.found_rows import FoundRows
from springtide.embeddings.tiers.interface import Spill
from springtide.embeddings.tiers.record_kinds import ROW, TOMBSTONE
from springtide.embeddings.tiers.rocksdb.child_process import ProcessLostError
from springtide.embeddings.tiers.rocksdb.spill import RocksSpill
from springtide_client.rows.row_block import RowBlock


def numbered_rows(ids_N: Int64Array, dim: int, state_width: int, *, version: int = 0, feature: int = 0) -> RowBlock:
    """Rows that are functions of id and version."""
    ids_N = np.asarray(ids_N, np.int64)
    num = len(ids_N)
    base_N = (ids_N * 31 + version * 7).astype(np.float32)
    return RowBlock(
        np.full(num, feature, np.uint16),
        ids_N,
        base_N[:, None] + np.arange(dim, dtype=np.float32),
        base_N[:, None] - np.arange(state_width, dtype=np.float32),
        ids_N % 1000 + version,
        ids_N + version,
    )


def find(spill: Spill, rows: RowBlock) -> FoundRows:
    return spill.find(rows.feature, rows.id)


def assert_found(spill: Spill, rows: RowBlock) -> None:
    """Assert that the spill has all these rows, unchanged."""
    found = find(spill, rows)
    assert (found.kinds_U == ROW).all(), np.bincount(found.kinds_U)
    for ours, theirs in zip(found.rows.contents, rows.contents, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@contextmanager
def impatient(spill: RocksSpill) -> Iterator[None]:
    """Set the patience to two seconds, in which a busy machine responds; the process should have started before."""
    patience, spill._worker.patience_seconds = spill._worker.patience_seconds, 2.0
    yield
    spill._worker.patience_seconds = patience


def assert_fails(spill: RocksSpill, match: str, call: Callable[[], object]) -> None:
    """Assert that a call ends with this SpillError, and soon.

    It is repeated while the process of a busy machine was too slow to say what fails.
    """
    with impatient(spill):
        for _ in range(30):
            with pytest.raises(SpillError) as raised:
                call()
            if "it is too slow" not in str(raised.value) and "its disk is too slow" not in str(raised.value):
                break
    assert re.search(match, str(raised.value))


def await_start(spill: RocksSpill) -> None:
    """Wait until a process is running that responds."""
    deadline = spill._worker.deadline()
    while True:
        with suppress(ProcessLostError), spill._worker.process(deadline).find_channel(deadline) as channel:
            channel.call("set_database_bytes", 0, deadline=deadline)
            return


def kill(spill: RocksSpill) -> None:
    """Kill the process and wait until it has ended."""
    process = spill._worker._process
    assert process is not None
    process.popen.kill()
    process.popen.wait()


class DictSpill:
    """A spill of dictionaries, one a generation. While `fails` is true, writes raise SpillError."""

    keeps_rows = True
    host_tier = None

    def __init__(self, dim: int, state_width: int) -> None:
        self.dim, self.state_width = dim, state_width
        self.generations: dict[int, dict[tuple[int, int], tuple[Any, ...] | None]] = {0: {}}
        self.fails = False

    def write(self, rows: RowBlock, num_new: int) -> None:
        self._check()
        for n, key in enumerate(_keys(rows.feature, rows.id)):
            self._newest()[key] = tuple(column[n].copy() for column in rows.contents)

    def has_room(self, num_rows: int, wait_seconds: float = 0.0) -> bool:
        return not self.fails

    def add_tombstones(self, features_N: UInt16Array, ids_N: Int64Array) -> None:
        self._check()
        for key in _keys(features_N, ids_N):
            self._newest()[key] = None

    def find(self, features_U: UInt16Array, ids_U: Int64Array) -> FoundRows:
        rows = RowBlock.of_keys(features_U, ids_U, self.dim, self.state_width)
        kinds = np.zeros(len(ids_U), np.uint8)
        for u, key in enumerate(_keys(features_U, ids_U)):
            for generation in sorted(self.generations, reverse=True):
                if key in self.generations[generation]:
                    found = self.generations[generation][key]
                    kinds[u] = TOMBSTONE if found is None else ROW
                    for column, value in zip(rows.contents, found or (), strict=found is not None):
                        column[u] = value
                    break
        return FoundRows(rows, kinds)

    def is_empty_for(self, num_keys: int) -> bool:
        return not any(self.generations.values())

    def read_all(self) -> RowBlock:
        keys = sorted({key for generation in self.generations.values() for key in generation})
        features = np.array([feature for feature, _ in keys], np.uint16)
        found = self.find(features, np.array([id_ for _, id_ in keys], np.int64))
        return found.rows.take(found.kinds_U == ROW)

    def open_generation(self) -> int:
        newest = max(self.generations)
        self.generations[newest + 1] = {}
        return newest

    def destroy_generations(self, upto: int) -> None:
        self.generations = {number: rows for number, rows in self.generations.items() if number > upto}

    def purge(self, cutoffs: dict[int, int]) -> None:
        for generation in self.generations.values():
            for key, row in list(generation.items()):
                if row is not None and row[-1] < cutoffs.get(key[0], -1):
                    del generation[key]

    def stall_reason(self) -> str:
        return ""

    def set_limit(self, num_bytes: int) -> None:
        pass

    def fraction_to_forget(self) -> float:
        return 0.0

    def last_seen_quantile(self, fraction: float) -> int | None:
        return None

    def num_rows(self) -> int:
        return len(self.read_all())

    def num_bytes(self) -> int:
        return 0

    def memory_bytes(self) -> int:
        return 0

    def counters(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        self.generations = {0: {}}

    def _newest(self) -> dict[tuple[int, int], tuple[Any, ...] | None]:
        return self.generations[max(self.generations)]

    def _check(self) -> None:
        if self.fails:
            raise SpillError("writes fail")


def _keys(features_N: UInt16Array, ids_N: Int64Array) -> list[tuple[int, int]]:
    return list(zip(features_N.tolist(), ids_N.tolist(), strict=True))
