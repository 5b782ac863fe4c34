"""Which bases the rule keeps, under the log's limit, and what a silent stream does to them."""

import threading
from datetime import UTC, datetime

import pytest

from springtide.app.version_log.commands.pin import pin_version
from springtide.app.version_log.compact.compactor import Compactor
from springtide.app.version_log.compact.merge import compact_log
from springtide.app.version_log.compact.retention import apply_retention
from springtide.app.version_log.config import KeepRule
from springtide.app.version_log.disk_budget import folder_bytes
from springtide.app.version_log.read.index import LogIndex
from springtide.app.version_log.verify.verify import verify
from springtide_client.format.records import VersionMeta
from springtide_client.log.base import Base, read_base_manifest
from tests.support.random_versions import SEGMENT_BYTES, RandomVersions, image_rows
from tests.support.waiting import wait_until
from tests.support.writer_log import WINDOW, WriterLog, config, put, row_tensors, sync_twice

HOUR_MS = 3_600_000
START_MS = 500_000 * HOUR_MS - 500_000 * HOUR_MS % (24 * HOUR_MS)


def base_at(log: WriterLog, writer, hours: float, value: float = 1.0) -> int:
    """Write a version at a time and a base of it; returns its number."""
    created_ms = START_MS + round(hours * HOUR_MS)
    version = writer.append(
        VersionMeta(created_ms=created_ms, event_clock_ms=created_ms // 2), row_tensors({(0, 1): (value, 1)})
    )
    writer.sync()
    writer.append(VersionMeta(created_ms=created_ms), row_tensors({(0, 2): (value, 1)}))
    writer.sync()
    path = compact_log(log.directory, window_samples=WINDOW)
    assert path is not None
    assert Base.open(path).head == version
    return version.number


def test_the_last_base_of_each_hour_and_day_is_kept(log: WriterLog) -> None:
    rule = KeepRule(hourly=3, daily=2)
    with log.writer(segment_bytes=SEGMENT_BYTES) as writer:
        at = {}
        for hours in (1.0, 1.5, 20.0, 23.9, 25.0, 25.4, 26.0, 26.5, 27.1, 27.2, 27.3):
            at[hours] = base_at(log, writer, hours)
            apply_retention(log.directory, 1, rule=rule)
        kept = [number for number in log.directory.scan().bases if number in at.values()]
        assert kept == [at[hours] for hours in (23.9, 25.4, 26.5, 27.3)]
        index = LogIndex(log.directory)
        for hours, number in ((23.95, 23.9), (26.9, 26.5), (27.31, 27.3)):
            ms = START_MS + round(hours * HOUR_MS)
            text = datetime.fromtimestamp(ms / 1000, UTC).isoformat()
            found = index.resolve(f"@{text}")
            assert found in (at[number], at[number] + 1)
            text = datetime.fromtimestamp(ms / 2000, UTC).isoformat()
            assert index.resolve(f"event@{text}") >= at[number]
        assert broken(log) == []


def broken(log: WriterLog, *, deep: bool = False) -> list[str]:
    """Return what is missing in the log; these tests write no meta that would be valid otherwise."""
    words = ("follow", "missing", "among the records", "rebuilt", "base")
    found = verify(log.directory, keep_bases=1, deep=deep).errors
    return [error.what for error in found if any(word in error.what for word in words)]


def test_the_oldest_bases_by_rule_go_first_when_the_limit_is_reached_and_pins_stay(log: WriterLog, caplog) -> None:
    rule = KeepRule(hourly=100)
    with log.writer(segment_bytes=SEGMENT_BYTES) as writer:
        numbers = [base_at(log, writer, 0.0)]
        pin_version(log.path, str(numbers[0]), "first")
        numbers += [base_at(log, writer, float(hour), float(hour)) for hour in range(1, 9)]
        apply_retention(log.directory, 1, rule=rule)
        assert [number for number in log.directory.scan().bases if number in numbers] == numbers
        newest = sum(file.bytes for file in read_base_manifest(log.directory.bases()[-1]).files.values())
        limit = folder_bytes(log.path) * 4 // 3 - 3 * newest
        apply_retention(log.directory, 1, rule=rule, log_bytes=limit)
        kept = [number for number in log.directory.scan().bases if number in numbers]
        assert kept[0] == numbers[0], "a pinned version was deleted"
        assert 2 <= len(kept) < len(numbers)
        assert kept[1:] == numbers[-len(kept) + 1 :]
        assert "the oldest bases that [log] keep names are deleted" in caplog.text
        apply_retention(log.directory, 1, rule=rule, log_bytes=1 << 16 if folder_bytes(log.path) > 1 << 16 else 1)
        assert [number for number in log.directory.scan().bases if number in numbers] == [numbers[0], numbers[-1]]
        assert "pinned versions" in caplog.text


def test_a_silent_stream_makes_no_bases_and_loses_no_version(log: WriterLog, monkeypatch) -> None:
    with log.writer(durable_seconds=0.01) as writer:
        random_log = RandomVersions(log, writer)
        random_log.write(6)
        random_log.compact()
        random_log.write(3)
        random_log.compact()
        writer.sync()
        bases, versions = log.directory.scan().bases, dict(random_log.worlds)
        compactor = Compactor(config(log.path, base_minutes=1e-9), window_samples=WINDOW)
        for _ in range(50):
            writer.append(VersionMeta(expiry_cutoffs={"1": random_log.horizon}), {})
        sync_twice(writer)
        assert not compactor.is_due()
        # so many heartbeats that readers would be slow: the newest base is linked
        monkeypatch.setattr("springtide.app.version_log.compact.compactor.IDLE_BYTES", 100)
        stopping = threading.Event()
        thread = threading.Thread(target=compactor.run, args=(stopping,))
        thread.start()
        for _ in range(3):
            known = log.directory.scan().bases[-1]
            before = folder_bytes(log.path)
            for _ in range(5):
                writer.append(VersionMeta(expiry_cutoffs={"1": random_log.horizon}), {})
            sync_twice(writer)
            wait_until(lambda known=known: log.directory.scan().bases[-1] > known)
            assert folder_bytes(log.path) < before + 10_000
        stopping.set()
        thread.join()
        assert set(bases[1:]) <= set(log.directory.scan().bases)
        for number, rows in versions.items():
            if number >= bases[1]:
                assert image_rows(log.directory, number) == rows
        newest = log.directory.open_base()
        newest.verify()
        assert newest.manifest.repeats
        put(writer, 1)
        sync_twice(writer)
        compactor.compact()
        assert broken(log) == []


@pytest.mark.parametrize("small", [True, False])
def test_a_pinned_version_gets_a_base_where_its_segments_take_more(log: WriterLog, small: bool) -> None:
    with log.writer(segment_bytes=SEGMENT_BYTES) as writer:
        rows = {(0, i): (float(i + 1), 1) for i in range(2 if small else 20_000)}
        writer.append(VersionMeta(), row_tensors(rows))
        sync_twice(writer)
        compact_log(log.directory, window_samples=WINDOW)
        for _ in range(3):
            put(writer, 1, trainer={"padding": "x" * 30_000})
        writer.sync()
        pin = pin_version(log.path, "latest", "one")
        expected = image_rows(log.directory, pin.version)
        compactor = Compactor(config(log.path, keep_bases=1), window_samples=WINDOW)
        for _ in range(2):
            for _ in range(3):
                put(writer, 2, trainer={"padding": "x" * 30_000})
            sync_twice(writer)
            compactor.compact()
        assert (pin.version in log.directory.scan().bases) == small
        assert image_rows(log.directory, pin.version) == expected
        assert broken(log, deep=True) == []
