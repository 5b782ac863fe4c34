"""A block of rows, one array a column: what tables, tiers, versions, bases and views pass to each other."""

# K keys of a look-up, n rows, D dimension, S width of the optimizer state
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from springtide_client.array_types import BoolArray, Float32Array, Indices, Int64Array, UInt16Array, UInt64Array
from springtide_client.format.tensors import Array, TensorShape
from springtide_client.keys import hash_keys

COLUMNS = ("feature", "id", "value", "state", "count", "last_seen", "tombstone", "known_hash")


@dataclass(frozen=True, slots=True, eq=False)
class RowBlock:
    """Rows. A key occurs at most once, and a layer's rows are in key order, unless a function says otherwise.

    Key order is that of (key hash, feature). In a layer a tombstone hides the key's row in older layers.
    """

    feature: UInt16Array
    id: Int64Array
    value: Float32Array  # [n, D]
    state: Float32Array  # [n, S]; S is 0 where only trainers would need it
    count: Int64Array
    last_seen: Int64Array  # event time in ms
    tombstone: BoolArray | None = None  # None: no row is a tombstone
    known_hash: UInt64Array | None = None  # the column `key_hash`; None until it is asked for

    def __len__(self) -> int:
        return len(self.id)

    @property
    def key_hash(self) -> UInt64Array:
        """The hash of each key, by which rows are ordered and found."""
        hashes = self.known_hash
        if hashes is None:
            hashes = hash_keys(self.feature, self.id)
            object.__setattr__(self, "known_hash", hashes)
        return hashes

    @property
    def dim(self) -> int:
        return int(self.value.shape[1])

    @property
    def num_bytes(self) -> int:
        return sum(column.nbytes for column in self.columns().values())

    @property
    def contents(self) -> tuple[Array, Array, Array, Array]:
        """What a key has: value, state, count and last-seen."""
        return self.value, self.state, self.count, self.last_seen

    @staticmethod
    def zeros(num_rows: int, dim: int, state_width: int = 0) -> "RowBlock":
        """Return rows of zeros."""
        return RowBlock.of_keys(np.zeros(num_rows, np.uint16), np.zeros(num_rows, np.int64), dim, state_width)

    @staticmethod
    def of_keys(feature: UInt16Array, id: Int64Array, dim: int = 0, state_width: int = 0) -> "RowBlock":
        """Return rows of zeros with these keys."""
        num = len(id)
        floats = np.zeros((num, dim), np.float32), np.zeros((num, state_width), np.float32)
        return RowBlock(feature, id, *floats, np.zeros(num, np.int64), np.zeros(num, np.int64))

    @staticmethod
    def concatenate(blocks: Sequence["RowBlock"]) -> "RowBlock":
        """Return the rows of all blocks, of which there is at least one; they have the same widths."""
        columns = {name: [getattr(block, name) for block in blocks] for name in COLUMNS}
        if any(column is None for column in columns["known_hash"]):
            del columns["known_hash"]
        if all(column is None for column in columns["tombstone"]):
            del columns["tombstone"]
        else:
            columns["tombstone"] = [block.tombstones() for block in blocks]
        return RowBlock(**{name: np.concatenate(parts) for name, parts in columns.items()})

    def columns(self) -> dict[str, Array]:
        """Return the columns that there are, by their names."""
        return {name: column for name in COLUMNS if (column := getattr(self, name)) is not None}

    def take(self, rows: Indices | BoolArray | slice) -> "RowBlock":
        """Return some of the rows, by position or where this is true; those of a slice are not copied."""
        return RowBlock(**{name: column[rows] for name, column in self.columns().items()})

    def where(self, chosen_n: BoolArray) -> "RowBlock":
        """Return the rows for which this is true; this block itself if it is true for all."""
        return self if chosen_n.all() else self.take(np.flatnonzero(chosen_n))

    def copied(self) -> "RowBlock":
        """Return the same rows in memory of their own."""
        return self.take(np.arange(len(self)))

    def keys_only(self) -> "RowBlock":
        """Return the keys, counts, times and tombstones: what counting rows takes. Nothing is copied."""
        return replace(self, value=self.value[:, :0], state=self.state[:, :0])

    def without_states(self) -> "RowBlock":
        """Return the same rows with states of width 0. Nothing is copied."""
        return replace(self, state=np.empty((len(self), 0), np.float32))

    def deleted(self) -> "RowBlock":
        """Return the same rows as tombstones."""
        return replace(self, tombstone=np.ones(len(self), np.bool_))

    def without_tombstones(self) -> "RowBlock":
        """Return the same rows with no tombstone column, which must mark no row."""
        return replace(self, tombstone=None)

    def tombstones(self) -> BoolArray:
        """Return which rows are tombstones."""
        return np.zeros(len(self), np.bool_) if self.tombstone is None else self.tombstone

    def in_key_order(self) -> "RowBlock":
        """Return the rows in key order. Rows in order are not copied: trainers write them so, but for evicted ones."""
        if (self.key_hash[1:] > self.key_hash[:-1]).all():
            return self
        return self.take(key_order(self.key_hash, self.feature))

    def find(self, features_K: UInt16Array, ids_K: Int64Array) -> Indices:
        """Return the position of each key among these rows, which are in key order; -1 where it is not there."""
        return find_sorted(self.key_hash, self.feature, hash_keys(features_K, ids_K), features_K)

    def find_rows(self, keys: "RowBlock") -> Indices:
        """Return the same for the keys of another block."""
        return find_sorted(self.key_hash, self.feature, keys.key_hash, keys.feature)

    def holds(self, keys: "RowBlock") -> BoolArray:
        """Return which keys of another block are among these rows, which are in key order."""
        held_K: BoolArray = self.find_rows(keys) >= 0
        return held_K

    def live_mask(self, expiry_cutoffs: Mapping[str, int]) -> BoolArray:
        """Return which rows are neither tombstones nor expired (`expiry_cutoffs`: feature number -> ms)."""
        live_n: BoolArray = ~self.tombstones()
        if expiry_cutoffs:
            live_n &= self.last_seen >= expiry_cutoffs_of(self.feature, expiry_cutoffs)
        return live_n

    def live_at(self, rows: Indices, expiry_cutoffs: Mapping[str, int]) -> BoolArray:
        """Return which of some rows, given by their numbers in any order, are neither tombstones nor expired."""
        live_n = self.last_seen[rows] >= expiry_cutoffs_of(self.feature[rows], expiry_cutoffs)
        if self.tombstone is not None:
            live_n &= ~self.tombstone[rows]
        return live_n


def column_shapes(num_rows: int, dim: int, state_width: int = 0) -> dict[str, TensorShape]:
    """Return the type and the shape of each column that every block has."""
    numbers = TensorShape(np.dtype(np.int64), (num_rows,))
    return {
        "feature": TensorShape(np.dtype(np.uint16), (num_rows,)),
        "id": numbers,
        "value": TensorShape(np.dtype(np.float32), (num_rows, dim)),
        "state": TensorShape(np.dtype(np.float32), (num_rows, state_width)),
        "count": numbers,
        "last_seen": numbers,
    }


def find_sorted(hash_n: UInt64Array, feature_n: UInt16Array, hash_K: UInt64Array, features_K: UInt16Array) -> Indices:
    """Return the position of each key among keys sorted by their hashes, -1 where it is not among them."""
    if len(hash_n) == 0:
        return np.full(len(hash_K), -1, np.intp)
    rows_K = hash_n.searchsorted(hash_K)
    near_K = hash_n.take(rows_K, mode="clip") == hash_K
    num_near = np.count_nonzero(near_K)
    if num_near == 0:  # the usual case: most layers hold few of the keys
        rows_K.fill(-1)
        return rows_K
    found_K = near_K & (feature_n.take(rows_K, mode="clip") == features_K)
    if np.count_nonzero(found_K) != num_near:
        # keys of several features may have the same hash: they are adjacent
        for k in np.flatnonzero(near_K & ~found_K):
            row = rows_K[k]
            while row < len(hash_n) and hash_n[row] == hash_K[k]:
                if feature_n[row] == features_K[k]:
                    rows_K[k], found_K[k] = row, True
                    break
                row += 1
    if num_near != len(rows_K) or not found_K.all():
        rows_K[~found_K] = -1
    return rows_K


def expiry_cutoffs_of(features_K: UInt16Array, expiry_cutoffs: Mapping[str, int]) -> Int64Array:
    """Return for each key the event time before which a row of its feature is expired, int64 (K)."""
    cutoffs = {int(number): cutoff_ms for number, cutoff_ms in expiry_cutoffs.items()}
    table = np.full(max(cutoffs, default=0) + 2, np.iinfo(np.int64).min)
    for number, cutoff_ms in cutoffs.items():
        table[number] = cutoff_ms
    return table.take(features_K, mode="clip")  # features beyond the table never expire, like its last entry


def key_order(key_hash: UInt64Array, feature: UInt16Array, *, once: bool = False) -> Indices:
    """Return the order by (key hash, feature); with `once` only the first of equal keys."""
    order = np.argsort(key_hash, kind="stable")  # a stable sort merges sorted runs in linear time
    equal = key_hash[order[1:]] == key_hash[order[:-1]]
    if not equal.any():
        return order
    same = equal & (feature[order[1:]] == feature[order[:-1]])
    if not np.array_equal(same, equal):
        order = np.lexsort((feature, key_hash))
        same = (key_hash[order[1:]] == key_hash[order[:-1]]) & (feature[order[1:]] == feature[order[:-1]])
    return order[np.concatenate([[True], ~same])] if once else order
