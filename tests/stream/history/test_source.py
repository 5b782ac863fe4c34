"""Files, then the topic, with a real broker: every record once, wherever reading stops and wherever the seam is."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from springtide.stream.columns import Columns
from springtide.stream.config import SourceConfig
from springtide.stream.errors import HistoryError
from springtide.stream.history.config import HistoryConfig
from springtide.stream.history.source import open_source, read_again
from springtide.stream.positions import HISTORY, Partition, PartitionShare, Position
from springtide.stream.source import KafkaSource, Source
from tests.stream import conftest
from tests.stream.history.clicks import SCHEMA, START_MS, click, users_of, write_clicks
from tests.support.waiting import wait_until

Open = Callable[..., Source]


@pytest.fixture
def opened(testbed: conftest.Testbed) -> Iterator[Open]:
    """Open what a trainer reads from the testbed's topic."""
    sources: list[Source] = []

    def open_with(
        positions: dict[Partition, Position] | None = None, *, share: PartitionShare | None = None, **history: Any
    ) -> Source:
        config = SourceConfig(topic=testbed.name, log_path=testbed.broker.log_path)
        source = open_source(
            config, HistoryConfig(**history), SCHEMA, positions or {}, share=share or PartitionShare(0, 1)
        )
        sources.append(source)
        return source

    yield open_with
    for source in sources:
        source.close()


def messages(users: Any) -> list[bytes]:
    return [json.dumps(click(user)).encode() for user in users]


def read_to_end(source: Source) -> list[Columns]:
    source.stop_at_end()
    columns: list[Columns] = []
    wait_until(lambda: columns.extend(source.poll(0.05)) or source.finished, lambda: source.status.reason)
    return columns


def positions_after(columns: list[Columns], before: dict[Partition, Position]) -> dict[Partition, Position]:
    """Where a version that holds these columns is."""
    positions = dict(before)
    for part in columns:
        positions |= {p: Position(part.topic_ids[p], offset) for p, offset in part.end_offsets.items()}
    return positions


def test_every_record_comes_once_in_order_when_files_and_topic_overlap(
    testbed: conftest.Testbed, opened: Open, tmp_path: Path
) -> None:
    write_clicks(tmp_path / "h" / "a.parquet", range(60))
    testbed.create()
    testbed.produce(messages(range(40, 100)))
    columns = read_to_end(opened(path=str(tmp_path / "h")))
    assert users_of(columns) == list(range(100))
    # the middle between the topic's first record and the files' last row
    assert next(part for part in columns if len(part)).partitions == (HISTORY,)
    assert sum(len(part) for part in columns if part.partitions == (HISTORY,)) == 50


def test_reading_goes_on_from_every_position_around_the_seam(
    testbed: conftest.Testbed, opened: Open, tmp_path: Path
) -> None:
    for name, users in {"a": range(10), "b": range(10, 25), "c": range(25, 30)}.items():
        write_clicks(tmp_path / "h" / f"{name}.jsonl", users)
    testbed.create()
    testbed.produce(messages(range(18, 40)))
    until = START_MS + 22_000
    whole = read_to_end(opened(path=str(tmp_path / "h"), until=until))
    assert users_of(whole) == list(range(40))
    for num_parts in range(len(whole) + 1):
        learned = whole[:num_parts]
        if num_parts < len(whole) and len(whole[num_parts]) > 3:
            learned = [*learned, whole[num_parts].slice(0, 3)]
        rest = read_to_end(opened(positions_after(learned, {}), path=str(tmp_path / "h"), until=until))
        assert users_of(learned) + users_of(rest) == list(range(40))


def test_a_seam_that_a_version_holds_is_not_decided_again(
    testbed: conftest.Testbed, opened: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_clicks(tmp_path / "h" / "a.jsonl", range(30))
    testbed.create()
    testbed.produce(messages(range(10, 40)))
    source = opened(path=str(tmp_path / "h"))
    first = wait_until(lambda: source.poll(0.05))[0]
    assert len(first) == 0
    assert set(first.end_offsets) == {HISTORY, testbed.partition}
    testbed.produce(messages(range(40, 50)))
    again = opened(positions_after([first], {}), path=str(tmp_path / "h"), until=START_MS + 1)
    assert users_of(read_to_end(again)) == list(range(50))
    assert "until is not what the log has begun with" in caplog.text


def test_records_that_are_out_of_order_around_the_seam_come_once(
    testbed: conftest.Testbed, opened: Open, tmp_path: Path
) -> None:
    in_files = [0, 1, 3, 2, 6, 4, 5, 8, 7]
    in_topic = [3, 5, 4, 8, 6, 9, 7, 10]
    write_clicks(tmp_path / "h" / "a.jsonl", in_files)
    testbed.create()
    testbed.produce(messages(in_topic))
    columns = read_to_end(opened(path=str(tmp_path / "h"), until=START_MS + 6_000))
    assert users_of(columns) == [0, 1, 3, 2, 4, 5, 8, 6, 9, 7, 10]


def test_partitions_that_begin_at_different_times_leave_no_gap(
    testbed: conftest.Testbed, opened: Open, tmp_path: Path
) -> None:
    write_clicks(tmp_path / "h" / "a.jsonl", range(50))
    testbed.create(2)
    testbed.produce(messages(range(20, 80, 2)), partition=0)
    testbed.produce(messages(range(31, 80, 2)), partition=1)
    users = users_of(read_to_end(opened(path=str(tmp_path / "h"), until=START_MS + 40_000)))
    assert sorted(users) == list(range(80))


def test_offsets_say_where_the_topic_begins_and_times_do_not_matter_then(
    testbed: conftest.Testbed, opened: Open, tmp_path: Path
) -> None:
    write_clicks(tmp_path / "h" / "a.jsonl", range(30))
    testbed.create()
    testbed.produce(messages(range(10)))
    source = opened(path=str(tmp_path / "h"), offsets={str(testbed.partition): 7})
    assert users_of(read_to_end(source)) == [*range(30), 7, 8, 9]
    with pytest.raises(HistoryError, match="the next offset is 10"):
        read_to_end(opened(path=str(tmp_path / "h"), offsets={str(testbed.partition): 11}))
    with pytest.raises(HistoryError, match="there is no partition other/0"):
        read_to_end(opened(path=str(tmp_path / "h"), offsets={"other/0": 0}))


def test_a_topic_that_does_not_exist_yet_is_read_from_its_first_record(
    testbed: conftest.Testbed, opened: Open, tmp_path: Path
) -> None:
    write_clicks(tmp_path / "h" / "a.jsonl", range(5))
    source = opened(path=str(tmp_path / "h"))
    columns: list[Columns] = []
    wait_until(lambda: columns.extend(source.poll(0.05)) or len(users_of(columns)) == 5)
    wait_until(lambda: source.poll(0.05) == [] and "there is no topic" in source.status.reason)
    assert source.status.state == "waiting"
    testbed.create()
    testbed.produce(messages(range(5, 8)))
    wait_until(lambda: columns.extend(source.poll(0.05)) or len(users_of(columns)) == 8)
    assert users_of(columns) == list(range(8))


def test_the_status_says_which_file_is_learned(testbed: conftest.Testbed, opened: Open, tmp_path: Path) -> None:
    testbed.create()
    write_clicks(tmp_path / "h" / "a.jsonl", range(5))
    source = opened(path=str(tmp_path / "h"), offsets={str(testbed.partition): 0})
    wait_until(lambda: users_of(source.poll(0.05)))
    source.close()
    assert source.status.progress in ("learning history: a.jsonl, file 1 of 1", "")


def test_a_history_that_is_behind_the_log_or_given_up_is_refused(
    testbed: conftest.Testbed, opened: Open, tmp_path: Path
) -> None:
    path = str(write_clicks(tmp_path / "a.jsonl", range(5)))
    testbed.create()
    with pytest.raises(HistoryError, match="comes before the topic"):
        opened({testbed.partition: Position("", 3)}, path=path)
    with pytest.raises(HistoryError, match="by one process"):
        opened(path=path, share=PartitionShare(0, 2))
    columns = read_to_end(opened(path=path))
    middle = positions_after(columns[:2], {})
    with pytest.raises(HistoryError, match="in the middle of its history"):
        opened(middle)
    end = positions_after(columns, {})
    assert isinstance(opened(end), KafkaSource)
    assert opened(end, path=path, share=PartitionShare(0, 2)).has_partitions
    with pytest.raises(HistoryError, match="names no file"):
        read_to_end(opened(path=str(tmp_path / "nothing" / "*.csv")))


@pytest.mark.parametrize("sort_rows", [0, 4])
@pytest.mark.parametrize("ending", ["parquet", "jsonl"])
def test_samples_between_two_positions_are_read_again_with_their_records(
    testbed: conftest.Testbed, opened: Open, tmp_path: Path, ending: str, sort_rows: int
) -> None:
    for name, users in {"a": [0, 2, 1, 3, 4], "b": range(5, 12)}.items():
        write_clicks(tmp_path / "h" / f"{name}.{ending}", users)
    testbed.create()
    testbed.produce(messages(range(7, 15)))
    history = HistoryConfig(path=str(tmp_path / "h"), sort_rows=sort_rows)
    whole = read_to_end(opened(path=history.path, sort_rows=sort_rows))
    learned = users_of(whole)
    assert sorted(learned) == list(range(15))
    rows = [part.slice(n, n + 1) for part in whole for n in range(len(part))] + [whole[-1].slice(0, 0)]
    config = SourceConfig(topic=testbed.name, log_path=testbed.broker.log_path)
    end = positions_after(whole, {})
    for number in (0, 3, 7, 12):
        begin = positions_after(rows[:number], positions_after(whole[:1], {}))
        columns = list(read_again(config, history, SCHEMA, begin, end))
        assert users_of(columns) == learned[number:]
        letters = [part.dead_letter(n, "skipped", "") for part in columns for n in range(len(part))]
        assert [json.loads(letter.value or b"")["user_id"] for letter in letters] == learned[number:]
    middle = positions_after(rows[:4], positions_after(whole[:1], {}))
    again = read_again(config, history, SCHEMA, {}, middle | {testbed.partition: Position("", 0)})
    assert users_of(list(again)) == learned[:4]
