"""Files as one partition: order, resuming in the middle, changed files, disorder, the seam, dead letters, erasures."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from springtide.stream.decode.erasure_filter import Erasure
from springtide.stream.errors import HistoryError
from springtide.stream.positions import HISTORY, Position
from tests.stream.history.clicks import (
    START_MS,
    click,
    positions_in,
    reader,
    users_of,
    write_clicks,
    write_file,
)


@pytest.mark.parametrize("ending", ["parquet", "csv", "jsonl"])
def test_rows_come_in_the_order_of_the_files_and_offsets_count_them(tmp_path: Path, ending: str) -> None:
    write_clicks(tmp_path / f"b.{ending}", range(30, 50))
    write_clicks(tmp_path / f"a.{ending}", range(30))
    columns = list(reader(tmp_path))
    assert users_of(columns) == list(range(50))
    assert [offset for part in columns for offset in part.offset_N.tolist()] == list(range(50))
    last = columns[-1]
    assert len(last) == 0
    assert last.end_offsets == {HISTORY: 50}
    assert Position(last.topic_ids[HISTORY], 50).is_finished


@pytest.mark.parametrize("ending", ["parquet", "csv", "jsonl"])
@pytest.mark.parametrize("sort_rows", [0, 7])
def test_reading_goes_on_after_any_row(tmp_path: Path, ending: str, sort_rows: int) -> None:
    write_clicks(tmp_path / f"a.{ending}", range(20))
    write_clicks(tmp_path / f"b.{ending}", [21, 20, 23, 22, 25, 24, *range(26, 36)])
    whole = positions_in(reader(tmp_path, sort_rows=sort_rows))
    users = [user for user, _ in whole]
    assert sorted(users) == list(range(36))
    for number, (_, at) in enumerate(whole):
        rest = reader(tmp_path, at, sort_rows=sort_rows)
        assert users_of(rest) == users[number + 1 :]


def test_a_restart_does_not_open_files_that_are_learned(tmp_path: Path) -> None:
    for number in range(3):
        write_clicks(tmp_path / f"{number}.jsonl", range(10 * number, 10 * number + 10))
    _, at = positions_in(reader(tmp_path))[14]
    (tmp_path / "0.jsonl").write_text("no row of a file")
    assert users_of(reader(tmp_path, at)) == list(range(15, 30))


def test_a_changed_or_missing_file_is_refused_and_a_copy_is_not(tmp_path: Path) -> None:
    path = write_clicks(tmp_path / "a.jsonl", range(10))
    _, at = positions_in(reader(tmp_path))[4]
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)
    assert users_of(reader(tmp_path, at)) == [5, 6, 7, 8, 9]
    write_clicks(path, range(11))
    with pytest.raises(HistoryError, match=r"a\.jsonl has changed since"):
        reader(tmp_path, at)
    path.rename(tmp_path / "b.jsonl")
    with pytest.raises(HistoryError, match=r"a\.jsonl.*is gone"):
        reader(tmp_path, at)


def test_a_file_that_grows_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = write_clicks(tmp_path / "a.jsonl", range(10))
    columns = iter(reader(tmp_path))
    next(columns)
    with path.open("a") as file:
        file.write("{}\n")
    with pytest.raises(HistoryError, match="has changed while it was read"):
        list(columns)


def test_new_files_that_come_earlier_are_said_and_later_ones_are_learned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_clicks(tmp_path / "b.jsonl", range(10))
    _, at = positions_in(reader(tmp_path))[4]
    write_clicks(tmp_path / "a.jsonl", range(100, 110))
    write_clicks(tmp_path / "c.jsonl", range(10, 12))
    assert users_of(reader(tmp_path, at)) == list(range(5, 12))
    assert "are not learned" in caplog.text


def test_files_are_ordered_by_the_time_that_they_begin_with_if_that_is_asked_for(tmp_path: Path) -> None:
    write_clicks(tmp_path / "a.csv", range(10, 20))
    write_clicks(tmp_path / "b.parquet", range(10))
    assert users_of(reader(tmp_path, order="time")) == list(range(20))


def test_disorder_is_counted_and_said_and_sorted_in_windows_on_request(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    users = [*range(100, 110), *range(10)]
    write_clicks(tmp_path / "a.jsonl", users)
    plain = reader(tmp_path)
    assert users_of(plain) == users
    assert (plain.num_late, plain.late_ms) == (10, 109_000)
    assert "not in time order" in caplog.text
    sorted_rows = reader(tmp_path, sort_rows=20)
    assert users_of(sorted_rows) == sorted(users)
    assert sorted_rows.num_late == 0


@settings(max_examples=30, deadline=None)
@given(
    times=st.lists(st.integers(0, 20), min_size=1, max_size=40),
    size=st.integers(1, 9),
    broken=st.sets(st.integers(0, 39), max_size=3),
)
def test_windows_are_sorted_as_sorted_does_and_every_row_comes_once(
    tmp_path_factory: pytest.TempPathFactory, times: list[int], size: int, broken: set[int]
) -> None:
    folder = tmp_path_factory.mktemp("windows")
    rows = [click(n, ts=START_MS + 1000 * time) for n, time in enumerate(times)]
    lines = [b"{" if n in broken else json.dumps(row).encode() for n, row in enumerate(rows)]
    (folder / "a.jsonl").write_bytes(b"\n".join(lines))
    expected = []
    for start in range(0, len(rows), size):
        window = [n for n in range(start, min(start + size, len(rows))) if n not in broken]
        expected += sorted(window, key=lambda n: times[n])
    columns = list(reader(folder, sort_rows=size))
    assert users_of(columns) == expected
    letters = [letter.offset for part in columns for letter in part.dead_letters]
    learned = [offset for part in columns for offset in part.offset_N.tolist()]
    assert sorted([*letters, *learned]) == list(range(len(rows)))


def test_rows_from_the_seam_on_are_left_to_the_topic(tmp_path: Path) -> None:
    rows = [click(n) for n in range(20)] + [click(99, ts=0), {"user_id": 1, "ts": START_MS + 30_000}, {"user_id": 2}]
    write_file(tmp_path / "a.jsonl", rows)
    run = reader(tmp_path, until_ms=START_MS + 10_000)
    columns = list(run)
    assert users_of(columns) == [*range(10), 99]
    assert [letter.offset for part in columns for letter in part.dead_letters] == [22]
    assert run.seam.num_left_out == 11
    assert columns[-1].end_offsets == {HISTORY: 23}


def test_dead_letters_hold_the_row_as_json(tmp_path: Path) -> None:
    write_file(tmp_path / "a.parquet", [click(0), click(1) | {"click": 7}, click(2)])
    columns = list(reader(tmp_path))
    letters = [letter for part in columns for letter in part.dead_letters]
    assert [(letter.partition, letter.offset, letter.reason) for letter in letters] == [(HISTORY, 1, "label_range")]
    assert json.loads(letters[0].value or b"") == click(1) | {"click": 7}
    assert users_of(columns) == [0, 2]


def test_erased_ids_are_dropped_from_rows_before_the_erasure_in_every_file(tmp_path: Path) -> None:
    for name in "ab":
        write_file(tmp_path / f"{name}.jsonl", [click(n % 2, ts=START_MS) for n in range(4)])
    positions = positions_in(reader(tmp_path))
    until = {HISTORY: positions[5][1]}
    user, other = 1, 0
    erased = Erasure(((SCHEMA_USER, user),), until)
    users = users_of(reader(tmp_path, erasures=[erased]))
    assert [n for n, each in enumerate(users) if each == other] == [0, 2, 4, 6]
    assert [n for n, each in enumerate(users) if each == user] == [7]
    assert erased.affects_replay_from({HISTORY: positions[1][1]})
    assert not erased.affects_replay_from({HISTORY: positions[6][1]})


SCHEMA_USER = 0
