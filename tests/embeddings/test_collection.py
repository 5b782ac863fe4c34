"""Tables of one width are bit by bit one table; a narrower one is the table that it would be alone, padded."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from springtide.embeddings.collection import EmbeddingCollection, open_tables
from springtide.embeddings.config import FeaturePolicy, FeatureTable, TableConfig, TableLimits
from springtide.embeddings.lookup.handle import LookupSlice
from springtide.embeddings.table import EmbeddingTable
from springtide.embeddings.tiers.rocksdb.spill import RocksSpill
from springtide.embeddings.torch_api.autograd import embed_slices
from springtide.kernels.backend import backend
from springtide.kernels.ops import Ops
from tests.embeddings.backends import host

DIM, SEED, WIDE = 4, 3, 5
NUM_FEATURES = 4  # 1 and 3 in a table of their own
SETTINGS: dict[str, Any] = {
    "dim": DIM,
    "device_bytes": 1 << 20,
    "wide_width": WIDE,
    "admission": {"min_count": 1, "sketch_bytes": 6400},
    "features": {1: FeaturePolicy(min_count=2, ttl_seconds=3), 2: FeaturePolicy(ttl_seconds=5)},
}


def collection_of(ops: Ops, dim: int = DIM, optimizer: Any = None, **settings: Any) -> EmbeddingCollection:
    other = FeatureTable(dim=dim, optimizer=optimizer, features=(1, 3))
    config = TableConfig(**SETTINGS | settings, tables={"": FeatureTable(dim=DIM, features=(0, 2)), "other": other})
    table = open_tables(
        config, ops, lambda name, own, admission: EmbeddingTable(own, seed=SEED, device=ops, admission=admission)
    )
    assert isinstance(table, EmbeddingCollection)
    return table


def batches(num: int, seed: int = 0) -> Any:
    """Keys of four features, one after another, and their times."""
    rng = np.random.default_rng(seed)
    for turn in range(num):
        features = np.repeat(np.arange(NUM_FEATURES, dtype=np.uint16), 20)
        yield features, rng.integers(0, 30, len(features)), 1000 * turn + rng.integers(0, 900, len(features))


SLICES = [
    LookupSlice(0, 40),
    LookupSlice(40, 60, np.array([0, 3, 3, 20])),
    LookupSlice(60, 80, np.array([0, 9, 20]), "max"),
]


def by_key(delta: Any) -> dict[tuple[int, int], list[bytes]]:
    keys = zip(delta.rows.feature.tolist(), delta.rows.id.tolist(), strict=True)
    columns = delta.rows.contents
    return {key: [column[n].tobytes() for column in columns] for n, key in enumerate(keys)}


def learn(table: Any, batch: Any, turn: int, ahead: Any) -> list[Any]:
    """What a table gives for a batch on the way; it learns rows elsewhere, then by their gradients."""
    table.advance(1000 * turn, 80 * turn)
    lookup = table.rows.lookup(*batch, prefetched=ahead)
    read = [host(column) for column in table.rows.read_rows(lookup)]
    keys = list(zip(host(lookup.unique.features_U).tolist(), host(lookup.unique.ids_U).tolist(), strict=True))
    states = read[1].copy()
    states[:, -WIDE:] += 1 + read[2][:, None]
    table.rows.write_rows(lookup, *table.ops.put(read[0] + np.float32(0.25), states))
    tensors = embed_slices(table.rows, lookup, SLICES)
    rows = dict(zip(keys, (b"".join(column[u].tobytes() for column in read) for u in range(len(keys))), strict=True))
    sum((tensor**2).sum() for tensor in tensors).backward()
    again = table.rows.lookup(*batch)
    table.rows.touch(again)
    return [rows, *(tensor.detach().cpu().numpy().tobytes() for tensor in tensors)]


@pytest.mark.parametrize("prefetch", [False, True])
def test_tables_of_one_width_are_one_table(ops: Ops, prefetch: bool) -> None:
    one = EmbeddingTable(TableConfig(**SETTINGS), seed=SEED, device=ops)
    several = collection_of(ops)
    for turn, batch in enumerate(batches(6)):
        given = []
        for table in (one, several):
            ahead: Any = table.rows.prefetch(*batch) if prefetch else None
            given.append(learn(table, batch, turn, ahead))
        assert given[0] == given[1]
        keys = batch[0][::3], batch[1][::3] + 4
        for alone, joined in zip(one.find(*keys), several.find(*keys), strict=True):
            np.testing.assert_array_equal(host(alone), host(joined))
        if turn == 3:
            one.forget(*keys)
            several.forget(*keys)
        assert one.expiry_cutoffs == several.expiry_cutoffs
        delta, deltas = one.take_delta(), [table.take_delta() for table in several.tables.values()]
        assert by_key(delta) == {key: row for part in deltas for key, row in by_key(part).items()}
        assert set(deltas[1].rows.feature.tolist()) <= {1, 3, 32769}
        assert len(delta.forgotten.id) == sum(len(part.forgotten.id) for part in deltas)
        for alone, joined in zip(one.admission.take_delta(), several.admission.take_delta(), strict=True):
            np.testing.assert_array_equal(alone, joined)
    assert one.rows_by_tier() == several.rows_by_tier()
    assert one.counters()["keys"] == several.counters()["keys"]
    several.check_integrity()


def test_rows_of_a_narrow_table_end_in_zeros(ops: Ops) -> None:
    adam = {"name": "adam", "lr": 0.1}
    several = collection_of(ops, dim=3, optimizer=adam, features={})
    alone = EmbeddingTable(
        TableConfig(**SETTINGS | {"dim": 3, "optimizer": adam, "features": {}}), seed=SEED, device=ops
    )
    for features, ids, times in batches(3):
        lookup = several.rows.lookup(features, ids, times)
        rows = host(several.rows.gather(lookup))
        is_narrow = features % 2 == 1
        assert not rows[is_narrow, 3:].any()
        assert rows[~is_narrow, 3:].any()
        theirs = alone.lookup(features[is_narrow], ids[is_narrow], times[is_narrow])
        np.testing.assert_array_equal(rows[is_narrow, :3], host(alone.gather(theirs)))
        columns = several.rows.read_rows(lookup)
        assert columns.states_NS.shape[1] == 2 * 3 + 1 + WIDE
        several.rows.write_rows(lookup, columns.values_ND, columns.states_NS)
        assert alone.layout.state_width == several.tables["other"].layout.state_width
        mine = alone.read_rows(theirs)
        alone.write_rows(theirs, mine.values_ND, mine.states_NS)
        grads = np.random.default_rng(1).standard_normal((len(ids), DIM)).astype(np.float32)
        several.rows.update(lookup, *several.ops.put(grads))
        alone.update(theirs, *alone.ops.put(np.ascontiguousarray(grads[is_narrow, :3])))
    deltas = [table.take_delta() for table in several.tables.values()]
    assert by_key(deltas[1]) == by_key(alone.take_delta())
    assert not set(deltas[0].rows.feature.tolist()) & {1, 3}


def test_a_collection_goes_on_from_its_versions(ops: Ops) -> None:
    first, second = collection_of(ops), collection_of(ops)
    for turn, batch in enumerate(batches(3)):
        learn(first, batch, turn, None)
        for name, table in first.tables.items():
            second.tables[name].restore(table.take_delta())
        second.admission.restore(*first.admission.take_delta())
    second.restore_clock_state(first.clock_state())
    second.raise_expiry_cutoffs(first.expiry_cutoffs)
    for turn, batch in enumerate(batches(3, seed=1), 3):
        assert learn(first, batch, turn, None) == learn(second, batch, turn, None)
    assert first.clock_state() == second.clock_state()


def test_a_lookup_serves_once_and_bags_hold_one_feature(ops: Ops) -> None:
    table = collection_of(ops)
    features, ids, times = next(batches(1))
    lookup = table.rows.lookup(features, ids, times)
    with pytest.raises(ValueError, match="one feature"):
        table.rows.gather_slice(lookup, LookupSlice(0, 40, np.array([0, 40])))
    assert all(one.memory.num_pinned == 1 for one in table.tables.values())
    table.rows.update(lookup, *table.ops.put(np.zeros((len(ids), DIM), np.float32)))
    assert all(one.memory.num_pinned == 0 for one in table.tables.values())
    with pytest.raises(ValueError, match="released"):
        table.rows.gather(lookup)
    with pytest.raises(ValueError, match="prefetched"):
        table.rows.lookup(features.copy(), ids, times, prefetched=table.rows.prefetch(features, ids, times))
    empty = table.rows.lookup(features[:0], ids[:0], times[:0])
    assert host(table.rows.gather(empty)).shape == (0, DIM)
    del empty
    assert all(one.memory.num_pinned == 0 for one in table.tables.values())


def test_limits_go_to_the_tables_that_they_concern() -> None:
    table = collection_of(backend("cpu"), dim=2, optimizer={"name": "sgd", "lr": 0.5})
    sizes = [one.config.device_bytes for one in table.tables.values()]
    assert sum(sizes) <= 1 << 20
    assert sizes[0] > sizes[1]  # as many features, wider rows
    sketch = np.array([6400, 0])  # the main table's, whatever the rows take
    table.set_limits(TableLimits(lr=0.25, device_bytes=(2 << 20) - 6400, ttl_seconds={3: 7.0}, min_count={3: 4}))
    assert [one.lr for one in table.tables.values()] == [0.25, 0.5]
    now = np.array([one.config.device_bytes for one in table.tables.values()])
    np.testing.assert_allclose(now - sketch, 2 * (sizes - sketch), atol=1)
    table.advance(9000, 0)
    assert table.expiry_cutoffs[3] == 2000
    lookup = table.rows.lookup(np.full(2, 3, np.uint16), np.arange(2), np.full(2, 9000))
    assert host(lookup.unique.features_U).tolist() == [3 + (1 << 15)]
    with pytest.raises(ValueError, match="lookups are open"):
        table.set_limits(TableLimits(device_bytes=1 << 20, lr=0.1))
    lookup.release()
    with pytest.raises(ValueError, match="too small"):
        table.set_limits(TableLimits(device_bytes=3000, lr=0.1))
    assert table.tables[""].lr == 0.25


def test_the_spills_share_one_disk(tmp_path: Path) -> None:
    def make(name: str, own: TableConfig, admission: Any) -> EmbeddingTable:
        layout = own.layout
        spill = RocksSpill.of_epoch(tmp_path, 7, dim=layout.dim, state_width=layout.state_width, table=name or "main")
        return EmbeddingTable(own, seed=SEED, spill=spill, admission=admission, other_disk_bytes=lambda: 400)

    tables = {"": FeatureTable(dim=DIM, features=(0, 2)), "other": FeatureTable(dim=DIM, features=(1, 3))}
    table = open_tables(TableConfig(**SETTINGS, disk_bytes=1000, tables=tables), backend("cpu"), make)
    main, other = table.tables.values()
    assert sorted(path.name for path in (tmp_path / "7").iterdir()) == ["main", "other"]
    taken = other.disk.num_bytes()
    assert main.disk_cap.spill_bytes() == max(600 - taken, 150)
    table.close()
    assert list(tmp_path.iterdir()) == []
