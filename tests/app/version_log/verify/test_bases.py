"""No advice about a damaged base costs rows that no other file has."""

import os
from pathlib import Path

import pytest

from springtide.app.version_log.compact.retention import delete_base
from springtide.app.version_log.verify.verify import verify
from springtide_client.log.base import MANIFEST, MODEL, ROWS
from springtide_client.log.directory import LogDirectory
from tests.support.damage import flip
from tests.support.writer_log import WriterLog, compact, put, sync_twice


@pytest.fixture
def log(log: WriterLog) -> WriterLog:
    """A log of three bases with rows, after the first without any, and a version after the last."""
    with log.writer() as writer:
        for value in (1, 2, 3):
            put(writer, value)
            sync_twice(writer)
            assert compact(log) is not None
        put(writer, 4)
        writer.sync()
    return log


def bases(log: WriterLog) -> list[Path]:
    return sorted(log.path.glob("base-*"))


def advice(log: WriterLog, file: str = "") -> list[str]:
    found = [finding for finding in verify(LogDirectory(log.path)).errors if "base-" in (finding.file or "")]
    return [str(finding) for finding in found if (finding.file or "").endswith(file)]


def test_a_model_that_all_bases_link_costs_no_base(log: WriterLog) -> None:
    (bases(log)[-1] / MODEL).write_bytes(b"x")
    assert (bases(log)[0] / MODEL).read_bytes() == b"x"
    found = advice(log)
    assert len(found) == 4
    for line in found:
        assert "it holds no row, so keep base-" in line
        assert "restart the trainer, which replaces it; until then new followers may not start" in line
        assert "remove" not in line


def test_a_model_damaged_in_the_newest_base_alone_names_the_base_that_is_sound(log: WriterLog) -> None:
    (bases(log)[-1] / MODEL).unlink()
    (bases(log)[-1] / MODEL).write_bytes(b"x")
    (found,) = advice(log)
    assert "restart the trainer, which replaces it; base 1.3 is sound" in found


def test_damaged_rows_of_the_newest_base_are_left_to_a_base_that_leads_there(log: WriterLog) -> None:
    flip(bases(log)[-1] / ROWS)
    (found,) = advice(log)
    name = bases(log)[-1].name
    assert f"new followers use it: remove {name}, and they start at base 1.3; the next compaction does so" in found
    os.truncate(bases(log)[-2] / ROWS, 0)
    assert all("1.1" in line and "1.3" not in line.partition(";")[2] for line in advice(log))


def test_rows_are_not_given_up_for_a_base_whose_records_are_gone(log: WriterLog) -> None:
    flip(bases(log)[-1] / ROWS)
    for segment in log.path.glob("seg-*"):
        segment.unlink()
    found = advice(log, ROWS)
    assert [line.partition("; ")[2] for line in found] == [
        f"keep {bases(log)[-1].name}, for the log does not lead from base 1.0 or 1.1 or 1.3 to it: "
        "restore it from a copy"
    ]


def test_where_no_base_is_sound_none_is_removed(log: WriterLog) -> None:
    for base in bases(log):
        flip(base / ROWS)
    assert all("no base is sound: keep" in line and "remove" not in line for line in advice(log))
    notes = [str(finding) for finding in verify(LogDirectory(log.path)).all if finding.level == "note"]
    assert any("what its checksums call whole" in note and "dense.safetensors" in note for note in notes)


def test_a_base_with_sound_rows_takes_over_though_its_model_is_damaged(log: WriterLog) -> None:
    (bases(log)[-1] / MODEL).write_bytes(b"x")
    flip(bases(log)[-1] / ROWS)
    assert f"remove {bases(log)[-1].name}, and a trainer starts at base 1.3" in advice(log, ROWS)[0]


def test_an_old_damaged_base_may_go(log: WriterLog) -> None:
    flip(bases(log)[1] / ROWS)
    (found,) = advice(log)
    assert f"followers start at base 1.5 and do not read it: remove {bases(log)[1].name}" in found


def test_a_base_is_not_blamed_for_a_damaged_one_before_it(log: WriterLog) -> None:
    flip(bases(log)[1] / ROWS)
    wrong = [finding.file or "" for finding in verify(LogDirectory(log.path), deep=True).errors]
    assert {file.partition("/")[0] for file in wrong if "base-" in file} == {bases(log)[1].name}


def test_the_only_base_is_kept(log: WriterLog) -> None:
    for base in bases(log)[:-1]:
        delete_base(base)
    flip(bases(log)[-1] / MANIFEST)
    assert "it is the only base: keep it until it is restored from a copy" in advice(log, MANIFEST)[0]
