"""Retention: what newer bases replace is deleted, and the rest stays readable."""

import os

import pytest

from springtide.app.tools.diagnosis import check_kept_versions
from springtide.app.version_log.commands.pin import pin_version
from springtide.app.version_log.compact.compactor import Compactor, PendingVersions
from springtide.app.version_log.compact.merge import compact_log
from springtide.app.version_log.compact.retention import apply_retention, read_base_manifest
from springtide.app.version_log.read.index import LogIndex
from springtide.app.version_log.verify.verify import verify
from springtide_client.format.records import Head, VersionMeta
from springtide_client.log.base import Base
from tests.support.writer_log import SCHEMA, WINDOW, Team, WriterLog, compact, config, put, row_tensors, sync_twice


def test_retention_deletes_what_the_oldest_retained_base_covers(log) -> None:
    with log.writer(segment_bytes=1 << 16) as writer:
        heads: list[Head] = []
        for _ in range(4):
            heads += [put(writer, 1, trainer={"padding": "x" * 30_000}) for _ in range(8)]
            writer.sync()
            heads.append(writer.append(VersionMeta(), {}))
            writer.sync()
            compact(log)
            apply_retention(log.directory, 2)
            bases = log.directory.bases()
            assert len(bases) <= 2
            after_oldest = [record.head for record in log.directory.records(Base.open(bases[0]).head)]
            assert after_oldest == [head for head in heads if head.number > Base.open(bases[0]).head.number]
        segments = sorted(path.name for path in log.path.glob("seg-*"))
        assert "seg-0000000001-000000.log" not in segments
        first_kept = int(segments[0][-10:-4])
        assert segments == [f"seg-0000000001-{k:06d}.log" for k in range(first_kept, first_kept + len(segments))]
    with log.writer() as writer:
        assert writer.start_head == heads[-1]
        apply_retention(log.directory, 1)
        newest = Base.open(log.directory.bases()[-1]).head
        assert [record.head for record in log.directory.records(newest)] == heads[-1:]


def test_retention_deletes_segments_of_a_replaced_trainer(log) -> None:
    with log.writer() as writer:
        put(writer, 1)
        sync_twice(writer)
    ghost = log.path / "seg-0000000001-000009.log"
    with log.writer():
        ghost.write_bytes(b"ghost")
        assert ghost.name in apply_retention(log.directory, 2)
        assert not ghost.exists()


def test_nothing_is_deleted_while_an_epoch_starts(log) -> None:
    with log.writer() as writer:
        put(writer, 1)
        sync_twice(writer)
        compact(log)
        (log.path / "epoch-0000000002.claim").touch()
        assert apply_retention(log.directory, 1) == []


def test_a_damaged_newest_base_is_not_counted_as_retained(log) -> None:
    with log.writer() as writer:
        put(writer, 1)
        sync_twice(writer)
        base = compact(log)
        os.truncate(base.path / "rows.safetensors", 10)
        assert apply_retention(log.directory, 1) == []
        assert len(log.heads()) == 2  # from the base before it
        mended = compact(log)
        assert mended.path == base.path
        mended.verify()
        Compactor(config(log.path), window_samples=WINDOW).compact()


def put_many(team: Team, first: int, count: int) -> dict:
    """Append versions so large that every other one begins a new shard file, and durable."""
    rows = {}
    for number in range(first, first + count):
        own = {(feature, number * 400 + n): (float(number), 100) for feature in (0, 1) for n in range(400)}
        rows |= own
        team.put(own, samples_trained=number + 1)
    team.sync()
    team.put({}, samples_trained=first + count)
    team.sync()
    return rows


def shard_files(log: WriterLog) -> list[str]:
    return sorted(path.name for path in log.path.glob("seg-*-00001-*.log"))


def test_bases_hold_the_rows_of_all_ranks_and_retention_keeps_what_readers_need(log) -> None:
    with log.team(2, segment_bytes=1 << 16) as team:
        rows = put_many(team, 0, 8)
        assert len(shard_files(log)) > 2
        base = Base.open(compact_log(log.directory, window_samples=WINDOW))
        assert base.manifest.num_ranges == 2  # a file for each rank
        assert log.rows_in(base) == rows
        rows |= put_many(team, 8, 8)
        apply_retention(log.directory, 1)
        names = shard_files(log)
        assert "seg-0000000001-00001-000000.log" not in names
        assert log.read()[1] == rows
        assert verify(log.directory, keep_bases=1).errors == []
        compact_log(log.directory, window_samples=WINDOW)
        apply_retention(log.directory, 1)
        assert shard_files(log) == names[-1:]  # never the newest, to which its rank appends
        assert log.read()[1] == rows
        rows |= put_many(team, 16, 1)
        assert log.read()[1] == rows
        index = LogIndex(log.directory)
        assert all(index.is_restorable(number) == (number >= index.bases[0]) for number in index.numbers)


def test_rows_of_another_rank_alone_are_work_for_the_next_base(log) -> None:
    with log.team(2) as team:
        team.lead.append_owned(VersionMeta(fingerprint=SCHEMA.fingerprint()), {})
        team.writers[1].append_owned(VersionMeta(), {})
        team.sync()
        pending = PendingVersions(log.directory)
        assert pending.after(team.lead.first_base_head.number).is_idle
        before = pending.after(team.lead.first_base_head.number).num_bytes
        team.lead.append_owned(VersionMeta(fingerprint=SCHEMA.fingerprint()), {})
        team.writers[1].append_owned(VersionMeta(), row_tensors({(0, 1): (1.0, 100)}))
        team.sync()
        after = pending.after(team.lead.first_base_head.number)
        assert not after.is_idle
        assert after.num_bytes > before


@pytest.mark.parametrize(
    ("room", "state", "words"),
    [
        (40, "ok", "log_bytes has room for 40"),
        (10, "note", "room for 10: the oldest that keep names are deleted first"),
        (3, "problem", "4 of them are needed, 1 by pins: raise"),
    ],
)
def test_check_says_whether_kept_bases_fit(log: WriterLog, room: int, state: str, words: str) -> None:
    assert list(check_kept_versions(config(log.path))) == []
    with log.writer() as writer:
        writer.append(VersionMeta(), row_tensors({(0, i): (1.0, 1) for i in range(2000)}))
        sync_twice(writer)
        compact_log(log.directory, window_samples=10)
        put(writer, 1)
        writer.sync()
        pin_version(log.path, "latest", "one")
    base_bytes = read_base_manifest(log.directory.bases()[-1]).num_bytes
    settings = config(log.path, keep={"hourly": 24, "daily": 7}, log_bytes=base_bytes * room * 4 // 3 + 4)
    (found,) = check_kept_versions(settings)
    assert found.state == state
    assert words in found.text
    assert "35 bases" in found.text
