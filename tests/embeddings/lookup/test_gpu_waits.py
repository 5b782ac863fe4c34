"""How often a table waits for its GPU, counted on the emulated one."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from springtide.embeddings.config import TableConfig
from springtide.embeddings.memory.capacity import Capacity
from springtide.embeddings.table import EmbeddingTable
from springtide.embeddings.tiers.host_tier import HostTier
from springtide.embeddings.tiers.interface import Spill
from springtide.embeddings.tiers.rocksdb.spill import RocksSpill
from springtide.kernels.backend import backend
from springtide.kernels.types import RowLayout
from tests.embeddings.backends import host, ops_of
from tests.support.gpu_emulation.device_array import waits
from tests.support.gpu_emulation.simt import COMPILER

pytestmark = pytest.mark.skipif(COMPILER is None, reason="neither g++ nor clang++ is installed")
DIM = 4


def made(folder: Path, num_rows: int = 1, *, host_rows: int = 0, seed: int = 0) -> EmbeddingTable:
    """`host_rows`: of a host tier between device and disk. With an odd seed asynchronous copies arrive late."""
    spill: Spill = RocksSpill(folder, dim=DIM, state_width=1)
    if host_rows:
        spill = HostTier(spill, num_rows=host_rows, layout=RowLayout(DIM, 1), ops=backend("cpu"))
    ops, capacity = ops_of("emulated", seed), Capacity.of_rows(num_rows)
    return EmbeddingTable(TableConfig(dim=DIM), seed=0, spill=spill, capacity=capacity, device=ops)


def keys_of(ids: Any) -> tuple[Any, Any, Any]:
    return np.zeros(len(ids), np.uint16), np.asarray(ids), np.zeros(len(ids), np.int64)


def step(table: EmbeddingTable, keys: tuple[Any, Any, Any], **named: Any) -> list[int]:
    """The number of waits of a lookup, of a gather and of an update."""
    counted = [waits[0]]
    lookup = table.lookup(*keys, **named)
    counted.append(waits[0])
    table.gather(lookup)
    counted.append(waits[0])
    table.update(lookup, np.ones((len(keys[1]), DIM), np.float32))
    return np.diff([*counted, waits[0]]).tolist()


def test_known_keys_cost_two_waits_and_none_if_prefetched(tmp_path: Path) -> None:
    table, keys = made(tmp_path / "spill"), keys_of(range(10))
    step(table, keys)
    assert step(table, keys) == [2, 0, 0]
    assert step(table, keys, prefetched=table.prefetch(*keys)) == [0, 0, 0]
    table.close()


def test_new_keys_and_evicted_rows_are_fetched_in_one_copy(tmp_path: Path) -> None:
    table = made(tmp_path / "spill")
    width = table.ops.width
    for start in range(0, 3 * width, width):
        step(table, keys_of(range(start, start + width)))
        table.take_delta()
    assert step(table, keys_of(range(10))) == [3, 0, 0]  # fetched from the spill
    assert table.counters()["recalled_from_spill"] == 10
    table.close()


@pytest.mark.parametrize(("host_rows", "seed"), [(0, 0), (160, 1)])
def test_with_prefetching_no_step_waits_and_rows_are_the_same(tmp_path: Path, host_rows: int, seed: int) -> None:
    """As the trainer does it: the next batch is prefetched while this one's rows are pinned."""
    ahead = made(tmp_path / "ahead", 256, host_rows=host_rows, seed=seed)
    plain = EmbeddingTable(TableConfig(dim=DIM), seed=0)
    rng = np.random.default_rng(1)
    batches = [keys_of(rng.integers(0, 600, 60)) for _ in range(20)]
    prefetched = None
    for keys, following in zip(batches, [*batches[1:], None], strict=True):
        grads = rng.standard_normal((len(keys[1]), DIM)).astype(np.float32)
        before = waits[0]
        lookup = ahead.lookup(*keys, prefetched=prefetched)
        assert waits[0] == before or prefetched is None
        prefetched = None if following is None else ahead.prefetch(*following)
        before, rows = waits[0], ahead.gather(lookup)
        ahead.update(lookup, grads)
        assert waits[0] == before
        other = plain.lookup(*keys)
        np.testing.assert_array_equal(host(rows), plain.gather(other))
        plain.update(other, grads)
        ahead.check_integrity()
        ahead.take_delta()
    assert ahead.counters()["evicted"] > 100
    assert ahead.counters()["recalled_from_spill"] > 100
    if host_rows:
        assert ahead.counters()["hits_host"] > 50
        assert ahead.counters()["host_spilled"] > 50
        assert isinstance(ahead.spill, HostTier)
        ahead.spill.check_integrity()
    ahead.close()


def test_a_ttl_costs_no_wait_if_nothing_expired(tmp_path: Path) -> None:
    """Expired rows are created again without a wait; the next sweep deletes the others."""
    table, keys = made(tmp_path / "spill", 256), keys_of(range(20))
    table.raise_expiry_cutoffs({0: 0})
    step(table, keys)
    for at_ms in (0, 50):
        table.raise_expiry_cutoffs({0: at_ms})
        before = waits[0]
        table.advance(at_ms, 0)
        assert waits[0] == before
        prefetched = table.prefetch(*keys)
        assert step(table, keys, prefetched=prefetched) == [0, 0, 0]
        assert table.counters()["expired"] == (20 if at_ms else 0)
    delta = table.take_delta()
    assert (delta.rows.count.tolist(), delta.rows.last_seen.tolist()) == ([1] * 20, [50] * 20)
    table.check_integrity()
    table.close()


def test_rows_that_expire_during_their_upload_are_not_installed(tmp_path: Path) -> None:
    """Rows are uploaded while the batch before is trained; then half of them expire."""
    table, num = made(tmp_path / "spill", seed=1), 20
    zeros = np.zeros(num, np.uint16)
    ids = np.arange(num)
    table.update(table.lookup(zeros, ids, np.where(ids < 10, 1_000, 9_000)), np.ones((num, DIM), np.float32))
    table.update(table.lookup(*keys_of(range(100, 100 + table.ops.width))), np.ones((128, DIM), np.float32))
    table.take_delta()
    keys = zeros, ids, np.full(num, 9_000)
    prefetched = table.prefetch(*keys)
    assert prefetched.fetch.fetched is not None
    assert prefetched.fetch.fetched.result().upload is not None
    table.raise_expiry_cutoffs({0: 5_000})
    lookup = table.lookup(*keys, prefetched=prefetched)
    table.update(lookup, np.zeros((num, DIM), np.float32))
    delta = table.take_delta()
    counts = dict(zip(delta.rows.id.tolist(), delta.rows.count.tolist(), strict=True))
    assert counts == {id_: 1 if id_ < 10 else 2 for id_ in range(num)}
    table.check_integrity()
    table.close()


def test_an_overfull_bucket_of_predicted_keys_is_evicted_with_the_next_batch(tmp_path: Path) -> None:
    table = made(tmp_path / "spill")
    width = table.ops.width
    pinned = table.lookup(*keys_of(range(width)))  # every slot is taken and must stay
    keys = keys_of(range(1000, 1050))
    lookup = table.lookup(*keys, prefetched=table.prefetch(*keys))
    expected = host(table.gather(lookup))
    table.update(lookup, np.zeros((50, DIM), np.float32))
    assert table.counters()["overflowed"] == 50
    pinned.release()
    assert table.rows_by_tier()["device"] <= width + 50
    assert table.memory.num_pinned == 0
    table.check_integrity()
    assert table.rows_by_tier()["device"] <= width
    np.testing.assert_array_equal(host(table.find(*keys[:2])[0]), expected)
    table.close()
