"""Rows beyond what a base may take expire, the coldest first."""

from pathlib import Path

import numpy as np
import pytest

from springtide.app.training.state.row_budget import RowBudget
from springtide.app.version_log.disk_budget import base_row_bytes
from springtide.embeddings.rows import TableDelta
from springtide_client.log.base import Base
from springtide_client.rows.row_block import RowBlock
from tests.app.version_log.compact.test_base_writer import write
from tests.support.writer_log import WriterLog

DIM, WIDTH, ROOM = 4, 1, 1000


def delta(start: int, stop: int, feature: int = 0) -> TableDelta:
    """Rows whose last-seen is their id."""
    ids = np.arange(start, stop)
    rows = RowBlock.zeros(len(ids), DIM, WIDTH)
    rows.feature[:], rows.id[:], rows.last_seen[:] = feature, ids, ids
    return TableDelta(rows)


@pytest.fixture
def budget() -> RowBudget:
    return RowBudget(ROOM * base_row_bytes(DIM, WIDTH), dim=DIM, state_width=WIDTH)


def test_nothing_expires_while_all_rows_fit(budget: RowBudget) -> None:
    for _ in range(5):
        budget.add(delta(0, ROOM))
        assert budget.raised_cutoffs({}) == {}


def test_the_coldest_rows_of_all_features_expire(budget: RowBudget) -> None:
    budget.add(delta(0, 600))
    budget.add(delta(500, 1100, feature=3))
    raised = budget.raised_cutoffs({})
    assert raised == {0: 350, 3: 350}  # 850 stay
    assert budget.raised_cutoffs(raised) == {}
    budget.add(delta(1100, 1300))
    assert budget.raised_cutoffs(raised) == {0: 525, 3: 525}


def test_rows_that_are_seen_again_do_not_count_twice(budget: RowBudget) -> None:
    for _ in range(30):
        budget.add(delta(0, 900))
        assert budget.raised_cutoffs({}) == {}


def test_what_a_base_will_hold_beside_rows_counts_before_there_is_one(tmp_path: Path) -> None:
    log = WriterLog(tmp_path / "log")
    with log.writer():
        base = log.directory.open_base()
    assert isinstance(base, Base)
    budgets = [RowBudget(1 << 20, dim=DIM, state_width=WIDTH, onnx=onnx) for onnx in (False, True)]
    for one in budgets:
        one.measure(base.manifest, 0)
    plain, with_onnx = (one.max_rows for one in budgets)
    assert (plain - with_onnx) * base_row_bytes(DIM, WIDTH) <= base.manifest.files["model.pt2"].bytes + 99
    budgets[0].expect_state(1 << 19)
    assert budgets[0].max_rows <= (1 << 19) // base_row_bytes(DIM, WIDTH)
    budgets[0].measure(base.manifest, 0)
    assert budgets[0].max_rows == plain


def test_a_net_without_room_for_rows_is_refused(budget: RowBudget) -> None:
    budget.check()
    budget._other_bytes = budget.max_base_bytes * 4 // 5
    with pytest.raises(ValueError, match=r"the net takes [\d,]+ of them: raise"):
        budget.check()
    assert budget.max_rows == ROOM // 4


def test_it_continues_from_a_base(budget: RowBudget, tmp_path: Path) -> None:
    log = WriterLog(tmp_path / "log")
    with log.writer():
        base = log.directory.open_base()
    assert isinstance(base, Base)
    budget.read_base(base)
    assert budget.max_rows < ROOM
    assert not budget.is_exceeded({})


def test_the_heads_of_many_files_are_not_taken_for_rows(tmp_path: Path) -> None:
    budgets = []
    for num_files in (1, 8):
        budgets.append(RowBudget(1 << 30, dim=2, state_width=1))
        budgets[-1].read_base(write(tmp_path / str(num_files), num_files, num_rows=20))
    one, several = budgets
    assert several.max_rows == pytest.approx(one.max_rows, rel=0.001)
    assert several.max_rows < one.max_rows  # they take space all the same
