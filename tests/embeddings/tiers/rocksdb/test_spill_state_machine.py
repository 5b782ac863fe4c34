"""Random writes, tombstones, generations, purges, limits and kills of the RocksDB spill, compared with dictionaries."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from springtide.embeddings.tiers import disk_space
from springtide.embeddings.tiers.record_kinds import ABSENT, ROW, TOMBSTONE
from springtide.embeddings.tiers.rocksdb.spill import RocksSpill
from springtide_client.rows.row_block import RowBlock
from tests.embeddings.tiers.spill_support import DictSpill, numbered_rows

DIM, WIDTH = 3, 7
KEYS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 50)), max_size=40, unique=True)


class SpillMachine(RuleBasedStateMachine):
    """A row's last-seen is the clock when it was written."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="springtide-machine-"))
        self.spill = RocksSpill(self.folder / "spill", dim=DIM, state_width=WIDTH, queue_bytes=4000)
        self.truth = DictSpill(DIM, WIDTH)
        self.cutoffs = {0: 0, 1: 0, 2: 0}
        self.clock = 0
        self.closed: int | None = None

    def teardown(self) -> None:
        self.look([(feature, id_) for feature in range(3) for id_ in range(51)])
        self.read_all()
        self.spill.close()
        assert list(self.folder.iterdir()) == []
        shutil.rmtree(self.folder)

    @rule(keys=KEYS)
    def write(self, keys: list[tuple[int, int]]) -> None:
        self.clock += 1
        rows = self.rows(keys)
        for to in (self.spill, self.truth):
            to.write(rows, 0)

    @rule(keys=KEYS)
    def add_tombstones(self, keys: list[tuple[int, int]]) -> None:
        rows = self.rows(keys)
        for to in (self.spill, self.truth):
            to.add_tombstones(rows.feature, rows.id)

    @rule(keys=KEYS)
    def look(self, keys: list[tuple[int, int]]) -> None:
        wanted = self.rows(keys)
        real, true = (spill.find(wanted.feature, wanted.id) for spill in (self.spill, self.truth))
        expired = (true.kinds_U == ROW) & (true.rows.last_seen < [self.cutoffs[feature] for feature, _ in keys])
        np.testing.assert_array_equal(real.kinds_U[~expired], true.kinds_U[~expired])
        live = np.flatnonzero((true.kinds_U == ROW) & ~expired)
        for ours, theirs in zip(real.rows.take(live).contents, true.rows.take(live).contents, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        # a row that may have been purged is missing, so that an older generation shows, or is found and has expired
        assert set(real.kinds_U[expired].tolist()) <= {ABSENT, ROW, TOMBSTONE}
        for u in np.flatnonzero(expired & (real.kinds_U == ROW)):
            assert real.rows.last_seen[u] < self.cutoffs[keys[u][0]]

    @rule()
    def read_all(self) -> None:
        real, true = self.spill.read_all(), self.truth.read_all()
        keys = [self._live_keys(rows) for rows in (real, true)]
        assert sorted(keys[0]) == sorted(keys[1])
        assert len(set(keys[0])) == len(keys[0])

    @rule(feature=st.integers(0, 2), back=st.integers(0, 4))
    def purge(self, feature: int, back: int) -> None:
        self.cutoffs[feature] = max(self.cutoffs[feature], self.clock - back)
        self.spill.purge({feature: self.cutoffs[feature]})

    @rule()
    def drain(self) -> None:
        self.spill.drain()

    @rule(num_bytes=st.sampled_from([1, 20_000, 1 << 40]))
    def set_limit(self, num_bytes: int) -> None:
        """Below what an empty database takes, every database is rewritten again and again."""
        self.spill.set_limit(num_bytes)

    @rule()
    def kill(self) -> None:
        process = self.spill._worker._process
        if process is not None:
            process.popen.kill()

    @precondition(lambda self: self.closed is None)
    @rule()
    def open_generation(self) -> None:
        self.closed = self.spill.open_generation()
        assert self.truth.open_generation() == self.closed

    @precondition(lambda self: self.closed is not None)
    @rule()
    def destroy_generations(self) -> None:
        assert self.closed is not None
        for spill in (self.spill, self.truth):
            spill.destroy_generations(self.closed)
        self.closed = None

    def rows(self, keys: list[tuple[int, int]]) -> RowBlock:
        made = numbered_rows(np.array([id_ for _, id_ in keys], np.int64), DIM, WIDTH, version=self.clock)
        features = np.array([feature for feature, _ in keys], np.uint16)
        return RowBlock(features, made.id, made.value, made.state, made.count, np.full(len(keys), self.clock))

    def _live_keys(self, rows: RowBlock) -> list[tuple[int, int, int]]:
        keys = zip(rows.feature.tolist(), rows.id.tolist(), rows.last_seen.tolist(), strict=True)
        return [key for key in keys if key[2] >= self.cutoffs[key[0]]]


@pytest.fixture(autouse=True, scope="module")
def small_databases() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk_space, "MIN_PART_BYTES", 2000)
        yield


TestSpillMachine = SpillMachine.TestCase
TestSpillMachine.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
