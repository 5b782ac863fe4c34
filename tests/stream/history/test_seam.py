"""The seam between what files and topic hold, and what may be missing there."""

from pathlib import Path

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from springtide.stream.history.config import HistoryConfig
from springtide.stream.history.seam import Coverage
from springtide.stream.history.times import first_event_ms, last_event_ms, ordered_files
from tests.stream.history.clicks import SCHEMA, START_MS, click, write_file


def test_the_seam_is_the_middle_of_what_both_hold() -> None:
    coverage = Coverage(files_end_ms=100, topic_begin_ms=40, is_truncated=True)
    assert coverage.until_ms == 70
    assert coverage.gap(70) == coverage.gap(41) == coverage.gap(101) == ""


@pytest.mark.parametrize("topic_begin_ms", [START_MS + 2, START_MS + 60_000])
def test_without_overlap_all_rows_are_before_the_seam_and_a_topic_that_lost_records_has_a_gap(
    topic_begin_ms: int,
) -> None:
    truncated = Coverage(START_MS, topic_begin_ms, is_truncated=True)
    assert truncated.until_ms == START_MS + 1
    assert "the files are learned up to 2023-11-14T22:13:20Z" in truncated.gap(truncated.until_ms)
    whole = Coverage(START_MS, topic_begin_ms, is_truncated=False)
    assert whole.gap(whole.until_ms) == ""
    assert "the files end at 2023-11-14T22:13:20Z, before the seam" in whole.gap(START_MS + 60_000)


@example(times=[1, 100, 100], held_from=14, files_end=99)
@given(times=st.lists(st.integers(1, 100), min_size=1), held_from=st.integers(0, 99), files_end=st.integers(1, 100))
def test_every_record_is_on_one_side_whatever_retention_deleted(
    times: list[int], held_from: int, files_end: int
) -> None:
    """Of a topic in time order: where it overlaps the files, what it lost is before the seam, what they lack after."""
    times.sort()
    lost, held = times[: held_from % len(times)], times[held_from % len(times) :]
    coverage = Coverage(files_end, held[0], is_truncated=bool(lost))
    assume(not coverage.gap(coverage.until_ms))
    assert all(time < coverage.until_ms for time in lost)
    assert all(time >= coverage.until_ms for time in times if time > files_end)


@pytest.mark.parametrize("ending", ["parquet", "csv", "jsonl"])
def test_times_of_files_are_those_of_rows_that_have_one(tmp_path: Path, ending: str) -> None:
    times = [0, START_MS + 7, START_MS + 5, START_MS + 9, START_MS + 8]
    write_file(tmp_path / f"a.{ending}", [click(n, ts=ts) for n, ts in enumerate(times)])
    write_file(tmp_path / f"b.{ending}", [click(0, ts=0)])
    files = ordered_files(HistoryConfig(path=str(tmp_path)), SCHEMA)
    assert first_event_ms(files[0], SCHEMA) == START_MS + 7
    assert last_event_ms(files, SCHEMA) == START_MS + 9
    assert [file.name for file in ordered_files(HistoryConfig(path=str(tmp_path), order="time"), SCHEMA)] == [
        f"b.{ending}",
        f"a.{ending}",
    ]
