"""A log of several ranks: shard records, version records that name them, and what is published and durable."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from torch.distributed import HashStore

from springtide.app.version_log.failpoints import VARIABLE
from springtide.app.version_log.write.ranks import LogRanks, OtherRank, RankZero, wait_for_start
from springtide.app.version_log.write.writer import LogWriter
from springtide_client.errors import LogError
from springtide_client.format.records import VersionMeta
from springtide_client.log.frames import sound_frames
from springtide_client.log.listing import shard_segment_name
from tests.app.version_log.write.team_appender import KEYS
from tests.support.processes import IMPORT_PATH
from tests.support.waiting import wait_until
from tests.support.writer_log import SCHEMA, WriterLog, config, row_tensors

ROWS = {(0, key): (float(key + 1), 100) for key in range(20)}
ROOT = Path(__file__).parents[4]


@pytest.fixture
def log(tmp_path) -> WriterLog:
    return WriterLog(tmp_path / "log", HashStore)


def test_a_version_of_three_ranks_is_read_as_one(log) -> None:
    with log.team(3) as team:
        number = team.put(ROWS)
        team.put({}, forgotten=[(0, 3), (0, 4)])
        last = team.put({(1, 7): (3.0, 100)})
        team.sync()
        assert all(writer.durable.number == writer.published.number == last for writer in team.writers)
        head, rows = log.read()
    assert number == (1 << 32) + 1
    assert head.number == last
    assert rows == {key: row for key, row in ROWS.items() if key[1] not in (3, 4)} | {(1, 7): (3.0, 100)}
    files = sorted(path.name for path in log.path.glob("seg-*"))
    assert files == [
        "seg-0000000001-000000.log",
        "seg-0000000001-00001-000000.log",
        "seg-0000000001-00002-000000.log",
    ]


def test_one_rank_writes_the_bytes_of_a_log_without_ranks(log, tmp_path) -> None:
    plain = WriterLog(tmp_path / "plain")
    for one in (log, plain):
        with one.team(1) if one is log else one.writer() as writer:
            append = writer.lead.append if one is log else writer.append
            append(VersionMeta(created_ms=5), row_tensors(ROWS))
    name = "seg-0000000001-000000.log"
    assert (log.path / name).read_bytes() == (plain.path / name).read_bytes()
    assert len(list(log.path.glob("seg-*"))) == 1


def test_nothing_is_published_before_every_rank_has_written(log) -> None:
    with log.team(2) as team:
        number = team.lead.append_owned(VersionMeta(), row_tensors({}))
        before = team.lead.published
        wait_until(lambda: "rank 1 has not written the shard record of version 1.1" in team.lead.stall_reason)
        assert team.lead.is_stalled
        assert team.lead.published == before
        assert log.heads() == []
        team.writers[1].append_owned(VersionMeta(), row_tensors(ROWS))
        wait_until(lambda: team.lead.published.number == number)
        assert not team.lead.is_stalled
        assert log.read()[1] == ROWS


def test_a_rank_that_writes_nothing_ends_the_others(log) -> None:
    team = log.start(2, timeout_seconds=1.5)
    team.lead.append_owned(VersionMeta(), row_tensors({}))
    with pytest.raises(LogError, match=r"rank 1 has not written the shard record of version 1.1 within 1.5 s"):
        team.lead.sync()
    with pytest.raises(LogError, match="rank 0 writes no more: rank 1 has not written"):
        append_and_sync(team.writers[1])
    team.close()


def test_a_rank_that_lives_is_waited_for_as_long_as_it_takes() -> None:
    silence = [""]
    for role in RankZero, OtherRank:
        ranks = LogRanks(HashStore(), 0 if role is RankZero else 1, 2, timeout_seconds=0.0, silence=lambda: silence[0])
        one = role(ranks, 1)
        one.wait_for_sync(7)
        one.wait_for_sync(7)
        silence[0] = "rank 1 is silent for 5 s"
        with pytest.raises(LogError, match=r"have not made version 0.7 durable and rank 1 is silent for 5 s"):
            one.wait_for_sync(7)
        silence[0] = ""


def test_a_rank_does_not_wait_for_a_start_of_a_dead_rank_0() -> None:
    ranks = LogRanks(HashStore(), 1, 2, silence=lambda: "rank 0 is silent for 5 s")
    with pytest.raises(LogError, match="rank 0 has not started the log, and rank 0 is silent for 5 s"):
        wait_for_start(ranks, 600.0)


def test_an_epoch_without_versions_waits_for_nobody(log) -> None:
    for _ in range(2):  # one that begins with a base, one that begins with the end of the log
        with log.team(2, timeout_seconds=0.2) as team:
            team.sync()
            assert team.lead.durable == team.lead.published == team.lead.start_head


def test_durable_waits_for_every_rank(log) -> None:
    team = log.start(2)
    number = team.put(ROWS)
    wait_until(lambda: team.lead.published.number == number)
    team.lead._queue._sync()
    assert team.lead.durable.number < number
    team.writers[1]._queue._sync()
    team.lead._queue._sync()
    assert team.lead.durable.number == number
    assert team.writers[1].durable.number < number  # it has not asked yet
    team.close()
    assert team.writers[1].durable.number == number


def test_other_ranks_hear_why_rank_0_could_not_start(log) -> None:
    with log.writer():
        store, errors = HashStore(), []

        def join(rank: int) -> None:
            try:
                ranks = LogRanks(store, rank, 2)
                LogWriter.open(config(log.path), schema=SCHEMA, wait_seconds=0.2, ranks=ranks)
            except LogError as error:
                errors.append(str(error))

        threads = [threading.Thread(target=join, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(errors) == 2
    assert all("another trainer" in error for error in errors)


@pytest.mark.parametrize("sizes", [(2, 3, 1, 2)])
def test_teams_of_any_size_follow_one_another(log, sizes) -> None:
    expected = {}
    for epoch, size in enumerate(sizes, 1):
        with log.team(size) as team:
            assert team.lead.epoch == epoch
            rows = {(0, epoch * 3 + n): (float(epoch), 100) for n in range(6)}
            expected |= rows
            team.put(rows)
    head, rows = log.read()
    assert rows == expected
    assert head.number == (len(sizes) << 32) + 1


def test_the_seal_ends_before_a_version_with_a_missing_or_another_shard_record(log) -> None:
    team = log.start(2)
    first = team.put({(0, 1): (1.0, 100), (0, 2): (2.0, 100)})
    whole = (log.path / "seg-0000000001-00001-000000.log").stat
    wait_until(lambda: team.lead.published.number == first)
    size = whole().st_size
    second = team.put({(0, 1): (7.0, 100), (0, 2): (8.0, 100)})
    wait_until(lambda: team.lead.published.number == second)
    log.kill_team(team)
    with (log.path / "seg-0000000001-00001-000000.log").open("rb+") as file:
        file.truncate(size + 60)  # what a power loss of the other host leaves
    assert log.read()[0].number == first
    with log.team(3) as team:
        assert team.lead.start_head.number == first
        assert log.read()[1] == {(0, 1): (1.0, 100), (0, 2): (2.0, 100)}
        team.put({(0, 9): (9.0, 100)})
    assert log.read()[1] == {(0, 1): (1.0, 100), (0, 2): (2.0, 100), (0, 9): (9.0, 100)}


def append_and_sync(writer: LogWriter) -> None:
    writer.append_owned(VersionMeta(), row_tensors({}))
    writer.sync()


def test_a_team_that_has_written_nothing_is_synced_and_closed_at_once(log) -> None:
    for _ in range(2):
        with log.team(2, timeout_seconds=0.0) as team:  # any wait for another rank would fail
            team.sync()


@pytest.mark.parametrize("visit", [1, 40])
def test_a_version_whose_version_record_was_not_written_never_was(tmp_path, visit: int) -> None:
    log, points = WriterLog(tmp_path / "log"), tmp_path / "points"
    points.mkdir()
    (points / "after-the-shard-records-before-the-version-record").write_text(f"KILL {visit}")
    path = IMPORT_PATH
    process = subprocess.run(
        [sys.executable, "-P", "-m", "tests.app.version_log.write.team_appender", str(log.path)],
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": path, VARIABLE: str(points)},
        check=False,
    )
    assert process.returncode == -9
    head, rows = log.read()
    assert head.number == (1 << 32) + visit - 1
    assert rows == {key: (float(visit - 1), 100) for key in KEYS if visit > 1}
    shards = [frame.header.number for frame in sound_frames(log.path / shard_segment_name(1, 1, 0))]
    assert shards[-1] > head.number
    assert all(int(line) <= head.number for line in process.stdout.split())
    with log.team(3) as team:
        assert team.lead.start_head == head
        team.put({KEYS[0]: (7.0, 100)})
    assert log.read()[1] == rows | {KEYS[0]: (7.0, 100)}
