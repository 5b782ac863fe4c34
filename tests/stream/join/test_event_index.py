"""Events by key: found in an interval whatever their order and number, forgotten, held where there is room."""

import random
from pathlib import Path

import numpy as np
import pytest

from springtide.stream.join import event_index
from springtide.stream.join.event_index import EventIndex
from springtide.stream.join.held_bytes import HeldBytes


def add(index: EventIndex, events: list[tuple[int, int, float]]) -> None:
    keys, times, values = zip(*events, strict=True)
    index.append(np.array(keys, np.uint64), np.array(times, np.int64), np.array(values, np.float32))


def match(index: EventIndex, asked: list[tuple[int, int, int]]) -> list[tuple[float, ...]]:
    """Count, first, sum, max and last of each (key, from, to); of nothing only the count."""
    keys, starts, ends = zip(*asked, strict=True)
    found = index.match(np.array(keys, np.uint64), np.array(starts, np.int64), np.array(ends, np.int64))
    columns = (found.count_N, found.first_ms_N, found.sum_N, found.max_N, found.last_N)
    return [row if row[0] else (0,) for row in zip(*(column.tolist() for column in columns), strict=True)]


def expected(events: list[tuple[int, int, float]], asked: list[tuple[int, int, int]]) -> list[tuple[float, ...]]:
    rows = []
    for key, start, end in asked:
        found = [(ms, value) for k, ms, value in events if k == key and start <= ms <= end]
        values = [value for _, value in found]
        last = max((value for ms, value in found if ms == max(found)[0]), default=0)
        rows.append((len(found), min(found)[0], sum(values), max(values), last) if found else (0,))
    return rows


@pytest.mark.parametrize("long_chain", [64, 3, 0])
def test_what_is_found_is_what_there_is(monkeypatch: pytest.MonkeyPatch, long_chain: int) -> None:
    """Few keys have most events; both ways of finding give the same."""
    monkeypatch.setattr(event_index, "LONG_CHAIN", long_chain)
    rng, index, events = random.Random(1), EventIndex(), []
    for _ in range(40):
        more = [(rng.choice((1, 2, rng.randrange(400))), rng.randrange(60), rng.randrange(-9, 9)) for _ in range(50)]
        events += more
        add(index, more)
        asked = [
            (rng.choice((1, 2, rng.randrange(400))), t := rng.randrange(-5, 60), t + rng.randrange(30))
            for _ in "abcdefgh"
        ]
        assert match(index, asked) == expected(events, asked)


@pytest.mark.parametrize("long_chain", [64, 0])
def test_each_event_is_matched_by_the_first_impression_that_has_it(
    monkeypatch: pytest.MonkeyPatch, long_chain: int
) -> None:
    monkeypatch.setattr(event_index, "LONG_CHAIN", long_chain)
    index = EventIndex()
    add(index, [(1, ms, 1.0) for ms in range(10)] + [(2, ms, 1.0) for ms in range(5)])
    keys, starts, ends = np.array([1, 2, 1, 1], np.uint64), np.array([2, 0, 0, 5]), np.array([4, 1, 4, 7])
    assert index.match(keys, starts, ends, marks=False).num_new_N.tolist() == [0, 0, 0, 0]
    assert index.match(keys, starts, ends).num_new_N.tolist() == [3, 2, 2, 3]
    assert index.match(keys, starts, ends + 1).num_new_N.tolist() == [0, 1, 0, 1]
    assert index.count(0, 5) == (8, 2)
    assert index.count(5, 99) == (4, 1)


def test_old_events_are_forgotten_and_their_room_is_given_back() -> None:
    held = HeldBytes()
    index = EventIndex(held)
    empty = held.memory_used
    for start in range(0, 100_000, 1000):
        add(index, [(n % 7, n, 1.0) for n in range(start, start + 1000)])
        index.forget(start - 2000)
    assert len(index) < 10_000
    assert held.memory_used < 400_000
    assert match(index, [(3, 99_000, 99_999)]) == [(143, 99_004, 143, 1, 1)]
    index.close()
    assert (empty > 0, held.memory_used) == (True, 0)


def test_events_over_the_cap_of_memory_are_in_a_file_and_come_back(tmp_path: Path) -> None:
    held = HeldBytes(memory_bytes=100_000, disk_bytes=10_000_000, folder=tmp_path)
    index, events = EventIndex(held), [(n % 50, n, float(n % 9)) for n in range(20_000)]
    add(index, events)
    assert held.memory_used <= 100_000
    assert 20_000 * 32 < held.disk_used < 10_000_000
    asked = [(7, 1000, 3000), (9, 0, 19_999)]
    assert match(index, asked) == expected(events, asked)
    index.forget(19_900)
    assert len(index) == 100
    assert held.disk_used == 0
    assert match(index, [(9, 0, 19_999)]) == expected(events[19_900:], [(9, 0, 19_999)])
    assert list(tmp_path.iterdir()) == []


def test_there_is_no_room_beyond_both_caps(tmp_path: Path) -> None:
    held = HeldBytes(memory_bytes=50_000, disk_bytes=200_000, folder=tmp_path)
    index = EventIndex(held)
    assert index.has_room(4000)
    assert not index.has_room(10_000)
    add(index, [(n, n, 1.0) for n in range(4000)])
    assert held.memory_used + held.disk_used <= 250_000
