"""Rows as RocksDB stores them: keys of 10 bytes in the order of mixed keys, and packed records of one size."""

# N rows, W four-byte words of a record
import numpy as np
import numpy.typing as npt

from springtide.embeddings.rows import Int64Array, Rows, UInt16Array
from springtide_client.keys import GOLDEN, MIX_1, MIX_2

UInt8Array = npt.NDArray[np.uint8]
UInt32Array = npt.NDArray[np.uint32]
UInt64Array = npt.NDArray[np.uint64]
UNMIX_1, UNMIX_2 = (np.uint64(pow(factor, -1, 2**64)) for factor in (MIX_1, MIX_2))


class RecordFormat:
    """Values, states, count and last-seen as little-endian words. A key is its mixed key and its feature, big-endian.

    Count and last-seen are stored xored with the mixed key. Their zero bytes would make rows of a small dim just
    compressible, and RocksDB would decompress a block for every row instead of reading it from the mapped file.
    """

    def __init__(self, dim: int, state_width: int) -> None:
        self.dim, self.state_width = dim, state_width
        self.num_words = dim + state_width + 4
        self.num_bytes = 4 * self.num_words

    def pack_keys(self, mixed_N: UInt64Array, features_N: UInt16Array, into: UInt8Array) -> None:
        """Write keys into bytes, 10 a key."""
        keys = into.reshape(-1, 10)
        keys[:, :8] = mixed_N.astype(">u8").view(np.uint8).reshape(-1, 8)
        keys[:, 8:] = features_N.astype(">u2").view(np.uint8).reshape(-1, 2)

    def unpack_keys(self, keys: UInt8Array) -> tuple[UInt64Array, UInt16Array]:
        """The mixed keys and the features in these bytes."""
        keys_N10 = keys.reshape(-1, 10)
        mixed_N = np.ascontiguousarray(keys_N10[:, :8]).view(">u8").reshape(-1).astype(np.uint64)
        return mixed_N, np.ascontiguousarray(keys_N10[:, 8:]).view(">u2").reshape(-1).astype(np.uint16)

    def pack(self, rows: Rows, mixed_N: UInt64Array, into: UInt8Array) -> None:
        """Write rows into bytes, `num_bytes` a row."""
        words_NW = into.view(np.uint32).reshape(-1, self.num_words)
        end = self.dim + self.state_width
        words_NW[:, : self.dim] = rows.values.view(np.uint32)
        words_NW[:, self.dim : end] = rows.states.view(np.uint32)
        words_NW[:, end : end + 2] = _words(rows.counts, mixed_N)
        words_NW[:, end + 2 :] = _words(rows.last_seen, mixed_N)

    def last_seen(self, packed: UInt8Array, mixed_N: UInt64Array) -> Int64Array:
        """The last-seen of each record."""
        return _numbers(packed.view(np.uint32).reshape(-1, self.num_words)[:, -2:], mixed_N)

    def unpack(self, packed: UInt8Array, mixed_N: UInt64Array, into: Rows, at_N: Int64Array) -> None:
        """Write records into `into` at these positions."""
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
    """The ids of mixed keys: the inverse of springtide_client.keys.mix_keys."""
    x_N = mixed_N
    for shift, factor in ((31, UNMIX_2), (27, UNMIX_1), (30, np.uint64(1))):
        x_N = (x_N ^ (x_N >> np.uint64(shift)) ^ (x_N >> np.uint64(2 * shift))) * factor
    ids_N: Int64Array = (x_N ^ (features_N.astype(np.uint64) * np.uint64(GOLDEN))).astype(np.int64)
    return ids_N
