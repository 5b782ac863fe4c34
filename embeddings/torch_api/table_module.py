"""A torch module around a table: what happens to the rows when torch saves, moves, casts, copies or shares it."""

# K keys of one call
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import torch
from msgspec.structs import replace
from torch import nn

from embeddings.config import TableConfig
from embeddings.errors import OwnershipError
from embeddings.lookup.read_only import FORGOTTEN, KNOWN, NOT_ADMITTED, UNKNOWN
from embeddings.memory.capacity import Capacity
from embeddings.torch_api.module_table import ModuleTable
from embeddings.torch_api.owner_lock import OwnerLock
from embeddings.torch_api.state_dict import check_state, export_state, import_state
from kernels.backend import backend
from kernels.ops import Ops
from kernels.types import Array

READ_COUNTERS = {
    KNOWN: "read_known",
    UNKNOWN: "read_unknown",
    NOT_ADMITTED: "read_not_admitted",
    FORGOTTEN: "read_forgotten",
}


NOT_COPIED = "table", "ops", "_lock", "_pending_reads"


class TableModule(nn.Module):
    """Owns a table. Its rows are no parameters: they stay on the table's device, in the table's dtype."""

    table: ModuleTable

    def __init__(
        self,
        config: TableConfig,
        capacity: Capacity,
        *,
        seed: int,
        device: Ops,
        folder: Path | None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__()
        self.config, self.capacity, self.seed, self.ops = config, capacity, seed, device
        self.folder, self.clock = folder, clock
        self.output_dtype = torch.float32  # until the module is cast
        self._lock = OwnerLock()
        self._new_table()

    def set_lr(self, lr: float) -> None:
        """The rows' learning rate from now on; a state_dict carries it."""
        with self._lock:
            self._open_table().set_lr(lr)

    def counters(self) -> dict[str, int]:
        """What happened since the object was made or loaded, by name: embeddings.counters.COUNTERS, those of the spill,

        and the ids read without learning, by their status.
        """
        with self._lock:
            reads = self._reads_so_far()
            return self.table.counters() | {name: reads[name] for name in READ_COUNTERS.values()}

    def __len__(self) -> int:
        """Rows in memory."""
        return self.table.rows_by_tier()["device"]

    def __bool__(self) -> bool:
        return True  # with no rows too: it is a module first

    def close(self) -> None:
        """Lets go of the spill and its folder; the object is of no more use."""
        with self._lock:
            if not self.table.closed:
                self.table.close()

    def extra_repr(self) -> str:
        return (
            f"dim={self.config.dim}, rows={self.capacity.num_slots}, dtype={self.config.dtype}, "
            f"eviction={self.config.eviction}, spill={self.folder}, optimizer={self.table.optimizer}"
        )

    def get_extra_state(self) -> dict[str, Any]:
        """For state_dict: see embeddings.torch_api.state_dict."""
        with self._lock:
            return export_state(self._open_table()) | {"num_ids": self.num_ids}

    def set_extra_state(self, state: Mapping[str, Any]) -> None:
        """For load_state_dict: the table begins anew with these rows, and with the seed of those to come.

        ValueError where they do not fit, and then nothing is changed. Rows beyond the capacity go to the spill or are
        forgotten, the coldest first.
        """
        with self._lock:
            check_state(state, self.table)
            self.table.close()
            self.seed = int(state["seed"])
            self.config = replace(self.config, init_scale=float(state["init_scale"]))
            self._new_table()
            import_state(self.table, state)
            self.num_ids = int(state["num_ids"])

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and copy.deepcopy."""
        if self.folder is not None:
            raise OwnershipError(
                f"a DynamicEmbedding with a spill cannot be copied, {self.folder} is its alone: make another object "
                "with another folder and load the state_dict"
            )
        state = {name: value for name, value in self.__dict__.items() if name not in NOT_COPIED}
        return state | {"_extra_state": self.get_extra_state(), "_device": self.ops.device}

    def __setstate__(self, state: dict[str, Any]) -> None:
        extra_state = state.pop("_extra_state")
        device = state.pop("_device")
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._lock, self.ops = OwnerLock(), backend(device)
        self._new_table()
        self.set_extra_state(extra_state)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        """What `.to`, `.half()` and `.share_memory()` call."""
        like = fn(torch.empty(1, dtype=self.output_dtype))
        if like.device.type == "cpu" and like.is_shared():  # type: ignore[no-untyped-call]
            raise OwnershipError(
                "the rows of a DynamicEmbedding cannot be shared between processes: give the others a state_dict"
            )
        self.output_dtype = like.dtype
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def _new_table(self) -> None:
        """An empty table in place of the one there was."""
        self.num_ids = 0  # learned from: what the counts of admission age by
        self._reads: Counter[str] = Counter()
        self._pending_reads: Array | None = None
        self.table = ModuleTable(
            self.config,
            seed=self.seed,
            capacity=self.capacity,
            device=self.ops,
            folder=self.folder,
            guard=self._lock,
        )

    def _open_table(self) -> ModuleTable:
        self.table.check_open()
        return self.table

    def _count_reads(self, status_K: Array) -> None:
        counts = self.ops.count_values(status_K, len(READ_COUNTERS))
        self._pending_reads = counts if self._pending_reads is None else self._pending_reads + counts

    def _reads_so_far(self) -> Counter[str]:
        if self._pending_reads is not None:
            counts, self._pending_reads = self.ops.fetch(self._pending_reads)[0], None
            self._reads.update({name: int(counts[status]) for status, name in READ_COUNTERS.items()})
        return self._reads
