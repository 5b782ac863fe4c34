"""Callbacks with the ids whose rows left for good, and predicates and scores to evict by."""

import copy
import gc
import pickle
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from springtide import DynamicEmbedding
from springtide.embeddings.eviction_policy import ScoredRows, l2_norm
from springtide.kernels.ops import Ops
from tests.embeddings.torch_api.test_devices import place_of
from tests.embeddings.torch_api.test_tiers import Clock, status, train
from tests.support.waiting import wait_until


class Removed:
    """A callback that keeps what it is called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[int]]] = []

    def __call__(self, ids: torch.Tensor, reason: str) -> None:
        assert ids.dtype == torch.int64
        self.calls.append((reason, sorted(ids.tolist())))


def test_a_row_evicted_without_a_spill_is_reported(ops: Ops) -> None:
    emb, removed, where, width = DynamicEmbedding(4, 1, device=ops), Removed(), place_of(ops), ops.width
    emb.on_evict(removed)
    train(emb, torch.arange(width, device=where))
    assert removed.calls == []
    train(emb, torch.tensor([1000, 1001], device=where))
    [(reason, ids)] = removed.calls
    assert (reason, len(ids)) == ("capacity", 2)
    assert set(ids) == {id_ for id_ in range(width) if status(emb, [id_]) != [0]}


def test_a_row_that_a_lower_tier_keeps_is_not_reported(ops: Ops, tmp_path: Path) -> None:
    removed, width, where = Removed(), ops.width, place_of(ops)
    spilled = DynamicEmbedding(4, 1, device=ops, spill=tmp_path / "spill", quota_bytes=64 * width)
    hosted = DynamicEmbedding(4, 1, device=ops, host_capacity=8 * width)
    for emb in (spilled, hosted):
        emb.on_evict(removed)
        for _ in range(2):
            for start in range(0, 4 * width, width):
                train(emb, torch.arange(start, start + width, device=where))
        emb.advance()
    assert removed.calls == []
    spilled.close()


def test_a_host_tier_reports_the_rows_that_it_loses() -> None:
    emb, lost = DynamicEmbedding(4, 16, host_capacity=16), set[int]()
    emb.on_evict(lambda ids, reason: lost.update(ids.tolist()))
    for start in range(0, 64, 16):
        train(emb, range(start, start + 16))
    emb.advance()
    assert len(lost) == emb.counters()["lost"] > 0
    assert lost == {id_ for id_ in range(64) if status(emb, [id_]) != [0]}


def test_rows_over_the_quota_are_reported(ops: Ops) -> None:
    emb, removed = DynamicEmbedding(4, 4 * ops.width, device=ops, quota_bytes=128 * ops.width), Removed()
    emb.on_evict(removed)
    train(emb, torch.arange(2 * ops.width, device=place_of(ops)))
    emb.advance()
    assert [reason for reason, _ in removed.calls] == ["quota"]
    assert len(removed.calls[0][1]) == emb.counters()["evicted_quota"]


def test_expired_rows_are_reported_once(ops: Ops, tmp_path: Path) -> None:
    clock, where, width = Clock(), place_of(ops), ops.width
    emb, removed = DynamicEmbedding(4, 1, device=ops, clock=clock, ttl_seconds=10, spill=tmp_path / "s"), Removed()
    emb.on_evict(removed)
    train(emb, torch.arange(2 * width, device=where))  # half of them are spilled
    clock.seconds += 11
    train(emb, torch.arange(0, 2 * width, 2, device=where))  # half are found to be expired, and are created again
    [(reason, ids)] = removed.calls
    assert reason == "expired"
    assert len(ids) == len(set(ids))
    assert set(ids) >= set(range(0, 2 * width, 2))
    clock.seconds += 11
    for _ in range(70):
        emb.advance()
    reported = [id_ for reason, ids in removed.calls for id_ in ids if reason == "expired"]
    resident = emb.rows_by_tier()["device"]
    assert resident == 0
    assert len(reported) >= 2 * width
    assert max(reported.count(id_) for id_ in reported) <= 2
    emb.close()


@pytest.mark.parametrize("host_capacity", [None, 64])
def test_rows_that_expire_in_the_spill_are_reported_when_they_are_deleted(host_capacity: Any, tmp_path: Path) -> None:
    clock, reported = Clock(), list[int]()
    emb = DynamicEmbedding(4, 16, clock=clock, ttl_seconds=10, spill=tmp_path / "s", host_capacity=host_capacity)
    emb.on_evict(lambda ids, reason: reported.extend(ids.tolist()))
    train(emb, range(2000))
    emb.table.disk.drain()  # type: ignore[attr-defined]
    clock.seconds += 5
    train(emb, range(1000))
    clock.seconds += 6

    def purge() -> bool:
        for _ in range(64):  # cutoffs are passed on now and then
            emb.advance()
        emb.table.disk.drain()  # type: ignore[attr-defined]
        emb.advance()
        return len(reported) == 1000

    if host_capacity is None:
        wait_until(purge, lambda: f"1000 reports, not {len(reported)}")
    else:
        purge()  # expired rows may stay in the host tier, until others need their slots
    assert len(set(reported)) == len(reported) > 900
    assert set(reported) <= set(range(1000, 2000))
    assert status(emb, range(1000)) == [0] * 1000
    emb.close()


def test_forgotten_rows_are_reported_if_there_were_any(ops: Ops, tmp_path: Path) -> None:
    emb, removed, where = DynamicEmbedding(4, 1, device=ops, spill=tmp_path / "spill"), Removed(), place_of(ops)
    emb.on_evict(removed)
    train(emb, torch.arange(3 * ops.width, device=where))
    emb.forget(torch.tensor([1, 2, 2, 10_000], device=where))
    emb.forget(torch.tensor([1, 10_000], device=where))
    assert removed.calls == [("forgotten", [1, 2])]
    emb.close()


def test_the_shared_row_is_never_reported() -> None:
    emb, removed = DynamicEmbedding(4, 16, admission={"min_count": 2, "sketch_bytes": "4KiB"}), Removed()
    emb.on_evict(removed)
    for start in range(0, 200, 10):
        train(emb, [*range(start, start + 10)] * 2)
        train(emb, [start + 1000])
    reported = [id_ for _, ids in removed.calls for id_ in ids]
    assert len(reported) == len(set(reported)) > 0
    assert set(reported) <= set(range(200))


def test_a_callback_may_use_the_object_and_may_be_removed() -> None:
    emb, seen = DynamicEmbedding(4, 16), list[int]()

    def callback(ids: torch.Tensor, reason: str) -> None:
        assert set(status(emb, ids)) <= {1, 3}
        seen.extend(ids.tolist())
        if reason == "capacity":
            emb.forget(torch.tensor(emb.export()["ids"].to_pylist()[:1]))  # which calls it again

    remove = emb.on_evict(callback)
    train(emb, range(20))
    train(emb, range(100, 120))
    assert emb.counters()["forgotten"] > 0
    assert len(seen) == emb.counters()["forgotten"] + emb.counters()["lost"]
    remove()
    before = len(seen)
    train(emb, range(200, 220))
    assert len(seen) == before
    with pytest.raises(ValueError, match="on_evict"):
        emb.on_evict(5)  # type: ignore[arg-type]


def test_the_exception_of_a_callback_goes_to_the_caller_and_leaves_the_object_intact() -> None:
    emb = DynamicEmbedding(4, 16)

    def callback(ids: torch.Tensor, reason: str) -> None:
        raise KeyError("mine")

    train(emb, range(16))
    remove = emb.on_evict(callback)
    with pytest.raises(KeyError, match="mine"):
        train(emb, range(100, 110))
    remove()
    emb.table.check_integrity()
    train(emb, range(100, 110))
    assert status(emb, range(100, 110)) == [0] * 10


def test_a_load_reports_what_does_not_fit_and_a_copy_has_no_callbacks() -> None:
    large, small, removed = DynamicEmbedding(4, 256), DynamicEmbedding(4, 16), Removed()
    train(large, range(40))
    train(small, range(1000, 1010))
    small.on_evict(removed)
    small.load_state_dict(large.state_dict())
    assert sorted(id_ for _, ids in removed.calls for id_ in ids) == [i for i in range(40) if status(small, [i]) != [0]]
    before = len(removed.calls)
    for other in (copy.deepcopy(small), pickle.loads(pickle.dumps(DynamicEmbedding(4, 16)))):
        train(other, range(100, 150))
    assert len(removed.calls) == before
    train(small, range(100, 150))
    assert len(removed.calls) > before


def test_threads_report_every_row_once() -> None:
    emb, reported = DynamicEmbedding(4, 64), list[int]()
    emb.on_evict(lambda ids, reason: reported.extend(ids.tolist()))

    def work(start: int) -> None:
        for at in range(start, start + 1000, 50):
            train(emb, range(at, at + 50))

    threads = [threading.Thread(target=work, args=(10_000 * number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    emb.advance()
    assert len(reported) == len(set(reported)) == emb.counters()["lost"]
    assert len(reported) + len(emb) == 4000


class Mirror:
    def __init__(self, folder: Path) -> None:
        self.emb = DynamicEmbedding(4, 16, spill=folder)
        self.emb.on_evict(self.read)

    def read(self, ids: torch.Tensor, reason: str) -> None:
        self.emb.lookup(ids)


def test_a_callback_that_refers_to_the_object_does_not_keep_it(tmp_path: Path) -> None:
    mirror = Mirror(tmp_path / "spill")
    train(mirror.emb, range(100))
    gone = weakref.ref(mirror.emb)
    del mirror
    gc.collect()
    assert gone() is None
    assert not (tmp_path / "spill").exists()


# predicates and scores


def test_evict_if_deletes_rows_in_every_tier(ops: Ops, tmp_path: Path) -> None:
    removed, where = Removed(), place_of(ops)
    emb = DynamicEmbedding(
        4, 1, device=ops, host_capacity=32, spill=tmp_path / "s", optimizer={"name": "sgd", "lr": 1.0}, init_scale=0
    )
    emb.on_evict(removed)
    ids = torch.arange(3 * ops.width, device=where)
    for step in range(3):
        (emb(ids[step * 10 :]).sum()).backward()
    assert emb.evict_if(lambda rows: l2_norm(rows) < 3) == 10  # the norm of a row of ones is 2
    assert removed.calls == [("predicate", list(range(10)))]
    assert emb.evict_if(lambda rows: (rows.counts == 2) & (rows.values[:, 0] == -2)) == 10
    assert emb.export()["ids"].to_pylist() == list(range(20, 3 * ops.width))
    for wrong in (lambda rows: rows.counts, lambda rows: True, lambda rows: rows.values > 0):
        with pytest.raises(ValueError, match="one bool a row"):
            emb.evict_if(wrong)
    emb.close()


def by_count(rows: ScoredRows) -> torch.Tensor:
    return rows.counts


class Learned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, rows: ScoredRows) -> torch.Tensor:
        return rows.values @ self.weight


def test_eviction_may_be_a_function_of_rows(ops: Ops, tmp_path: Path) -> None:
    emb, width = DynamicEmbedding(4, 1, device=ops, eviction=by_count), ops.width
    where = place_of(ops)
    train(emb, torch.arange(width, device=where).repeat(2)[:-1])
    train(emb, torch.tensor([5000], device=where))
    assert status(emb, torch.tensor([width - 1, 0], device=where)) == [3, 0]
    with pytest.raises(ValueError, match="scores"):
        emb(torch.tensor([1], device=where), scores=torch.ones(1))
    again = DynamicEmbedding(4, 1, device=ops, eviction=by_count)
    again.load_state_dict(emb.state_dict())
    train(again, torch.tensor([6000], device=where))
    assert status(again, torch.tensor([5000, 0], device=where)) == [3, 0]


def test_a_score_is_copied_with_the_object_and_is_no_part_of_the_model() -> None:
    emb = DynamicEmbedding(4, 16, eviction=by_count)
    train(emb, range(16))
    train(emb, range(15))
    for other in (copy.deepcopy(emb), pickle.loads(pickle.dumps(emb))):
        train(other, [100])
        assert status(other, [14, 15]) == [0, 3]
    learned = DynamicEmbedding(4, 16, eviction=Learned())
    train(learned, range(40))
    assert list(learned.parameters()) == []


def test_a_score_may_not_use_the_object_that_calls_it() -> None:
    objects: list[DynamicEmbedding] = []

    def score(rows: ScoredRows) -> torch.Tensor:
        objects[0].lookup(rows.ids)
        return rows.counts

    objects.append(DynamicEmbedding(4, 16, eviction=score))
    with pytest.raises(ValueError, match="may not use"):
        train(objects[0], [1])
    assert status(objects[0], [1]) == [1]


@pytest.mark.parametrize("eviction", ["l2-norm", "lru"])
def test_named_evictions(eviction: Any) -> None:
    emb = DynamicEmbedding(4, 16, eviction=eviction, optimizer={"name": "sgd", "lr": 1.0}, init_scale=0)
    (emb(torch.arange(16)) * (1 + torch.arange(16)[:, None] % 5)).sum().backward()
    train(emb, [0])  # now 2; 5, 10 and 15 are 1
    train(emb, [100])
    gone = {id_ for id_ in range(16) if status(emb, [id_]) == [3]}
    assert len(gone) == 1
    assert eviction == "lru" or gone < {5, 10, 15}
