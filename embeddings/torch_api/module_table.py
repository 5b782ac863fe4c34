"""The table of a DynamicEmbedding: locks itself where autograd calls it, owns a spill folder, and calls listeners."""

import os
import secrets
import shutil
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock, Timeout

from springtide.embeddings.config import TableConfig
from springtide.embeddings.current_stream import on_current_stream
from springtide.embeddings.errors import OwnershipError, SpillError
from springtide.embeddings.eviction_policy import ScoreFunction
from springtide.embeddings.lookup.handle import LookupSlice, TableLookup
from springtide.embeddings.memory.capacity import Capacity
from springtide.embeddings.policy.removals import RemovalReason, RemovedKeys, chosen
from springtide.embeddings.rows import Int64Array, UInt16Array
from springtide.embeddings.table import EmbeddingTable
from springtide.embeddings.tiers.host_tier import HostTier
from springtide.embeddings.tiers.interface import Spill
from springtide.embeddings.tiers.lower_tiers import RECALL_THREADS
from springtide.embeddings.tiers.no_spill import NoSpill
from springtide.embeddings.tiers.record_kinds import ROW
from springtide.embeddings.tiers.rocksdb.spill import RocksSpill
from springtide.embeddings.tiers.rocksdb.worker import THREAD_NAME as SPILL_THREAD
from springtide.embeddings.torch_api.inputs import FEATURE
from springtide.kernels.backend import backend
from springtide.kernels.ops import Ops
from springtide.kernels.types import NO_SLOT, Array
from springtide_client.rows.row_block import RowBlock


class OwnerLock:
    """A reentrant lock that raises OwnershipError in a forked process."""

    def __init__(self) -> None:
        self._lock, self._process = threading.RLock(), os.getpid()

    def __enter__(self) -> None:
        # a fork copies the lock in its present state: the child might wait for it for ever
        if os.getpid() != self._process:
            raise OwnershipError(
                f"this DynamicEmbedding belongs to process {self._process} and was used in its fork {os.getpid()}: "
                "let a data loader's workers return ids, and look them up in the process that trains"
            )
        self._lock.acquire()

    def __exit__(self, *raised: object) -> None:
        self._lock.release()


OnEvict = Callable[[torch.Tensor, str], object]


class RemovalListeners:
    """False while there are none."""

    def __init__(self) -> None:
        self._callbacks: list[OnEvict] = []

    def __bool__(self) -> bool:
        return bool(self._callbacks)

    def add(self, callback: OnEvict) -> None:
        self._callbacks.append(callback)

    def remove(self, callback: OnEvict) -> None:
        """ValueError if it was not added."""
        self._callbacks.remove(callback)

    def call(self, removed: Iterable[RemovedKeys]) -> None:
        """Pass on the ids of each reason. An exception of a callback goes to the caller."""
        for keys in removed:
            for callback in list(self._callbacks):
                callback(torch.from_numpy(keys.ids_N.copy()), keys.reason.value)


LOCK = "lock"
LOCK_SECONDS = 0.2
ROWS = "rows-"  # followed by a name of its own for each owner, so that none writes into another's


class SpillFolder:
    """Holds a lock that the kernel frees when its holder dies. `rows` is a path at which nothing exists yet."""

    def __init__(self, folder: Path) -> None:
        """1. Create it. 2. Check that it has only files of a spill. 3. Lock it. 4. Delete rows of a former owner.

        SpillError if one of these fails; other files are never changed.
        """
        self.folder = folder.absolute()
        self.rows = self.folder / f"{ROWS}{os.getpid()}-{secrets.token_hex(4)}"
        try:
            if self.folder.exists() and not self.folder.is_dir():
                raise SpillError(f"{folder} is a file: the spill needs a folder")
            self.folder.mkdir(parents=True, exist_ok=True)
            names = sorted(entry.name for entry in self.folder.iterdir())
            others = [name for name in names if name != LOCK and not name.startswith(ROWS)]
            if others:
                raise SpillError(f"{folder} contains {others[0]!r}, which is not of a spill: choose an empty folder")
            self._lock = _acquire(self.folder / LOCK)
            self._lock_stat = (self.folder / LOCK).stat()
        except OSError as error:
            raise SpillError(f"{folder} cannot be used as a spill folder: {error.strerror or error}") from None
        for name in names:
            if name.startswith(ROWS):
                shutil.rmtree(self.folder / name, ignore_errors=True)

    def release(self) -> None:
        """Delete and unlock it, unless it was deleted and another created in its place."""
        if _is_same_file(self._lock_stat, self.folder / LOCK):
            (self.folder / LOCK).unlink(missing_ok=True)
        with suppress(OSError):
            self.folder.rmdir()  # fails if it is not empty
        self._lock.release()


def _acquire(path: Path) -> FileLock:
    """Lock this file. SpillError if another process or object has locked it."""
    lock = FileLock(path, thread_local=False)
    try:
        # retried for a moment: its holder may delete the file between our opening and our locking it
        lock.acquire(timeout=LOCK_SECONDS)
    except Timeout:
        raise SpillError(
            f"{path.parent} is in use as the spill of another DynamicEmbedding: close that one, "
            "or choose another folder"
        ) from None
    return lock


def _is_same_file(before: os.stat_result, path: Path) -> bool:
    try:
        return os.path.samestat(before, path.stat())
    except OSError:
        return False


class ModuleTable(EmbeddingTable):
    """A table whose `gather_slice` and `update` take the lock; the caller of any other method holds it."""

    def __init__(
        self,
        config: TableConfig,
        *,
        seed: int,
        capacity: Capacity,
        device: Ops,
        folder: Path | None,
        num_host_rows: int,
        score: ScoreFunction | None,
        lock: OwnerLock,
        listeners: RemovalListeners,
    ) -> None:
        """`num_host_rows`: of a host tier, 0 for none."""
        self.lock, self.listeners, self.closed = lock, listeners, False
        owned = None if folder is None else SpillFolder(folder)
        spill: Spill | None = None
        try:
            layout, state_width = config.layout, config.layout.state_width
            if owned is not None:
                spill = RocksSpill(owned.rows, dim=config.dim, state_width=state_width)
            if num_host_rows:
                below = NoSpill(config.dim, state_width)
                spill = HostTier(spill or below, num_rows=num_host_rows, layout=layout, ops=backend("cpu"))
            super().__init__(
                config, seed=seed, spill=spill, capacity=capacity, tracked=False, device=device, score=score
            )
        except BaseException:
            _release(os.getpid(), spill, owned)
            raise
        self._release = weakref.finalize(self, _release, os.getpid(), spill, owned)
        self.report_removals(bool(listeners))

    def report_removals(self, wanted: bool) -> None:
        """Collect the ids for `take_removed` from now on, or stop to."""
        self.removals.wanted = wanted
        self.spill.report_purged(wanted)

    def take_removed(self) -> list[RemovedKeys]:
        """The ids whose rows left for good since the last call."""
        removed = self.removals.take()
        created_features_N, created_ids_N = self.removals.take_created()
        features_N, ids_N = self.spill.take_purged()
        if len(ids_N):
            # only those that have no row now, other than one created since, and that did not leave otherwise
            ids_N = np.unique(ids_N[features_N == FEATURE])
            features_N = np.full(len(ids_N), FEATURE, np.uint16)
            (slots_N,) = self.ops.fetch(self.memory.find(features_N, ids_N))
            gone_N = (slots_N == NO_SLOT) & (self.spill.find(features_N, ids_N).kinds_U != ROW)
            created_N = np.isin(ids_N, created_ids_N[created_features_N == FEATURE])
            for keys in removed:
                reported_N = np.isin(ids_N, keys.ids_N[keys.features_N == FEATURE])
                # a row created since may have been deleted since
                gone_N &= ~reported_N
                created_N &= ~reported_N | (keys.reason != RemovalReason.EXPIRED)
            gone_N |= created_N
            removed.append(RemovedKeys(RemovalReason.EXPIRED, features_N[gone_N], ids_N[gone_N]))
        removed = [chosen(keys, keys.features_N == FEATURE) for keys in removed]
        return [keys for keys in removed if len(keys.ids_N)]

    def remove(self, ids_N: Int64Array, reason: RemovalReason) -> None:
        """Forget the rows of these unique ids, also those that have expired."""
        features_N = np.full(len(ids_N), FEATURE, np.uint16)
        here_N = np.zeros(len(ids_N), np.bool_)
        if self.removals.wanted:
            (slots_N,) = self.ops.fetch(self.memory.find(features_N, ids_N))
            here_N = (slots_N != NO_SLOT) | self.lower_tiers.fetch(features_N, ids_N).found_U
        self.forget(features_N, ids_N)
        self.removals.add(reason, features_N[here_N], ids_N[here_N])

    def gather_slice(self, lookup: TableLookup, part: LookupSlice) -> tuple[Array, Array | None]:
        with self.lock:
            return super().gather_slice(lookup, part)

    def update(
        self, lookup: TableLookup, grads_BD: Array, bags_K: Array | None = None, scales_K: Array | None = None
    ) -> None:
        with changing(lambda: self):
            if lookup.released:
                raise ValueError(
                    "a second backward pass through one forward of a DynamicEmbedding, whose rows have been updated: "
                    "call the module again before every backward pass"
                )
            super().update(lookup, grads_BD, bags_K, scales_K)

    @on_current_stream
    def read(self, features_N: UInt16Array, ids_N: Int64Array) -> RowBlock:
        """The rows of those of these unique keys that have one, in their order, from any tier. Changes nothing."""
        memory, cutoffs = self.memory, self.cutoffs
        (slots_N,) = self.ops.fetch(memory.find(features_N, ids_N))
        fetched = self.lower_tiers.fetch(features_N, ids_N).without_expired(cutoffs)
        rows, found_N = fetched.rows, fetched.found_U
        resident_N = slots_N != NO_SLOT
        resident, _ = memory.read(*self.ops.put(slots_N[resident_N], features_N[resident_N], ids_N[resident_N]))
        for column, from_memory in zip(rows.contents, resident.contents, strict=True):
            column[resident_N] = from_memory
        found_N[resident_N] = cutoffs.alive(resident.feature, resident.last_seen)
        return rows.take(found_N)

    def check_open(self) -> None:
        """ValueError after `close`, and within a score function."""
        if self.priorities.is_running:
            raise ValueError("a score function may not use the DynamicEmbedding that calls it")
        if self.closed:
            raise ValueError("this DynamicEmbedding was closed, or a state was loaded into it after this forward")

    def close(self) -> None:
        self.closed = True
        super().close()
        self._release()


@contextmanager
def changing(table: Callable[[], ModuleTable]) -> Iterator[ModuleTable]:
    """Hold the lock of this table; then, without it, tell the listeners which rows left for good.

    `table` is called with and without the lock: meanwhile another may take its place. Not within another `changing`.
    After an exception the listeners are told by the next call.
    """
    lock, listeners = table().lock, table().listeners
    with lock:
        table().check_open()
        yield table()
        removed = table().take_removed() if listeners else []
    listeners.call(removed)


def _release(process: int, spill: Spill | None, folder: SpillFolder | None) -> None:
    """1. Close the spill. 2. Delete its folder. The garbage collector may call this in any thread."""
    if os.getpid() != process:
        return  # a forked copy: the parent still needs them
    # the spill's thread cannot wait for its own end, and one that fetches may hold the lock that it needs for that
    if threading.current_thread().name.startswith((SPILL_THREAD, RECALL_THREADS)):
        threading.Thread(target=_release, args=(process, spill, folder)).start()
        return
    if spill is not None:
        spill.close()
    if folder is not None:
        folder.release()
