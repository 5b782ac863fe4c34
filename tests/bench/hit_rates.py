"""How often a table holds the id that is asked for, beside exact LRU and LFU of the same capacity.

A table takes a batch at a time and decides in buckets of 16 rows: both may cost hits.
"""

# K keys of a batch
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from embeddings.capacity import Capacity
from embeddings.config import TableConfig
from embeddings.no_spill import NoSpill
from embeddings.spill import Spill
from embeddings.spill_rocksdb import RocksSpill
from embeddings.table import EmbeddingTable
from kernels.spec import WIDTH
from tests.bench.exact_caches import exact_hits, numbered
from tests.bench.streams import zipf_ranks

DIM = 4
SHARES = (0.01, 0.1)  # of the distinct ids
EXPONENTS = (0.8, 1.05, 1.3)
MAX_LOSS = 0.01  # one point


@dataclass(frozen=True)
class HitRate:
    """Of all keys of a stream, the part that was there when asked for."""

    stream: str
    policy: str
    share: float  # of the distinct ids that there is room for
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
    """The items of a log in its order."""
    import pyarrow.parquet

    return np.asarray(pyarrow.parquet.read_table(parquet, columns=["product_id"])["product_id"].to_numpy())


def compare(stream: str, ids: npt.NDArray[Any], policy: str, share: float, folder: Path) -> HitRate:
    """`folder`, which must not exist yet, takes the spill that LFU keeps its counts in."""
    numbers = numbered(ids)
    num_ids = int(numbers.max()) + 1
    capacity = max(WIDTH, round(share * num_ids) // WIDTH * WIDTH)
    batch_size = max(WIDTH, capacity // 16)
    hits = table_hits(numbers, policy, capacity, batch_size, folder)
    exact = exact_hits(policy, numbers, capacity)
    return HitRate(stream, policy, share, capacity, batch_size, hits / len(numbers), exact / len(numbers))


def table_hits(numbers: npt.NDArray[np.int64], policy: str, capacity: int, batch_size: int, folder: Path) -> int:
    """Keys whose row was in memory, or came earlier in the same batch."""
    config = TableConfig(dim=DIM, eviction=policy, optimizer={"name": "sgd", "lr": 0.0})
    rows = Capacity.of_rows(capacity, num_side=1)
    # only LFU needs what left: a count goes on where it stopped
    below: Spill = RocksSpill(folder, dim=DIM, state_width=0) if policy == "lfu" else NoSpill(DIM, 0)
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
