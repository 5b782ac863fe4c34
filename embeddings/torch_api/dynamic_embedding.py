"""DynamicEmbedding: an embedding without a vocabulary as a module for any torch model."""

# K keys of one call, N unique ids, D dimension
from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from msgspec.structs import replace
from torch._compile import _disable_dynamo  # torch.compiler.disable would load a compiler with this module

from springtide.embeddings.config import FeaturePolicy, TableConfig
from springtide.embeddings.errors import SpillError
from springtide.embeddings.eviction_policy import ScoredRows, ScoreFunction
from springtide.embeddings.lookup.handle import LookupSlice
from springtide.embeddings.memory.capacity import Capacity
from springtide.embeddings.policy.removals import RemovalReason
from springtide.embeddings.sharding.row_format import check_formats
from springtide.embeddings.sharding.sharded_rows import PrefetchedIds, ShardedRows, folder_of_rank, rows_of_rank
from springtide.embeddings.sharding.sharded_table import pooled
from springtide.embeddings.torch_api.arrow import from_arrow, rows_of, to_arrow
from springtide.embeddings.torch_api.autograd import embed_slices
from springtide.embeddings.torch_api.inputs import (
    FEATURE,
    bags_of,
    check_capacity,
    features_of,
    host_rows_of,
    ids_of,
    inference_rows,
    rows_where,
    scores_of,
    size_of,
)
from springtide.embeddings.torch_api.module_table import ModuleTable
from springtide.embeddings.torch_api.table_module import TableModule
from springtide.kernels.backend import backend
from springtide.kernels.ops import Ops
from springtide.kernels.types import Array, UniqueKeys
from springtide_client.rows.row_block import RowBlock

if TYPE_CHECKING:
    import pyarrow as pa
    from torch.distributed import ProcessGroup

DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}


class DynamicEmbedding(TableModule):
    """Ids of any shape in, rows out. The backward pass updates the rows with the optimizer given here.

    A row is created when its id is first looked up in training. Under `eval()` or `no_grad` nothing is created: an id
    without a row gets the values it would be created with, or the shared row if it is not admitted yet. The rows are
    not parameters, and no torch optimizer updates them: the gradient of each forward pass is one step of its own. They
    stay on `device` in `dtype` whatever the module is moved or cast to. Results are on the device of the ids, in the
    dtype that the module was cast to; with `device="cuda"` and ids on the GPU nothing is copied. Threads take turns; a
    forked process gets an OwnershipError.
    """

    def __init__(
        self,
        dim: int,
        capacity: int | str,
        *,
        optimizer: Mapping[str, Any] | None = None,
        eviction: str | ScoreFunction = "lru",
        admission: Mapping[str, Any] | None = None,
        spill: str | Path | None = None,
        device: str | torch.device | Ops = "cpu",
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
        init_scale: float = 0.01,
        clock: Callable[[], float] = time.time,
        ttl_seconds: float | None = None,
        quota_bytes: int | str | None = None,
        spill_bytes: int | str = "100GiB",
        host_capacity: int | str | None = None,
        process_group: ProcessGroup | None = None,
        forward_precision: str = "float32",
        backward_precision: str = "float32",
    ) -> None:
        """capacity: rows in memory (an int, rounded up to a whole bucket) or bytes ("2GiB").

        eviction: which row a full bucket evicts: "lru", "lfu", "l2-norm", "custom" (the lowest of the scores given
        with the ids), or a function of ScoredRows: the lowest score first. spill: a folder for this object alone,
        emptied now; without one, evicted rows are lost. spill_bytes: beyond it the spilled rows seen least recently
        expire. host_capacity: rows or bytes of RAM, as a second tier between `device` and spill. ttl_seconds: a row
        expires when its id was not learned from for so long (see `advance`). quota_bytes: of the rows in memory,
        beyond which the coldest of all are evicted. clock: seconds, for last-seen.
        process_group: the rows are spread over its ranks, each with this capacity and a spill folder of its own in
        `spill`; rows and gradients travel as "float32", "bfloat16" or "int8". See deploy/docs/dynamic-embedding.md.
        ValueError for an invalid setting; SpillError if the folder cannot be used or RocksDB fails.
        """
        if dtype not in DTYPES:
            raise ValueError(f"dtype must be torch.float32 or torch.bfloat16, not {dtype}")
        check_capacity("capacity", capacity)
        check_formats(forward_precision, backward_precision)
        score = None if isinstance(eviction, str) else eviction
        if score is not None and not callable(score):
            raise ValueError(f"eviction must be a name or a function of rows, not {score!r}")
        config = TableConfig.of(
            {
                "dim": dim,
                "device_bytes": capacity if isinstance(capacity, str) else "1GiB",
                "disk_bytes": size_of("spill_bytes", spill_bytes),
                "eviction": eviction if score is None else "custom",
                "admission": admission or {},
                "optimizer": optimizer if optimizer is not None else {"name": "rowwise-adagrad", "lr": 0.05},
                "dtype": DTYPES[dtype],
                "init_scale": init_scale,
            }
        )
        if config.eviction_policy.by(score).takes_scores and process_group is not None:
            raise ValueError(f'eviction = "{eviction}" does not work with a process_group: give a function of rows')
        policy = FeaturePolicy.of({"ttl_seconds": ttl_seconds, "quota_bytes": quota_bytes})
        ops = backend(str(device) if isinstance(device, torch.device) else device)
        rows = (
            Capacity.of_bytes(config, ops, tracked=False) if isinstance(capacity, str) else Capacity.of_rows(capacity)
        )
        super().__init__(
            replace(config, features={FEATURE: policy}),
            rows.in_buckets_of(ops.width),
            seed=seed,
            device=ops,
            folder=None if spill is None else folder_of_rank(Path(spill), process_group),
            num_host_rows=0 if host_capacity is None else host_rows_of(host_capacity, config),
            score=score,
            clock=clock,
            group=process_group,
            precisions=(forward_precision, backward_precision),
        )
        self.dim = dim

    @classmethod
    def from_pretrained(
        cls, matrix: Any, ids: Any = None, *, capacity: int | str | None = None, **settings: Any
    ) -> DynamicEmbedding:
        """An object with the rows of a matrix (N, D), by default for the ids 0..N-1.

        The default capacity has room for all of them and as many others.
        """
        values_ND = torch.as_tensor(matrix).detach().cpu().to(torch.float32)
        if values_ND.ndim != 2:
            raise ValueError(f"the matrix must have 2 axes, not {values_ND.ndim}")
        ids_N = np.arange(len(values_ND)) if ids is None else ids_of(torch.as_tensor(ids))
        emb = cls(values_ND.shape[1], max(1, 2 * len(ids_N)) if capacity is None else capacity, **settings)
        rows = rows_of(ids_N, values_ND.numpy(), emb.dim, emb.table.layout.state_width)
        while emb._write(rows) and capacity is None:
            # some buckets got more ids than they have slots
            emb.capacity = Capacity.of_rows(2 * emb.capacity.num_slots).in_buckets_of(emb.ops.width)
            emb._new_table()
        return emb

    @_disable_dynamo  # a graph break in a compiled model, because the table does not consist of tensors
    def forward(self, ids: torch.Tensor, scores: torch.Tensor | None = None) -> torch.Tensor:
        """The rows (*ids.shape, dim) of integer ids of any shape. scores: with custom eviction, the ids' priorities."""
        ids_K = ids_of(ids, self.ops)
        rows_KD = self._rows(ids, ids_K, self._scores(scores, ids), LookupSlice(0, len(ids_K)))
        return self._placed(rows_KD, ids).reshape(*ids.shape, self.dim)

    @_disable_dynamo
    def pool(
        self,
        ids: torch.Tensor,
        offsets: torch.Tensor | None = None,
        mode: str = "mean",
        scores: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The sum, mean or max of each bag, (bags, dim): rows of 2-D ids, or 1-D ids cut where `offsets` say.

        As in torch's EmbeddingBag, offsets begin with 0, the last bag extends to the end, and empty bags give zeros.
        """
        ids_K = ids_of(ids, self.ops)
        part = LookupSlice(0, len(ids_K), bags_of(ids, offsets, mode), mode)
        return self._placed(self._rows(ids, ids_K, self._scores(scores, ids), part), ids)

    @_disable_dynamo
    def prefetch(self, ids: torch.Tensor) -> None:
        """Start to fetch the rows of the next training call's ids from the tiers below, while this step computes.

        For the next call of the module or of `pool` with the same ids in the same order; on a GPU, with this tensor.
        If rows were created or forgotten meanwhile, that call fetches them itself: prefetch after this step's calls.
        Creates and evicts nothing, and counts neither as an access nor towards admission. Nothing in `eval()`.
        With a process group every rank prefetches, and the ids travel to their owners now.
        """
        ids_K = ids_of(ids, self.ops)
        if not self.training or (self.shards is None and not len(ids_K)):
            return
        with self._lock, self.ops.on_current_stream(), suppress(SpillError):  # which the call itself will report
            unique = self._unique(ids_K)
            self._prefetched = PrefetchedIds.of(ids, unique, self._rows_of_all.begin_fetch(unique))

    def lookup(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows, float32 (*ids.shape, dim), NaN for ids without one, and status, uint8 ids.shape. Creates nothing.

        Status 0: known, 1: unknown, 2: not admitted, 3: forgotten.
        """
        ids_K = ids_of(ids, self.ops)
        with self._lock, self.ops.on_current_stream():
            found = self._rows_of_all.find_unique(self._unique(ids_K))
            self._count_reads(found[1])
            rows, status = (self.ops.tensor_of(array).to(ids.device) for array in found)
        return rows.reshape(*ids.shape, self.dim), status.reshape(ids.shape)

    def forget(self, ids: torch.Tensor) -> None:
        """Delete the rows of these ids. An id that is looked up again is new."""
        ids_N = np.unique(ids_of(ids))
        with self._changing() as table:
            if self.shards is not None:
                with self.ops.on_current_stream():
                    (requested,) = self.shards.request(self._unique(ids_N)).requested_T
                    (ids_N,) = self.ops.fetch(requested.unique.ids_U)
            table.remove(ids_N, RemovalReason.FORGOTTEN)

    def evict_if(self, predicate: Callable[[ScoredRows], torch.Tensor]) -> int:
        """Delete every row for which `predicate` returns True: a function of ScoredRows on the host, giving bools (N).

        Reads the rows of all tiers, as `export` does. Return how many rows were deleted.
        """
        with self._changing() as table:
            ids_N = rows_where(predicate, table.export())
            table.remove(ids_N, RemovalReason.PREDICATE)
        return len(ids_N)

    def export(self, ids: torch.Tensor | None = None, *, since_ms: int = 0) -> pa.Table:
        """All rows by ascending id, also spilled ones, or the rows of these ids in their order; not the shared row.

        since_ms: only those last seen then or later, for an incremental dump.

        Columns: `ids`, `vectors` (lists of dim float32), `count`, `last_seen_ms`. Ids without a row are left out.
        """
        with self._lock:
            table = self._open_table()
            if ids is None:
                rows = table.export()
                own = np.flatnonzero(rows.feature == FEATURE)
                rows = rows.take(own[np.argsort(rows.id[own])])
            else:
                ids_N = ids_of(ids)
                ids_N = ids_N[np.sort(np.unique(ids_N, return_index=True)[1])]
                rows = table.read(np.full(len(ids_N), FEATURE, np.uint16), ids_N)
        return to_arrow(rows.take(rows.last_seen >= since_ms) if since_ms else rows)

    def import_arrow(self, table: pa.Table) -> int:
        """Write rows in the format of `export` over those here; their optimizer state starts at zero.

        Return how many rows, these or others, were lost for lack of room: none with a spill. ValueError, and nothing
        changes, if the Arrow table is invalid.
        """
        return self._write(from_arrow(table, self.dim, self.table.layout.state_width))

    def _rows(self, ids: torch.Tensor, ids_K: Array, scores_K: Array | None, part: LookupSlice) -> torch.Tensor:
        """The rows or bags of a slice that covers all ids; with a gradient in training."""
        if not (self.training and torch.is_grad_enabled()):
            return self._read(ids_K, part)
        with self._changing() as table, self.ops.on_current_stream():
            now_ms = self._advance()
            unique, fetch = self._prefetched_or_unique(ids, ids_K)
            if self.shards is not None:
                rows_UD, num_ids = self.shards.embed(unique, fetch, now_ms)
                self.num_ids += num_ids
                return pooled(self.ops, rows_UD, self.ops.tensor_of(unique.inverse_K), part)
            unique = unique._replace(last_seen_U=self.ops.xp.full(len(unique.ids_U), now_ms, np.int64))
            lookup = table.lookup_unique(unique, scores_K=scores_K, fetch=fetch)
            self.num_ids += len(ids_K)
            return embed_slices(table, lookup, [part])[0]

    def _read(self, ids_K: Array, part: LookupSlice) -> torch.Tensor:
        """The rows or bags of ids, of which none is created."""
        with self._lock, self.ops.on_current_stream():
            unique = self._unique(ids_K)
            if self.shards is None:
                rows_KD, status_K = inference_rows(self.table, unique)
                rows, inverse_K = self.ops.tensor_of(rows_KD), self.ops.tensor_of(self.ops.xp.arange(len(ids_K)))
            else:
                rows, status_K = self.shards.read(unique, inference_rows)
                inverse_K = self.ops.tensor_of(unique.inverse_K)
            self._count_reads(status_K)
        return pooled(self.ops, rows, inverse_K, part)

    @property
    def _rows_of_all(self) -> ModuleTable | ShardedRows:
        return self.table if self.shards is None else self.shards

    def _unique(self, ids_K: Array) -> UniqueKeys:
        """The unique ids, with any time. ValueError if the object was closed."""
        return self._open_table().unique(features_of(self.ops, ids_K), ids_K, ids_K)

    def _prefetched_or_unique(self, ids: torch.Tensor, ids_K: Array) -> tuple[UniqueKeys, Any]:
        """The unique ids, and the fetch of their rows if it has begun: on all ranks, or on none."""
        prefetched = self._prefetched
        if prefetched is not None:
            are_same = prefetched.are(ids)
            if self.exchange is not None:
                are_same, self._prefetched = self.exchange.all_true(are_same), None
            if are_same:
                self._prefetched = None
                return prefetched.unique, prefetched.fetch
        return self._unique(ids_K), None

    def _scores(self, scores: Any, ids: torch.Tensor) -> Array | None:
        takes_scores = self.table.priorities.policy.takes_scores
        return scores_of(scores, ids, takes_scores=takes_scores, ops=self.ops)

    def _placed(self, rows: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return rows.to(device=ids.device, dtype=self.output_dtype)

    def _write(self, rows: RowBlock) -> int:
        """Write rows, those of this rank. Return how many rows, these or others, were lost for lack of room."""
        rows = rows_of_rank(rows, self.shards)
        with self._changing() as table:
            before = table.counters()["lost"]
            table.write(rows)
            return table.counters()["lost"] - before
