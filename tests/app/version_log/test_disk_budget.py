"""Trainer and compactor share log_bytes so that there is always room for the next base."""

from pathlib import Path

from springtide.app.version_log.disk_budget import DiskBudget, LogUsage

BUDGET = DiskBudget(1600)


def usage(*bases: int, segments: int = 0, drafts: int = 0) -> LogUsage:
    return LogUsage(bases, drafts, segments, 0)


def test_files_are_counted_by_kind(tmp_path: Path) -> None:
    sizes = {"base-2/rows": 5, "base-1/rows": 3, ".tmp-base-3-77/rows": 7, "seg-1-2.log": 11, "seg-1-3.log": 13, "x": 1}
    for name, size in sizes.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x" * size)
    found = LogUsage.of(tmp_path)
    assert found == LogUsage((3, 5), 7, 24, 1)
    assert found.total == 40
    assert LogUsage.of(tmp_path / "none").total == 0


def test_room_is_kept_for_the_next_base_until_it_is_written() -> None:
    assert BUDGET.max_base_bytes == 500
    assert BUDGET.free_bytes(usage(500)) == 600
    assert BUDGET.free_bytes(usage(100, segments=200)) == 1600 - 300 - 300
    assert BUDGET.free_bytes(usage(500, segments=600)) == 0
    assert BUDGET.free_bytes(usage(500, segments=500, drafts=400)) == 100
    assert BUDGET.free_bytes(usage(500, segments=500, drafts=600)) == 0


def test_the_next_base_is_begun_before_there_is_no_room() -> None:
    assert not BUDGET.is_short(usage(500, segments=400))
    assert BUDGET.is_short(usage(500, segments=401))


def test_older_bases_are_kept_while_they_leave_room() -> None:
    assert BUDGET.num_bases(usage(300, 300, segments=300), 2) == 2
    assert BUDGET.num_bases(usage(300, 300, segments=301), 2) == 1
    assert BUDGET.num_bases(usage(500), 1) == 1
    assert BUDGET.num_bases(usage(), 3) == 3
