"""The host tier loses no row and never returns an older one."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from springtide.embeddings.errors import SpillError
from springtide.embeddings.tiers.host_tier import HostTier
from springtide.embeddings.tiers.record_kinds import ABSENT, ROW, TOMBSTONE
from springtide.embeddings.tiers.rocksdb.spill import RocksSpill
from springtide.kernels.backend import backend
from springtide.kernels.types import RowLayout
from springtide_client.rows.row_block import RowBlock
from tests.embeddings.tiers.spill_support import DictSpill, assert_found, find, numbered_rows

DIM, WIDTH = 4, 9
LAYOUT = RowLayout(DIM, WIDTH)


@pytest.fixture(params=["dictionary", "rocksdb"])
def tier(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[HostTier]:
    """64 rows of host memory."""
    below: Any = DictSpill(DIM, WIDTH)
    if request.param == "rocksdb":
        below = RocksSpill(tmp_path / "spill", dim=DIM, state_width=WIDTH)
    made = HostTier(below, num_rows=64, layout=LAYOUT, ops=backend("cpu"))
    yield made
    made.check_integrity()
    made.close()


def test_rows_are_kept_while_there_is_room_and_then_spilled(tier: HostTier) -> None:
    rows = numbered_rows(np.arange(1000), DIM, WIDTH)
    for start in range(0, 1000, 10):
        tier.write(rows.take(np.arange(start, start + 10)), 10)
        tier.check_integrity()
    assert_found(tier, rows)
    assert 40 < tier.num_host_rows() <= 64
    counters = tier.counters()
    assert counters["hits_host"] == tier.num_host_rows()
    assert counters["host_evicted"] == counters["host_spilled"] == 1000 - tier.num_host_rows()
    assert tier.num_rows() == 1000
    everything = tier.read_all()
    order = np.argsort(everything.id)
    np.testing.assert_array_equal(everything.value[order], rows.value)
    assert (find(tier, numbered_rows(np.arange(5000, 5010), DIM, WIDTH)).kinds_U == ABSENT).all()


def test_a_write_larger_than_the_tier(tier: HostTier) -> None:
    rows = numbered_rows(np.arange(5000), DIM, WIDTH)
    tier.write(rows, 5000)
    assert_found(tier, rows)
    newer = numbered_rows(np.arange(0, 5000, 3), DIM, WIDTH, version=2)
    tier.write(newer, 0)
    assert_found(tier, newer)
    assert len(tier.read_all()) == 5000


def test_host_tier_evicts_rows_cached_on_device_first() -> None:
    tier = HostTier(DictSpill(DIM, WIDTH), num_rows=16, layout=LAYOUT, ops=backend("cpu"))
    rows = numbered_rows(np.arange(16), DIM, WIDTH)
    tier.write(rows, 16)
    assert_found(tier, rows.take(np.arange(4, 16)))
    back = numbered_rows(np.arange(12, 16), DIM, WIDTH, version=3)
    tier.write(back, 0)
    tier.write(numbered_rows(np.arange(100, 108), DIM, WIDTH), 8)
    assert tier.num_host_rows() == 16
    assert_found(tier, rows.take(np.arange(12)))
    assert_found(tier, back)
    assert sorted(tier.spill.read_all().id.tolist()) == list(range(4, 12))


def test_a_tombstone_hides_every_copy(tier: HostTier) -> None:
    rows = numbered_rows(np.arange(300), DIM, WIDTH)
    tier.write(rows, 300)
    tier.add_tombstones(rows.feature[::2], rows.id[::2])
    found = find(tier, rows)
    assert (found.kinds_U[::2] == TOMBSTONE).all()
    assert_found(tier, rows.take(np.arange(1, 300, 2)))
    again = numbered_rows(np.arange(0, 300, 4), DIM, WIDTH, version=9)
    tier.write(again, 75)
    assert_found(tier, again)


def test_rows_of_covered_generations_are_dropped_when_evicted(tier: HostTier) -> None:
    old = numbered_rows(np.arange(30), DIM, WIDTH)
    tier.write(old, 30)
    tier.destroy_generations(tier.open_generation())
    assert_found(tier, old)
    before = tier.counters()["host_spilled"]
    young = numbered_rows(np.arange(1000, 1064), DIM, WIDTH)
    tier.write(young, 64)
    tier.write(numbered_rows(np.arange(2000, 2064), DIM, WIDTH), 64)
    assert_found(tier, young)
    counters = tier.counters()
    assert counters["host_dropped"] > 0
    assert counters["host_spilled"] - before + counters["host_dropped"] == counters["host_evicted"]
    kinds = find(tier, old).kinds_U
    assert set(kinds.tolist()) <= {ABSENT, ROW}


def test_expired_rows_are_not_spilled(tier: HostTier) -> None:
    rows = numbered_rows(np.arange(60), DIM, WIDTH)
    tier.write(rows, 60)
    below = find(tier.spill, rows).kinds_U == ROW  # those of overfull buckets
    tier.purge({0: 1000})
    tier.write(numbered_rows(np.arange(1000, 1200), DIM, WIDTH), 200)
    assert_found(tier, numbered_rows(np.arange(1000, 1200), DIM, WIDTH))
    assert tier.counters()["host_dropped"] >= 10
    assert (find(tier.spill, rows).kinds_U[~below] == ABSENT).all()


def test_bfloat16_rows_come_back_unchanged(tmp_path: Path) -> None:
    tier = HostTier(DictSpill(DIM, 0), num_rows=64, layout=RowLayout(DIM, 0, "bfloat16"), ops=backend("cpu"))
    rows = numbered_rows(np.arange(8), DIM, 0)
    tier.write(rows, 8)
    assert_found(tier, rows)


def test_a_failing_spill_raises_before_rows_are_inserted_and_loses_nothing() -> None:
    below = DictSpill(DIM, WIDTH)
    tier = HostTier(below, num_rows=32, layout=LAYOUT, ops=backend("cpu"))
    below.fails = True
    rows = numbered_rows(np.arange(500), DIM, WIDTH)
    tier.write(rows, 500)
    assert_found(tier, rows)
    with pytest.raises(SpillError):
        tier.write(numbered_rows(np.arange(500), DIM, WIDTH, version=1), 0)
    assert_found(tier, rows)
    assert tier.host_bytes() > tier._store.num_bytes
    below.fails = False
    tier.add_tombstones(rows.feature[:100], rows.id[:100])
    assert (find(tier, rows).kinds_U[:100] == TOMBSTONE).all()
    assert_found(tier, rows.take(np.arange(100, 500)))


def test_finds_in_other_threads_always_see_every_row(tier: HostTier) -> None:
    rows = numbered_rows(np.arange(2000), DIM, WIDTH)
    tier.write(rows, 2000)
    over, errors = threading.Event(), []

    def look(seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            while not over.is_set():
                assert_found(tier, rows.take(rng.permutation(2000)[:300]))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=look, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for start in range(0, 20_000, 50):
        part = np.arange(start, start + 50) % 2000
        tier.write(rows.take(part), 0)
        tier.write(numbered_rows(np.arange(10_000 + start, 10_050 + start), DIM, WIDTH), 50)
    over.set()
    for thread in threads:
        thread.join()
    assert not errors, errors[0]


def test_rows_of_bytes_fit_into_these_bytes() -> None:
    ops = backend("cpu")
    for num_bytes in (100_000, 1_000_000, 10_000_000):
        num_rows = HostTier.rows_of_bytes(num_bytes, LAYOUT, ops)
        tier = HostTier(DictSpill(DIM, WIDTH), num_rows=num_rows, layout=LAYOUT, ops=ops)
        assert 0.7 * num_bytes < tier.host_bytes() <= num_bytes


def test_a_host_tier_needs_a_bucket() -> None:
    with pytest.raises(ValueError, match="at least 16 rows"):
        HostTier(DictSpill(DIM, WIDTH), num_rows=15, layout=LAYOUT, ops=backend("cpu"))


IDS = st.lists(st.integers(0, 60), max_size=25, unique=True)


class HostMachine(RuleBasedStateMachine):
    """A device of dictionaries above 16 host rows, a spill and a base below them."""

    def __init__(self) -> None:
        super().__init__()
        self.below = DictSpill(DIM, WIDTH)
        self.tier = HostTier(self.below, num_rows=16, layout=LAYOUT, ops=backend("cpu"))
        self.truth: dict[int, int] = {}  # id -> version, which is its last-seen too
        self.device: dict[int, tuple[int, bool]] = {}  # id -> version, changed
        self.base: dict[int, int] = {}
        self.next_base: tuple[dict[int, int], int] | None = None
        self.clock, self.cutoff = 0, 0

    def read(self, ids: list[int]) -> dict[int, int]:
        """What the tiers below the device return."""
        rows = self._rows(ids, [0] * len(ids))
        found = self.tier.find(rows.feature, rows.id)
        answers = {}
        for u, id_ in enumerate(ids):
            version = None
            if found.kinds_U[u] == ROW:
                version = int(found.rows.last_seen[u])
                for column, expected in zip(found.rows.contents, self._rows([id_], [version]).contents, strict=True):
                    np.testing.assert_array_equal(column[u], expected[0])
            elif found.kinds_U[u] == ABSENT:
                version = self.base.get(id_)
            if version is not None and version >= self.cutoff:
                answers[id_] = version
        return answers

    @rule(ids=IDS)
    def find(self, ids: list[int]) -> None:
        ids = [id_ for id_ in ids if id_ not in self.device]
        assert self.read(ids) == {id_: self.truth[id_] for id_ in ids if id_ in self.truth}

    @rule(ids=IDS)
    def load(self, ids: list[int]) -> None:
        self.find(ids)
        absent = [id_ for id_ in ids if id_ not in self.device]
        for id_, version in self.read(absent).items():
            self.device[id_] = version, False

    @rule(ids=IDS)
    def learn(self, ids: list[int]) -> None:
        self.load(ids)
        self.clock += 1
        for id_ in ids:
            self.truth[id_] = self.clock
            self.device[id_] = self.clock, True

    @rule(ids=IDS)
    def evict(self, ids: list[int]) -> None:
        leaving = {id_: self.device[id_] for id_ in ids if id_ in self.device}
        changed = [(id_, version) for id_, (version, is_changed) in leaving.items() if is_changed]
        rows = self._rows([id_ for id_, _ in changed], [version for _, version in changed])
        try:
            self.tier.write(rows, 0)
        except SpillError:
            assert self.below.fails
            return
        for id_ in leaving:
            del self.device[id_]

    @rule(ids=IDS)
    def forget(self, ids: list[int]) -> None:
        self.below.fails = False
        rows = self._rows(ids, [0] * len(ids))
        self.tier.add_tombstones(rows.feature, rows.id)
        for id_ in ids:
            self.truth.pop(id_, None)
            self.device.pop(id_, None)

    @rule()
    def raise_cutoff(self) -> None:
        self.cutoff = max(self.cutoff, self.clock - 6)
        self.tier.purge({0: self.cutoff})
        self.truth = {id_: version for id_, version in self.truth.items() if version >= self.cutoff}
        self.device = {id_: row for id_, row in self.device.items() if row[0] >= self.cutoff}

    @rule(fails=st.booleans())
    def set_failing(self, fails: bool) -> None:
        self.below.fails = fails

    @precondition(lambda self: self.next_base is None)
    @rule()
    def start_base(self) -> None:
        self.next_base = dict(self.truth), self.tier.open_generation()

    @precondition(lambda self: self.next_base is not None)
    @rule()
    def map_base(self) -> None:
        assert self.next_base is not None
        self.base, generation = self.next_base
        self.tier.destroy_generations(generation)
        self.next_base = None

    @invariant()
    def the_parts_agree(self) -> None:
        self.tier.check_integrity()

    def _rows(self, ids: list[int], versions: list[int]) -> RowBlock:
        made = [
            numbered_rows(np.array([id_ * 1000]), DIM, WIDTH, version=version)
            for id_, version in zip(ids, versions, strict=True)
        ]
        rows = RowBlock.concatenate(made) if made else RowBlock.zeros(0, DIM, WIDTH)
        return RowBlock(rows.feature, rows.id, rows.value, rows.state, rows.count, np.array(versions, np.int64))


TestHostMachine = HostMachine.TestCase
TestHostMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
