"""Files of shard records are merged into bases with their versions, and deleted by their own records."""

import pytest

from springtide.app.version_log.compact.merge import compact_log
from springtide.app.version_log.compact.pending_versions import PendingVersions
from springtide.app.version_log.compact.retention import apply_retention
from springtide.app.version_log.read.index import LogIndex
from springtide.app.version_log.verify.verify import verify
from springtide_client.format.records import VersionMeta
from springtide_client.log.base import Base
from tests.support.team_log import Team, TeamLog
from tests.support.writer_log import SCHEMA, WINDOW, row_tensors


@pytest.fixture
def log(tmp_path) -> TeamLog:
    return TeamLog(tmp_path / "log")


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


def shard_files(log: TeamLog) -> list[str]:
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
        assert pending.after(team.lead.first_base_tip.number).is_idle
        before = pending.after(team.lead.first_base_tip.number).num_bytes
        team.lead.append_owned(VersionMeta(fingerprint=SCHEMA.fingerprint()), {})
        team.writers[1].append_owned(VersionMeta(), row_tensors({(0, 1): (1.0, 100)}))
        team.sync()
        after = pending.after(team.lead.first_base_tip.number)
        assert not after.is_idle
        assert after.num_bytes > before
