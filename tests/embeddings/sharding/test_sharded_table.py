"""Tables whose keys travel to their owner, which is this very rank: on the CPU, on the emulated GPU, and on a GPU."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from springtide.embeddings.config import TableConfig
from springtide.embeddings.lookup.handle import LookupSlice
from springtide.embeddings.rows import TableDelta
from springtide.embeddings.sharding.exchange import Exchange, numbers_device_of
from springtide.embeddings.sharding.row_format import Precision
from springtide.embeddings.sharding.sharded_table import ShardedTable
from springtide.embeddings.table import EmbeddingTable
from springtide.kernels.ops import Ops
from tests.embeddings.backends import BACKENDS, ops_of
from tests.support.gpu_emulation.device_array import waits
from tests.support.one_rank import one_rank

DIM, STEPS = 4, 3
ONCE, OFTEN = "each key once", "keys often"


@pytest.fixture(params=BACKENDS, scope="module")
def place(request: pytest.FixtureRequest) -> Iterator[tuple[Ops, Exchange]]:
    ops = ops_of(request.param)
    with pytest.MonkeyPatch.context() as patch, one_rank("cuda" if request.param == "gpu" else "cpu") as exchange:
        if request.param == "emulated":  # its tensors are taken for those of a device
            patch.setattr(torch.Tensor, "is_cpu", False)
        yield ops, exchange


def make_table(ops: Ops, min_count: int = 1, **settings: Any) -> EmbeddingTable:
    admission = {"min_count": min_count, "sketch_bytes": 64 * 64}
    config = TableConfig(dim=DIM, device_bytes=1 << 20, admission=admission, **settings)
    return EmbeddingTable(config, seed=0, device=ops)


def sharded(
    tables: list[EmbeddingTable], exchange: Exchange, precision: str = "float32", **settings: Any
) -> ShardedTable:
    return ShardedTable(tables, exchange, Precision(rows=precision, gradients=precision), seed=0, **settings)


def batches_of(kind: str) -> list[tuple[Any, Any, Any]]:
    random = np.random.default_rng(0)
    batches = []
    for step in range(STEPS):
        ids = random.permutation(60)[:40] if kind == ONCE else random.integers(0, 12, 40)
        batches.append((np.sort(random.integers(0, 2, 40)).astype(np.uint16), ids, np.full(40, 1000 * step)))
    return batches


def slices_of(ops: Ops, kind: str) -> list[LookupSlice]:
    if kind == ONCE:  # torch pools in an order of its own
        return [LookupSlice(0, 15), LookupSlice(15, 40)]
    (offsets,) = ops.put(np.array([0, 0, 7, 20]))
    return [LookupSlice(0, 15), LookupSlice(15, 35, offsets, "mean"), LookupSlice(35, 40)]


def learn(table: ShardedTable, kind: str, *, prefetches: bool) -> None:
    """Steps whose gradients depend on the rows."""
    keys, prefetched = [table.ops.put(*batch) for batch in batches_of(kind)], None
    for now, following in zip(keys, [*keys[1:], None], strict=True):
        lookup = table.lookup(*now, prefetched=prefetched)
        prefetched = table.prefetch(*following) if prefetches and following is not None else None
        tensors = table.embed_slices(lookup, slices_of(table.ops, kind))
        sum((rows - 1).square().sum() for rows in tensors).backward()  # type: ignore[union-attr]
        table.update(lookup)


def learn_plainly(table: EmbeddingTable, kind: str) -> None:
    from springtide.embeddings.torch_api.autograd import embed_slices

    for batch in batches_of(kind):
        tensors = embed_slices(table, table.lookup(*table.ops.put(*batch)), slices_of(table.ops, kind))
        sum((rows - 1).square().sum() for rows in tensors).backward()  # type: ignore[union-attr]


def assert_same(mine: TableDelta, other: TableDelta, *, exactly: bool) -> None:
    orders = [np.lexsort((delta.rows.id, delta.rows.feature)) for delta in (mine, other)]
    for name in ("feature", "id", "count", "last_seen", "value", "state"):
        one, two = (getattr(delta.rows, name)[order] for delta, order in zip((mine, other), orders, strict=True))
        if exactly or name not in ("value", "state"):
            np.testing.assert_array_equal(one, two, err_msg=name)
        else:
            np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("kind", [ONCE, OFTEN])
def test_what_travels_to_itself_is_learned_as_by_the_plain_table(place: tuple[Ops, Exchange], kind: str) -> None:
    """Bit by bit where no gradients are summed: torch sums those of a key before they travel, in its own order."""
    ops, exchange = place
    plain, own = make_table(ops), make_table(ops)
    learn_plainly(plain, kind)
    exchange.bytes_sent.clear()
    learn(sharded([own], exchange), kind, prefetches=kind == OFTEN)
    assert set(exchange.bytes_sent) >= {"keys", "rows", "gradients"}
    assert_same(own.take_delta(), plain.take_delta(), exactly=kind == ONCE)


def test_keys_go_to_the_tables_of_their_features(place: tuple[Ops, Exchange]) -> None:
    ops, exchange = place
    plain, tables = make_table(ops), [make_table(ops), make_table(ops)]
    learn_plainly(plain, ONCE)
    places = np.zeros(1 << 16, np.uint8)
    places[1] = 1
    learn(sharded(tables, exchange, places_F=places), ONCE, prefetches=True)
    known = plain.take_delta()
    for feature, table in enumerate(tables):
        assert_same(table.take_delta(), known.where(known.rows.feature == feature), exactly=True)


def test_owners_admit_keys_by_all_occurrences(place: tuple[Ops, Exchange]) -> None:
    ops, exchange = place
    plain, own = make_table(ops, min_count=5), make_table(ops, min_count=5)
    learn_plainly(plain, OFTEN)
    learn(sharded([own], exchange), OFTEN, prefetches=True)
    known = plain.take_delta()
    assert 0 < (known.rows.feature < 2).sum() < 24
    assert_same(own.take_delta(), known, exactly=False)
    for mine, other in zip(own.admission.take_delta(), plain.admission.take_delta(), strict=True):
        np.testing.assert_array_equal(mine, other)


def test_scores_for_eviction_travel_also_for_keys_that_were_prefetched(place: tuple[Ops, Exchange]) -> None:
    ops, exchange = place
    own = make_table(ops, eviction="custom")
    table, keys = sharded([own], exchange), ops.put(*batches_of(ONCE)[0])
    scores = np.arange(40, dtype=np.float32)
    for prefetched in (None, table.prefetch(*keys)):
        lookup = table.lookup(*keys, scores_K=scores, prefetched=prefetched)
        table.touch(lookup)
    assert own.take_delta().rows.count.tolist() == [2] * 40


@pytest.mark.parametrize(("precision", "tolerance"), [("bfloat16", 0.02), ("int8", 0.03)])
def test_narrow_rows_learn_nearly_the_same(place: tuple[Ops, Exchange], precision: str, tolerance: float) -> None:
    ops, exchange = place
    plain, own = make_table(ops), make_table(ops)
    learn_plainly(plain, ONCE)
    learn(sharded([own], exchange, precision), ONCE, prefetches=False)
    known, found = plain.take_delta(), own.take_delta()
    orders = [np.lexsort((delta.rows.id, delta.rows.feature)) for delta in (known, found)]
    np.testing.assert_allclose(found.rows.value[orders[1]], known.rows.value[orders[0]], atol=tolerance)


def test_no_keys_and_no_gradients(place: tuple[Ops, Exchange]) -> None:
    ops, exchange = place
    own = make_table(ops)
    table = sharded([own], exchange)
    nothing = ops.put(np.zeros(0, np.uint16), np.zeros(0, np.int64), np.zeros(0, np.int64))
    lookup = table.lookup(*nothing, prefetched=table.prefetch(*nothing))
    (offsets,) = ops.put(np.zeros(3, np.int64))
    rows, bags = table.embed_slices(lookup, [LookupSlice(0, 0), LookupSlice(0, 0, offsets, "mean")])
    assert (tuple(rows.shape), tuple(bags.shape)) == ((0, DIM), (2, DIM))
    table.update(lookup)
    table.touch(table.lookup(*ops.put(*batches_of(ONCE)[0])))
    assert own.take_delta().rows.count.sum() == 40


@pytest.mark.parametrize("place", ["emulated"], indirect=True)
def test_only_sizes_are_waited_for_and_those_ahead_of_the_step(place: tuple[Ops, Exchange]) -> None:
    ops, exchange = place
    table = sharded([make_table(ops)], exchange)
    learn(table, OFTEN, prefetches=False)
    keys = ops.put(*batches_of(OFTEN)[0])
    counted = [waits[0]]
    prefetched = table.prefetch(*keys)
    counted.append(waits[0])
    lookup = table.lookup(*keys, prefetched=prefetched)
    counted.append(waits[0])
    sum(rows.sum() for rows in table.embed_slices(lookup, slices_of(ops, OFTEN))).backward()  # type: ignore[union-attr]
    table.update(lookup)
    counted.append(waits[0])
    # unique keys here, how many go to whom, unique keys there, which rows are missing
    assert np.diff(counted).tolist() == [5, 0, 0]


@pytest.mark.parametrize(
    ("backends", "device", "numbers_on"),
    [
        ("cpu:gloo,cuda:nccl", "cuda", "cpu"),
        ("cpu:gloo,cuda:nccl", "cpu", "cpu"),
        ("cuda:nccl", "cuda", "cuda"),
        ("cpu:gloo,cuda:gloo", "cpu", "cpu"),
    ],
)
def test_numbers_for_the_host_travel_from_host_to_host_where_they_can(
    backends: str, device: str, numbers_on: str
) -> None:
    assert numbers_device_of(backends, device) == numbers_on


@pytest.mark.parametrize(
    ("backends", "device"), [("cpu:gloo,cuda:gloo", "cuda"), ("cpu:gloo", "cuda"), ("cuda:nccl", "cpu")]
)
def test_a_group_that_cannot_connect_the_devices_is_refused(backends: str, device: str) -> None:
    with pytest.raises(ValueError, match=r'make the process group with init_process_group\("cpu:gloo,cuda:nccl"\)'):
        numbers_device_of(backends, device)
