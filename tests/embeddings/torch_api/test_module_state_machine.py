"""Random schedules of a DynamicEmbedding with all policies and tiers, compared with a dictionary.

The dictionary loses an id only when a callback of `on_evict` says so: then it knows every row.
"""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from springtide import DynamicEmbedding
from springtide.embeddings.eviction_policy import EVICTION_POLICIES, ScoredRows
from springtide.kernels.backend import backend
from tests.embeddings.backends import ops_of
from tests.support.gpu_emulation.simt import COMPILER
from tests.support.scale import NUM_EXAMPLES

DIM, TTL_MS = 4, 60
IDS = st.lists(st.integers(0, 50), max_size=30)
REASONS = {"capacity", "quota", "expired", "forgotten", "predicate"}


def rarest(rows: ScoredRows) -> torch.Tensor:
    return rows.counts * 10 + rows.ids % 3


class ModuleMachine(RuleBasedStateMachine):
    """One bucket of memory, perhaps two of a host tier, perhaps RocksDB. A gradient of ones: a row counts its steps."""

    backend = "cpu"

    @initialize(
        eviction=st.sampled_from([*sorted(EVICTION_POLICIES.keys() - {"custom"}), rarest]),
        spill=st.booleans(),
        host=st.booleans(),
        ttl=st.booleans(),
        quota=st.booleans(),
    )
    def begin(self, eviction: Any, spill: bool, host: bool, ttl: bool, quota: bool) -> None:
        self.ops = ops_of(self.backend, seed=1)
        self.scale = self.ops.width // backend("cpu").width
        self.folder = Path(tempfile.mkdtemp(prefix="springtide-module-"))
        self.keeps_rows, self.ttl_ms, self.now_ms = spill, TTL_MS if ttl else None, 1000
        self.emb = DynamicEmbedding(
            DIM,
            1,
            optimizer={"name": "sgd", "lr": 1.0},
            init_scale=0,
            eviction=eviction,
            spill=self.folder / "spill" if spill else None,
            host_capacity=32 * self.scale if host else None,
            ttl_seconds=TTL_MS / 1000 if ttl else None,
            quota_bytes=8 * 128 * self.scale if quota else None,
            device=self.ops,
        )
        self.rows: dict[int, tuple[int, int]] = {}  # id -> steps, last-seen
        self.ahead: torch.Tensor | None = None
        self.imported: set[int] = set()  # by the call that is running
        self.reasons: set[str] = set()
        self.emb.on_evict(self.forget_row)
        self.emb.advance(self.now_ms)

    def teardown(self) -> None:
        if hasattr(self, "emb"):
            self.emb.close()
            assert list(self.folder.iterdir()) == []
            shutil.rmtree(self.folder)

    def forget_row(self, ids: torch.Tensor, reason: str) -> None:
        assert ids.dtype == torch.int64
        assert reason in REASONS
        assert reason not in ("capacity", "quota") or not self.keeps_rows
        for id_ in ids.tolist():
            assert reason != "expired" or not self.is_alive(id_)
            if id_ in self.imported:
                self.rows.pop(id_, None)  # perhaps its row left before the import wrote one, and that left too
            else:
                del self.rows[id_]  # reported once
        self.emb.lookup(ids)  # the lock is free
        self.reasons.add(reason)

    def is_alive(self, id_: int) -> bool:
        return id_ in self.rows and (self.ttl_ms is None or self.rows[id_][1] >= self.now_ms - self.ttl_ms)

    def scaled(self, ids: list[int]) -> torch.Tensor:
        """`scale` ids for each of these: buckets fill as on a CPU."""
        return torch.tensor([self.scale * id_ + n for id_ in ids for n in range(self.scale)], dtype=torch.int64)

    @rule(ids=IDS, backward=st.booleans())
    def train(self, ids: list[int], backward: bool) -> None:
        self.step(self.scaled(ids), backward)

    @rule(seed=st.integers(0, 1000))
    def train_much(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(4):
            self.step(self.scaled(rng.integers(0, 100, 20).tolist()), True)
            self.now_ms += int(rng.integers(0, 20))
            self.emb.advance(self.now_ms)

    @rule(ids=IDS)
    def prefetch(self, ids: list[int]) -> None:
        self.ahead = self.scaled(ids)
        before = {name: count for name, count in self.emb.counters().items() if not name.startswith("spill")}
        self.emb.prefetch(self.ahead)
        after = {name: count for name, count in self.emb.counters().items() if name in before}
        assert after | {"hits_host": 0} == before | {"hits_host": 0}

    @precondition(lambda self: self.ahead is not None)
    @rule()
    def train_prefetched(self) -> None:
        assert self.ahead is not None
        self.step(self.ahead, True)
        self.ahead = None

    def step(self, ids: torch.Tensor, backward: bool) -> None:
        rows = self.emb(ids)
        # what was reported has left the dictionary by now; an expired row that is not reported yet is not used
        for id_, row in zip(ids.tolist(), rows.detach().tolist(), strict=True):
            if id_ not in self.rows:
                self.rows[id_] = 0, 0
            assert row == [-float(self.rows[id_][0])] * DIM
        if backward:
            for id_ in ids.tolist():
                self.rows[id_] = self.rows[id_][0] + 1, self.now_ms
            rows.sum().backward()  # may evict rows that it has updated

    @rule(ms=st.integers(0, 50))
    def advance(self, ms: int) -> None:
        self.now_ms += ms
        self.emb.advance(self.now_ms)

    @precondition(lambda self: self.keeps_rows)
    @rule()
    def purge(self) -> None:
        """Wait until the spill has written its queue, and has deleted what is worth it."""
        for _ in range(64):  # the cutoffs are passed on now and then
            self.emb.advance(self.now_ms)
        self.emb.table.disk.drain()  # type: ignore[attr-defined]
        self.emb.advance(self.now_ms)

    @rule(ids=IDS)
    def forget(self, ids: list[int]) -> None:
        self.ahead = None
        known = {id_ for id_ in self.scaled(ids).tolist() if self.is_alive(id_)}
        self.emb.forget(self.scaled(ids))
        assert not known & set(self.rows)

    @rule(part=st.integers(2, 5))
    def evict_if(self, part: int) -> None:
        chosen = {id_ for id_ in self.rows if self.is_alive(id_) and self.rows[id_][0] % part == 1}
        assert self.emb.evict_if(lambda rows: rows.values[:, 0] % -part == -1) == len(chosen)
        assert not chosen & set(self.rows)

    @rule(ids=st.lists(st.integers(100, 120), max_size=10, unique=True))
    def import_rows(self, ids: list[int]) -> None:
        import pyarrow as pa

        scaled = self.scaled(ids)
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(len(scaled) * DIM, np.float32)), DIM)
        seen = pa.array(np.full(len(scaled), self.now_ms))
        self.rows |= dict.fromkeys(scaled.tolist(), (0, self.now_ms))
        self.imported = set(scaled.tolist())
        self.emb.import_arrow(pa.table({"ids": pa.array(scaled.numpy()), "vectors": vectors, "last_seen_ms": seen}))
        self.imported = set()

    @rule()
    def save_and_load(self) -> None:
        state = self.emb.state_dict()
        self.rows = {id_: row for id_, row in self.rows.items() if self.is_alive(id_)}
        self.emb.load_state_dict(state)
        self.ahead = None

    @rule()
    def compare(self) -> None:
        ids = self.scaled(list(range(121)))
        rows, status = self.emb.lookup(ids)
        for id_, row, kind in zip(ids.tolist(), rows.tolist(), status.tolist(), strict=True):
            assert (kind == 0) == self.is_alive(id_), id_
            assert not self.is_alive(id_) or row == [-float(self.rows[id_][0])] * DIM
        exported = self.emb.export()
        assert exported["ids"].to_pylist() == sorted(id_ for id_ in self.rows if self.is_alive(id_))
        assert exported["last_seen_ms"].to_pylist() == [self.rows[id_][1] for id_ in exported["ids"].to_pylist()]
        self.emb.table.check_integrity()


TestModuleMachine = ModuleMachine.TestCase
TestModuleMachine.settings = settings(max_examples=NUM_EXAMPLES or 12, stateful_step_count=25, deadline=None)


class EmulatedModuleMachine(ModuleMachine):
    """The same on the CUDA backend as host C++, which is slow: few and short schedules."""

    backend = "emulated"


TestEmulatedModuleMachine = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")(
    EmulatedModuleMachine.TestCase
)
TestEmulatedModuleMachine.settings = settings(
    max_examples=NUM_EXAMPLES // 10 or 3, stateful_step_count=12, deadline=None
)


def test_a_row_deleted_below_and_created_again_in_one_call_is_reported() -> None:
    # found by the machine: the batch pushed expired rows of its own ids out of the host tier
    machine = ModuleMachine()
    machine.begin(eviction="lru", spill=True, host=True, ttl=True, quota=False)
    for seed in (0, 1, 0, 2):
        machine.train_much(seed=seed)
        machine.advance(ms=36)
        machine.purge()
        machine.train_much(seed=seed)
        machine.compare()
    machine.teardown()


def test_a_row_that_was_deleted_and_learned_again_is_reported_when_it_expires_below() -> None:
    # found by the machine: the older tombstone was taken for a newer one
    machine = ModuleMachine()
    machine.begin(eviction="l2-norm", spill=True, host=False, ttl=True, quota=False)
    machine.train_much(seed=0)
    machine.evict_if(part=2)
    machine.train_much(seed=0)
    machine.advance(ms=36)
    machine.purge()
    machine.train_much(seed=0)
    machine.compare()
    machine.teardown()
