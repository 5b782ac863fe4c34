"""Where an id is still on the disk."""

import numpy as np
from springtide_client.format.records import VersionMeta
from springtide_client.keys import hash_string
from springtide_client.log.directory import base_name

from app.version_log.commands.erasure_audit import files_containing, oldest_file_containing
from app.version_log.compact.merge import compact_log
from app.version_log.compact.retention import apply_retention
from app.version_log.write.writer import LogWriter
from tests.support.writer_log import WriterLog, config, put, row_tensors


def settle_and_merge(log: WriterLog, writer: LogWriter) -> int:
    """A base of all that was written; returns its number."""
    writer.sync()
    put(writer, 50)
    writer.sync()
    path = compact_log(log.directory, window_samples=10)
    assert path is not None
    apply_retention(log.directory, 2)
    return int(path.name.removeprefix("base-"))


def test_a_forgotten_id_stays_in_older_files_until_enough_bases_are_made(log: WriterLog) -> None:
    settings = config(log.path, base_minutes=10.0, keep_bases=2)
    with log.writer(segment_bytes=1 << 16) as writer:
        assert oldest_file_containing(settings, 0, 7) is None
        put(writer, 7)
        old = settle_and_merge(log, writer)
        writer.append(VersionMeta(), row_tensors({}, [(0, 7)]))
        holdings = files_containing(settings, 0, 7)
        assert [holding.file for holding in holdings] == [
            "seg-0000000001-000000.log",
            f"{base_name(old)}/rows.safetensors",
        ]
        assert (holdings[0].bases_missing, holdings[0].is_open) == (2, True)
        assert (holdings[1].bases_missing, holdings[1].is_open) == (2, False)
        assert holdings[0].expected_ms is not None
        assert "the trainer begins another file" in holdings[0].removal_condition(settings)
        assert "about 20 minutes" in holdings[1].removal_condition(settings)
    with log.writer() as writer:  # another epoch: another file
        settle_and_merge(log, writer)
        holdings = files_containing(settings, 0, 7)
        assert [(holding.bases_missing, holding.is_open) for holding in holdings] == [(1, False)] * 2
        assert "when one more base is made" in holdings[0].removal_condition(settings)
        put(writer, 51)
        settle_and_merge(log, writer)
        assert oldest_file_containing(settings, 0, 7) is None


def test_a_text_is_held_like_a_row(log: WriterLog) -> None:
    row_id = hash_string(b"ann@example.org")
    texts = {
        "texts.feature": np.array([0], np.uint16),
        "texts.id": np.array([row_id], np.int64),
        "texts.offsets": np.array([0, 15], np.int64),
        "texts.bytes": np.frombuffer(b"ann@example.org", np.uint8),
    }
    with log.writer() as writer:
        writer.append(VersionMeta(), texts)
        number = settle_and_merge(log, writer)
        holdings = files_containing(config(log.path), 0, row_id)
        assert [holding.file for holding in holdings] == [
            "seg-0000000001-000000.log",
            f"{base_name(number)}/texts.safetensors",
        ]
        assert files_containing(config(log.path), 1, row_id) == []


def test_bytes_that_no_reader_counts_are_looked_into_too(log: WriterLog) -> None:
    ghost = log.open()
    put(ghost, 1)
    ghost.sync()
    with log.writer(take_over=True) as writer:
        put(writer, 2)
        writer.sync()
        ghost._segments.write(b"")
        segment = log.path / "seg-0000000001-000000.log"
        sealed = segment.stat().st_size
        content = segment.read_bytes()
        segment.write_bytes(content + (log.path / "seg-0000000002-000000.log").read_bytes())
        assert segment.stat().st_size > sealed
        holding = oldest_file_containing(config(log.path), 0, 2)
        assert holding is not None
        assert holding.file == segment.name
    log.kill(ghost)


def test_a_leftover_of_a_merger_counts(log: WriterLog) -> None:
    with log.writer() as writer:
        put(writer, 3)
        number = settle_and_merge(log, writer)
    (log.path / base_name(number)).rename(log.path / f".tmp-{base_name(number)}-77")
    holdings = files_containing(config(log.path), 0, 3)
    assert [holding.is_draft for holding in holdings] == [False, True]
    assert "next merger starts" in holdings[1].removal_condition(config(log.path))
