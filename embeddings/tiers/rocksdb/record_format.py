"""Rows as RocksDB stores them: keys of 10 bytes in the order of key hashes, and packed records of one size."""

# N rows, W four-byte words of a record
import numpy as np
import numpy.typing as npt

from springtide.embeddings.rows import Int64Array, UInt16Array
from springtide.embeddings.tiers.found_rows import FoundRows
from springtide.embeddings.tiers.record_kinds import ROW
from springtide.embeddings.tiers.rocksdb.child_process import Channel
from springtide_client.keys import GOLDEN, MIX_1, MIX_2
from springtide_client.rows.row_block import RowBlock

UInt8Array = npt.NDArray[np.uint8]
UInt32Array = npt.NDArray[np.uint32]
UInt64Array = npt.NDArray[np.uint64]
UNMIX_1, UNMIX_2 = (np.uint64(pow(factor, -1, 2**64)) for factor in (MIX_1, MIX_2))


class RecordFormat:
    """Values, states, count and last-seen as little-endian words. A key is its key hash and its feature, big-endian.

    Count and last-seen are stored xored with the key hash. Their zero bytes would make rows of a small dim just
    compressible, and RocksDB would decompress a block for every row instead of reading it from the mapped file.
    """

    def __init__(self, dim: int, state_width: int) -> None:
        self.dim, self.state_width = dim, state_width
        self.num_words = dim + state_width + 4
        self.num_bytes = 4 * self.num_words

    def pack_keys(self, key_hash_N: UInt64Array, features_N: UInt16Array, into: UInt8Array) -> None:
        """Write keys into bytes, 10 a key."""
        keys = into.reshape(-1, 10)
        keys[:, :8] = key_hash_N.astype(">u8").view(np.uint8).reshape(-1, 8)
        keys[:, 8:] = features_N.astype(">u2").view(np.uint8).reshape(-1, 2)

    def pack(self, rows: RowBlock, into: UInt8Array) -> None:
        """Write rows into bytes, `num_bytes` a row."""
        words_NW = into.view(np.uint32).reshape(-1, self.num_words)
        end = self.dim + self.state_width
        words_NW[:, : self.dim] = rows.value.view(np.uint32)
        words_NW[:, self.dim : end] = rows.state.view(np.uint32)
        words_NW[:, end : end + 2] = _words(rows.count, rows.key_hash)
        words_NW[:, end + 2 :] = _words(rows.last_seen, rows.key_hash)

    def last_seen(self, packed: UInt8Array, key_hash_N: UInt64Array) -> Int64Array:
        """The last-seen of each record."""
        return _numbers(packed.view(np.uint32).reshape(-1, self.num_words)[:, -2:], key_hash_N)

    def unpack(self, packed: UInt8Array, into: FoundRows, at_N: Int64Array) -> None:
        """Write records into `into` at these positions."""
        words_NW, key_hash_N = packed.view(np.uint32).reshape(-1, self.num_words), into.rows.key_hash[at_N]
        end = self.dim + self.state_width
        values_ND, states_NS = words_NW[:, : self.dim].view(np.float32), words_NW[:, self.dim : end].view(np.float32)
        counts_N, last_seen_N = (_numbers(words_NW[:, at : at + 2], key_hash_N) for at in (end, end + 2))
        into.put(at_N, ROW, (values_ND, states_NS, counts_N, last_seen_N))

    def unpack_scan(self, channel: Channel, num: int) -> FoundRows:
        """The next rows and tombstones of a database, in key order, which are the answer to a scan."""
        keys_N10 = channel.keys(num).reshape(-1, 10)
        key_hash_N = np.ascontiguousarray(keys_N10[:, :8]).view(">u8").reshape(-1).astype(np.uint64)
        features_N = np.ascontiguousarray(keys_N10[:, 8:]).view(">u2").reshape(-1).astype(np.uint16)
        found = FoundRows.nothing(features_N, unhash_keys(key_hash_N, features_N), self.dim, self.state_width)
        found.kinds_U[:] = channel.kinds(num)
        at_N = np.flatnonzero(found.kinds_U == ROW)
        self.unpack(channel.records(len(at_N)), found, at_N)
        return found


def _words(numbers_N: Int64Array, key_hash_N: UInt64Array) -> UInt32Array:
    return (numbers_N.view(np.uint64) ^ key_hash_N).view(np.uint32).reshape(-1, 2)


def _numbers(words_N2: UInt32Array, key_hash_N: UInt64Array) -> Int64Array:
    return (np.ascontiguousarray(words_N2).view(np.uint64).reshape(-1) ^ key_hash_N).view(np.int64)


def unhash_keys(key_hash_N: UInt64Array, features_N: UInt16Array) -> Int64Array:
    """The ids of key hashes: the inverse of springtide_client.keys.mix_keys."""
    x_N = key_hash_N
    for shift, factor in ((31, UNMIX_2), (27, UNMIX_1), (30, np.uint64(1))):
        x_N = (x_N ^ (x_N >> np.uint64(shift)) ^ (x_N >> np.uint64(2 * shift))) * factor
    ids_N: Int64Array = (x_N ^ (features_N.astype(np.uint64) * np.uint64(GOLDEN))).astype(np.int64)
    return ids_N
