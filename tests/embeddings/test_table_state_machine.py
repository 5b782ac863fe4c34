"""Random schedules of a tiny table with all policies and tiers, compared with a dictionary."""

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

from springtide.embeddings.config import FeaturePolicy, TableConfig
from springtide.embeddings.errors import SpillError
from springtide.embeddings.eviction_policy import EVICTION_POLICIES
from springtide.embeddings.lookup.handle import Lookup, Prefetch
from springtide.embeddings.lookup.materialize import FORGOTTEN, KNOWN, NOT_ADMITTED, UNKNOWN
from springtide.embeddings.memory.capacity import Capacity
from springtide.embeddings.optimizer import RowOptimizer
from springtide.embeddings.rows import TableDelta
from springtide.embeddings.table import EmbeddingTable
from springtide.embeddings.tiers.found_rows import FoundRows
from springtide.embeddings.tiers.host_tier import HostTier
from springtide.embeddings.tiers.interface import Spill
from springtide.embeddings.tiers.record_kinds import ABSENT, IN_BASE
from springtide.embeddings.tiers.rocksdb.spill import RocksSpill
from springtide.kernels.backend import backend
from springtide.kernels.row_optimizers import OPTIMIZERS
from springtide_client.keys import SHARED_ROW_OFFSET
from springtide_client.rows.row_block import RowBlock
from tests.embeddings.backends import host, ops_of, uses_shared_row
from tests.embeddings.dict_table import DIM, SCALE, SEED, SKETCH_BLOCKS, DictTable, Taken, arrays
from tests.embeddings.tiers.flaky_spill import FlakySpill
from tests.kernels.oracle import Key, Row, nearest
from tests.support.gpu_emulation.emulated_ops import gpu_or_why_not
from tests.support.gpu_emulation.simt import COMPILER

FEATURES = 3  # the second has a TTL, the third has admission and a quota
KEYS = st.tuples(st.integers(0, FEATURES - 1), st.integers(0, 40))
BATCH = st.lists(KEYS, max_size=30)
TTL_MS, MIN_COUNT, QUOTA_ROWS = 60, 3, 4
DECAY_SAMPLES = 50
KINDS: list[tuple[dict[str, Any], str]] = [
    ({"name": "rowwise-adagrad", "lr": 0.5}, "float32"),
    ({"name": "adam", "lr": 0.1, "weight_decay": 0.1}, "float32"),
    ({"name": "sgd", "lr": 0.5, "clip_norm": 1.0}, "bfloat16"),
]


class DictBase:
    """A base with the rows of a dictionary at one time."""

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
        kinds_U = np.array([ABSENT if row is None else IN_BASE for row in rows], np.uint8)
        return FoundRows(RowBlock(features_U, ids_U, values, states, counts, last_seen), kinds_U)


class TableMachine(RuleBasedStateMachine):
    """1 to 3 buckets of memory, perhaps a host tier of one bucket, RocksDB, and a base."""

    backend = "cpu"

    @initialize(
        eviction=st.sampled_from(sorted(EVICTION_POLICIES)),
        kind=st.sampled_from(KINDS),
        host=st.booleans(),
        admits=st.booleans(),
        wide=st.sampled_from([0, 5]),
    )
    def begin(self, eviction: str, kind: tuple[dict[str, Any], str], host: bool, admits: bool, wide: int) -> None:
        optimizer, dtype = kind
        self.ops = ops_of(self.backend, seed=1)
        self.scale = self.ops.width // backend("cpu").width  # keys for each drawn one: buckets fill as on a CPU
        self.host = host
        self.folder = Path(tempfile.mkdtemp(prefix="springtide-machine-"))
        self.epoch, self.samples, self.clock = 0, 0, 0
        step = RowOptimizer.of(optimizer).step(optimizer["lr"], SEED)
        self.width = OPTIMIZERS[step.name].state_width(DIM) + wide
        self.truth = DictTable(step, dtype, {2: MIN_COUNT} if admits else {}, wide)
        self.log: list[tuple[TableDelta, Any]] = []  # deltas since the mapped base
        self.base, self.base_sketch = DictBase({}, self.width), (np.empty(0, np.int64), np.empty((0, 64), np.uint8))
        self.next_base: tuple[DictBase, int, int] | None = None  # with its generation and place in the log
        self.open: list[tuple[Lookup, Taken]] = []
        self.ahead: tuple[list[Key], list[int], Any, Prefetch] | None = None
        self.config = TableConfig(
            dim=DIM,
            init_scale=SCALE,
            optimizer=optimizer,
            dtype=dtype,
            eviction=eviction,
            wide_width=wide,
            admission={"sketch_bytes": 64 * SKETCH_BLOCKS, "decay_every_samples": DECAY_SAMPLES},
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
            num_rows = 16 * self.scale
            below = HostTier(self.spill, num_rows=num_rows, layout=self.config.layout, ops=backend("cpu"))
        capacity = Capacity.of_rows(self.scale * (16 if self.epoch % 2 else 32), num_evicted_dirty=24 * self.scale)
        self.table = EmbeddingTable(
            self.config, seed=SEED, spill=below, base=self.base, capacity=capacity, device=self.ops
        )
        self.table.quotas.slot_bytes = 200

    def teardown(self) -> None:
        if hasattr(self, "table"):
            self.open.clear()
            self.table.close()
            assert list(self.folder.iterdir()) == []
            shutil.rmtree(self.folder)

    def scaled(self, keys: list[Key]) -> list[Key]:
        """`scale` keys for each of these."""
        return [(feature, self.scale * id_ + n) for feature, id_ in keys for n in range(self.scale)]

    def times(self, num: int) -> list[int]:
        self.clock += 1
        return [self.clock * 10 + k % 3 for k in range(num)]

    @rule(keys=BATCH, seed=st.integers(0, 3))
    def lookup(self, keys: list[Key], seed: int) -> None:
        keys = self.scaled(keys)
        if len(keys) > self.table.max_keys():
            self.take_delta()
        times = self.times(len(keys))
        self.take(keys, times, (*arrays(keys), np.array(times, np.int64)), None, seed)

    @rule(keys=BATCH)
    def prefetch(self, keys: list[Key]) -> None:
        keys = self.scaled(keys)
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
    def lookup_prefetched(self, seed: int) -> None:
        assert self.ahead is not None
        keys, times, given, prefetched = self.ahead
        self.ahead = None
        if len(keys) > self.table.max_keys():
            self.take_delta()
        self.take(keys, times, given, prefetched, seed)

    @rule(batches=st.lists(BATCH, min_size=2, max_size=4), seed=st.integers(0, 1000))
    def train_with_prefetching(self, batches: list[list[Key]], seed: int) -> None:
        """As the trainer does it: the next batch is prefetched while this one's rows are pinned."""
        self.ahead = None
        for batch, following in zip(batches, [*batches[1:], None], strict=True):
            num_open = len(self.open)
            if self.ahead is None:
                self.lookup(batch, seed % 4)
            else:
                self.lookup_prefetched(seed % 4)
            if following is not None:
                self.prefetch(following)
            if len(self.open) > num_open:
                self.update(num_open, seed)

    def take(self, keys: list[Key], times: list[int], given: Any, prefetched: Any, seed: int) -> None:
        scores = None
        if self.config.eviction == "custom":
            scores = np.random.default_rng(seed).standard_normal(len(keys)).astype(np.float32)
        num_rows = self.table.memory.num_rows
        try:
            lookup = self.table.lookup(*given, scores_K=scores, prefetched=prefetched)
        except SpillError:
            assert self.spill.broken
            assert self.table.memory.num_rows <= num_rows
            return
        taken = self.truth.lookup(keys, times, None if lookup.rowless is None else lookup.rowless.key_hash_N.tolist())
        shared = [feature >= SHARED_ROW_OFFSET for feature, _ in taken.keys]
        np.testing.assert_array_equal(uses_shared_row(lookup), shared)
        for key, row in zip(taken.keys, host(self.table.gather(lookup)), strict=True):
            np.testing.assert_array_equal(row, self.truth.rows[key].value)
        self.open.append((lookup, taken))

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 5), seed=st.integers(0, 1000))
    def update(self, which: int, seed: int) -> None:
        lookup, taken = self.open.pop(which % len(self.open))
        keys = taken.keys
        grads = np.random.default_rng(seed).standard_normal((len(keys), DIM)).astype(np.float32)
        if keys and seed % 5 == 0:
            grads[seed % len(keys), 0] = np.nan
        try:
            self.table.update(lookup, grads)
        except SpillError:  # rows of the overflow area could not be spilled and stay in memory
            assert self.spill.broken
        self.truth.update(taken, grads)
        self.samples += len(keys)

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 5), seed=st.integers(0, 1000))
    def learn_elsewhere(self, which: int, seed: int) -> None:
        """Rows are read with all their columns, written back, and only counted, or updated too."""
        lookup, taken = self.open[which % len(self.open)]
        values, states, counts, last_seen, _ = map(host, self.table.read_rows(lookup))
        unique = zip(host(lookup.unique.features_U).tolist(), host(lookup.unique.ids_U).tolist(), strict=True)
        rng = np.random.default_rng(seed)
        new_values = values + rng.standard_normal(values.shape).astype(np.float32)
        new_states = states + rng.random(states.shape, np.float32)
        new_states[:, : self.width - self.truth.wide] = states[:, : self.width - self.truth.wide]
        self.table.write_rows(lookup, new_values, new_states)
        for u, key in enumerate(unique):
            row = self.truth.rows.get(key)
            if row is None:  # forgotten after its lookup
                assert np.isnan(values[u]).all()
                continue
            np.testing.assert_array_equal(values[u], row.value)
            np.testing.assert_array_equal(states[u], row.states)
            assert (counts[u], last_seen[u]) == (row.count, row.last_seen)
            row.write_learned(new_values[u], new_states[u], SEED)
        if seed % 2:
            self.update(which, seed)
            return
        self.open.pop(which % len(self.open))
        try:
            self.table.touch(lookup)
        except SpillError:  # rows of the overflow area could not be spilled and stay in memory
            assert self.spill.broken
        self.truth.touch(taken)

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 5))
    def drop(self, which: int) -> None:
        self.open.pop(which % len(self.open))
        self.apply_releases()

    def apply_releases(self) -> None:
        try:
            self.table.memory.apply_releases()
        except SpillError:
            assert self.spill.broken

    @rule()
    def break_or_repair_the_spill(self) -> None:
        self.spill.broken = not self.spill.broken

    @rule(late_ms=st.integers(0, 100))
    def advance(self, late_ms: int) -> None:
        event_ms = max(self.table.ttl.event_ms, self.clock * 10 - late_ms)
        self.table.advance(event_ms, self.samples)
        self.truth.raise_cutoff(1, event_ms - TTL_MS)
        self.truth.age = self.samples // DECAY_SAMPLES

    @rule(feature=st.integers(0, FEATURES - 1), late_ms=st.integers(0, 100))
    def raise_cutoffs(self, feature: int, late_ms: int) -> None:
        self.table.raise_expiry_cutoffs({feature: self.clock * 10 - late_ms})
        self.truth.raise_cutoff(feature, self.clock * 10 - late_ms)

    @rule(keys=st.lists(KEYS, max_size=60))
    def find(self, keys: list[Key]) -> None:
        keys = self.scaled(keys)
        try:
            rows, status = map(host, self.table.find(*arrays(keys)))
        except SpillError:
            assert self.spill.broken
            return
        for key, row, kind in zip(keys, rows, status, strict=True):
            if self.truth.is_alive(key):
                # a row that was never updated may be dropped, or be there with its initial values
                assert kind == KNOWN or self.truth.rows[key].count == 0
            else:
                assert kind == FORGOTTEN or kind == (NOT_ADMITTED if self.truth.was_seen(key) else UNKNOWN)
            if kind == KNOWN:
                np.testing.assert_array_equal(row, self.truth.rows[key].value)
            else:
                assert np.isnan(row).all()

    # the next rule forgets keys of an open lookup
    @precondition(lambda self: not self.spill.broken)
    @rule(keys=st.lists(KEYS, max_size=5, unique=True))
    def forget(self, keys: list[Key]) -> None:
        keys = self.scaled(keys)
        self.open.clear()
        self.table.memory.apply_releases()
        self.table.forget(*arrays(keys))
        self.truth.forget(keys)
        rows, status = map(host, self.table.find(*arrays(keys)))
        assert np.isnan(rows).all()
        assert (status == FORGOTTEN).all()

    @precondition(lambda self: self.open and not self.spill.broken)
    @rule(seed=st.integers(0, 1000))
    def forget_keys_of_an_open_lookup(self, seed: int) -> None:
        for _ in range(len(self.open) - 1):
            self.drop(0)
        keys = sorted(set(self.open[0][1].keys[::2]))
        self.table.forget(*arrays(keys))
        self.truth.forget(keys)
        if seed % 3:
            self.update(0, seed)
        else:
            self.learn_elsewhere(0, seed)

    @precondition(lambda self: not self.spill.broken)
    @rule(keys=st.lists(KEYS, max_size=30, unique=True), seed=st.integers(0, 1000))
    def write(self, keys: list[Key], seed: int) -> None:
        """Rows that do not come from training."""
        keys = self.scaled(keys)
        self.open.clear()
        if len(keys) > self.table.max_keys():
            self.take_delta()
        rng = np.random.default_rng(seed)
        values = rng.standard_normal((len(keys), DIM)).astype(np.float32)
        if self.config.dtype == "bfloat16":
            values = nearest(values)
        states = rng.random((len(keys), self.width)).astype(np.float32)
        if self.config.optimizer["name"] == "adam":
            states[:, 2 * DIM] = rng.integers(0, 9, len(keys))  # steps
        now = np.full(len(keys), self.clock * 10, np.int64)
        self.table.write(RowBlock(*arrays(keys), values, states, np.arange(1, len(keys) + 1), now))
        for n, key in enumerate(keys):
            row = self.truth.new_row(key)
            row.value, row.states, row.count, row.last_seen = values[n].copy(), states[n].copy(), n + 1, int(now[n])
            self.truth.write(key, row)

    @precondition(lambda self: not self.spill.broken)
    @rule(num_buckets=st.integers(1, 3))
    def resize(self, num_buckets: int) -> None:
        self.open.clear()
        if 48 * self.scale > self.table.max_keys():
            self.take_delta()
        delta = self.table.dirty_rows.keys()
        self.table.memory.resize(self.ops.width * num_buckets, self.ops.width)
        self.table.dirty_rows.renumber(*delta)
        assert self.table.memory.store.num_slots == self.ops.width * num_buckets

    @precondition(lambda self: not self.spill.broken)
    @rule()
    def export(self) -> None:
        rows = self.table.export()
        keys = list(zip(rows.feature.tolist(), rows.id.tolist(), strict=True))
        assert len(set(keys)) == len(keys)
        for n, key in enumerate(keys):
            np.testing.assert_array_equal(rows.value[n], self.truth.rows[key].value)
        learned = {key for key, row in self.truth.rows.items() if row.count and self.truth.is_alive(key)}
        assert learned <= {*keys, *self.base.rows}

    @rule()
    def take_delta(self) -> None:
        delta = self.table.take_delta()
        dirty = list(zip(delta.rows.feature.tolist(), delta.rows.id.tolist(), strict=True))
        assert len(set(dirty)) == len(dirty)
        assert set(dirty) == {key for key in self.truth.dirty if self.truth.is_alive(key)}
        for n, key in enumerate(dirty):
            row = self.truth.rows[key]
            np.testing.assert_array_equal(delta.rows.value[n], row.value)
            np.testing.assert_array_equal(delta.rows.state[n], row.states)
            assert delta.rows.count[n] == row.count
            assert delta.rows.last_seen[n] == row.last_seen
        forgotten = set(zip(delta.forgotten.feature.tolist(), delta.forgotten.id.tolist(), strict=True))
        assert not forgotten & set(dirty)
        assert forgotten == self.truth.forgotten
        self.truth.dirty, self.truth.forgotten = set(), set()
        self.log.append((delta, self.table.admission.take_delta()))

    @precondition(lambda self: self.next_base is None)
    @rule()
    def begin_base(self) -> None:
        self.take_delta()
        learned = {key: row for key, row in self.truth.rows.items() if row.count and self.truth.is_alive(key)}
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
    def restart(self) -> None:
        """A new process, which has only the base and the log."""
        self.open.clear()
        self.ahead = None
        self.take_delta()
        state, cutoffs = self.table.clock_state(), self.table.expiry_cutoffs
        self.spill.broken = False
        self.table.close()
        self.next_base = None
        self.truth.rows = {key: row for key, row in self.truth.rows.items() if row.count and self.truth.is_alive(key)}
        self.start()
        for delta, sketch in self.log:
            self.table.restore(delta)
            self.table.admission.restore(*sketch)
        self.table.restore_clock_state(state)
        self.table.raise_expiry_cutoffs(cutoffs)
        assert len(self.table.take_delta().rows) == 0

    @invariant()
    def check_integrity(self) -> None:
        if not hasattr(self, "table"):
            return
        self.table.check_integrity()
        # rows that are not pinned fit into the slots
        if self.table.memory.num_pinned == 0:
            assert self.table.rows_by_tier()["device"] <= self.table.memory.store.num_slots
            rows_F = self.table.quotas.rows_F
            assert len(rows_F) < FEATURES or rows_F[2] <= self.scale * QUOTA_ROWS


EMPTY = TableDelta(RowBlock.zeros(0, DIM))

TestTableMachine = TableMachine.TestCase
TestTableMachine.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


class EmulatedMachine(TableMachine):
    """The same on the CUDA backend as host C++, which is slow: few and short schedules."""

    backend = "emulated"


class GpuMachine(TableMachine):
    backend = "gpu"


TestEmulatedMachine = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")(EmulatedMachine.TestCase)
TestEmulatedMachine.settings = settings(max_examples=16, stateful_step_count=20, deadline=None)
TestGpuMachine = pytest.mark.gpu(pytest.mark.skipif(bool(gpu_or_why_not()), reason="no GPU")(GpuMachine.TestCase))
TestGpuMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
