"""A table's spill keeps its part of disk_bytes, over the real RocksDB."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from springtide.embeddings.policy.ttl import ExpiryCutoffs
from springtide.embeddings.tiers.disk_space import CHECK_CALLS, DiskCap, folder_bytes
from springtide.embeddings.tiers.record_kinds import ABSENT, ROW
from springtide.embeddings.tiers.rocksdb.spill import RocksSpill
from springtide_client.rows.row_block import RowBlock
from tests.embeddings.tiers.spill_support import assert_found, find, kill, numbered_rows

DIM, WIDTH, LIMIT, BATCH = 16, 1, 5 << 20, 2000


@pytest.fixture
def spill(tmp_path: Path) -> Iterator[RocksSpill]:
    made = RocksSpill(tmp_path / "spill", dim=DIM, state_width=WIDTH)
    yield made
    made.close()


class Writer:
    """Writes batches as a table does, and notes how large the folder became."""

    def __init__(self, spill: RocksSpill) -> None:
        self.spill, self.cutoffs = spill, ExpiryCutoffs()
        self.cap = DiskCap(spill, self.cutoffs, LIMIT)
        self.peak = 0

    def write(self, rows: RowBlock, num_new: int) -> None:
        self.cap.advance([0])
        self.spill.write(rows, num_new)
        self.peak = max(self.peak, folder_bytes(self.spill.folder))


def test_rows_that_never_come_back_keep_the_limit_and_the_newest_stay(spill: RocksSpill) -> None:
    writer = Writer(spill)
    for start in range(0, 150_000, BATCH):  # 15 MB
        writer.write(numbered_rows(np.arange(start, start + BATCH), DIM, WIDTH), BATCH)
    spill.drain()
    assert writer.peak <= 1.25 * LIMIT
    assert_found(spill, numbered_rows(np.arange(135_000, 150_000), DIM, WIDTH))
    assert (find(spill, numbered_rows(np.arange(5000), DIM, WIDTH)).kinds_U == ABSENT).all()
    assert 20_000 <= spill.num_rows() <= LIMIT / 94


def test_rows_that_are_written_again_and_again_are_not_forgotten(spill: RocksSpill) -> None:
    writer, num = Writer(spill), 20_000  # 1.9 of 5 MiB
    for version in range(8):
        for start in range(0, num, BATCH):
            rows = numbered_rows(np.arange(start, start + BATCH), DIM, WIDTH, version=1000 * version)
            writer.write(rows, 0 if version else BATCH)
        if version == 4:
            kill(spill)
    spill.drain()
    assert writer.peak <= 1.25 * LIMIT
    assert not writer.cutoffs
    assert_found(spill, numbered_rows(np.arange(num), DIM, WIDTH, version=7000))


def test_rows_of_one_last_seen_do_not_defeat_it(spill: RocksSpill) -> None:
    writer = Writer(spill)
    for start in range(0, 100_000, BATCH):
        rows = numbered_rows(np.arange(start, start + BATCH), DIM, WIDTH)
        rows.last_seen[:] = max(1000, writer.cutoffs.of(0))  # as an update sets it
        writer.write(rows, BATCH)
    assert writer.peak <= 1.25 * LIMIT
    newest = find(spill, numbered_rows(np.arange(100_000 - BATCH, 100_000), DIM, WIDTH))
    assert (newest.kinds_U == ROW).all()


def test_the_spill_may_not_take_what_the_log_takes_but_always_half(spill: RocksSpill) -> None:
    log_bytes = 300
    cap = DiskCap(spill, ExpiryCutoffs(), 1000, other_bytes=lambda: log_bytes)
    assert cap.spill_bytes() == 700
    log_bytes = 900
    for _ in range(CHECK_CALLS):
        cap.advance([])
    assert cap.spill_bytes() == 500
    cap.set_limit(3000)
    assert cap.spill_bytes() == 2100
