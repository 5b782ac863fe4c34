"""The hit rate of a table, compared with exact LRU and LFU of the same capacity.

A table takes a batch at a time and evicts within buckets of 16 rows: both cost hits. A batch's keys are protected until
it ends, so a batch here is at most a 64th of the capacity, as in tables of a useful size.
"""

# K keys of a batch, U unique keys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from springtide.embeddings.config import TableConfig
from springtide.embeddings.memory.capacity import Capacity
from springtide.embeddings.table import EmbeddingTable
from springtide.embeddings.tiers.found_rows import FoundRows
from springtide.embeddings.tiers.no_spill import NoSpill
from springtide.embeddings.tiers.record_kinds import ABSENT, ROW
from springtide.kernels.cpu.index.buckets import WIDTH
from springtide_client.rows.row_block import RowBlock
from tests.bench.table.exact_caches import exact_hits, numbered
from tests.bench.workloads.keys import zipf_ranks

DIM = 4
BATCH_PART = 64  # of the capacity
SHARES = (0.01, 0.1)  # of the distinct ids
EXPONENTS = (0.8, 1.05, 1.3)
MAX_LOSS = 0.01  # one point


@dataclass(frozen=True)
class HitRate:
    """The share of a stream's keys that were resident when requested."""

    stream: str
    policy: str
    share: float  # capacity / distinct ids
    capacity: int
    batch_size: int
    table: float
    exact: float

    @property
    def holds(self) -> bool:
        return self.table >= self.exact - MAX_LOSS


def zipf_stream(exponent: float, num_keys: int, population: int, *, seed: int = 0) -> npt.NDArray[np.int64]:
    return zipf_ranks(np.random.default_rng(seed), num_keys, population, exponent)


def item_stream(parquet: Path) -> npt.NDArray[Any]:
    """Return the items of a log in order."""
    import pyarrow.parquet

    return np.asarray(pyarrow.parquet.read_table(parquet, columns=["product_id"])["product_id"].to_numpy())


class ArraySpill(NoSpill):
    """A spill that keeps only the counts of evicted rows, by id, which LFU needs."""

    keeps_rows = True

    def __init__(self, num_ids: int) -> None:
        super().__init__(DIM, 0)
        self.counts = np.zeros(num_ids, np.int64)

    def write(self, rows: RowBlock, num_new: int) -> None:
        self.counts[rows.id] = rows.count

    def is_empty_for(self, num_keys: int) -> bool:
        return False

    def find(self, features_U: npt.NDArray[np.uint16], ids_U: npt.NDArray[np.int64]) -> FoundRows:
        rows = RowBlock.of_keys(features_U, ids_U, DIM)
        rows.count[:] = self.counts[ids_U]
        return FoundRows(rows, np.where(rows.count > 0, ROW, ABSENT).astype(np.uint8))


def compare(stream: str, ids: npt.NDArray[Any], policy: str, share: float) -> HitRate:
    """Compare one policy on one stream, at a capacity of `share` of its ids."""
    numbers = numbered(ids)
    num_ids = int(numbers.max()) + 1
    capacity = max(WIDTH, round(share * num_ids) // WIDTH * WIDTH)
    batch_size = max(WIDTH, capacity // BATCH_PART)
    hits = table_hits(numbers, policy, capacity, batch_size)
    exact = exact_hits(policy, numbers, capacity)
    return HitRate(stream, policy, share, capacity, batch_size, hits / len(numbers), exact / len(numbers))


def table_hits(numbers: npt.NDArray[np.int64], policy: str, capacity: int, batch_size: int) -> int:
    """Return how many keys had their row in memory, or occurred earlier in the same batch."""
    config = TableConfig(dim=DIM, eviction=policy, optimizer={"name": "sgd", "lr": 0.0})
    rows = Capacity.of_rows(capacity, num_evicted_dirty=1)
    below = ArraySpill(int(numbers.max()) + 1)
    table = EmbeddingTable(config, seed=0, spill=below, capacity=rows, tracked=False)
    zeros_KD = np.zeros((batch_size, DIM), np.float32)
    for start in range(0, len(numbers), batch_size):
        ids_K = numbers[start : start + batch_size]
        lookup = table.lookup(np.zeros(len(ids_K), np.uint16), ids_K, np.zeros(len(ids_K), np.int64))
        table.update(lookup, zeros_KD[: len(ids_K)])
    counters = table.counters()
    table.close()
    misses = counters["created"] + counters["recalled_from_spill"] + counters["recalled_from_base"]
    return len(numbers) - int(misses)
