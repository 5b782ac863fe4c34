"""What a start seals: claims without gaps, fsync before measuring, and only what was there before that fsync."""

import os

import pytest

import springtide.app.version_log.write.valid_log
from springtide_client.log.listing import claim_name, shard_segment_name
from tests.support.team_log import TeamLog
from tests.support.waiting import wait_until
from tests.support.writer_log import put

ROWS = {(0, key): (1.0, 100) for key in range(8)}
LATER = {(0, key): (2.0, 100) for key in range(8)}


@pytest.fixture
def log(tmp_path) -> TeamLog:
    return TeamLog(tmp_path / "log")


def test_a_claim_that_a_power_loss_took_is_made_again(log) -> None:
    for _ in range(3):
        with log.writer() as writer:
            put(writer, 1)
    (log.path / claim_name(2)).unlink()
    with log.writer() as writer:
        assert writer.epoch == 4
    assert (log.path / claim_name(2)).exists()


def test_the_claim_is_fsynced_before_anything_is_looked_at(log, monkeypatch) -> None:
    with log.writer() as writer:
        put(writer, 1)
    seen: list[str] = []
    fsync = os.fsync

    def record(descriptor: int) -> None:
        name = os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))
        seen.append(f"{name} {(log.path / claim_name(2)).exists()}")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    measure = springtide.app.version_log.write.epoch.measure_valid_log
    monkeypatch.setattr(
        springtide.app.version_log.write.epoch,
        "measure_valid_log",
        lambda *arguments: [seen.append("measure"), measure(*arguments)][1],
    )
    with log.writer():
        pass
    order = [name for name in seen if not name.endswith("False")]  # since the claim
    assert order[0] == "log True"
    assert order.index("seg-0000000001-000000.log True") < order.index("measure")


def test_every_file_of_the_predecessors_ranks_is_fsynced(log, monkeypatch) -> None:
    with log.team(3) as team:
        team.put(ROWS)
    synced: list[str] = []
    sync = springtide.app.version_log.write.valid_log.sync_file
    monkeypatch.setattr(
        springtide.app.version_log.write.valid_log, "sync_file", lambda path: [synced.append(path.name), sync(path)]
    )
    with log.team(1):
        pass
    assert {shard_segment_name(1, rank, 0) for rank in (1, 2)} | {"seg-0000000001-000000.log"} <= set(synced)


def test_what_a_replaced_rank_appends_after_the_lengths_were_noted_is_not_sealed(log, monkeypatch) -> None:
    """The version record is there, its shard record comes while the starter fsyncs: it may not be on the disk."""
    old = log.start(2)
    first = old.put(ROWS)
    wait_until(lambda: old.lead.published.number == first)
    path = log.path / shard_segment_name(1, 1, 0)
    size = path.stat().st_size
    second = old.put(LATER)
    wait_until(lambda: old.lead.published.number == second)
    whole = path.read_bytes()
    os.truncate(path, size)
    sync = springtide.app.version_log.write.valid_log.sync_file

    def late(file) -> None:
        sync(file)
        path.write_bytes(whole)

    monkeypatch.setattr(springtide.app.version_log.write.valid_log, "sync_file", late)
    with log.team(2, take_over=True) as new:
        assert new.lead.start_tip.number == first
        third = new.put({(0, 50): (5.0, 100)})
        wait_until(lambda: new.lead.published.number == third)
        assert log.read()[1] == ROWS | {(0, 50): (5.0, 100)}
    log.kill_team(old)


def test_a_replaced_rank_that_writes_on_changes_nothing_that_is_read(log) -> None:
    old = log.start(2)
    first = old.put(ROWS)
    wait_until(lambda: old.lead.published.number == first)
    for writer in old.writers:
        writer.directory.is_fenced = lambda epoch: False  # it was paused behind its look
    with log.team(3, take_over=True) as new, log.directory.follow(new.lead.start_tip) as cursor:
        assert new.lead.start_tip.number == first
        zombie = old.put(LATER)
        wait_until(lambda: old.lead.published.number == zombie)
        second = new.put({(0, 50): (5.0, 100)})
        wait_until(lambda: new.lead.published.number == second)
        assert [record.number for record in cursor.read()] == [second]
        assert log.read()[1] == ROWS | {(0, 50): (5.0, 100)}
    log.kill_team(old)
    with log.team(2):
        assert log.read()[1] == ROWS | {(0, 50): (5.0, 100)}
