"""The table as a DynamicEmbedding has it: behind a lock, with a spill folder of its own, let go when not needed."""

import os
import threading
import weakref
from pathlib import Path

from embeddings.config import TableConfig
from embeddings.current_stream import on_current_stream
from embeddings.lookup.handle import Lookup
from embeddings.memory.capacity import Capacity
from embeddings.optimizer import RowOptimizer
from embeddings.rows import Int64Array, Rows, UInt16Array
from embeddings.table import EmbeddingTable
from embeddings.tiers.interface import Spill
from embeddings.tiers.rocksdb.spill import RocksSpill
from embeddings.torch_api.autograd import LookupSlice
from embeddings.torch_api.owner_lock import OwnerLock
from embeddings.torch_api.spill_folder import SpillFolder
from kernels.ops import Ops
from kernels.types import NO_SLOT, Array


class ModuleTable(EmbeddingTable):
    """What graphs call in a backward pass takes the lock itself; who calls anything else holds it."""

    def __init__(
        self, config: TableConfig, *, seed: int, capacity: Capacity, device: Ops, folder: Path | None, guard: OwnerLock
    ) -> None:
        self.lock, self.closed = guard, False
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
                    "backward came a second time through one forward of a DynamicEmbedding, whose rows have moved: "
                    "call it anew for every backward"
                )
            super().update(lookup, grads_BD, bags_K, scales_K)

    @on_current_stream
    def read(self, features_N: UInt16Array, ids_N: Int64Array) -> Rows:
        """The rows of those of these unique keys that have one, in their order, from any tier; moves nothing."""
        (slots_N,) = self.ops.fetch(self.memory.find(features_N, ids_N))
        recalled = self.lower_tiers.recall(features_N, ids_N).without_expired(self.cutoffs)
        rows, found_N = recalled.rows, recalled.found_U
        here_N = slots_N != NO_SLOT
        resident, _ = self.memory.read(*self.ops.put(slots_N[here_N], features_N[here_N], ids_N[here_N]))
        alive_N = self.cutoffs.alive(resident.features, resident.last_seen)
        for column, above in zip(rows.columns(), resident.columns(), strict=True):
            column[here_N] = above
        found_N[here_N] = alive_N
        return rows.take(found_N)

    def check_open(self) -> None:
        """ValueError after `close`."""
        if self.closed:
            raise ValueError("this DynamicEmbedding was closed, or loaded anew since this forward")

    def close(self) -> None:
        self.closed = True
        super().close()
        self._release()


def _release(process: int, spill: Spill | None, folder: SpillFolder | None) -> None:
    """1. Close the spill. 2. Remove its folder. The collector may run this in any thread."""
    if os.getpid() != process:
        return  # a fork's copy: the parent still needs them
    if threading.current_thread().name == "spill-worker":  # it cannot wait for itself
        threading.Thread(target=_release, args=(process, spill, folder)).start()
        return
    if spill is not None:
        spill.close()
    if folder is not None:
        folder.release()
