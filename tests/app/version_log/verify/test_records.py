"""Damage in shard records is found and named."""

import random

import pytest

from springtide.app.version_log.read.index import LogIndex
from springtide.app.version_log.verify.verify import verify
from springtide_client.log.directory import LogDirectory
from tests.support.writer_log import WriterLog

SHARDS = "seg-0000000001-00001-000000.log"
ROWS = {(0, key): (float(key + 1), 100) for key in range(20)}


@pytest.fixture
def log(tmp_path) -> WriterLog:
    log = WriterLog(tmp_path / "log")
    with log.team(2) as team:
        for _ in range(3):
            team.put(ROWS)
        team.sync()
    return log


def test_a_whole_log_of_two_ranks_has_no_errors(log) -> None:
    assert verify(log.directory, deep=True).errors == []


def test_a_flipped_bit_in_a_shard_record_is_found_and_named(log) -> None:
    path, draw = log.path / SHARDS, random.Random(1)
    original = path.read_bytes()
    for _ in range(25):
        data = bytearray(original)
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        path.write_bytes(data)
        wrong = verify(LogDirectory(log.path)).errors
        assert any("shard record" in finding.what for finding in wrong)
        assert any(SHARDS in finding.what or "missing" in finding.what for finding in wrong)
    path.write_bytes(original)
    assert verify(log.directory).errors == []


def test_a_missing_shard_record_is_an_error_and_its_version_is_not_offered(log) -> None:
    numbers = LogIndex(log.directory).numbers
    with (log.path / SHARDS).open("rb+") as file:
        file.truncate((log.path / SHARDS).stat().st_size - 1)
    assert next(finding.what for finding in verify(log.directory).errors) == (
        "version 1.3 lists a shard record that is missing"
    )
    assert LogIndex(log.directory).numbers == numbers[:-1]


def test_versions_are_listed_with_the_rows_of_all_ranks(log) -> None:
    summary = LogIndex(log.directory).entries[-1].read_summary()
    assert summary.num_rows == len(ROWS)
