"""The history of one row."""

from springtide.app.version_log.compact.merge import compact_log
from springtide.app.version_log.inspection.history import CREATED, ERASED, EXPIRED, IN_BASE, WRITTEN, row_history
from springtide.app.version_log.read.index import LogIndex
from springtide_client.format.records import VersionMeta
from tests.support.writer_log import WriterLog, put, row_tensors


def test_a_row_is_created_written_erased_created_again_and_expires(log: WriterLog) -> None:
    with log.writer() as writer:
        put(writer, 1)
        writer.append(VersionMeta(created_ms=7), row_tensors({(1, 5): (3.0, 100)}))
        writer.append(VersionMeta(), row_tensors({(1, 5): (6.0, 200), (0, 5): (1.0, 1)}))
        writer.append(VersionMeta(), row_tensors({}, [(1, 5)]))
        writer.append(VersionMeta(), row_tensors({(1, 5): (2.0, 300)}, [(1, 5)]))
        writer.append(VersionMeta(expiry_cutoffs={"1": 301}), {})
        writer.append(VersionMeta(expiry_cutoffs={"1": 301}), {})
        writer.sync()
        history = row_history(LogIndex(log.directory), 1, 5, limit=10)
    kinds = [(event.version - (1 << 32), event.kind) for event in history.events]
    assert kinds == [(2, CREATED), (3, WRITTEN), (4, ERASED), (5, ERASED), (5, CREATED), (6, EXPIRED)]
    created, written = list(history.events)[:2]
    assert (created.created_ms, created.count, created.last_seen_ms) == (7, 3, 100)
    assert written.move == created.norm
    assert not history.is_alive
    assert history.bases == []


def test_a_history_starts_at_the_oldest_base_and_names_the_bases_with_the_row(log: WriterLog) -> None:
    with log.writer() as writer:
        for value in (1.0, 2.0, 3.0):
            writer.append(VersionMeta(), row_tensors({(0, 1): (value, 100)}))
            writer.sync()
            put(writer, 9)
            writer.sync()
            compact_log(log.directory, window_samples=10)
        index = LogIndex(log.directory)
        (log.path / f"base-{1 << 32:020d}").rename(log.path / "gone")
        index = LogIndex(log.directory)
        history = row_history(index, 0, 1, limit=2)
    assert [event.kind for event in history.events] == [WRITTEN, WRITTEN]
    assert history.num_events == 3
    assert row_history(index, 0, 1, limit=9).events[0].kind == IN_BASE
    assert history.bases == index.bases
    assert history.is_alive


def test_an_id_that_was_never_learned_has_no_events(log: WriterLog) -> None:
    with log.writer() as writer:
        put(writer, 1)
        writer.sync()
        history = row_history(LogIndex(log.directory), 1, 1, limit=9)
    assert (list(history.events), history.is_alive) == ([], False)
