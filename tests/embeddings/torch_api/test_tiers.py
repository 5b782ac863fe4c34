"""Time to live, quota, host tier and prefetching of a DynamicEmbedding."""

import copy
import gc
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from springtide import DynamicEmbedding
from springtide.embeddings.errors import OwnershipError
from springtide.kernels.ops import Ops
from tests.embeddings.torch_api.test_devices import place_of
from tests.support.waiting import wait_until

SGD = {"name": "sgd", "lr": 1.0}


def train(emb: DynamicEmbedding, ids: Any) -> None:
    emb(torch.as_tensor(ids)).sum().backward()


def status(emb: DynamicEmbedding, ids: Any) -> list[int]:
    found: list[int] = emb.lookup(torch.as_tensor(ids))[1].tolist()
    return found


class Clock:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def test_a_row_expires_when_its_id_was_not_learned_from_for_so_long(ops: Ops) -> None:
    clock, where = Clock(), place_of(ops)
    emb = DynamicEmbedding(4, 64, device=ops, clock=clock, ttl_seconds=10, optimizer=SGD, init_scale=0)
    train(emb, torch.tensor([1, 2], device=where))
    clock.seconds = 1010.0
    train(emb, torch.tensor([2], device=where))
    clock.seconds = 1010.001
    assert status(emb, [1, 2]) == [0, 0]  # reading does not move the time
    emb.advance()
    assert status(emb, [1, 2]) == [3, 0]
    assert emb.export()["ids"].to_pylist() == [2]
    assert emb.eval()(torch.tensor([1], device=where)).tolist() == [[0] * 4]
    train(emb.train(), torch.tensor([1], device=where))
    assert emb.export(torch.tensor([1]))["count"].to_pylist() == [1]
    clock.seconds = 0.0  # a clock that goes back moves no time back
    train(emb, torch.tensor([2], device=where))
    assert emb.export()["last_seen_ms"].to_pylist() == [1_010_001, 1_010_001]


def test_expired_rows_leave_memory_as_time_goes_on() -> None:
    emb = DynamicEmbedding(4, 1024, clock=lambda: 0.0, ttl_seconds=1)
    train(emb, range(100))
    for _ in range(64):
        emb.advance(5000)
    assert len(emb) == 0
    assert emb.counters()["expired"] == 100


def test_event_time_replaces_the_clock_and_is_part_of_the_state(tmp_path: Path) -> None:
    emb = DynamicEmbedding(4, 64, ttl_seconds=60, spill=tmp_path / "spill")
    emb.advance(100_000)
    train(emb, [1])
    emb.advance(130_000)
    train(emb, [2])
    emb.advance(50_000)  # never goes back
    assert emb.export()["last_seen_ms"].to_pylist() == [100_000, 130_000]
    again = DynamicEmbedding(4, 64, ttl_seconds=60)
    again.load_state_dict(emb.state_dict())
    again.advance(160_001)
    train(again, [3])
    assert again.export()["last_seen_ms"].to_pylist() == [130_000, 160_001]
    assert emb.export(since_ms=100_001)["ids"].to_pylist() == [2]
    for wrong in (-1, 2**63, True):
        with pytest.raises(ValueError, match="event_time_ms"):
            emb.advance(wrong)
    with pytest.raises(ValueError, match="time_ms"):
        emb.load_state_dict(emb.state_dict() | {"_extra_state": emb.get_extra_state() | {"time_ms": -5}})
    emb.close()


def test_a_quota_limits_the_rows_in_memory(ops: Ops) -> None:
    emb = DynamicEmbedding(4, 4 * ops.width, device=ops, quota_bytes=128 * ops.width)
    where = place_of(ops)
    for start in range(0, 4 * ops.width, ops.width):
        train(emb, torch.arange(start, start + ops.width, device=where))
    assert 0 < len(emb) * ops.slot_bytes(emb.table.layout) <= 128 * ops.width
    assert emb.counters()["evicted_quota"] == 4 * ops.width - len(emb)
    last = torch.arange(4 * ops.width - 5, 4 * ops.width, device=where)
    assert status(emb, last) == [0] * 5


@pytest.mark.parametrize("capacity", [64, "64KiB"])
def test_a_host_tier_without_a_spill_adds_to_the_capacity(ops: Ops, capacity: Any) -> None:
    emb = DynamicEmbedding(4, 1, device=ops, host_capacity=capacity, optimizer=SGD, init_scale=0)
    where = place_of(ops)
    ids = torch.arange(ops.width + 40, device=where)
    for _ in range(3):
        for part in (ids[:40], ids[40:]):
            train(emb, part)
    assert emb.counters()["hits_host"] >= 80
    kept = emb.rows_by_tier()
    rows, found = emb.lookup(ids)
    assert (rows[found == 0] == -3).all() or emb.counters()["lost"]
    assert kept["device"] + kept["host"] == int((found == 0).sum())  # no row is in both
    assert emb.counters()["lost"] >= len(ids) - int((found == 0).sum())
    emb.table.check_integrity()


def test_a_host_tier_between_memory_and_spill_changes_no_row(tmp_path: Path) -> None:
    plain = DynamicEmbedding(8, 4096)
    tiered = DynamicEmbedding(8, 32, host_capacity=64, spill=tmp_path / "spill")
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        ids = torch.randint(0, 500, (200,), generator=generator)
        weight = torch.randn(200, 8, generator=generator)
        for emb in (plain, tiered):
            (emb(ids) * weight).sum().backward()
    assert torch.equal(
        plain.lookup(torch.arange(500))[0].nan_to_num(7), tiered.lookup(torch.arange(500))[0].nan_to_num(7)
    )
    assert tiered.counters()["hits_host"] > 0
    assert tiered.rows_by_tier()["host"] == 64
    with pytest.raises(OwnershipError):
        copy.deepcopy(tiered)
    tiered.close()
    assert not (tmp_path / "spill").exists()


def test_a_host_tier_is_part_of_states_and_copies() -> None:
    emb = DynamicEmbedding(4, 16, host_capacity=160)
    for _ in range(2):
        train(emb, range(60))
    for other in (copy.deepcopy(emb), pickle.loads(pickle.dumps(emb)), DynamicEmbedding(4, 256)):
        other.load_state_dict(emb.state_dict())
        assert other.export() == emb.export()
        assert len(other.export()) == 60
        train(other, range(60))


def test_wrong_settings_are_refused() -> None:
    for settings, why in (
        ({"ttl_seconds": 0}, "ttl_seconds"),
        ({"ttl_seconds": "1h"}, "ttl_seconds"),
        ({"quota_bytes": "many"}, "quota_bytes"),
        ({"quota_bytes": 0}, "quota_bytes"),
        ({"spill_bytes": "many"}, "spill_bytes"),
        ({"spill_bytes": True}, "spill_bytes"),
        ({"host_capacity": 0}, "host_capacity"),
        ({"host_capacity": 1.5}, "host_capacity"),
        ({"host_capacity": "1KiB"}, "too small"),
        ({"eviction": 5}, "eviction"),
        ({"eviction": "norm"}, "eviction"),
    ):
        with pytest.raises(ValueError, match=why):
            DynamicEmbedding(4, 16, **settings)  # type: ignore[arg-type]


# prefetch


def test_prefetched_rows_are_fetched_before_the_call_that_needs_them(ops: Ops, tmp_path: Path) -> None:
    clock, where, width = Clock(), place_of(ops), ops.width
    emb = DynamicEmbedding(4, 1, device=ops, clock=clock, spill=tmp_path / "spill", optimizer=SGD, init_scale=0)
    first, second = torch.arange(width, device=where), torch.arange(width, 2 * width, device=where)
    train(emb, first)
    rows = emb(second)
    before = emb.counters()
    emb.prefetch(first)
    after = emb.counters()
    for name in ("keys", "hits_device", "created", "admitted", "evicted", "prefetched"):
        assert after[name] == before[name]
    clock.seconds = 1100.0
    rows.sum().backward()
    train(emb, first)
    counters = emb.counters()
    assert counters["prefetched"] == counters["recalled_from_spill"] == width
    assert emb.export(first)["last_seen_ms"].to_pylist() == [1_100_000] * width  # when it was looked up
    assert (emb.lookup(first)[0] == -2).all()
    emb.close()


def test_a_prefetch_of_other_ids_is_ignored(tmp_path: Path) -> None:
    emb = DynamicEmbedding(4, 16, spill=tmp_path / "spill", optimizer=SGD, init_scale=0)
    train(emb, range(64))
    ids = torch.arange(8)
    emb.prefetch(ids)
    ids += 8  # in place
    train(emb, ids)
    assert emb.counters()["prefetched"] == 0
    emb.prefetch(torch.arange(20, 30))
    emb.forget(torch.tensor([20]))
    train(emb, torch.arange(20, 30))
    assert emb.counters()["prefetched"] == 0  # dropped, because a row was forgotten
    assert emb.lookup(torch.arange(64))[0][:, 0].tolist() == [
        -2.0 if 8 <= id_ < 16 or 20 < id_ < 30 else -1.0 for id_ in range(64)
    ]
    emb.prefetch(torch.arange(0, 8).reshape(2, 4))
    emb.pool(torch.arange(0, 8).reshape(2, 4), mode="sum").sum().backward()
    assert emb.counters()["prefetched"] == 8
    emb.eval().prefetch(torch.arange(8))
    emb.train().prefetch(torch.empty(0, dtype=torch.int64))
    with pytest.raises(ValueError, match="integers"):
        emb.prefetch(torch.ones(3))
    emb.close()
    with pytest.raises(ValueError, match="closed"):
        emb.prefetch(ids)


def test_a_prefetch_counts_nothing_towards_admission() -> None:
    emb = DynamicEmbedding(4, 64, admission={"min_count": 2})
    for _ in range(5):
        emb.prefetch(torch.tensor([1]))
    assert status(emb, [1]) == [1]
    train(emb, [1])
    assert status(emb, [1]) == [2]


@pytest.mark.parametrize("end", ["close", "drop"])
def test_an_object_may_end_while_rows_are_fetched(end: str, tmp_path: Path) -> None:
    emb = DynamicEmbedding(4, 16, spill=tmp_path / "spill")
    train(emb, range(5000))
    emb.prefetch(torch.arange(5000))
    if end == "close":
        emb.close()
    del emb
    gc.collect()
    wait_until(lambda: not (tmp_path / "spill").exists())
