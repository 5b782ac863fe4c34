"""A torch module that owns a table: what happens to its rows when torch saves, moves, casts, copies or shares it."""

# K keys of one call
from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from msgspec.structs import replace
from torch import nn

from springtide.embeddings.config import TableConfig
from springtide.embeddings.errors import OwnershipError
from springtide.embeddings.eviction_policy import ScoreFunction
from springtide.embeddings.lookup.materialize import FORGOTTEN, KNOWN, NOT_ADMITTED, UNKNOWN
from springtide.embeddings.memory.capacity import Capacity
from springtide.embeddings.sharding.exchange import exchange_of
from springtide.embeddings.sharding.sharded_rows import PrefetchedIds, ShardedRows, state_of_rank
from springtide.embeddings.torch_api.inputs import FEATURE
from springtide.embeddings.torch_api.module_table import ModuleTable, OnEvict, OwnerLock, RemovalListeners, changing
from springtide.embeddings.torch_api.state_dict import check_state, export_state, import_state
from springtide.kernels.backend import backend
from springtide.kernels.ops import Ops
from springtide.kernels.types import Array

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

READ_COUNTERS = {
    KNOWN: "read_known",
    UNKNOWN: "read_unknown",
    NOT_ADMITTED: "read_not_admitted",
    FORGOTTEN: "read_forgotten",
}

NOT_COPIED = "table", "ops", "_lock", "_pending_reads", "_prefetched", "_listeners"


class TableModule(nn.Module):
    """Owns a table. Its rows are not parameters: they stay on the table's device, in the table's dtype."""

    table: ModuleTable
    score: ScoreFunction | None

    def __init__(
        self,
        config: TableConfig,
        capacity: Capacity,
        *,
        seed: int,
        device: Ops,
        folder: Path | None,
        num_host_rows: int = 0,
        score: ScoreFunction | None = None,
        clock: Callable[[], float] = time.time,
        group: ProcessGroup | None = None,
        precisions: tuple[str, str] = ("float32", "float32"),
    ) -> None:
        """group, precisions: of the ranks that hold the rows together, and how rows and gradients travel."""
        super().__init__()
        self.config, self.capacity, self.seed, self.ops = config, capacity, seed, device
        self.folder, self.num_host_rows, self.clock = folder, num_host_rows, clock
        object.__setattr__(self, "score", score)  # a module would become a part of this one
        self.exchange, self.precisions = exchange_of(group, device.device), precisions
        self.has_event_time = False  # then `advance` sets the time, not the clock
        self.output_dtype = torch.float32  # until the module is cast
        self._lock, self._listeners = OwnerLock(), RemovalListeners()
        self._new_table()

    def set_lr(self, lr: float) -> None:
        """Change the learning rate of the rows; it is part of the state_dict."""
        with self._lock:
            self._open_table().set_lr(lr)

    def advance(self, event_time_ms: int | None = None) -> None:
        """Move the time on, by which rows expire, as each training call does: to now, or to this event time.

        From the first event time on the clock is not asked any more. Time never goes back. Reads do not move it.
        """
        if event_time_ms is not None and (isinstance(event_time_ms, bool) or not 0 <= event_time_ms < 2**63):
            raise ValueError(f"event_time_ms must be milliseconds, an integer from 0 on, not {event_time_ms!r}")
        with self._changing():
            self._advance(event_time_ms)

    def on_evict(self, callback: OnEvict) -> Callable[[], None]:
        """Call `callback(ids, reason)` with the ids whose rows left for good: int64, on the host, of one reason.

        Reasons: "capacity" or "quota" (evicted, and no tier below keeps them), "expired" (also if the spill was
        full), "forgotten", "predicate". Each removal is reported once, in the thread whose call found it, before that
        call returns and without the lock, so that the callback may use the object; within a backward pass, which has
        no gradients, it trains nothing. An id may have a new row by then.
        Return what removes the callback. Neither a state_dict nor a copy contains it.
        """
        if not callable(callback):
            raise ValueError(f"on_evict needs a function of ids and a reason, not {callback!r}")
        with self._lock:
            self._open_table()
            self._listeners.add(callback)
            self.table.report_removals(True)

        def remove() -> None:
            with self._lock:
                self._listeners.remove(callback)
                self.table.report_removals(bool(self._listeners))

        return remove

    def rows_by_tier(self) -> dict[str, int]:
        """Rows in the tiers `device`, `disk` (an estimate) and, if there is one, `host`; a row may be in several."""
        with self._lock:
            return self._open_table().rows_by_tier()

    def counters(self) -> dict[str, int]:
        """Counts since the object was created or loaded, by name.

        The names are embeddings.counters.COUNTERS, those of the spill, and READ_COUNTERS for ids read in inference.
        """
        with self._lock:
            reads = self._reads_so_far()
            return self.table.counters() | {name: reads[name] for name in READ_COUNTERS.values()}

    def __len__(self) -> int:
        """Rows in memory."""
        return self.table.rows_by_tier()["device"]

    def __bool__(self) -> bool:
        return True  # also without rows, for which `len` is 0

    def close(self) -> None:
        """Delete the spill folder. The object cannot be used any more."""
        with self._lock:
            if not self.table.closed:
                self.table.close()

    def extra_repr(self) -> str:
        return (
            f"dim={self.config.dim}, rows={self.capacity.num_slots}, dtype={self.config.dtype}, "
            f"eviction={self.config.eviction}, host_rows={self.num_host_rows}, spill={self.folder}, "
            f"optimizer={self.table.optimizer}"
        )

    def get_extra_state(self) -> dict[str, Any]:
        """Called by `state_dict`; see springtide.embeddings.torch_api.state_dict."""
        with self._lock:
            table = self._open_table()
            clock = {"time_ms": table.ttl.event_ms, "has_event_time": self.has_event_time}
            shard = [0, 1] if self.shards is None else [self.shards.exchange.rank, self.shards.exchange.num_ranks]
            return export_state(table) | {"num_ids": self.num_ids, "shard": shard} | clock

    def set_extra_state(self, state: Mapping[str, Any]) -> None:
        """Called by `load_state_dict`: replace the table by one with these rows, and with their seed for new rows.

        ValueError, and nothing changes, if the state does not fit. Rows beyond the capacity are spilled or lost, the
        least recently seen first.
        """
        state = state_of_rank(state, self.shards)
        with self._changing():  # also reports the rows that do not fit
            check_state(state, self.table)
            self.table.close()
            self.seed = int(state["seed"])
            self.config = replace(self.config, init_scale=float(state["init_scale"]))
            self._new_table()
            import_state(self.table, state)
            self.num_ids, self.has_event_time = int(state["num_ids"]), bool(state["has_event_time"])
            self.table.ttl.event_ms = int(state["time_ms"])

    def __getstate__(self) -> dict[str, Any]:
        """Called by pickle and copy.deepcopy."""
        if self.shards is not None:
            raise OwnershipError(
                "a DynamicEmbedding with a process_group cannot be copied, because the ranks' calls belong together: "
                "create another object and load the state_dict"
            )
        if self.folder is not None:
            raise OwnershipError(
                f"a DynamicEmbedding with a spill cannot be copied, because only one may use {self.folder}: "
                "create another object with another folder and load the state_dict"
            )
        state = {name: value for name, value in self.__dict__.items() if name not in NOT_COPIED}
        return state | {"_extra_state": self.get_extra_state(), "_device": self.ops.device}

    def __setstate__(self, state: dict[str, Any]) -> None:
        extra_state = state.pop("_extra_state")
        device = state.pop("_device")
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._lock, self._listeners, self.ops = OwnerLock(), RemovalListeners(), backend(device)
        self._new_table()
        self.set_extra_state(extra_state)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        """Called by `.to`, `.half()` and `.share_memory()`."""
        like = fn(torch.empty(1, dtype=self.output_dtype))
        if like.device.type == "cpu" and like.is_shared():  # type: ignore[no-untyped-call]
            raise OwnershipError(
                "the rows of a DynamicEmbedding cannot be shared between processes: send the others a state_dict"
            )
        self.output_dtype = like.dtype
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def _new_table(self) -> None:
        """Replace the table by an empty one."""
        self.num_ids = 0  # learned from; they age the admission counts
        self._reads: Counter[str] = Counter()
        self._pending_reads: Array | None = None
        self._prefetched: PrefetchedIds | None = None
        self.table = ModuleTable(
            self.config,
            seed=self.seed,
            capacity=self.capacity,
            device=self.ops,
            folder=self.folder,
            num_host_rows=self.num_host_rows,
            score=self.score,
            lock=self._lock,
            listeners=self._listeners,
        )
        self.shards: ShardedRows | None = None  # with the rows of other ranks
        if self.exchange is not None:
            self.shards = ShardedRows(self.table, self.exchange, self.precisions, seed=self.seed, feature=FEATURE)

    def _advance(self, event_time_ms: int | None = None) -> int:
        """Apply the policies at the present time. Return it, in ms."""
        table = self._open_table()
        now_ms = table.ttl.event_ms
        if event_time_ms is not None:
            self.has_event_time, now_ms = True, max(now_ms, event_time_ms)
        elif not self.has_event_time:
            now_ms = max(now_ms, int(1000 * self.clock()))
        table.advance(now_ms, self.num_ids)
        return now_ms

    def _changing(self) -> AbstractContextManager[ModuleTable]:
        return changing(lambda: self.table)

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
