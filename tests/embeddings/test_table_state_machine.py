"""Random schedules of a tiny table with all its policies and tiers against a dictionary."""

import copy
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from springtide_client.keys import SHARED_ROW_OFFSET

from embeddings.config import FeaturePolicy, TableConfig
from embeddings.errors import SpillError
from embeddings.lookup.handle import Lookup
from embeddings.lookup.prefetch import Prefetch
from embeddings.lookup.read_only import FORGOTTEN, KNOWN, NOT_ADMITTED, UNKNOWN
from embeddings.memory.capacity import Capacity
from embeddings.optimizer import RowOptimizer
from embeddings.rows import Rows, TableDelta
from embeddings.table import EmbeddingTable
from embeddings.tiers.host_tier import HostTier
from embeddings.tiers.interface import FoundRows, Spill
from embeddings.tiers.rocksdb.spill import RocksSpill
from kernels.backend import backend
from kernels.types import RowLayout, state_width_of
from tests.embeddings.backends import host, ops_of, uses_shared_row
from tests.embeddings.dict_table import DIM, SCALE, SEED, SKETCH_BLOCKS, DictTable, arrays
from tests.embeddings.tiers.flaky_spill import FlakySpill
from tests.kernels.oracle import Key, Row, nearest
from tests.support.gpu_emulation.emulated_ops import gpu_or_why_not
from tests.support.gpu_emulation.simt import COMPILER

FEATURES = 3  # the second has a time to live, the third asks for admission and has a quota
KEYS = st.tuples(st.integers(0, FEATURES - 1), st.integers(0, 40))
BATCH = st.lists(KEYS, max_size=30)
TTL_MS, MIN_COUNT, QUOTA_ROWS = 60, 3, 4
HALVE_SAMPLES = 50
KINDS: list[tuple[dict[str, Any], str]] = [
    ({"name": "rowwise-adagrad", "lr": 0.5}, "float32"),
    ({"name": "adam", "lr": 0.1, "weight_decay": 0.1}, "float32"),
    ({"name": "sgd", "lr": 0.5, "clip_norm": 1.0}, "bfloat16"),
]


class DictBase:
    """A base: the rows of a dictionary at one instant."""

    def __init__(self, rows: dict[Key, Row], width: int) -> None:
        self.rows, self.width = copy.deepcopy(rows), width

    def find(self, features_U: Any, ids_U: Any) -> FoundRows:
        keys = list(zip(features_U.tolist(), ids_U.tolist(), strict=True))
        rows = [self.rows.get(key) for key in keys]
        values, states = np.full((len(keys), DIM), 9, np.float32), np.full((len(keys), self.width), 9, np.float32)
        counts, last_seen = np.zeros(len(keys), np.int64), np.zeros(len(keys), np.int64)
        for u, row in enumerate(rows):
            if row is not None:
                values[u], states[u], counts[u], last_seen[u] = row.value, row.states, row.count, row.last_seen
        return FoundRows(np.array([row is not None for row in rows], np.bool_), values, states, counts, last_seen)


class TableMachine(RuleBasedStateMachine):
    """1 to 3 buckets, a side buffer, perhaps a bucket of a host tier, RocksDB below, a base below that."""

    twin = "cpu"

    @initialize(
        eviction=st.sampled_from(["lru", "lfu", "custom"]),
        kind=st.sampled_from(KINDS),
        host=st.booleans(),
        admits=st.booleans(),
    )
    def begin(self, eviction: str, kind: tuple[dict[str, Any], str], host: bool, admits: bool) -> None:
        optimizer, dtype = kind
        self.ops = ops_of(self.twin, seed=1)
        self.scale = self.ops.width // backend("cpu").width  # keys of the device for one that is drawn
        self.host = host
        self.folder = Path(tempfile.mkdtemp(prefix="springtide-machine-"))
        self.epoch, self.samples, self.clock = 0, 0, 0
        step = RowOptimizer.of(optimizer).step(optimizer["lr"], SEED)
        self.width = state_width_of(step.name, DIM)
        self.truth = DictTable(step, dtype, {2: MIN_COUNT} if admits else {})
        self.log: list[tuple[TableDelta, Any]] = []  # what was cut since the mapped base
        self.base, self.base_sketch = DictBase({}, self.width), (np.empty(0, np.int64), np.empty((0, 64), np.uint8))
        self.next_base: tuple[DictBase, int, int] | None = None  # with its generation and place in the log
        self.held: list[tuple[Lookup, list[Key], list[int]]] = []
        self.ahead: tuple[list[Key], list[int], Any, Prefetch] | None = None
        self.config = TableConfig(
            dim=DIM,
            init_scale=SCALE,
            optimizer=optimizer,
            dtype=dtype,
            eviction=eviction,
            admission={"sketch_bytes": 64 * SKETCH_BLOCKS, "decay_every_samples": HALVE_SAMPLES},
            features={
                1: FeaturePolicy(ttl_seconds=TTL_MS / 1000),
                2: FeaturePolicy(min_count=MIN_COUNT if admits else None, quota_bytes=self.scale * QUOTA_ROWS * 200),
            },
        )
        self.start()

    def start(self) -> None:
        self.epoch += 1
        self.spill = FlakySpill(RocksSpill.of_epoch(self.folder, self.epoch, dim=DIM, state_width=self.width))
        below: Spill = self.spill
        if self.host:
            layout = RowLayout(DIM, self.width, self.config.dtype)
            below = HostTier(self.spill, num_rows=16 * self.scale, layout=layout, ops=backend("cpu"))
        capacity = Capacity.of_rows(self.scale * (16 if self.epoch % 2 else 32), num_evicted_dirty=24 * self.scale)
        self.table = EmbeddingTable(
            self.config, seed=SEED, spill=below, base=self.base, capacity=capacity, device=self.ops
        )
        self.table.parts.quotas.slot_bytes = 200

    def teardown(self) -> None:
        if hasattr(self, "table"):
            self.held.clear()
            self.table.close()
            assert list(self.folder.iterdir()) == []
            shutil.rmtree(self.folder)

    def several(self, keys: list[Key]) -> list[Key]:
        """As many for each key as fill a bucket of this device."""
        return [(feature, self.scale * id_ + n) for feature, id_ in keys for n in range(self.scale)]

    def times(self, num: int) -> list[int]:
        self.clock += 1
        return [self.clock * 10 + k % 3 for k in range(num)]

    @rule(keys=BATCH, seed=st.integers(0, 3))
    def look_up(self, keys: list[Key], seed: int) -> None:
        keys = self.several(keys)
        if self.table.needs_checkpoint(len(keys)):
            self.cut()
        times = self.times(len(keys))
        self.take(keys, times, (*arrays(keys), np.array(times, np.int64)), None, seed)

    @rule(keys=BATCH)
    def prefetch(self, keys: list[Key]) -> None:
        keys = self.several(keys)
        times = self.times(len(keys))
        given = (*arrays(keys), np.array(times, np.int64))
        counters = self.table.counters()
        try:
            self.ahead = keys, times, given, self.table.prefetch(*given)
        except SpillError:
            assert self.spill.broken
        for name in ("keys", "created", "admitted", "not_admitted", "evicted"):
            assert self.table.counters()[name] == counters[name]

    @precondition(lambda self: self.ahead is not None)
    @rule(seed=st.integers(0, 3))
    def look_up_what_was_prefetched(self, seed: int) -> None:
        assert self.ahead is not None
        keys, times, given, prefetched = self.ahead
        self.ahead = None
        if self.table.needs_checkpoint(len(keys)):
            self.cut()
        self.take(keys, times, given, prefetched, seed)

    @rule(batches=st.lists(BATCH, min_size=2, max_size=4), seed=st.integers(0, 1000))
    def learn_with_lookahead(self, batches: list[list[Key]], seed: int) -> None:
        """As a learner does: the next batch is prefetched while this one's rows are held."""
        self.ahead = None
        for batch, following in zip(batches, [*batches[1:], None], strict=True):
            num_held = len(self.held)
            if self.ahead is None:
                self.look_up(batch, seed % 4)
            else:
                self.look_up_what_was_prefetched(seed % 4)
            if following is not None:
                self.prefetch(following)
            if len(self.held) > num_held:
                self.update(num_held, seed)

    def take(self, keys: list[Key], times: list[int], given: Any, prefetched: Any, seed: int) -> None:
        scores = None
        if self.config.eviction == "custom":
            scores = np.random.default_rng(seed).standard_normal(len(keys)).astype(np.float32)
        num_rows = self.table.parts.memory.num_rows
        try:
            lookup = self.table.lookup(*given, scores_K=scores, prefetched=prefetched)
        except SpillError:
            assert self.spill.broken
            assert self.table.parts.memory.num_rows <= num_rows
            return
        taken = self.truth.look_up(keys, times)
        shared = [feature >= SHARED_ROW_OFFSET for feature, _ in taken]
        np.testing.assert_array_equal(uses_shared_row(lookup), shared)
        for key, row in zip(taken, host(self.table.gather(lookup)), strict=True):
            np.testing.assert_array_equal(row, self.truth.rows[key].value)
        self.held.append((lookup, taken, times))

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 5), seed=st.integers(0, 1000))
    def update(self, which: int, seed: int) -> None:
        lookup, keys, times = self.held.pop(which % len(self.held))
        grads = np.random.default_rng(seed).standard_normal((len(keys), DIM)).astype(np.float32)
        if keys and seed % 5 == 0:
            grads[seed % len(keys), 0] = np.nan
        try:
            self.table.update(lookup, grads)
        except SpillError:  # rows of the overflow area could not be spilled: they wait
            assert self.spill.broken
        self.truth.update(keys, times, grads)
        self.samples += len(keys)

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 5))
    def drop(self, which: int) -> None:
        self.held.pop(which % len(self.held))
        self.settle()

    def settle(self) -> None:
        try:
            self.table.parts.memory.apply_releases()
        except SpillError:
            assert self.spill.broken

    @rule()
    def break_or_mend_the_spill(self) -> None:
        self.spill.broken = not self.spill.broken

    @rule(late_ms=st.integers(0, 100))
    def advance(self, late_ms: int) -> None:
        event_ms = max(self.table.parts.ttl.event_ms, self.clock * 10 - late_ms)
        self.table.advance(event_ms, self.samples)
        self.truth.raise_horizon(1, event_ms - TTL_MS)
        self.truth.age = self.samples // HALVE_SAMPLES

    @rule(feature=st.integers(0, FEATURES - 1), late_ms=st.integers(0, 100))
    def forget_by_rule(self, feature: int, late_ms: int) -> None:
        self.table.raise_expiry_cutoffs({feature: self.clock * 10 - late_ms})
        self.truth.raise_horizon(feature, self.clock * 10 - late_ms)

    @rule(keys=st.lists(KEYS, max_size=60))
    def find(self, keys: list[Key]) -> None:
        keys = self.several(keys)
        try:
            rows, status = map(host, self.table.find(*arrays(keys)))
        except SpillError:
            assert self.spill.broken
            return
        for key, row, kind in zip(keys, rows, status, strict=True):
            if self.truth.alive(key):
                # a row that was never learned may be gone or not, with its first value
                assert kind == KNOWN or self.truth.rows[key].count == 0
            else:
                assert kind == FORGOTTEN or kind == (NOT_ADMITTED if self.truth.waits(key) else UNKNOWN)
            if kind == KNOWN:
                np.testing.assert_array_equal(row, self.truth.rows[key].value)
            else:
                assert np.isnan(row).all()

    # a lookup held through a forgetting is the next rule's
    @precondition(lambda self: not self.spill.broken)
    @rule(keys=st.lists(KEYS, max_size=5, unique=True))
    def forget(self, keys: list[Key]) -> None:
        keys = self.several(keys)
        self.held.clear()
        self.table.parts.memory.apply_releases()
        self.table.forget(*arrays(keys))
        self.truth.forget(keys)
        rows, status = map(host, self.table.find(*arrays(keys)))
        assert np.isnan(rows).all()
        assert (status == FORGOTTEN).all()

    @precondition(lambda self: self.held and not self.spill.broken)
    @rule(seed=st.integers(0, 1000))
    def forget_what_is_held(self, seed: int) -> None:
        for _ in range(len(self.held) - 1):
            self.drop(0)
        keys = sorted(set(self.held[0][1][::2]))
        self.table.forget(*arrays(keys))
        self.truth.forget(keys)
        self.update(0, seed)

    @precondition(lambda self: not self.spill.broken)
    @rule(keys=st.lists(KEYS, max_size=30, unique=True), seed=st.integers(0, 1000))
    def write(self, keys: list[Key], seed: int) -> None:
        """Rows from elsewhere."""
        keys = self.several(keys)
        self.held.clear()
        if self.table.needs_checkpoint(len(keys)):
            self.cut()
        rng = np.random.default_rng(seed)
        values = rng.standard_normal((len(keys), DIM)).astype(np.float32)
        if self.config.dtype == "bfloat16":
            values = nearest(values)
        states = rng.random((len(keys), self.width)).astype(np.float32)
        if self.config.optimizer["name"] == "adam":
            states[:, -1] = rng.integers(0, 9, len(keys))  # steps
        now = np.full(len(keys), self.clock * 10, np.int64)
        self.table.write(Rows(*arrays(keys), values, states, np.arange(1, len(keys) + 1), now))
        for n, key in enumerate(keys):
            row = self.truth.new_row(key)
            row.value, row.states, row.count, row.last_seen = values[n].copy(), states[n].copy(), n + 1, int(now[n])
            self.truth.write(key, row)

    @precondition(lambda self: not self.spill.broken)
    @rule(num_buckets=st.integers(1, 3))
    def resize(self, num_buckets: int) -> None:
        self.held.clear()
        if self.table.needs_checkpoint(48 * self.scale):
            self.cut()
        touched = self.table.parts.dirty_rows.keys()
        self.table.parts.memory.resize(self.ops.width * num_buckets, self.ops.width)
        self.table.parts.dirty_rows.renumber(*touched)
        assert self.table.parts.memory.store.num_slots == self.ops.width * num_buckets

    @precondition(lambda self: not self.spill.broken)
    @rule()
    def export(self) -> None:
        rows = self.table.export()
        keys = list(zip(rows.features.tolist(), rows.ids.tolist(), strict=True))
        assert len(set(keys)) == len(keys)
        for n, key in enumerate(keys):
            np.testing.assert_array_equal(rows.values[n], self.truth.rows[key].value)
            assert rows.counts[n] == self.truth.rows[key].count
        below = set(self.base.rows)
        assert {key for key, row in self.truth.rows.items() if row.count and self.truth.alive(key)} <= {*keys, *below}

    @rule()
    def cut(self) -> None:
        touched = self.table.take_delta()
        told = list(zip(touched.features.tolist(), touched.ids.tolist(), strict=True))
        assert len(set(told)) == len(told)
        assert set(told) == {key for key in self.truth.touched if self.truth.alive(key)}
        for n, key in enumerate(told):
            row = self.truth.rows[key]
            np.testing.assert_array_equal(touched.values[n], row.value)
            np.testing.assert_array_equal(touched.states[n], row.states)
            assert touched.counts[n] == row.count
            assert touched.last_seen[n] == row.last_seen
        gone = set(zip(touched.forgotten_features.tolist(), touched.forgotten_ids.tolist(), strict=True))
        assert not gone & set(told)
        assert gone == self.truth.forgotten
        self.truth.touched, self.truth.forgotten = set(), set()
        self.log.append((touched, self.table.take_sketch_delta()))

    @precondition(lambda self: self.next_base is None)
    @rule()
    def begin_base(self) -> None:
        self.cut()
        learned = {key: row for key, row in self.truth.rows.items() if row.count and self.truth.alive(key)}
        self.next_base = DictBase(learned, self.width), self.table.open_generation(), len(self.log)

    @precondition(lambda self: self.next_base is not None)
    @rule()
    def map_base(self) -> None:
        assert self.next_base is not None
        self.base, generation, place = self.next_base
        self.table.map_base(self.base, generation)
        self.log = [(EMPTY, sketch) for _, sketch in self.log[:place]] + self.log[place:]
        self.next_base = None

    @rule()
    def start_again(self) -> None:
        """A new process: the base and the log are all it has."""
        self.held.clear()
        self.ahead = None
        self.cut()
        state, horizons = self.table.clock_state(), self.table.expiry_cutoffs
        self.spill.broken = False
        self.table.close()
        self.next_base = None
        self.truth.rows = {key: row for key, row in self.truth.rows.items() if row.count and self.truth.alive(key)}
        self.start()
        for touched, sketch in self.log:
            self.table.restore(touched)
            self.table.restore_sketch(*sketch)
        self.table.restore_clock_state(state)
        self.table.raise_expiry_cutoffs(horizons)
        assert len(self.table.take_delta()) == 0

    @invariant()
    def the_parts_agree(self) -> None:
        if not hasattr(self, "table"):
            return
        self.table.check_integrity()
        # what is not held fits into the slots
        if self.table.parts.memory.num_pinned == 0:
            assert self.table.rows_by_tier()["device"] <= self.table.parts.memory.store.num_slots
            rows_F = self.table.parts.quotas.rows_F
            assert len(rows_F) < FEATURES or rows_F[2] <= self.scale * QUOTA_ROWS


NOTHING = np.empty(0, np.int64)
EMPTY = TableDelta.of(Rows(NOTHING.astype(np.uint16), NOTHING, np.empty((0, DIM)), np.empty((0, 0)), NOTHING, NOTHING))

TestTableMachine = TableMachine.TestCase
TestTableMachine.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


class EmulatedMachine(TableMachine):
    """The same on the CUDA twin as host C++, which is slow: few and short."""

    twin = "emulated"


class GpuMachine(TableMachine):
    twin = "gpu"


TestEmulatedMachine = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")(EmulatedMachine.TestCase)
TestEmulatedMachine.settings = settings(max_examples=16, stateful_step_count=20, deadline=None)
TestGpuMachine = pytest.mark.gpu(pytest.mark.skipif(bool(gpu_or_why_not()), reason="no GPU")(GpuMachine.TestCase))
TestGpuMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
