"""The spill of a table without one: evicted rows are lost."""

# U unique keys, N rows
from collections.abc import Callable
from typing import Protocol

import numpy as np

from springtide.embeddings.rows import BoolArray, Int64Array, UInt16Array
from springtide.embeddings.tiers.found_rows import FoundRows
from springtide.embeddings.tiers.record_kinds import TOMBSTONE
from springtide_client.array_types import UInt64Array
from springtide_client.keys import hash_keys
from springtide_client.rows.row_block import RowBlock

NUM_PLACES = 1 << 20  # 8 MiB: most of that many forgotten keys are remembered


class ForgottenKeys(Protocol):
    """The hashes of keys whose rows have gone."""

    def add(self, key_hash_N: UInt64Array) -> None: ...

    def contains(self, key_hash_U: UInt64Array) -> BoolArray: ...

    @property
    def nbytes(self) -> int: ...


class NewestKeys:
    """A hash table in which newer keys overwrite older ones; it takes no memory before the first."""

    def __init__(self) -> None:
        self._places = np.zeros(0, np.uint64)

    def add(self, key_hash_N: UInt64Array) -> None:
        if not len(self._places):
            self._places = np.zeros(NUM_PLACES, np.uint64)
            self._places[0] = 1  # belongs in another place, so the key hash 0 is not found in an empty one
        self._places[key_hash_N & np.uint64(NUM_PLACES - 1)] = key_hash_N

    def contains(self, key_hash_U: UInt64Array) -> BoolArray:
        if not len(self._places):
            return np.zeros(len(key_hash_U), np.bool_)
        found_U: BoolArray = self._places[key_hash_U & np.uint64(NUM_PLACES - 1)] == key_hash_U
        return found_U

    @property
    def nbytes(self) -> int:
        return self._places.nbytes


class AllKeys:
    """Every key, 8 bytes each: sorted runs, of which each is more than twice as long as the next."""

    def __init__(self) -> None:
        self._runs: list[UInt64Array] = []

    def add(self, key_hash_N: UInt64Array) -> None:
        run = np.unique(key_hash_N)
        while self._runs and len(self._runs[-1]) <= 2 * len(run):
            run = np.union1d(run, self._runs.pop())
        self._runs.append(run)

    def contains(self, key_hash_U: UInt64Array) -> BoolArray:
        found_U = np.zeros(len(key_hash_U), np.bool_)
        for run in self._runs:
            found_U |= run[np.minimum(np.searchsorted(run, key_hash_U), len(run) - 1)] == key_hash_U
        return found_U

    @property
    def nbytes(self) -> int:
        return sum(run.nbytes for run in self._runs)


class NoSpill:
    """Stores no rows, only forgotten keys: recent ones, or over a base all until the next one lacks their rows too."""

    keeps_rows = False
    is_exclusive = False
    host_tier = None

    def __init__(self, dim: int, state_width: int, *, over_base: bool = False) -> None:
        """`over_base`: a forgotten key that was itself forgotten here would get its row in the base back."""
        self.dim, self.state_width = dim, state_width
        self._new_keys: Callable[[], ForgottenKeys] = AllKeys if over_base else NewestKeys
        self._generations: dict[int, ForgottenKeys] = {0: self._new_keys()}

    def write(self, rows: RowBlock, num_new: int) -> None:
        self.add_tombstones(rows.feature, rows.id)

    def has_room(self, num_rows: int, wait_seconds: float = 0.0) -> bool:
        return True

    def add_tombstones(self, features_N: UInt16Array, ids_N: Int64Array) -> None:
        if len(ids_N):
            self._generations[max(self._generations)].add(hash_keys(features_N, ids_N))

    def find(self, features_U: UInt16Array, ids_U: Int64Array) -> FoundRows:
        found = FoundRows.nothing(features_U, ids_U, self.dim, self.state_width)
        key_hash_U = found.rows.key_hash
        for keys in self._generations.values():
            found.kinds_U[keys.contains(key_hash_U)] = TOMBSTONE
        return found

    def is_empty_for(self, num_keys: int) -> bool:
        return not self.memory_bytes()

    def read_all(self) -> RowBlock:
        return RowBlock.zeros(0, self.dim, self.state_width)

    def open_generation(self) -> int:
        newest = max(self._generations)
        self._generations[newest + 1] = self._new_keys()
        return newest

    def destroy_generations(self, upto: int) -> None:
        self._generations = {number: keys for number, keys in self._generations.items() if number > upto}

    def purge(self, cutoffs: dict[int, int]) -> None:
        """Do nothing: tombstones are deleted with their generation."""

    def report_purged(self, reports: bool) -> None:
        """Do nothing: there are no rows."""

    def take_purged(self) -> tuple[UInt16Array, Int64Array]:
        return np.empty(0, np.uint16), np.empty(0, np.int64)

    def set_limit(self, num_bytes: int) -> None:
        """Do nothing: there is no folder."""

    def fraction_to_forget(self) -> float:
        return 0.0

    def stall_reason(self) -> str:
        return ""

    def last_seen_quantile(self, fraction: float) -> int | None:
        return None

    def num_rows(self) -> int:
        return 0

    def num_bytes(self) -> int:
        return 0

    def memory_bytes(self) -> int:
        return sum(keys.nbytes for keys in self._generations.values())

    def counters(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        self._generations = {0: self._new_keys()}
