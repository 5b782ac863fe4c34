"""The table of a DynamicEmbedding: it locks itself where autograd calls it, and owns a spill folder."""

import os
import threading
import weakref
from pathlib import Path

from embeddings.config import TableConfig
from embeddings.current_stream import on_current_stream
from embeddings.lookup.handle import Lookup, LookupSlice
from embeddings.memory.capacity import Capacity
from embeddings.optimizer import RowOptimizer
from embeddings.rows import Int64Array, Rows, UInt16Array
from embeddings.table import EmbeddingTable
from embeddings.tiers.interface import Spill
from embeddings.tiers.rocksdb.spill import RocksSpill
from embeddings.tiers.rocksdb.worker import THREAD_NAME as SPILL_THREAD
from embeddings.torch_api.owner_lock import OwnerLock
from embeddings.torch_api.spill_folder import SpillFolder
from kernels.ops import Ops
from kernels.types import NO_SLOT, Array


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
        lock: OwnerLock,
    ) -> None:
        self.lock, self.closed = lock, False
        owned = None if folder is None else SpillFolder(folder)
        spill: Spill | None = None
        try:
            if owned is not None:
                state_width = RowOptimizer.of(config.optimizer).state_width(config.dim)
                spill = RocksSpill(owned.rows, dim=config.dim, state_width=state_width)
            super().__init__(config, seed=seed, spill=spill, capacity=capacity, tracked=False, device=device)
        except BaseException:
            _release(os.getpid(), spill, owned)
            raise
        self._release = weakref.finalize(self, _release, os.getpid(), spill, owned)

    def gather_slice(self, lookup: Lookup, part: LookupSlice) -> tuple[Array, Array | None]:
        with self.lock:
            return super().gather_slice(lookup, part)

    def update(
        self, lookup: Lookup, grads_BD: Array, bags_K: Array | None = None, scales_K: Array | None = None
    ) -> None:
        with self.lock:
            self.check_open()
            if lookup.released:
                raise ValueError(
                    "a second backward pass through one forward of a DynamicEmbedding, whose rows have been updated: "
                    "call the module again before every backward pass"
                )
            super().update(lookup, grads_BD, bags_K, scales_K)

    @on_current_stream
    def read(self, features_N: UInt16Array, ids_N: Int64Array) -> Rows:
        """The rows of those of these unique keys that have one, in their order, from any tier. Changes nothing."""
        memory, cutoffs = self.parts.memory, self.parts.cutoffs
        (slots_N,) = self.ops.fetch(memory.find(features_N, ids_N))
        recalled = self.parts.lower_tiers.recall(features_N, ids_N).without_expired(cutoffs)
        rows, found_N = recalled.rows, recalled.found_U
        resident_N = slots_N != NO_SLOT
        resident, _ = memory.read(*self.ops.put(slots_N[resident_N], features_N[resident_N], ids_N[resident_N]))
        for column, from_memory in zip(rows.columns(), resident.columns(), strict=True):
            column[resident_N] = from_memory
        found_N[resident_N] = cutoffs.alive(resident.features, resident.last_seen)
        return rows.take(found_N)

    def check_open(self) -> None:
        """ValueError after `close`."""
        if self.closed:
            raise ValueError("this DynamicEmbedding was closed, or a state was loaded into it after this forward")

    def close(self) -> None:
        self.closed = True
        super().close()
        self._release()


def _release(process: int, spill: Spill | None, folder: SpillFolder | None) -> None:
    """1. Close the spill. 2. Delete its folder. The garbage collector may call this in any thread."""
    if os.getpid() != process:
        return  # a forked copy: the parent still needs them
    if threading.current_thread().name == SPILL_THREAD:  # which cannot wait for its own end
        threading.Thread(target=_release, args=(process, spill, folder)).start()
        return
    if spill is not None:
        spill.close()
    if folder is not None:
        folder.release()
