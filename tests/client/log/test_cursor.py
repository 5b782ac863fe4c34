"""The rules for readers: only sealed bytes count, parents must match, nothing is used while a higher epoch starts."""

import os

import pytest

from springtide_client.errors import CorruptRecordError, GapError
from springtide_client.format.records import Head
from springtide_client.log.directory import LogDirectory
from springtide_client.log.listing import base_name, claim_name
from tests.client.log.log_writing import LogOnDisk
from tests.support.damage import flip

START = Head(1 << 32, 1 << 32)


@pytest.fixture
def log(tmp_path) -> LogOnDisk:
    log = LogOnDisk(tmp_path)
    log.start()
    return log


def heads(log: LogOnDisk, after: Head | None = START) -> list[Head]:
    return [record.head for record in LogDirectory(log.path).records(after)]


def test_records_are_read_in_order_over_several_files(log) -> None:
    expected = []
    for _ in range(3):
        expected += [log.append() for _ in range(3)]
        log.segment += 1
    assert heads(log) == expected
    for i, head in enumerate(expected):
        assert heads(log, head) == expected[i + 1 :]
    assert heads(log, None) == expected


def test_a_cursor_continues_where_it_stopped(log) -> None:
    with LogDirectory(log.path).follow(START) as cursor:
        assert cursor.read() == []
        for _ in range(3):
            for _ in range(2):
                wanted = [log.append(), log.append()]
                assert [record.head for record in cursor.read()] == wanted
                assert cursor.head == wanted[-1]
            log.segment += 1
        assert cursor.read() == []


def test_a_read_returns_about_its_limit_of_bytes(log) -> None:
    expected = [log.append() for _ in range(5)]
    with LogDirectory(log.path).follow(START) as cursor:
        got = [cursor.read(limit_bytes=1)[0].head for _ in range(5)]
        assert got == expected
        assert cursor.read(limit_bytes=1) == []


def test_an_incomplete_record_is_returned_once_complete(log) -> None:
    first = log.append()
    data, head = log.frame()
    with LogDirectory(log.path).follow(START) as cursor, log.file.open("ab", buffering=0) as file:
        assert [record.head for record in cursor.read()] == [first]
        for cut in range(0, len(data), 17):
            file.write(data[cut : cut + 17])
            got = [record.head for record in cursor.read()]
            assert got == ([head] if cut + 17 >= len(data) else [])


def test_reading_continues_in_the_next_file_after_a_failed_append(log) -> None:
    first = log.append()
    data, head = log.frame()
    log.file.write_bytes(log.file.read_bytes() + data[:100])
    log.segment += 1
    log.file.write_bytes(data)
    log.head = head
    assert heads(log) == [first, head]
    last = log.append()
    assert heads(log) == [first, head, last]


def test_a_record_written_twice_is_returned_once(log) -> None:
    log.append()
    data, log.head = log.frame()
    with log.file.open("ab") as file:
        file.write(data)
    log.segment += 1
    with log.file.open("ab") as file:
        file.write(data)
    second = log.head
    third = log.append()
    assert heads(log)[1:] == [second, third]


def test_a_wrong_parent_is_a_gap(log) -> None:
    log.append()
    with pytest.raises(GapError):
        heads(log, Head(START.number, 99))
    log.head = Head(0, 0)
    log.append()
    with LogDirectory(log.path).follow(START) as cursor:
        assert len(cursor.read()) == 1  # what is good comes first
        with pytest.raises(GapError):
            cursor.read()


def test_another_version_of_the_same_number_is_a_gap(log) -> None:
    head = log.append()
    with pytest.raises(GapError):
        heads(log, Head(head.number, head.checksum ^ 1))


def test_a_flipped_bit_at_the_end_is_corruption_and_before_other_files_a_gap(log) -> None:
    expected = [log.append() for _ in range(3)]
    flip(log.file, -1)
    with LogDirectory(log.path).follow(START) as cursor:
        assert [record.head for record in cursor.read()] == expected[:2]
        with pytest.raises(CorruptRecordError):
            cursor.read()
        log.segment += 1
        log.append()
        with pytest.raises(GapError):
            cursor.read()


def test_bytes_beyond_a_seal_are_ignored(log) -> None:
    expected = [log.append() for _ in range(2)]
    log.seal_now()
    seal, sealed_segment = log.head, log.file
    ghost, _ = log.frame()
    log.start()
    with sealed_segment.open("ab") as file:
        file.write(ghost)
    assert heads(log) == expected
    assert log.head == seal
    expected.append(log.append())
    assert heads(log) == expected


def test_unsealed_files_of_an_older_epoch_are_ignored(log) -> None:
    expected = [log.append()]
    log.seal_now()
    log.segment += 1
    ghost, _ = log.frame()
    log.file.write_bytes(ghost)
    log.start()
    assert heads(log) == expected


def test_nothing_is_returned_while_a_higher_epoch_starts(log) -> None:
    expected = [log.append() for _ in range(2)]
    with LogDirectory(log.path).follow(START) as cursor:
        log.seal_now()
        log.claim()
        assert cursor.read() == []
        assert cursor.head == START
        log.seal()
        assert [record.head for record in cursor.read()] == expected
        assert [log.append()] == [record.head for record in cursor.read()]


def test_records_are_dropped_when_an_epoch_is_claimed_while_they_are_read(log, monkeypatch) -> None:
    expected = [log.append() for _ in range(2)]
    directory = LogDirectory(log.path)
    files = directory.readable_segments

    def files_then_claim(*args):
        (log.path / claim_name(log.epoch + 1)).touch()
        return files(*args)

    with directory.follow(START) as cursor:
        monkeypatch.setattr(directory, "readable_segments", files_then_claim)
        assert cursor.read() == []
        monkeypatch.undo()
        log.epoch += 1
        log.seal()  # nothing of epoch 1 was measured
        assert cursor.read() == []
        assert cursor.head == START
    assert expected


def test_a_cursor_beyond_a_seal_is_a_gap(log) -> None:
    log.append()
    with LogDirectory(log.path).follow(START) as cursor:
        log.seal_now()
        log.append()
        assert len(cursor.read()) == 2
        log.start()  # seals one record only
        with pytest.raises(GapError):
            cursor.read()


def test_deleted_records_are_a_gap_even_if_nothing_follows(log) -> None:
    first = log.append()
    log.segment += 1
    log.append()
    old = log.path / f"seg-{1:010d}-{0:06d}.log"
    with LogDirectory(log.path).follow(first) as cursor, LogDirectory(log.path).follow(START) as late:
        old.unlink()
        with pytest.raises(GapError):
            late.read()
        assert len(cursor.read()) == 1
    last = log.append()
    log.file.unlink()
    (log.path / base_name(last.number)).mkdir()
    with pytest.raises(GapError, match="were deleted"):
        heads(log)
    assert heads(log, last) == []


def test_a_file_unlinked_under_a_cursor_is_read_to_its_end(log) -> None:
    expected = [log.append() for _ in range(4)]
    with LogDirectory(log.path).follow(START) as cursor:
        assert [record.head for record in cursor.read(limit_bytes=1)] == expected[:1]
        log.segment += 1
        expected.append(log.append())
        assert [record.head for record in cursor.read()] == expected[1:]
        os.unlink(log.path / f"seg-{1:010d}-{0:06d}.log")
        expected.append(log.append())
        assert [record.head for record in cursor.read()] == expected[-1:]


def test_a_missing_folder_is_an_empty_log(tmp_path) -> None:
    directory = LogDirectory(tmp_path / "none")
    assert directory.manifest() is None
    assert directory.newest_base() is None
    assert directory.open_base() is None
    assert list(directory.records(None)) == []
