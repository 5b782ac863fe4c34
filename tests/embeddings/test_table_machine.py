"""Random schedules of a tiny table and all its tiers against a dictionary."""

import copy
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from embeddings.capacity import Capacity
from embeddings.config import TableConfig
from embeddings.lookup import Lookup
from embeddings.rows import Touched
from embeddings.source import FoundRows
from embeddings.spill_rocksdb import RocksSpill
from embeddings.table import FORGOTTEN, KNOWN, UNKNOWN, EmbeddingTable
from tests.embeddings.model import DIM, LR, SCALE, SEED, DictTable, arrays
from tests.kernels.oracle import Key, Row

KEYS = st.tuples(st.integers(0, 1), st.integers(0, 40))
BATCH = st.lists(KEYS, max_size=30)
CONFIG = TableConfig(dim=DIM, init_scale=SCALE, optimizer={"name": "rowwise-adagrad", "lr": LR})


class DictBase:
    """A base: the rows of a dictionary at one instant."""

    def __init__(self, rows: dict[Key, Row]) -> None:
        self.rows = copy.deepcopy(rows)

    def find(self, features_U: Any, ids_U: Any) -> FoundRows:
        keys = list(zip(features_U.tolist(), ids_U.tolist(), strict=True))
        rows = [self.rows.get(key) for key in keys]
        values, states = np.full((len(keys), DIM), 9, np.float32), np.full((len(keys), 1), 9, np.float32)
        counts, last_seen = np.zeros(len(keys), np.int64), np.zeros(len(keys), np.int64)
        for u, row in enumerate(rows):
            if row is not None:
                values[u], states[u, 0], counts[u], last_seen[u] = row.value, row.state, row.count, row.last_seen
        return FoundRows(np.array([row is not None for row in rows], np.bool_), values, states, counts, last_seen)


class TableMachine(RuleBasedStateMachine):
    """16 or 32 slots, a side buffer of 24 rows, RocksDB below, a base below that."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="springtide-machine-"))
        self.epoch = 0
        self.truth, self.clock = DictTable(), 0
        self.log: list[Touched] = []  # what was cut since the mapped base
        self.base = DictBase({})
        self.next_base: tuple[DictBase, int, int] | None = None  # with its generation and place in the log
        self.held: list[tuple[Lookup, list[Key], list[int]]] = []
        self.start()

    def start(self) -> None:
        self.epoch += 1
        spill = RocksSpill.of_epoch(self.folder, self.epoch, dim=DIM, state_width=1)
        capacity = Capacity.of_rows(16 if self.epoch % 2 else 32, num_side=24)
        self.table = EmbeddingTable(CONFIG, seed=SEED, spill=spill, base=self.base, capacity=capacity)

    def teardown(self) -> None:
        self.held.clear()
        self.table.close()
        assert list(self.folder.iterdir()) == []
        shutil.rmtree(self.folder)

    @rule(keys=BATCH)
    def look_up(self, keys: list[Key]) -> None:
        if self.table.needs_cut(len(keys)):
            self.cut()
        self.clock += 1
        times = [self.clock * 10 + k % 3 for k in range(len(keys))]
        features, ids = arrays(keys)
        lookup = self.table.lookup(features, ids, np.array(times, np.int64))
        rows = self.table.gather(lookup)
        for key, row in zip(keys, rows, strict=True):
            np.testing.assert_array_equal(row, self.truth.row(key).value)
        self.held.append((lookup, keys, times))

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 5), seed=st.integers(0, 1000))
    def update(self, which: int, seed: int) -> None:
        lookup, keys, times = self.held.pop(which % len(self.held))
        grads = np.random.default_rng(seed).standard_normal((len(keys), DIM)).astype(np.float32)
        if keys and seed % 5 == 0:
            grads[seed % len(keys), 0] = np.nan
        self.table.update(lookup, grads)
        self.truth.update(keys, times, grads)

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 5))
    def drop(self, which: int) -> None:
        self.held.pop(which % len(self.held))
        self.table.memory.settle()

    @rule(keys=st.lists(KEYS, max_size=60))
    def find(self, keys: list[Key]) -> None:
        rows, status = self.table.find(*arrays(keys))
        for key, row, kind in zip(keys, rows, status, strict=True):
            if key in self.truth.rows:
                # a row that was never learned may be gone or not, with its first value
                assert kind == KNOWN or self.truth.rows[key].count == 0
                if kind == KNOWN:
                    np.testing.assert_array_equal(row, self.truth.rows[key].value)
            else:
                assert kind in (UNKNOWN, FORGOTTEN)
                assert np.isnan(row).all()

    # a lookup held through a forgetting is the next rule's
    @rule(keys=st.lists(KEYS, max_size=5, unique=True))
    def forget(self, keys: list[Key]) -> None:
        self.held.clear()
        self.table.memory.settle()
        self.table.forget(*arrays(keys))
        self.truth.forget(keys)
        rows, status = self.table.find(*arrays(keys))
        assert np.isnan(rows).all()
        assert (status == FORGOTTEN).all()

    @precondition(lambda self: self.held)
    @rule(seed=st.integers(0, 1000))
    def forget_what_is_held(self, seed: int) -> None:
        for _ in range(len(self.held) - 1):
            self.drop(0)
        keys = self.held[0][1][::2]
        self.table.forget(*arrays(sorted(set(keys))))
        self.truth.forget(keys)
        self.update(0, seed)

    @rule()
    def cut(self) -> None:
        touched = self.table.cut()
        told = list(zip(touched.features.tolist(), touched.ids.tolist(), strict=True))
        assert len(set(told)) == len(told)
        assert set(told) == self.truth.touched
        for n, key in enumerate(told):
            row = self.truth.rows[key]
            np.testing.assert_array_equal(touched.values[n], row.value)
            assert touched.states[n, 0] == row.state
            assert touched.counts[n] == row.count
            assert touched.last_seen[n] == row.last_seen
        gone = set(zip(touched.forgotten_features.tolist(), touched.forgotten_ids.tolist(), strict=True))
        assert not gone & set(told)
        assert gone == self.truth.forgotten
        self.truth.touched, self.truth.forgotten = set(), set()
        self.log.append(touched)

    @precondition(lambda self: self.next_base is None)
    @rule()
    def begin_base(self) -> None:
        self.cut()
        learned = {key: row for key, row in self.truth.rows.items() if row.count}
        self.next_base = DictBase(learned), self.table.open_generation(), len(self.log)

    @precondition(lambda self: self.next_base is not None)
    @rule()
    def map_base(self) -> None:
        assert self.next_base is not None
        self.base, generation, place = self.next_base
        self.table.map_base(self.base, generation)
        self.log, self.next_base = self.log[place:], None

    @rule()
    def start_again(self) -> None:
        """A new process: the base and the log are all it has."""
        self.held.clear()
        self.cut()
        self.table.close()
        self.next_base = None
        self.truth.rows = {key: row for key, row in self.truth.rows.items() if row.count}
        self.start()
        for touched in self.log:
            self.table.restore(touched)
        assert len(self.table.cut()) == 0

    @invariant()
    def the_parts_agree(self) -> None:
        self.table.check_integrity()
        # what is not held fits into the slots
        if not self.held:
            assert self.table.rows_by_tier()["device"] <= self.table.memory.store.num_slots


TestTableMachine = TableMachine.TestCase
TestTableMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
