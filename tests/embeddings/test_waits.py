"""How often a table on a GPU waits for it: counted where the GPU is emulated."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embeddings.capacity import Capacity
from embeddings.config import TableConfig
from embeddings.spill.rocksdb import RocksSpill
from embeddings.table import EmbeddingTable
from tests.embeddings.twins import verbs_of
from tests.kernels.device_array import waits
from tests.kernels.simt import COMPILER

pytestmark = pytest.mark.skipif(COMPILER is None, reason="neither g++ nor clang++ is installed")
DIM = 4


def made(folder: Path) -> EmbeddingTable:
    spill = RocksSpill(folder, dim=DIM, state_width=1)
    return EmbeddingTable(
        TableConfig(dim=DIM), seed=0, spill=spill, capacity=Capacity.of_rows(1), device=verbs_of("emulated")
    )


def keys_of(ids: Any) -> tuple[Any, Any, Any]:
    return np.zeros(len(ids), np.uint16), np.asarray(ids), np.zeros(len(ids), np.int64)


def step(table: EmbeddingTable, keys: tuple[Any, Any, Any], **named: Any) -> list[int]:
    """Waits of a look-up, of a gather, of an update."""
    counted = [waits[0]]
    lookup = table.lookup(*keys, **named)
    counted.append(waits[0])
    table.gather(lookup)
    counted.append(waits[0])
    table.update(lookup, np.ones((len(keys[1]), DIM), np.float32))
    return np.diff([*counted, waits[0]]).tolist()


def test_a_batch_of_known_keys_is_asked_two_numbers_and_one_where_it_was_prefetched(tmp_path: Path) -> None:
    table, keys = made(tmp_path / "spill"), keys_of(range(10))
    step(table, keys)
    assert step(table, keys) == [2, 0, 0]
    assert step(table, keys, prefetched=table.prefetch(*keys)) == [1, 0, 0]
    table.close()


def test_new_keys_and_the_rows_that_leave_for_them_cross_in_one_copy(tmp_path: Path) -> None:
    table = made(tmp_path / "spill")
    width = table.verbs.width
    for start in range(0, 3 * width, width):
        step(table, keys_of(range(start, start + width)))
        table.cut()
    assert step(table, keys_of(range(10))) == [3, 0, 0]  # recalled from the spill
    assert table.counters()["recalled_from_spill"] == 10
    table.close()
