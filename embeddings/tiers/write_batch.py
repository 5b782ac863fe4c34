"""Rows as the spill stores them: keys of 10 bytes in the order of mixed keys, and packed records of fixed size."""

# N rows, W four-byte words of a record
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from springtide_client.keys import GOLDEN, MIX_1, MIX_2, mix_keys

from embeddings.rows import BoolArray, Int64Array, Rows, UInt16Array
from embeddings.tiers.interface import ROW, TOMBSTONE

UInt8Array = npt.NDArray[np.uint8]
UInt32Array = npt.NDArray[np.uint32]
UInt64Array = npt.NDArray[np.uint64]
UNMIX_1, UNMIX_2 = (np.uint64(pow(factor, -1, 2**64)) for factor in (MIX_1, MIX_2))


@dataclass(frozen=True)
class WriteBatch:
    """One write, sorted by mixed key, so that it can be searched while it waits. Without rows: marks."""

    mixed: UInt64Array
    features: UInt16Array
    ids: Int64Array
    rows: Rows | None

    @staticmethod
    def of(features_N: UInt16Array, ids_N: Int64Array, rows: Rows | None) -> "WriteBatch":
        """Copies; each key once."""
        mixed_N = mix_keys(features_N, ids_N)
        order = np.argsort(mixed_N)
        if rows is None:
            return WriteBatch(mixed_N[order], features_N[order], ids_N[order], None)
        ordered = rows.take(order)
        return WriteBatch(mixed_N[order], ordered.features, ordered.ids, ordered)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def num_bytes(self) -> int:
        columns = (self.features, self.ids) if self.rows is None else self.rows.columns()
        return self.mixed.nbytes + sum(column.nbytes for column in columns)

    def sub_batch(self, start: int, stop: int) -> "WriteBatch":
        """Some of it, not copied."""
        cut = slice(start, stop)
        rows = None if self.rows is None else Rows(*(column[cut] for column in self.rows.columns()))  # type: ignore[arg-type]
        return WriteBatch(self.mixed[cut], self.features[cut], self.ids[cut], rows)

    def find(self, mixed_N: UInt64Array, features_N: UInt16Array) -> tuple[Int64Array, BoolArray]:
        """Where the keys stand, and whether they do; quickest where they ascend."""
        at_N = np.searchsorted(self.mixed, mixed_N)
        while True:
            safe_N = np.minimum(at_N, len(self) - 1)
            same_N = (at_N < len(self)) & (self.mixed[safe_N] == mixed_N)
            here_N = same_N & (self.features[safe_N] == features_N)
            # keys of two features may share a mixed key: the next one is looked at
            onward_N = same_N & ~here_N
            if not onward_N.any():
                return safe_N, here_N
            at_N = at_N + onward_N

    def fill_found(self, mixed_U: UInt64Array, missing: Int64Array, kinds_U: UInt8Array, rows: Rows) -> Int64Array:
        """Kinds and rows of the keys it has, of those at these positions; the positions of the others."""
        at, here = self.find(mixed_U[missing], rows.features[missing])
        to, at = missing[here], at[here]
        kinds_U[to] = TOMBSTONE if self.rows is None else ROW
        if self.rows is not None:
            rows.values[to], rows.states[to] = self.rows.values[at], self.rows.states[at]
            rows.counts[to], rows.last_seen[to] = self.rows.counts[at], self.rows.last_seen[at]
        return missing[~here]


class RecordFormat:
    """values, states, count, last-seen as little-endian words; a key is its mixed key and its feature, big-endian.

    Count and last-seen are stored xored with the mixed key: their zeros would make rows of a small dim just
    compressible, and RocksDB would unpack a block for every row it reads instead of reading it where it is mapped.
    """

    def __init__(self, dim: int, state_width: int) -> None:
        self.dim, self.state_width = dim, state_width
        self.num_words = dim + state_width + 4
        self.num_bytes = 4 * self.num_words

    def pack_keys(self, mixed_N: UInt64Array, features_N: UInt16Array, into: UInt8Array) -> None:
        """Into bytes, 10 a key."""
        keys = into.reshape(-1, 10)
        keys[:, :8] = mixed_N.astype(">u8").view(np.uint8).reshape(-1, 8)
        keys[:, 8:] = features_N.astype(">u2").view(np.uint8).reshape(-1, 2)

    def unpack_keys(self, keys: UInt8Array) -> tuple[UInt64Array, UInt16Array]:
        """Mixed keys and features."""
        keys_N10 = keys.reshape(-1, 10)
        mixed_N = np.ascontiguousarray(keys_N10[:, :8]).view(">u8").reshape(-1).astype(np.uint64)
        return mixed_N, np.ascontiguousarray(keys_N10[:, 8:]).view(">u2").reshape(-1).astype(np.uint16)

    def pack(self, rows: Rows, mixed_N: UInt64Array, into: UInt8Array) -> None:
        """Into bytes, `num_bytes` a row."""
        words_NW = into.view(np.uint32).reshape(-1, self.num_words)
        end = self.dim + self.state_width
        words_NW[:, : self.dim] = rows.values.view(np.uint32)
        words_NW[:, self.dim : end] = rows.states.view(np.uint32)
        words_NW[:, end : end + 2] = _words(rows.counts, mixed_N)
        words_NW[:, end + 2 :] = _words(rows.last_seen, mixed_N)

    def last_seen(self, packed: UInt8Array, mixed_N: UInt64Array) -> Int64Array:
        """That of each record."""
        return _numbers(packed.view(np.uint32).reshape(-1, self.num_words)[:, -2:], mixed_N)

    def unpack(self, packed: UInt8Array, mixed_N: UInt64Array, into: Rows, at_N: Int64Array) -> None:
        """Records into rows at these positions."""
        words_NW = packed.view(np.uint32).reshape(-1, self.num_words)
        end = self.dim + self.state_width
        into.values[at_N] = words_NW[:, : self.dim].view(np.float32)
        into.states[at_N] = words_NW[:, self.dim : end].view(np.float32)
        into.counts[at_N] = _numbers(words_NW[:, end : end + 2], mixed_N)
        into.last_seen[at_N] = _numbers(words_NW[:, end + 2 :], mixed_N)


def _words(numbers_N: Int64Array, mixed_N: UInt64Array) -> UInt32Array:
    return (numbers_N.view(np.uint64) ^ mixed_N).view(np.uint32).reshape(-1, 2)


def _numbers(words_N2: UInt32Array, mixed_N: UInt64Array) -> Int64Array:
    return (np.ascontiguousarray(words_N2).view(np.uint64).reshape(-1) ^ mixed_N).view(np.int64)


def unmix_keys(mixed_N: UInt64Array, features_N: UInt16Array) -> Int64Array:
    """The ids: mix_keys the other way round."""
    x_N = mixed_N
    for shift, factor in ((31, UNMIX_2), (27, UNMIX_1), (30, np.uint64(1))):
        x_N = (x_N ^ (x_N >> np.uint64(shift)) ^ (x_N >> np.uint64(2 * shift))) * factor
    ids_N: Int64Array = (x_N ^ (features_N.astype(np.uint64) * np.uint64(GOLDEN))).astype(np.int64)
    return ids_N
