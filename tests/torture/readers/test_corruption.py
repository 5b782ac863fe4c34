"""A follower refuses corrupt files, reports it, keeps its view, and recovers as soon as it can."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from springtide_client.follow.follower import Follower
from springtide_client.log.directory import LogDirectory
from tests.support.damage import flip
from tests.support.waiting import wait_until
from tests.torture.readers.stamped_log import KEYS, StampedLog


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size * 2 // 3)


CORRUPTIONS: dict[str, Callable[[Path], None]] = {
    "a flipped bit": flip,
    "a truncated segment": truncate,
    "a missing file": Path.unlink,
}


@pytest.fixture
def log(tmp_path: Path) -> Iterator[StampedLog]:
    made = StampedLog(tmp_path / "log", segment_bytes=1 << 16)
    yield made
    made.writer.close()


@pytest.fixture
def idle_follower(log: StampedLog) -> Iterator[Follower]:
    """A follower that has polled the first versions, and not since."""
    follower = Follower(LogDirectory(log.path))
    log.append(3)
    log.writer.sync()
    follower.poll()
    assert step_of(follower) == 3
    yield follower
    follower.close()


def step_of(follower: Follower) -> float:
    """Return the step of the follower's view, after checking that all its rows belong to it."""
    view = follower.view
    assert view is not None
    rows, status = view.lookup(*KEYS)
    assert not status.any()
    assert len(np.unique(rows)) == 1
    assert rows[0, 0] == view.meta.step
    return float(rows[0, 0])


def assert_reaches(follower: Follower, step: int) -> None:
    wait_until(lambda: (follower.poll(), step_of(follower) == step)[1], f"step {step}, {follower.error}")


@pytest.mark.parametrize("corruption", CORRUPTIONS)
def test_a_corrupt_segment_is_refused_and_reported_until_it_is_repaired(
    log: StampedLog, idle_follower: Follower, corruption: str
) -> None:
    log.append(60)
    log.writer.sync()
    victim = log.segments()[1]
    whole = victim.read_bytes()
    CORRUPTIONS[corruption](victim)
    for _ in range(20):
        idle_follower.poll()
        assert 3 <= step_of(idle_follower) < 63
    assert idle_follower.error is not None
    assert str(idle_follower.error)
    victim.write_bytes(whole)
    assert_reaches(idle_follower, 63)
    assert idle_follower.error is None


@pytest.mark.parametrize("corruption", CORRUPTIONS)
def test_a_follower_recovers_from_a_base_after_the_corruption(
    log: StampedLog, idle_follower: Follower, corruption: str
) -> None:
    log.append(60)
    log.compact(keep_bases=9)
    CORRUPTIONS[corruption](log.segments()[1])
    log.append(2)
    log.writer.sync()
    assert_reaches(idle_follower, 66)
    assert idle_follower.num_restarts == 1


@pytest.mark.parametrize("corruption", CORRUPTIONS)
def test_a_corrupt_base_is_replaced_by_an_older_one(log: StampedLog, corruption: str) -> None:
    log.append(10)
    log.compact(keep_bases=9)
    log.append(10)
    log.compact(keep_bases=9)
    newest = log.directory.newest_base()
    assert newest is not None
    CORRUPTIONS[corruption](newest / ("manifest.json" if corruption == "a flipped bit" else "rows.safetensors"))
    log.append(5)
    log.writer.sync()
    follower = Follower(LogDirectory(log.path))
    wait_until(lambda: follower.poll() or follower.view is not None, f"a view, {follower.error}")
    assert_reaches(follower, 27)
    follower.close()


def test_a_follower_that_missed_deleted_segments_restarts_from_the_base(
    log: StampedLog, idle_follower: Follower
) -> None:
    for _ in range(3):
        log.append(20)
        log.compact(keep_bases=1)
    log.append(2)
    log.writer.sync()
    assert log.directory.scan().bases[0] > idle_follower.view.version
    assert_reaches(idle_follower, 68)
    assert idle_follower.num_restarts == 1
