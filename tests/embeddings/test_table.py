"""Cases that the random schedules of test_table_state_machine.py do not reach."""

from typing import Any

import numpy as np
import pytest
import torch

from springtide.embeddings.config import TableConfig, TableLimits
from springtide.embeddings.lookup.handle import Lookup
from springtide.embeddings.lookup.materialize import FORGOTTEN, KNOWN, NOT_ADMITTED, UNKNOWN
from springtide.embeddings.memory.capacity import Capacity
from springtide.embeddings.table import EmbeddingTable
from springtide.embeddings.torch_api.autograd import embed
from springtide.kernels.ops import Ops
from springtide_client.keys import hash_keys
from springtide_client.system.settings import parse_size
from tests.embeddings.backends import host
from tests.embeddings.small_tables import learn, status
from tests.embeddings.small_tables import make as make_small

BUCKET = Capacity.of_rows(1)  # rounded up to one bucket


def make(ops: Ops) -> EmbeddingTable:
    return EmbeddingTable(TableConfig(), seed=0, capacity=BUCKET, device=ops)


def look_up(table: EmbeddingTable, ids: Any, feature: int = 0) -> Lookup:
    ids_K = np.asarray(ids, np.int64)
    return table.lookup(np.full(len(ids_K), feature, np.uint16), ids_K, np.zeros(len(ids_K), np.int64))


def test_the_number_of_threads_does_not_change_results() -> None:
    rng = np.random.default_rng(0)
    tables = [EmbeddingTable(TableConfig(num_threads=n, device_bytes="8MiB"), seed=0) for n in (1, 2, 3)]
    for _ in range(3):
        features = rng.integers(0, 3, 40_000).astype(np.uint16)
        ids = rng.zipf(1.2, 40_000) % 20_000
        grads = rng.standard_normal((40_000, 16)).astype(np.float32)
        for table in tables:
            table.update(table.lookup(features, ids, ids), grads)
    deltas = [table.take_delta() for table in tables]
    for delta in deltas[1:]:
        for name, column in delta.rows.columns().items():
            np.testing.assert_array_equal(column, getattr(deltas[0].rows, name))
    assert len(deltas[0].rows) > 5000
    for table in tables:
        table.check_integrity()
        table.close()


def test_a_delta_is_in_the_order_of_key_hashes(ops: Ops) -> None:
    table = EmbeddingTable(TableConfig(device_bytes="1MiB"), seed=0, device=ops)
    ids = np.random.default_rng(0).integers(0, 2**62, 300)
    table.update(look_up(table, ids), np.ones((len(ids), 16), np.float32))
    delta = table.take_delta()
    key_hash = hash_keys(delta.rows.feature, delta.rows.id)
    assert len(delta.rows) == 300
    assert (key_hash[1:] > key_hash[:-1]).all()
    np.testing.assert_array_equal(delta.rows.value, ops.fetch(table.find(delta.rows.feature, delta.rows.id)[0])[0])


def test_a_lookup_allows_one_update(ops: Ops) -> None:
    table = make(ops)
    lookup = look_up(table, [1, 2])
    table.update(lookup, np.ones((2, 16), np.float32))
    with pytest.raises(ValueError, match="released"):
        table.update(lookup, np.ones((2, 16), np.float32))
    with pytest.raises(ValueError, match="released"):
        table.gather(lookup)


def test_a_batch_of_the_wrong_shape_is_refused(ops: Ops) -> None:
    table = make(ops)
    with pytest.raises(ValueError, match="one length"):
        table.lookup(np.zeros(2, np.uint16), np.zeros(3, np.int64), np.zeros(3, np.int64))
    with pytest.raises(ValueError, match="gradients"):
        table.update(look_up(table, [1]), np.ones((2, 16), np.float32))


def test_without_a_spill_the_delta_forgets_evicted_rows(ops: Ops) -> None:
    table = make(ops)
    width = ops.width
    for start in (0, width):
        table.update(look_up(table, np.arange(start, start + width)), np.ones((width, 16), np.float32))
    delta = table.take_delta()
    assert sorted(delta.rows.id.tolist()) == list(range(width, 2 * width))
    assert sorted(delta.forgotten.id.tolist()) == list(range(width))
    assert (table.find(np.zeros(width, np.uint16), np.arange(width))[1] == FORGOTTEN).all()


def test_an_empty_batch_works(ops: Ops) -> None:
    table = make(ops)
    lookup = look_up(table, [])
    assert table.gather(lookup).shape == (0, 16)
    table.update(lookup, np.zeros((0, 16), np.float32))
    rows, status = table.find(np.zeros(0, np.uint16), np.zeros(0, np.int64))
    assert rows.shape == (0, 16)
    assert status.shape == (0,)
    assert len(table.take_delta().rows) == 0


def test_a_batch_larger_than_the_table_is_learned_completely(ops: Ops) -> None:
    table = make(ops)
    lookup = look_up(table, np.arange(500))
    assert np.isfinite(host(table.gather(lookup))).all()
    table.update(lookup, np.ones((500, 16), np.float32))
    assert table.rows_by_tier()["device"] <= ops.width
    table.check_integrity()


def test_a_bfloat16_gradient_is_accepted(ops: Ops) -> None:
    table = make(ops)
    rows = embed(table, look_up(table, [1, 2]))
    rows.to(torch.bfloat16).sum().backward()
    assert table.take_delta().rows.count.tolist() == [1, 1]


@pytest.mark.parametrize("size", ["256KiB", "4MiB", 50_000_000])
@pytest.mark.parametrize("dim", [1, 16, 100])
def test_device_bytes_is_never_exceeded(size: int | str, dim: int) -> None:
    table = EmbeddingTable(TableConfig(dim=dim, device_bytes=size), seed=0)
    dirty_list = 8 * table.memory.store.num_slots
    evicted_dirty = table.evicted_dirty.capacity * (2 + 8 + 4 * dim + 4 + 16)
    total = table.bytes_by_tier()["device"] + dirty_list + evicted_dirty
    assert parse_size(size) * 0.9 < total <= parse_size(size)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"device_bytes": "1KiB"}, "1KiB"),
        ({"device_bytes": "many"}, "many"),
        ({"host_bytes": "lots"}, "lots"),
        ({"eviction": "mru"}, "mru"),
        ({"dtype": "float16"}, "float16"),
        ({"admission": {"min_count": 0}}, "min_count"),
        ({"admission": {"count": 2}}, "count"),
        ({"optimizer": {"name": "adamw"}}, "adamw"),
        ({"optimizer": {"lr": float("nan")}}, "nan"),
        ({"init_scale": -1}, "-1"),
    ],
)
def test_an_invalid_setting_is_reported_by_name(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        EmbeddingTable(TableConfig(**settings), seed=0)


def test_limits_apply_to_a_table_in_use(ops: Ops) -> None:
    table = make_small(Capacity.of_rows(64), device=ops)
    learn(table, [1, 2, 3])
    before = host(table.find(np.zeros(1, np.uint16), np.array([1]))[0])
    table.set_limits(TableLimits(lr=0.0))
    learn(table, [1])
    np.testing.assert_array_equal(host(table.find(np.zeros(1, np.uint16), np.array([1]))[0]), before)
    table.set_limits(TableLimits(min_count={0: 2}, ttl_seconds={0: 5}))
    learn(table, [9], at_ms=10_000)
    assert status(table, [9]) == [NOT_ADMITTED]
    table.advance(10_000, 0)
    assert set(status(table, [1, 2, 3])) <= {FORGOTTEN, UNKNOWN}  # unknown once swept
    table.set_limits(TableLimits(min_count={0: None}, ttl_seconds={0: None}))
    learn(table, [10], at_ms=10_000)
    table.advance(90_000, 0)
    assert status(table, [10]) == [KNOWN]
    with pytest.raises(ValueError, match="ttl_seconds"):
        TableLimits(ttl_seconds={0: -1})
    with pytest.raises(ValueError, match="1KiB"):
        table.set_limits(TableLimits(lr=0.5, device_bytes="1KiB"))
    assert table.lr == 0.0
    with pytest.raises(ValueError, match="sketch"):
        make_small(None, device_bytes="16MiB", admission={"min_count": 2})
