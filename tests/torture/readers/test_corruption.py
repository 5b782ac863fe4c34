"""A follower refuses damaged files, says so, serves on, and comes back as soon as it can."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from springtide_client.follow.follower import Follower
from springtide_client.log.directory import LogDirectory

from tests.support.waiting import wait_until
from tests.torture.readers.stamped_log import KEYS, StampedLog


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size * 2 // 3)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "a flipped bit": flip,
    "a cut segment": cut,
    "a missing file": Path.unlink,
}


@pytest.fixture
def log(tmp_path: Path) -> Iterator[StampedLog]:
    made = StampedLog(tmp_path / "log", segment_bytes=1 << 16)
    yield made
    made.writer.close()


@pytest.fixture
def sleeper(log: StampedLog) -> Iterator[Follower]:
    """One that has seen the first versions, and not been awake since."""
    follower = Follower(LogDirectory(log.path))
    log.append(3)
    log.writer.sync()
    follower.poll()
    assert shown(follower) == 3
    yield follower
    follower.close()


def shown(follower: Follower) -> float:
    """The step that its rows tell, all the same."""
    view = follower.view
    assert view is not None
    rows, status = view.lookup(*KEYS)
    assert not status.any()
    assert len(np.unique(rows)) == 1
    assert rows[0, 0] == view.meta.step
    return float(rows[0, 0])


def settles(follower: Follower, step: int) -> None:
    wait_until(lambda: (follower.poll(), shown(follower) == step)[1], f"step {step}, {follower.error}")


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_damaged_is_refused_and_said_until_it_is_mended(
    log: StampedLog, sleeper: Follower, damage: str
) -> None:
    log.append(60)
    log.writer.sync()
    victim = log.segments()[1]
    whole = victim.read_bytes()
    DAMAGES[damage](victim)
    for _ in range(20):
        sleeper.poll()
        assert 3 <= shown(sleeper) < 63
    assert sleeper.error is not None
    assert str(sleeper.error)
    victim.write_bytes(whole)
    settles(sleeper, 63)
    assert sleeper.error is None


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_base_behind_the_damage_is_a_way_around_it(log: StampedLog, sleeper: Follower, damage: str) -> None:
    log.append(60)
    log.compact(keep_bases=9)
    DAMAGES[damage](log.segments()[1])
    log.append(2)
    log.writer.sync()
    settles(sleeper, 66)
    assert sleeper.num_restarts == 1


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_base_is_refused_for_an_older_one(log: StampedLog, damage: str) -> None:
    log.append(10)
    log.compact(keep_bases=9)
    log.append(10)
    log.compact(keep_bases=9)
    newest = log.directory.newest_base()
    assert newest is not None
    DAMAGES[damage](newest / ("manifest.json" if damage == "a flipped bit" else "rows.safetensors"))
    log.append(5)
    log.writer.sync()
    follower = Follower(LogDirectory(log.path))
    wait_until(lambda: follower.poll() or follower.view is not None, f"a view, {follower.error}")
    settles(follower, 27)
    follower.close()


def test_who_sleeps_through_retirement_begins_again_from_the_base(log: StampedLog, sleeper: Follower) -> None:
    for _ in range(3):
        log.append(20)
        log.compact(keep_bases=1)
    log.append(2)
    log.writer.sync()
    assert log.directory.scan().bases[0] > sleeper.view.version
    settles(sleeper, 68)
    assert sleeper.num_restarts == 1
