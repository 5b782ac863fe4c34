"""Pins keep versions restorable, whatever retention deletes and whenever it does so."""

import multiprocessing
import os
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from springtide.app.errors import UserError
from springtide.app.version_log.commands.pin import pin_version, unpin_version
from springtide.app.version_log.compact.retention import apply_retention
from springtide.app.version_log.kept_versions import read_pins, retention_lock
from springtide.app.version_log.read.index import LogIndex
from springtide.app.version_log.read.version_range import VersionImage
from springtide_client.errors import LogError
from springtide_client.format.records import VersionMeta
from springtide_client.log.directory import LogDirectory
from tests.support.processes import our_environment
from tests.support.random_versions import SEGMENT_BYTES, RandomVersions, fill, image_rows
from tests.support.waiting import wait_until
from tests.support.writer_log import Row, WriterLog, put


def test_a_pinned_version_between_two_bases_is_restored_long_after_its_neighbors_are_gone(log: WriterLog) -> None:
    with log.writer(segment_bytes=SEGMENT_BYTES) as writer:
        random_log = RandomVersions(log, writer)
        random_log.write(5)
        writer.sync()
        pinned = writer.last_number
        pin = pin_version(log.path, "latest", "before-relaunch")
        assert (pin.version, pin.name) == (pinned, "before-relaunch")
        for _ in range(4):
            fill(random_log)
        index = LogIndex(log.directory)
        assert index.resolve("before-relaunch") == pinned
        assert image_rows(log.directory, pinned) == alive(random_log, pinned)
        gone = next(number for number in random_log.worlds if number > pinned and not index.is_restorable(number))
        with pytest.raises(UserError, match="can no longer be rebuilt, versions before it were deleted: the nearest"):
            index.base_before(gone)
        num_files = len(os.listdir(log.path))
        assert unpin_version(log.path, "before-relaunch").version == pinned
        apply_retention(log.directory, 1)
        assert len(os.listdir(log.path)) < num_files
        with pytest.raises(UserError, match="no pin has this name"):
            LogIndex(log.directory).resolve("before-relaunch")


def alive(random_log: RandomVersions, number: int) -> dict[tuple[int, int], Row]:
    return dict(random_log.worlds[number])


def test_a_pin_keeps_its_version_over_the_starts_of_trainers(log: WriterLog) -> None:
    with log.writer(segment_bytes=SEGMENT_BYTES) as writer:
        random_log = RandomVersions(log, writer)
        random_log.write(5)
        writer.sync()
        pinned, expected = writer.last_number, dict(random_log.now)
        pin_version(log.path, "latest", "kept")
        fill(random_log)
    for _ in range(3):
        with log.writer(segment_bytes=SEGMENT_BYTES) as writer:
            random_log.writer = writer
            fill(random_log)
    assert image_rows(log.directory, pinned) == expected


@pytest.mark.parametrize("name", ["latest", "3.7", "-2", "@noon", "a/b", "", "7", ".x"])
def test_a_name_that_means_something_else_is_refused(log: WriterLog, name: str) -> None:
    with log.writer() as writer:
        put(writer, 1)
        writer.sync()
        with pytest.raises(UserError, match="a name begins with a letter"):
            pin_version(log.path, "latest", name)
    assert read_pins(log.path) == []


def test_a_name_is_taken_once_and_the_same_pin_again_is_no_error(log: WriterLog) -> None:
    with log.writer() as writer:
        first, second = put(writer, 1), put(writer, 2)
        writer.sync()
        pin = pin_version(log.path, str(first.number), "one")
        assert pin_version(log.path, "-1", "one") == pin
        with pytest.raises(UserError, match=r"one pins version 1\.1: unpin it"):
            pin_version(log.path, str(second.number), "one")
    assert read_pins(log.path) == [pin]
    with pytest.raises(UserError, match="no version is pinned as 'two'"):
        unpin_version(log.path, "two")


def test_an_unreadable_pin_stops_retention(log: WriterLog) -> None:
    with log.writer() as writer:
        random_log = RandomVersions(log, writer)
        random_log.write(2)
        pin_version(log.path, "latest", "one")
        random_log.compact()
        (log.path / "pins" / "one.json").write_bytes(b"{")
        with pytest.raises(LogError, match=r"one\.json cannot be read"):
            apply_retention(log.directory, 1)
    assert len(log.directory.bases()) == 2


def test_a_version_that_is_not_durable_is_made_durable_by_the_pin(log: WriterLog, monkeypatch) -> None:
    with log.writer() as writer:
        version = put(writer, 1)
        wait_until(lambda: writer.published == version)
        synced: list[Path] = []
        monkeypatch.setattr("springtide.app.version_log.commands.pin.sync_file", synced.append)
        pin_version(log.path, "latest", "one")
        assert [path.name for path in synced] == ["seg-0000000001-000000.log"]


def test_a_published_version_is_not_pinned_while_a_trainer_starts(log: WriterLog) -> None:
    with log.writer() as writer:
        put(writer, 1)
        writer.sync()
    (log.path / "epoch-0000000002.claim").touch()
    with pytest.raises(LogError, match="is not durable yet, after 0 s: a trainer is starting"):
        pin_version(log.path, "latest", "one", wait_seconds=0.0)
    assert pin_version(log.path, "oldest", "base").version == 1 << 32  # a base is durable
    assert [pin.name for pin in read_pins(log.path)] == ["base"]


def test_while_files_are_deleted_a_pin_waits(log: WriterLog) -> None:
    with log.writer() as writer:
        put(writer, 1)
        writer.sync()
        with retention_lock(log.path, wait_seconds=0.0) as is_held:
            assert is_held
            with pytest.raises(LogError, match="has been deleting files"):
                pin_version(log.path, "latest", "one", wait_seconds=0.0)
            thread = threading.Thread(target=pin_version, args=(log.path, "latest", "one"))
            thread.start()
        thread.join()
    assert [pin.name for pin in read_pins(log.path)] == ["one"]


PIN = """
import sys
from pathlib import Path
from springtide.app.version_log.commands.pin import pin_version
pin_version(Path(sys.argv[1]), sys.argv[2], "killed")
"""


@pytest.mark.parametrize("point", ["before a pin is renamed", "after a pin is renamed"])
def test_a_killed_process_leaves_a_whole_pin_or_none(log: WriterLog, tmp_path: Path, point: str) -> None:
    with log.writer() as writer:
        version = put(writer, 1)
        writer.sync()
        (tmp_path / "points").mkdir()
        (tmp_path / "points" / point.replace(" ", "-")).write_text("KILL 1")
        environment = our_environment() | {"SPRINGTIDE_FAILPOINTS": str(tmp_path / "points")}
        command = [sys.executable, "-c", PIN, str(log.path), "latest"]
        assert subprocess.run(command, env=environment, check=False).returncode == -9
        pins = read_pins(log.path)
        assert [pin.version for pin in pins] == ([] if point.startswith("before") else [version.number])
        with retention_lock(log.path, wait_seconds=0.0) as is_held:
            assert is_held
        writer.append(VersionMeta(), {})
        writer.sync()
        apply_retention(log.directory, 2)
        assert not list((log.path / "pins").glob(".tmp-*"))
        assert pin_version(log.path, str(version.number), "killed").version == version.number


def pin_at_random(path: Path, seed: int, num_tries: int) -> None:
    """Pin the oldest versions that seem restorable; check each pin that succeeded, and remove every second one."""
    draw = random.Random(seed)
    for attempt in range(num_tries):
        try:
            numbers = LogIndex(LogDirectory(path)).numbers
            number = draw.choice(numbers[: max(1, len(numbers) // 2)])
            pin = pin_version(path, str(number), f"p{seed}-{attempt}")
        except (UserError, LogError, FileNotFoundError):
            continue
        LogIndex(LogDirectory(path)).base_before(pin.version)  # UserError if it is gone
        for _ in VersionImage(LogIndex(LogDirectory(path)), pin.version).rows():
            pass
        if draw.random() < 0.5:
            unpin_version(path, pin.name)


def test_no_pin_succeeds_for_a_version_that_retention_deletes_at_the_same_moment(log: WriterLog) -> None:
    """Two processes pin while this one compacts and deletes."""
    with log.writer(segment_bytes=SEGMENT_BYTES) as writer:
        random_log = RandomVersions(log, writer)
        random_log.write(3)
        random_log.compact()
        context = multiprocessing.get_context("fork")
        others = [context.Process(target=pin_at_random, args=(log.path, seed, 40)) for seed in (1, 2)]
        for process in others:
            process.start()
        while any(process.is_alive() for process in others):
            fill(random_log)
        assert [process.exitcode for process in others] == [0, 0]
        pins = read_pins(log.path)
        assert pins, "no pin succeeded"
        fill(random_log)
        for pin in pins:
            if pin.version in random_log.worlds:
                assert image_rows(log.directory, pin.version) == alive(random_log, pin.version)
