"""A follower keeps up, recovers by itself, reports every version, and never withdraws the served view."""

import os
import shutil
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from springtide_client.encode import encode_instances
from springtide_client.errors import CorruptRecordError, LogError
from springtide_client.follow.follower import TRANSITIONS, Event, Follower, State
from springtide_client.log.directory import LogDirectory
from tests.support.waiting import DEADLINE_SECONDS, wait_until


@pytest.mark.parametrize("state", State)
def test_every_state_leads_to_live(state: State) -> None:
    reached = {state}
    for _ in State:
        reached |= {new for (old, _), new in TRANSITIONS.items() if old in reached}
    assert State.LIVE in reached


def test_a_follower_that_serves_a_view_never_becomes_empty() -> None:
    assert {old for (old, _), new in TRANSITIONS.items() if new is State.EMPTY} == {State.EMPTY}


def test_only_a_followed_view_can_break() -> None:
    assert {old for old, event in TRANSITIONS if event is Event.CHAIN_BROKE} == {s for s in State if s.is_followed}


def test_a_view_that_caught_up_is_live() -> None:
    assert {new for (_, event), new in TRANSITIONS.items() if event is Event.CAUGHT_UP} == {State.LIVE}


INSTANCES = [{"user_id": 1, "item_id": 2, "genres": [1, 2], "last_items": [2]}]


def settle(follower: Follower, number: int, *, seconds: float = DEADLINE_SECONDS) -> None:
    """Poll until a version is served."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        follower.poll()
        if follower.view is not None and follower.view.version == number:
            return
    raise AssertionError(f"{number} is not served: {follower.view and follower.view.version}, {follower.error}")


def poll_until(follower: Follower, check: Callable[[], object]) -> None:
    wait_until(lambda: check() or (follower.poll() and check()), lambda: str(follower.error))


def first_value(follower: Follower, key: tuple[int, int]) -> float:
    rows, _ = follower.view.lookup(np.array([key[0]], np.uint16), np.array([key[1]]))
    return float(rows[0, 0])


@pytest.fixture
def follow():
    """Followers of a log's directory, closed at the end."""
    followers: list[Follower] = []

    def start(log, **options) -> Follower:
        followers.append(Follower(LogDirectory(log.path), **options))
        return followers[-1]

    yield start
    for follower in followers:
        follower.close()


def test_there_is_no_view_before_the_log(follow, log, tmp_path) -> None:
    away = tmp_path / "away"
    log.path.rename(away)
    follower = follow(log)
    assert not follower.poll()
    assert follower.view is None
    assert follower.staleness_ms is None
    away.rename(log.path)
    settle(follower, log.number)


def test_only_an_idle_follower_waits_for_the_log_to_change(follow, log, tmp_path) -> None:
    follower = follow(log)
    settle(follower, log.number)
    follower.poll()
    assert not follower.is_busy
    log.path.rename(tmp_path / "away")
    follower.poll()
    assert follower.error is not None
    assert follower.is_busy
    (tmp_path / "away").rename(log.path)
    poll_until(follower, lambda: not follower.is_busy)


def test_listeners_hear_of_each_version_once_in_order(follow, log) -> None:
    numbers = [log.append({(0, 1): log.row(1)}) for _ in range(3)]
    follower = follow(log, clock_ms=lambda: 77)
    heard, swaps = [], []
    follower.add_listener(lambda view, applied, ms: heard.append((view.version, applied.number, applied.checksum, ms)))
    follower.on_swap(lambda view: swaps.append(view.version))
    assert follower.poll()
    assert not follower.poll()
    # what was there already became servable at once
    assert [(view, number) for view, number, _, _ in heard] == [(numbers[-1], number) for number in numbers]
    for _ in range(2):
        numbers.append(log.append({(0, 1): log.row(2)}))
    assert follower.poll()
    assert [number for _, number, _, _ in heard] == numbers
    assert [view for view, _, _, _ in heard[3:]] == numbers[3:]
    assert heard[-1][2:] == (log.checksum, 77)
    assert swaps == numbers[2:]


def test_a_new_epoch_is_followed(follow, log) -> None:
    follower = follow(log)
    settle(follower, log.append({(0, 1): log.row(1)}))
    log.start_epoch()
    settle(follower, log.append({(0, 1): log.row(2)}))
    assert follower.num_restarts == 0
    assert first_value(follower, (0, 1)) == 2.0


def test_staleness_is_measured_against_complete_until(follow, log) -> None:
    follower = follow(log, clock_ms=lambda: log.now_ms + 500)
    log.append(complete_until_ms=0)
    follower.poll()
    assert follower.staleness_ms is None
    log.append()
    follower.poll()
    assert follower.staleness_ms == 500


def test_a_follower_behind_deleted_records_starts_again_from_a_base(follow, log) -> None:
    follower = follow(log)
    settle(follower, log.append({(0, 1): log.row(1)}))
    old = follower.view
    for seed in range(2, 9):
        log.append({(0, 1): log.row(seed)})
    log.write_base()
    log.segment.unlink()
    log.start_epoch()
    number = log.append({(0, 2): log.row(9)})
    settle(follower, number)
    assert follower.num_restarts == 1
    assert follower.error is None
    assert first_value(follower, (0, 1)) == 8.0
    assert old.version < number  # what was taken before still answers
    assert old.predict(encode_instances(log.schema, INSTANCES)).shape == (1, 2)


def test_a_corrupt_record_holds_the_version_before_it_until_a_newer_base(follow, log) -> None:
    good = log.append({(0, 1): log.row(1)})
    before = log.segment.stat().st_size
    log.append({(0, 1): log.row(2)})
    middle = (before + log.segment.stat().st_size) // 2
    corrupt = bytearray(log.segment.read_bytes())
    corrupt[middle] ^= 1
    log.segment.write_bytes(corrupt)

    follower = follow(log)
    for _ in range(20):
        follower.poll()
    assert follower.view.version == good
    assert isinstance(follower.error, CorruptRecordError)
    assert first_value(follower, (0, 1)) == 1.0

    log.write_base()
    log.start_epoch()
    settle(follower, log.append({(0, 2): log.row(3)}))
    assert follower.error is None
    assert first_value(follower, (0, 1)) == 2.0


def test_a_version_that_was_sealed_out_stays_served_until_the_log_passes_it(follow, log) -> None:
    """Power was lost: the follower saw a version that the next epoch's seal leaves out."""
    kept = log.append({(0, 1): log.row(1)})
    size, checksum = log.segment.stat().st_size, log.checksum
    lost = log.append({(0, 1): log.row(2)})
    follower = follow(log)
    settle(follower, lost)
    whole = log.segment.read_bytes()
    log.segment.write_bytes(whole[:size])
    log.number, log.checksum = kept, checksum
    log.start_epoch()
    for _ in range(3):
        follower.poll()
        assert follower.view.version == lost
    settle(follower, log.append({(0, 2): log.row(3)}))
    assert first_value(follower, (0, 1)) == 1.0


def test_a_re_created_log_is_reported_and_served_once_it_passes_the_served_version(follow, make_log) -> None:
    old, new = make_log(), make_log()
    for seed in (1, 2, 3):
        served = old.append({(0, 1): old.row(seed)})
    follower = follow(old)
    settle(follower, served)
    old.path.rename(old.path.with_name("away"))
    poll_until(follower, lambda: "empty or gone" in str(follower.error))
    follower.poll()
    assert "empty or gone" in str(follower.error)
    new.append({(0, 1): new.row(8)})
    os.utime(new.path / "manifest-0000000001.json", ns=(1, 1))
    new.path.rename(old.path)
    new.path = old.path
    poll_until(follower, lambda: "the log is at version" in str(follower.error))
    assert follower.view.version == served
    assert first_value(follower, (0, 1)) == 3.0
    for seed in (9, 10, 11):
        number = new.append({(0, 1): new.row(seed)})
    settle(follower, number)
    assert first_value(follower, (0, 1)) == 11.0
    assert follower.error is None


def test_a_base_without_a_model_is_named_in_the_error(follow, log) -> None:
    base = LogDirectory(log.path).newest_base()
    (base / "model.pt2").unlink()
    follower = follow(log)
    assert not follower.poll()
    assert isinstance(follower.error, LogError)
    assert "model.pt2" in str(follower.error)


def test_a_newer_base_replaces_many_changed_rows(follow, log, monkeypatch) -> None:
    monkeypatch.setattr("springtide_client.follow.views.REBASE_ROWS", 100)
    follower = follow(log)
    settle(follower, log.append({(0, i): log.row(i) for i in range(150)}, [(0, 151)]))
    assert follower.view.row_info(0, 151)["status"] == "forgotten"
    swaps: list[int] = []
    follower.on_swap(lambda view: swaps.append(view.version))
    base = log.write_base()
    number = log.append({(0, 1): log.row(99)})
    follower._bases._next_rebase = 0.0
    poll_until(follower, lambda: follower.view.base.path == base)
    assert follower.view.version == number
    assert swaps == [number]  # the same version in other layers is no swap
    assert sum(map(len, follower.view.tables[""].layers)) == 1
    assert first_value(follower, (0, 1)) == 99.0
    assert first_value(follower, (0, 149)) == 149.0


def test_memory_stays_within_cache_bytes(follow, log, tmp_path) -> None:
    cache = tmp_path / "cache"
    follower = follow(log, cache_bytes=64 << 10, cache_dir=cache)
    for seed in range(40):
        settle(follower, log.append({(0, 100 * seed + i): log.row(seed) for i in range(100)}))
        assert follower.view.num_bytes <= 32 << 10
    assert follower.view.tables[""].disk_layer is not None
    assert list(cache.iterdir()) == []
    for (feature, row_id), (value, _, _) in log.rows.items():
        assert first_value(follower, (feature, row_id)) == value[0]


def test_when_memory_and_disk_are_full_the_version_stays_until_a_newer_base(follow, log, monkeypatch) -> None:
    monkeypatch.setattr("springtide_client.follow.views.REBASE_SECONDS", 0.0)
    monkeypatch.setattr("springtide_client.follow.follower.RETRY_SECONDS_MAX", 0.0)
    follower = follow(log, cache_bytes=32 << 10, disk_bytes=8 << 10)
    settle(follower, log.number)
    for seed in range(40):
        log.append({(0, 100 * seed + i): log.row(seed) for i in range(100)})
        follower.poll()
    stopped_at = follower.view.version
    assert stopped_at < log.number
    assert "raise cache_disk_bytes, or let the compactor write bases more often" in str(follower.error)
    follower.poll()
    assert (follower.view.version, follower.view.num_bytes < 64 << 10) == (stopped_at, True)
    log.write_base()
    settle(follower, log.number)
    assert first_value(follower, (0, 3999)) == 39.0


def test_a_failing_callback_does_not_stop_the_follower(follow, log) -> None:
    follower = follow(log)

    def fail(*what: object) -> None:
        raise RuntimeError("mine")

    follower.on_swap(fail)
    follower.add_listener(fail)
    settle(follower, log.append({(0, 1): log.row(1)}))
    settle(follower, log.append({(0, 1): log.row(2)}))


def test_calls_in_flight_see_one_version_while_100_pass(follow, log) -> None:
    weight = np.zeros((2, 18), np.float32)
    # every version's rows and bias equal its number: a mixture of two versions would show
    log.append({(0, 1): log.row(0)}, dense={"linear.weight": weight, "linear.bias": np.zeros(2, np.float32)})
    follower = follow(log)
    follower.start()
    assert follower.wait_for_view(20.0) is not None
    features = encode_instances(log.schema, INSTANCES)
    is_over = threading.Event()
    wrong: list[object] = []
    seen: list[int] = []

    def ask() -> None:
        before = 0
        while not is_over.is_set():
            view = follower.view
            bias = view.meta.step / 100.0
            expected = 1 / (1 + np.exp(-np.float32(bias)))
            found = view.predict(features)[0, 0]
            rows, _ = view.lookup(np.array([0], np.uint16), np.array([1]))
            if view.version < before or abs(found - expected) > 1e-6 or rows[0, 0] != view.meta.step:
                wrong.append((view.version, found, expected, rows[0, 0]))
            before = view.version
            seen.append(view.version)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for step in range(1, 101):
        dense = {"linear.bias": np.full(2, step / 100.0, np.float32)}
        number = log.append({(0, 1): log.row(step), (0, step + 1): log.row(step)}, dense=dense, step=step)
        wait_until(lambda number=number: number in seen)
    is_over.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert follower.view.version == number
    assert len(set(seen)) >= 100
    shutil.rmtree(log.path)  # a mapped base and a view outlive their log
    assert follower.view.predict(features).shape == (1, 2)
