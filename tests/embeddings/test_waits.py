"""How often a table on a GPU waits for it: counted where the GPU is emulated."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embeddings.capacity import Capacity
from embeddings.config import TableConfig
from embeddings.spill.rocksdb import RocksSpill
from embeddings.table import EmbeddingTable
from tests.embeddings.twins import host, verbs_of
from tests.kernels.device_array import waits
from tests.kernels.simt import COMPILER

pytestmark = pytest.mark.skipif(COMPILER is None, reason="neither g++ nor clang++ is installed")
DIM = 4


def made(folder: Path, num_rows: int = 1) -> EmbeddingTable:
    spill = RocksSpill(folder, dim=DIM, state_width=1)
    return EmbeddingTable(
        TableConfig(dim=DIM), seed=0, spill=spill, capacity=Capacity.of_rows(num_rows), device=verbs_of("emulated")
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


def test_a_batch_of_known_keys_is_asked_two_numbers_and_none_where_it_was_prefetched(tmp_path: Path) -> None:
    table, keys = made(tmp_path / "spill"), keys_of(range(10))
    step(table, keys)
    assert step(table, keys) == [2, 0, 0]
    assert step(table, keys, prefetched=table.prefetch(*keys)) == [0, 0, 0]
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


def test_with_lookahead_no_step_waits_and_every_row_is_what_it_would_be_without(tmp_path: Path) -> None:
    """As a learner asks: the next batch is prefetched while this one's rows are held."""
    ahead, plain = made(tmp_path / "ahead", 256), EmbeddingTable(TableConfig(dim=DIM), seed=0, device="cpu")
    rng = np.random.default_rng(1)
    batches = [keys_of(rng.integers(0, 600, 60)) for _ in range(20)]
    foreseen = None
    for keys, following in zip(batches, [*batches[1:], None], strict=True):
        grads = rng.standard_normal((len(keys[1]), DIM)).astype(np.float32)
        before = waits[0]
        lookup = ahead.lookup(*keys, prefetched=foreseen)
        assert waits[0] == before or foreseen is None
        foreseen = None if following is None else ahead.prefetch(*following)
        before, rows = waits[0], ahead.gather(lookup)
        ahead.update(lookup, grads)
        assert waits[0] == before
        other = plain.lookup(*keys)
        np.testing.assert_array_equal(host(rows), plain.gather(other))
        plain.update(other, grads)
        ahead.check_integrity()
        ahead.cut()
    assert ahead.counters()["evicted"] > 100
    assert ahead.counters()["recalled_from_spill"] > 100
    ahead.close()


def test_a_bucket_overfull_of_foreseen_keys_is_emptied_with_the_next_batch(tmp_path: Path) -> None:
    table = made(tmp_path / "spill")
    width = table.verbs.width
    held = table.lookup(*keys_of(range(width)))  # every slot is taken and must stay
    keys = keys_of(range(1000, 1050))
    lookup = table.lookup(*keys, prefetched=table.prefetch(*keys))
    expected = host(table.gather(lookup))
    table.update(lookup, np.zeros((50, DIM), np.float32))
    assert table.counters()["overflowed"] == 50
    held.release()
    assert table.rows_by_tier()["device"] <= width + 50
    assert table.memory.num_held == 0
    table.check_integrity()
    assert table.rows_by_tier()["device"] <= width
    np.testing.assert_array_equal(host(table.find(*keys[:2])[0]), expected)
    table.close()
