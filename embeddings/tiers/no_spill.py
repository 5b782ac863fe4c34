"""The spill of a table without one: evicted rows are lost."""

# U unique keys, N rows
import numpy as np

from springtide.embeddings.rows import Int64Array, UInt16Array
from springtide.embeddings.tiers.found_rows import FoundRows
from springtide.embeddings.tiers.record_kinds import TOMBSTONE
from springtide_client.keys import hash_keys
from springtide_client.rows.row_block import RowBlock

NUM_PLACES = 1 << 20  # 8 MiB: most of that many forgotten keys are remembered


class NoSpill:
    """Stores no rows, only recently forgotten keys: a hash table of key hashes in which newer keys overwrite older."""

    keeps_rows = False
    is_exclusive = False
    host_tier = None

    def __init__(self, dim: int, state_width: int) -> None:
        self.dim, self.state_width = dim, state_width
        self._generations = {0: np.zeros(0, np.uint64)}  # places by generation, allocated at the first write

    def write(self, rows: RowBlock, num_new: int) -> None:
        self.add_tombstones(rows.feature, rows.id)

    def has_room(self, num_rows: int, wait_seconds: float = 0.0) -> bool:
        return True

    def add_tombstones(self, features_N: UInt16Array, ids_N: Int64Array) -> None:
        newest = max(self._generations)
        if len(ids_N) and not len(self._generations[newest]):
            self._generations[newest] = np.zeros(NUM_PLACES, np.uint64)
            self._generations[newest][0] = 1  # belongs in another place, so the key hash 0 is not found in an empty one
        key_hash_N = hash_keys(features_N, ids_N)
        if len(key_hash_N):
            self._generations[newest][key_hash_N & np.uint64(NUM_PLACES - 1)] = key_hash_N

    def find(self, features_U: UInt16Array, ids_U: Int64Array) -> FoundRows:
        found = FoundRows.nothing(features_U, ids_U, self.dim, self.state_width)
        key_hash_U = found.rows.key_hash
        for places in self._generations.values():
            if len(places):
                found.kinds_U[places[key_hash_U & np.uint64(NUM_PLACES - 1)] == key_hash_U] = TOMBSTONE
        return found

    def is_empty_for(self, num_keys: int) -> bool:
        return not any(map(len, self._generations.values()))

    def read_all(self) -> RowBlock:
        return RowBlock.zeros(0, self.dim, self.state_width)

    def open_generation(self) -> int:
        newest = max(self._generations)
        self._generations[newest + 1] = np.zeros(0, np.uint64)
        return newest

    def destroy_generations(self, upto: int) -> None:
        self._generations = {number: places for number, places in self._generations.items() if number > upto}

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
        return sum(places.nbytes for places in self._generations.values())

    def counters(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        self._generations = {0: np.zeros(0, np.uint64)}
