"""Starting an epoch: the schema, claims, and what is valid of the log before it."""

import os
from pathlib import Path

import pytest

from springtide.app.errors import UserError
from springtide.app.version_log.errors import FencedError, LogBusyError
from springtide.app.version_log.write.epoch import start_epoch
from springtide.app.version_log.write.writer import LogWriter
from springtide_client.errors import LogError
from springtide_client.schema import Schema
from tests.support.writer_log import SCHEMA, config, put


def test_taking_over_fences_the_other_trainer(log) -> None:
    with log.writer() as old:
        tips = [put(old, 1)]
        old.sync()
        with log.writer(take_over=True) as new:
            assert new.start_tip == tips[-1]
            tips.append(put(new, 2))
            new.sync()
            put(old, 99)
            with pytest.raises(FencedError):
                old.sync()
            assert old.durable == tips[0]
            assert log.tips() == tips
            with pytest.raises(LogBusyError):  # the new trainer holds the lock
                log.open()
        with pytest.raises(FencedError):
            put(old, 98)
    assert log.tips() == tips


def test_what_a_fenced_trainer_writes_is_never_read_and_never_durable(log) -> None:
    old = log.open()
    tips = [put(old, 1)]
    old.sync()
    follower = log.directory.follow(old.first_base_tip)
    assert [record.tip for record in follower.read()] == tips
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
    tips.append(put(new, 2))
    new.sync()
    assert [record.tip for record in follower.read()] == tips[1:]
    assert log.tips() == tips
    old.close()
    new.close()
    with log.writer() as third:
        assert third.start_tip == tips[-1]
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
        tip = put(writer, 1)
    (log.path / "epoch-0000000001.claim").unlink()
    assert log.tips()[-1] == tip
    with log.writer() as writer:
        assert writer.epoch == 2
        later = put(writer, 2)
        writer.sync()
        assert log.tips() == [tip, later]


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
        tips = [put(writer, 1), put(writer, 2)]
    segment = next(log.path.glob("seg-*"))
    os.truncate(segment, segment.stat().st_size - cut)
    with log.writer() as writer:
        assert writer.start_tip == tips[0]
        tip = put(writer, 3)
    assert log.tips() == [tips[0], tip]
    assert tip.number > tips[1].number


def test_a_flipped_bit_ends_the_valid_log_and_the_next_epoch_continues_there(log) -> None:
    with log.writer(segment_bytes=1 << 16) as writer:
        tips = [put(writer, 1, trainer={"padding": "x" * 20_000}) for _ in range(9)]
    first = min(log.path.glob("seg-*"))
    data = bytearray(first.read_bytes())
    data[len(data) // 2] ^= 4
    first.write_bytes(data)
    with log.writer() as writer:
        assert writer.start_tip == tips[0]
        tip = put(writer, 2)
    assert log.tips() == [tips[0], tip]
    with log.writer() as writer:
        assert writer.start_tip == tip


def test_a_damaged_base_is_skipped(log) -> None:
    with log.writer() as writer:
        tips = [put(writer, 1), put(writer, 2)]
        writer.sync()
        newer = log.path / f"base-{tips[0].number:020d}"
        newer.mkdir()
        (newer / "manifest.json").write_text("{")
    with log.writer() as writer:
        assert writer.start_tip == tips[-1]


def test_a_path_that_cannot_be_a_folder_is_named_with_its_key(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "log"):
        with pytest.raises(UserError, match=rf"\[log\] path = '{path}' cannot be made a folder \(.*\): set another"):
            start_epoch(path, SCHEMA)
