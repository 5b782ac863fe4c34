"""Starting an epoch: the schema, claims, and what is valid of the log before it."""

import os
from pathlib import Path

import pytest

import springtide.app.version_log.write.epoch
from springtide.app.errors import UserError
from springtide.app.version_log.errors import FencedError, LogBusyError
from springtide.app.version_log.write.epoch import start_epoch
from springtide.app.version_log.write.writer import LogWriter
from springtide_client.errors import LogError
from springtide_client.log.listing import claim_name, shard_segment_name
from springtide_client.schema import Schema
from tests.support.damage import flip
from tests.support.waiting import wait_until
from tests.support.writer_log import SCHEMA, config, put

ROWS = {(0, key): (1.0, 100) for key in range(8)}
LATER = {(0, key): (2.0, 100) for key in range(8)}


def test_taking_over_fences_the_other_trainer(log) -> None:
    with log.writer() as old:
        heads = [put(old, 1)]
        old.sync()
        with log.writer(take_over=True) as new:
            assert new.start_head == heads[-1]
            heads.append(put(new, 2))
            new.sync()
            put(old, 99)
            with pytest.raises(FencedError):
                old.sync()
            assert old.durable == heads[0]
            assert log.heads() == heads
            with pytest.raises(LogBusyError):  # the new trainer holds the lock
                log.open()
        with pytest.raises(FencedError):
            put(old, 98)
    assert log.heads() == heads


def test_what_a_fenced_trainer_writes_is_never_read_and_never_durable(log) -> None:
    old = log.open()
    heads = [put(old, 1)]
    old.sync()
    follower = log.directory.follow(old.first_base_head)
    assert [record.head for record in follower.read()] == heads
    new = log.open(take_over=True)
    # it does not check for a higher epoch: it writes beyond the seal of its file, and into a new file
    old.directory.is_fenced = lambda epoch: False
    put(old, 66)
    old.sync()
    old._queue.segments._torn = True
    put(old, 67)
    old.sync()
    assert len(list(log.path.glob("seg-0000000001-*"))) == 2
    assert follower.read() == []
    heads.append(put(new, 2))
    new.sync()
    assert [record.head for record in follower.read()] == heads[1:]
    assert log.heads() == heads
    old.close()
    new.close()
    with log.writer() as third:
        assert third.start_head == heads[-1]
    follower.close()


def test_a_schema_that_is_not_numbered_as_the_next_of_the_log_is_refused(log) -> None:
    with log.writer() as writer:
        put(writer, 1)
    item_first = Schema(labels=("click",), categorical=("item_id", "user_id"))
    with pytest.raises(LogError, match="has changed since this configuration was read: start again"):
        LogWriter.open(config(log.path), schema=item_first)
    with LogWriter.open(config(log.path), schema=item_first.continuing(SCHEMA)) as writer:
        assert writer.epoch == 2


def test_an_epoch_with_a_manifest_but_no_claim_is_not_reused(log) -> None:
    with log.writer() as writer:
        head = put(writer, 1)
    (log.path / "epoch-0000000001.claim").unlink()
    assert log.heads()[-1] == head
    with log.writer() as writer:
        assert writer.epoch == 2
        later = put(writer, 2)
        writer.sync()
        assert log.heads() == [head, later]


def test_a_log_without_its_bases_is_refused(log) -> None:
    with log.writer() as writer:
        put(writer, 1)
    for base in log.directory.bases():
        base.rename(log.path / f"lost-{base.name}")
    with pytest.raises(LogError, match="lost its bases"):
        log.open()


@pytest.mark.parametrize("cut", [1, 20, 47, 48, 100])
def test_a_torn_tail_is_ignored(log, cut: int) -> None:
    with log.writer() as writer:
        heads = [put(writer, 1), put(writer, 2)]
    segment = next(log.path.glob("seg-*"))
    os.truncate(segment, segment.stat().st_size - cut)
    with log.writer() as writer:
        assert writer.start_head == heads[0]
        head = put(writer, 3)
    assert log.heads() == [heads[0], head]
    assert head.number > heads[1].number


def test_a_flipped_bit_ends_the_valid_log_and_the_next_epoch_continues_there(log) -> None:
    with log.writer(segment_bytes=1 << 16) as writer:
        heads = [put(writer, 1, trainer={"padding": "x" * 20_000}) for _ in range(9)]
    first = min(log.path.glob("seg-*"))
    flip(first, bit=4)
    with log.writer() as writer:
        assert writer.start_head == heads[0]
        head = put(writer, 2)
    assert log.heads() == [heads[0], head]
    with log.writer() as writer:
        assert writer.start_head == head


def test_a_damaged_base_is_skipped(log) -> None:
    with log.writer() as writer:
        heads = [put(writer, 1), put(writer, 2)]
        writer.sync()
        newer = log.path / f"base-{heads[0].number:020d}"
        newer.mkdir()
        (newer / "manifest.json").write_text("{")
    with log.writer() as writer:
        assert writer.start_head == heads[-1]


def test_a_path_that_cannot_be_a_folder_is_named_with_its_key(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "log"):
        with pytest.raises(UserError, match=rf"\[log\] path = '{path}' cannot be made a folder \(.*\): set another"):
            start_epoch(path, SCHEMA)


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
    sync = springtide.app.version_log.write.epoch.sync_file
    monkeypatch.setattr(
        springtide.app.version_log.write.epoch, "sync_file", lambda path: [synced.append(path.name), sync(path)]
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
    sync = springtide.app.version_log.write.epoch.sync_file

    def late(file) -> None:
        sync(file)
        path.write_bytes(whole)

    monkeypatch.setattr(springtide.app.version_log.write.epoch, "sync_file", late)
    with log.team(2, take_over=True) as new:
        assert new.lead.start_head.number == first
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
    with log.team(3, take_over=True) as new, log.directory.follow(new.lead.start_head) as cursor:
        assert new.lead.start_head.number == first
        zombie = old.put(LATER)
        wait_until(lambda: old.lead.published.number == zombie)
        second = new.put({(0, 50): (5.0, 100)})
        wait_until(lambda: new.lead.published.number == second)
        assert [record.number for record in cursor.read()] == [second]
        assert log.read()[1] == ROWS | {(0, 50): (5.0, 100)}
    log.kill_team(old)
    with log.team(2):
        assert log.read()[1] == ROWS | {(0, 50): (5.0, 100)}
