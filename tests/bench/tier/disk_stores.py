"""Stores of rows on disk behind one interface: ours and the peers of tier.disk, whose keys are 8 big-endian bytes.

Reads return a matrix of the rows in the requested order; writes are not fsynced.
"""

# N rows, W float32 numbers of a row
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from springtide.embeddings.rows import Int64Array
from springtide.embeddings.tiers.record_kinds import ROW
from springtide.embeddings.tiers.rocksdb.spill import RocksSpill
from springtide_client.rows.row_block import RowBlock

Float32Array = npt.NDArray[np.float32]

WIDTH = 64  # 256 bytes per row
STATE_WIDTH, WORDS_OF_COUNTERS = 1, 4  # ours: state, count and last-seen are part of the 256 bytes
DIM = WIDTH - STATE_WIDTH - WORDS_OF_COUNTERS
CALL_KEYS = 1000
CACHE_MB, WRITE_BUFFER_BYTES = 64, 64 << 20


class Store(Protocol):
    def write(self, ids_N: Int64Array, rows_NW: Float32Array) -> None: ...

    def read(self, ids_N: Int64Array) -> Float32Array:
        """Return rows, all of which exist."""
        ...

    def settle(self) -> None:
        """Wait until every write is done."""
        ...

    def close(self) -> None: ...


class SpringtideSpill:
    """The spill as a table uses it: whole rows, its own process, reads in batch order."""

    def __init__(self, folder: Path) -> None:
        self.spill = RocksSpill(folder, dim=DIM, state_width=STATE_WIDTH)

    def write(self, ids_N: Int64Array, rows_NW: Float32Array) -> None:
        words_NC = np.ascontiguousarray(rows_NW[:, DIM + 1 :]).view(np.int64)
        columns = rows_NW[:, :DIM], rows_NW[:, DIM : DIM + 1], words_NC[:, 0], words_NC[:, 1]
        rows = RowBlock(np.zeros(len(ids_N), np.uint16), ids_N, *map(np.ascontiguousarray, columns))
        self.spill.write(rows, 0)

    def read(self, ids_N: Int64Array) -> Float32Array:
        found = self.spill.find(np.zeros(len(ids_N), np.uint16), ids_N)
        if not (found.kinds_U == ROW).all():
            raise LookupError("a row is missing")
        words_NC = np.stack([found.rows.count, found.rows.last_seen], axis=1).view(np.float32)
        return np.concatenate([found.rows.value, found.rows.state, words_NC], axis=1)

    def read_columns(self, ids_N: Int64Array) -> None:
        """Read as a table does: as columns."""
        self.spill.find(np.zeros(len(ids_N), np.uint16), ids_N)

    def settle(self) -> None:
        self.spill.drain()

    def close(self) -> None:
        self.spill.close()


class KeyValue:
    """The common part of the peers: keys and rows as bytes, calls of a thousand keys."""

    folder: Path

    def read_columns(self, ids_N: Int64Array) -> None:
        self.read(ids_N)

    def read(self, ids_N: Int64Array) -> Float32Array:
        raise NotImplementedError

    def settle(self) -> None:
        pass

    def _matrix(self, values: Sequence[bytes]) -> Float32Array:
        return np.frombuffer(b"".join(values), np.float32).reshape(-1, WIDTH)

    def _sorted(self, ids_N: Int64Array, get: Callable[[list[bytes]], Sequence[bytes]]) -> Float32Array:
        """Read in sorted order, which is fastest; return the requested order."""
        order = np.argsort(ids_N)
        rows_NW = np.empty((len(ids_N), WIDTH), np.float32)
        for start in range(0, len(ids_N), CALL_KEYS):
            part = order[start : start + CALL_KEYS]
            rows_NW[part] = self._matrix(get(keys_of(ids_N[part])))
        return rows_NW


class NaiveRocksdb(KeyValue):
    """rocksdb-py with default options, keys in batch order."""

    def __init__(self, folder: Path) -> None:
        import rocksdbpy

        self.folder, self._rocksdb = folder, rocksdbpy
        self._database = rocksdbpy.open_default(str(folder))

    def write(self, ids_N: Int64Array, rows_NW: Float32Array) -> None:
        batch = self._rocksdb.WriteBatch()
        for key, value in zip(keys_of(ids_N), values_of(rows_NW), strict=True):
            batch.add(key, value)
        self._database.write(batch)

    def read(self, ids_N: Int64Array) -> Float32Array:
        keys = keys_of(ids_N)
        parts = [self._database.multi_get(keys[n : n + CALL_KEYS], False) for n in range(0, len(keys), CALL_KEYS)]
        return self._matrix([value for part in parts for value in part])

    def close(self) -> None:
        self._database.close()
        shutil.rmtree(self.folder)


class TunedRocksdict(KeyValue):
    """rocksdict in raw mode with our options, without compression, with sorted reads."""

    def __init__(self, folder: Path) -> None:
        import rocksdict

        self.folder, self._rocksdict = folder, rocksdict
        options = rocksdict.Options(raw_mode=True)
        options.create_if_missing(True)
        options.optimize_for_point_lookup(CACHE_MB)
        options.set_allow_mmap_reads(True)
        options.set_write_buffer_size(WRITE_BUFFER_BYTES)
        options.set_compression_type(rocksdict.DBCompressionType.none())
        options.set_max_background_jobs(2)
        self._database = rocksdict.Rdict(str(folder), options)

    def write(self, ids_N: Int64Array, rows_NW: Float32Array) -> None:
        batch = self._rocksdict.WriteBatch(raw_mode=True)
        order = np.argsort(ids_N)
        for key, value in zip(keys_of(ids_N[order]), values_of(rows_NW[order]), strict=True):
            batch.put(key, value)
        self._database.write(batch)

    def read(self, ids_N: Int64Array) -> Float32Array:
        return self._sorted(ids_N, self._database.get)

    def close(self) -> None:
        self._database.close()
        shutil.rmtree(self.folder)


class Lmdb(KeyValue):
    """LMDB without sync, one transaction per call, sorted keys."""

    def __init__(self, folder: Path) -> None:
        import lmdb

        self.folder = folder
        settings: dict[str, Any] = {"sync": False, "writemap": True, "map_async": True, "readahead": False}
        self._environment = lmdb.open(str(folder), map_size=8 << 30, **settings)

    def write(self, ids_N: Int64Array, rows_NW: Float32Array) -> None:
        order = np.argsort(ids_N)
        with self._environment.begin(write=True) as transaction, transaction.cursor() as cursor:
            cursor.putmulti(zip(keys_of(ids_N[order]), values_of(rows_NW[order]), strict=True))

    def read(self, ids_N: Int64Array) -> Float32Array:
        with self._environment.begin(buffers=True) as transaction:
            get = transaction.get
            return self._sorted(ids_N, lambda keys: [get(key) for key in keys])

    def close(self) -> None:
        self._environment.close()
        shutil.rmtree(self.folder)


PEERS: dict[str, Callable[[Path], Any]] = {
    "rocksdb-py as it comes": NaiveRocksdb,
    "rocksdict tuned": TunedRocksdict,
    "LMDB": Lmdb,
}


def keys_of(ids_N: Int64Array) -> list[bytes]:
    keys: list[bytes] = ids_N.astype(">u8").view("V8").tolist()
    return keys


def values_of(rows_NW: Float32Array) -> list[bytes]:
    values: list[bytes] = np.ascontiguousarray(rows_NW).view(f"V{4 * WIDTH}").reshape(-1).tolist()
    return values
