"""The files that still hold an erased id, and when each will be deleted."""

import shutil
from pathlib import Path

import numpy as np

from springtide.app.version_log.commands.pin import pin_version, unpin_version
from springtide.app.version_log.compact.merge import compact_log
from springtide.app.version_log.compact.retention import apply_retention
from springtide.app.version_log.inspection.history import row_history
from springtide.app.version_log.inspection.id_files import files_containing, oldest_file_containing
from springtide.app.version_log.read.index import LogIndex
from springtide.app.version_log.write.writer import LogWriter
from springtide_client.format.records import VersionMeta
from springtide_client.keys import hash_string
from springtide_client.log.listing import base_name, base_number
from tests.support.writer_log import TABLES, WriterLog, config, put, row_tensors


def sync_and_compact(log: WriterLog, writer: LogWriter) -> int:
    """Write a base of everything appended so far; return its number."""
    writer.sync()
    put(writer, 50)
    writer.sync()
    path = compact_log(log.directory, window_samples=10)
    assert path is not None
    apply_retention(log.directory, 2)
    return base_number(path)


def test_an_erased_id_stays_in_older_files_until_enough_bases_are_written(log: WriterLog) -> None:
    settings = config(log.path, base_minutes=10.0, keep_bases=2)
    with log.writer(segment_bytes=1 << 16) as writer:
        assert oldest_file_containing(settings, 0, 7) is None
        put(writer, 7)
        old = sync_and_compact(log, writer)
        writer.append(VersionMeta(), row_tensors({}, [(0, 7)]))
        references = files_containing(settings, 0, 7)
        assert [reference.file for reference in references] == [
            "seg-0000000001-000000.log",
            f"{base_name(old)}/rows.safetensors",
        ]
        assert (references[0].bases_missing, references[0].is_open) == (2, True)
        assert (references[1].bases_missing, references[1].is_open) == (2, False)
        assert references[0].expected_ms is not None
        assert "the trainer starts another file" in references[0].removal_condition(settings)
        assert "about 20 minutes" in references[1].removal_condition(settings)
    with log.writer() as writer:  # another epoch: another file
        sync_and_compact(log, writer)
        references = files_containing(settings, 0, 7)
        assert [(reference.bases_missing, reference.is_open) for reference in references] == [(1, False)] * 2
        assert "when one more base is written" in references[0].removal_condition(settings)
        put(writer, 51)
        sync_and_compact(log, writer)
        assert oldest_file_containing(settings, 0, 7) is None


def test_a_row_is_found_in_the_files_of_every_table(tmp_path: Path) -> None:
    log = WriterLog(tmp_path / "log", tables=TABLES)
    with log.writer(segment_bytes=1 << 16) as writer:
        writer.append(VersionMeta(), row_tensors({(1, 7): (3.0, 100), (0, 8): (4.0, 100)}))
        base = sync_and_compact(log, writer)
        files = [reference.file for reference in files_containing(config(log.path), 1, 7)]
        assert files == ["seg-0000000001-000000.log", f"{base_name(base)}/rows.dim3.safetensors"]
        assert files_containing(config(log.path), 1, 8) == []
        shutil.copytree(log.path / base_name(base), log.path / f".tmp-{base_name(base)}-7")
        assert any(reference.is_draft for reference in files_containing(config(log.path), 1, 7))
        history = row_history(LogIndex(log.directory), 1, 7, limit=10)
        assert [event.kind for event in history.events] == ["created"]
        assert history.bases == [base]


def test_an_id_string_counts_like_a_row(log: WriterLog) -> None:
    row_id = hash_string(b"ann@example.org")
    texts = {
        "texts.feature": np.array([0], np.uint16),
        "texts.id": np.array([row_id], np.int64),
        "texts.offsets": np.array([0, 15], np.int64),
        "texts.bytes": np.frombuffer(b"ann@example.org", np.uint8),
    }
    with log.writer() as writer:
        writer.append(VersionMeta(), texts)
        number = sync_and_compact(log, writer)
        references = files_containing(config(log.path), 0, row_id)
        assert [reference.file for reference in references] == [
            "seg-0000000001-000000.log",
            f"{base_name(number)}/texts.safetensors",
        ]
        assert files_containing(config(log.path), 1, row_id) == []


def test_bytes_that_readers_ignore_are_searched_too(log: WriterLog) -> None:
    fenced = log.open()
    put(fenced, 1)
    fenced.sync()
    with log.writer(take_over=True) as writer:
        put(writer, 2)
        writer.sync()
        fenced._queue.segments.write(b"")
        segment = log.path / "seg-0000000001-000000.log"
        sealed = segment.stat().st_size
        content = segment.read_bytes()
        segment.write_bytes(content + (log.path / "seg-0000000002-000000.log").read_bytes())
        assert segment.stat().st_size > sealed
        reference = oldest_file_containing(config(log.path), 0, 2)
        assert reference.file == segment.name
    log.kill(fenced)


def test_a_draft_left_by_a_killed_compactor_counts(log: WriterLog) -> None:
    with log.writer() as writer:
        put(writer, 3)
        number = sync_and_compact(log, writer)
    (log.path / base_name(number)).rename(log.path / f".tmp-{base_name(number)}-77")
    references = files_containing(config(log.path), 0, 3)
    assert [reference.is_draft for reference in references] == [False, True]
    assert "next compactor starts" in references[1].removal_condition(config(log.path))


def test_a_pinned_version_keeps_an_erased_id_and_is_named(log: WriterLog) -> None:
    settings = config(log.path, keep_bases=1)
    with log.writer(segment_bytes=1 << 16) as writer:
        put(writer, 7)
        old = sync_and_compact(log, writer)
        pin_version(log.path, str(old), "before")
        writer.append(VersionMeta(), row_tensors({}, [(0, 7)]))
    with log.writer() as writer:
        for _ in range(2):
            sync_and_compact(log, writer)
        apply_retention(log.directory, 1)
        (reference,) = files_containing(settings, 0, 7)
        assert reference.file == f"{base_name(old)}/rows.safetensors"
        assert "when its pins are removed" in reference.removal_condition(settings)
        assert reference.removal_condition(settings).endswith("before)")
        unpin_version(log.path, "before")
        apply_retention(log.directory, 1)
        assert oldest_file_containing(settings, 0, 7) is None
