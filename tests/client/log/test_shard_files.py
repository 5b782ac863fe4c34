"""Versions of several ranks are read whole or not at all: from files and over HTTP."""

import threading

import pytest

from springtide_client.errors import CorruptRecordError, GapError
from springtide_client.format.records import Record, ShardEntry, VersionMeta, encode_pieces
from springtide_client.http.http_client import HttpClient
from springtide_client.http.http_log import RecordStream
from springtide_client.log.directory import LogDirectory
from springtide_client.log.listing import shard_segment_name
from springtide_client.log.shard_files import EVERY_SHARD, FOR_ASKING, ShardChoice
from springtide_client.rows.hash_range import HashRange
from tests.client.log_server import TOKEN, FaultyLogServer
from tests.support.damage import flip
from tests.support.waiting import wait_until
from tests.support.writer_log import WriterLog, apply, compact, owner, sync_twice

BEFORE = {(0, key): (1.0, 100) for key in range(8)}
AFTER = {(0, key): (2.0, 100) for key in range(8)}
ROWS = {(0, key): (float(key), 100) for key in range(40)}


class PublishedLog(WriterLog):
    """Knows its newest version, as the server of tests asks."""

    @property
    def number(self) -> int:
        return self.directory_head().number

    @property
    def checksum(self) -> int:
        return self.directory_head().checksum

    def directory_head(self):
        return self.read()[0]


@pytest.fixture
def log(tmp_path) -> PublishedLog:
    return PublishedLog(tmp_path / "log")


@pytest.fixture
def two_versions(log) -> tuple[int, int]:
    """Write two versions of three ranks; return how long the file of rank 1 was after each."""
    path, sizes = log.path / shard_segment_name(1, 1, 0), []
    with log.team(3) as team:
        for rows in (BEFORE, AFTER):
            number = team.put(rows)
            wait_until(lambda number=number: team.lead.published.number == number)
            sizes.append(path.stat().st_size)
    return sizes[0], sizes[1]


def numbers(records: list[Record]) -> list[int]:
    return [record.number & 0xFFFFFFFF for record in records]


def test_a_version_is_returned_once_its_last_shard_record_is_there(log, two_versions) -> None:
    first, second = two_versions
    path = log.path / shard_segment_name(1, 1, 0)
    whole = path.read_bytes()
    path.write_bytes(b"")
    with log.directory.follow(log.directory.open_base().head) as cursor:
        read: list[int] = []
        for size in (*range(0, second, 61), second):
            path.write_bytes(whole[:size])
            read += numbers(cursor.read())
            assert read == [1] * (size >= first) + [2] * (size >= second)
    assert log.read()[1] == AFTER


def test_a_record_that_a_torn_one_follows_is_found_in_the_next_file(log) -> None:
    with log.team(2) as team, log.directory.follow(team.lead.first_base_head) as cursor:
        first = team.put(BEFORE)
        wait_until(lambda: team.lead.published.number == first)
        assert numbers(cursor.read()) == [1]
        with (log.path / shard_segment_name(1, 1, 0)).open("ab") as file:
            file.write((log.path / shard_segment_name(1, 1, 0)).read_bytes()[:90])
        team.writers[1]._queue.segments._torn = True
        second = team.put(AFTER)
        wait_until(lambda: team.lead.published.number == second)
        assert (log.path / shard_segment_name(1, 1, 1)).stat().st_size > 0
        assert numbers(cursor.read()) == [2]
    assert log.read()[1] == AFTER


@pytest.mark.parametrize("place", [-3, 20])
def test_a_damaged_shard_record_is_corruption_and_never_applied(log, two_versions, place: int) -> None:
    first, second = two_versions
    flip(log.path / shard_segment_name(1, 1, 0), second + place if place < 0 else first + place, 4)
    with log.directory.follow(log.directory.open_base().head) as cursor:
        assert numbers(cursor.read()) == [1]
        with pytest.raises(CorruptRecordError, match="the shard record of rank 1 is damaged: seg-0000000001-00001"):
            cursor.read()


def test_a_damaged_shard_record_is_corruption_also_where_newer_segments_follow(log) -> None:
    with log.team(2) as team, log.directory.follow(team.lead.first_base_head) as cursor:
        team.put(BEFORE)
        team.sync()
        team.lead._queue.segments._torn = True  # goes on in a new file
        team.put(AFTER)
        team.sync()
        path = log.path / shard_segment_name(1, 1, 0)
        content = bytearray(path.read_bytes())
        content[60] ^= 4
        path.write_bytes(content)
        with pytest.raises(CorruptRecordError, match="the shard record of rank 1 is damaged"):
            cursor.read()


def test_another_shard_record_of_the_same_number_is_as_good_as_missing(log, two_versions) -> None:
    path = log.path / shard_segment_name(1, 1, 0)
    (log.path / shard_segment_name(1, 2, 0)).rename(path)
    with log.directory.follow(log.directory.open_base().head) as cursor:
        assert cursor.read() == []


def test_who_misses_a_shard_record_starts_from_a_base_above_it_while_its_trainer_lives(log) -> None:
    with log.team(2) as team, log.directory.follow(team.lead.first_base_head) as cursor:
        team.put(BEFORE)
        sync_twice(team)
        lost = log.path / shard_segment_name(1, 1, 0)
        compact(log)
        lost.rename(log.path / "elsewhere")
        with pytest.raises(GapError, match="start again from the newest base"):
            cursor.read()
        (log.path / "elsewhere").rename(lost)


def test_versions_arrive_whole_over_http(log, two_versions) -> None:
    server = FaultyLogServer(log)
    client = HttpClient(server.url, token=TOKEN)
    stream = RecordStream(client, log.directory.open_base().head.number, threading.Event())
    try:
        received: list[Record] = []

        def arrived() -> bool:
            received.extend(stream.read())
            return len(received) == 2

        wait_until(arrived)
        assert [len(record.shards) for record in received] == [2, 2]
        assert len(received[1].tensors()["rows.id"]) == len(AFTER)
        assert received[1].frame() == next(iter(log.directory.records(received[0].head))).frame()
    finally:
        stream.close()
        server.close()


def version(num_ranks: int, sketch_blocks: int = 0) -> Record:
    meta = VersionMeta(sketch_blocks=sketch_blocks)
    entries = [ShardEntry(rank, 10 + rank) for rank in range(1, num_ranks)]
    pieces, checksum = encode_pieces(1, 5, 4, meta, {}, entries)
    return Record(1, 5, 4, checksum, b"".join(bytes(piece) for piece in pieces[1:]))


def ranks(choice: ShardChoice, record: Record) -> list[int]:
    return [entry.rank for entry in choice.needed(record)]


@pytest.mark.parametrize(
    ("text", "num_ranks", "expected"),
    [
        ("1/1", 4, [1, 2, 3]),
        ("1/2", 4, [1]),
        ("2/2", 4, [2, 3]),
        ("1/4", 4, []),
        ("3/4", 4, [2]),
        ("1/4", 2, []),
        ("3/4", 2, [1]),
        ("2/3", 2, [1]),
        ("2/2", 3, [1, 2]),
        ("none", 4, []),
        ("2/4", 1, []),
    ],
)
def test_the_ranks_whose_keys_a_part_has(text, num_ranks, expected) -> None:
    assert ranks(ShardChoice.parse(text), version(num_ranks)) == expected
    assert str(ShardChoice.parse(text)) == text


def test_counts_of_ids_without_a_row_are_not_left_out() -> None:
    own = HashRange(1, 4)
    for blocks, asking, alone in ((0, [], []), (8, [1, 2, 3], []), (6, [1, 2, 3], [1, 2, 3])):
        record = version(4, blocks)
        assert ranks(ShardChoice(own), record) == alone  # of 6 blocks, 4 ranks share some
        assert ranks(ShardChoice(own, counts_all=True), record) == asking
        assert ranks(FOR_ASKING, record) == asking


@pytest.mark.parametrize("text", ["", "0/1", "3/2", "all"])
def test_other_texts_are_refused(text) -> None:
    with pytest.raises(ValueError, match="range"):
        ShardChoice.parse(text)


def test_parts_read_their_rows_and_together_all(tmp_path) -> None:
    log = WriterLog(tmp_path / "log")
    with log.team(4) as team:
        numbers = [team.put(dict(list(ROWS.items())[:30])), team.put(ROWS, [(1, key) for key in range(20)])]
        team.sync()
    head = log.directory.open_base().head
    whole = list(log.directory.records(head))
    assert [record.number for record in whole] == numbers
    for count in (2, 4):
        for number in range(1, count + 1):
            choice = ShardChoice(HashRange(number, count))
            found = list(LogDirectory(log.path, choice).records(head))
            assert [record.head for record in found] == [record.head for record in whole]
            rows: dict = {}
            for record, all_of_it in zip(found, whole, strict=True):
                apply(rows, record.tensors())
                assert record.num_bytes < all_of_it.num_bytes
                assert record.num_left_out == 3 - len(choice.needed(record)) > 0
                assert choice.cut(all_of_it).frame() == record.frame()
            own = {key: row for key, row in ROWS.items() if owner(key, count) == number - 1}
            assert own.items() <= rows.items() <= ROWS.items()
    assert EVERY_SHARD.cut(whole[0]) is whole[0]


def test_a_version_is_there_for_all_parts_or_for_none(tmp_path) -> None:
    log = WriterLog(tmp_path / "log")
    with log.team(3) as team:
        first = team.put(ROWS)
        team.put(ROWS)
        team.sync()
    head, path = log.directory.open_base().head, log.path / shard_segment_name(1, 2, 0)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])  # of rank 2, which the part does not read
    part = LogDirectory(log.path, ShardChoice(HashRange(1, 3)))
    with part.follow(head) as cursor:
        assert [record.number for record in cursor.read()] == [first]
        assert cursor.read() == []
        path.write_bytes(whole)
        (second,) = cursor.read()
        assert second.num_left_out == 2
