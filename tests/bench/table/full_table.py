"""An EmbeddingTable in which every slot is occupied, and its contents."""

# C rows, D dimension
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from springtide.embeddings.config import TableConfig
from springtide.embeddings.memory.capacity import Capacity
from springtide.embeddings.rows import Float32Array, TableDelta
from springtide.embeddings.table import EmbeddingTable
from springtide_client.rows.row_block import RowBlock
from tests.bench.table.full_store import FILL
from tests.bench.workloads.keys import Int64Array, scattered_ids

CHUNK = 1 << 18


@dataclass
class FullTable:
    """One feature, number 0; no versions are written, there is no lower tier."""

    table: EmbeddingTable
    first: RowBlock

    @property
    def ids_C(self) -> Int64Array:
        return self.first.id

    @property
    def values_CD(self) -> Float32Array:
        """Return the initial rows."""
        return self.first.value

    def reset(self) -> None:
        """Reset all rows and their optimizer state."""
        self.table.restore(TableDelta(self.first))


def fill_table(num_rows: int, *, dim: int, optimizer: Mapping[str, Any], threads: int) -> FullTable:
    """Fill a table by lookups with eviction; rows have their first values."""
    config = TableConfig(dim=dim, optimizer=optimizer, num_threads=threads)
    table = EmbeddingTable(config, seed=0, capacity=Capacity.of_rows(num_rows, num_evicted_dirty=1), tracked=False)
    for start in range(0, FILL * num_rows, CHUNK):
        ids_K = scattered_ids(start, min(start + CHUNK, FILL * num_rows))
        table.lookup(np.zeros(len(ids_K), np.uint16), ids_K, np.zeros(len(ids_K), np.int64)).release()
    return FullTable(table, table.export())
