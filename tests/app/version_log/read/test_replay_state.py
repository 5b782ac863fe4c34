"""A trainer resumes exactly at the end of the log, or refuses to start."""

import os

import pytest

from springtide.app.version_log.compact.merge import compact_log
from springtide.app.version_log.read.replay_state import Resume
from springtide_client.errors import LogError
from springtide_client.format.records import CommandEntry, VersionMeta
from springtide_client.rows.layers import flatten_layers, record_layer
from tests.support.writer_log import put, row_tensors, rows_of


def test_a_new_log_has_nothing_to_resume(log) -> None:
    assert Resume.of(log.directory, None) is None


def test_base_and_records_lead_to_the_end_of_the_log(log) -> None:
    with log.writer() as writer:
        for step in range(6):
            rows = {(0, step): (float(step + 1), 9), (0, 99): (float(step + 1), 9)}
            writer.append(VersionMeta(step=step, executed_commands=[CommandEntry(id=f"o{step}")]), row_tensors(rows))
            if step == 3:
                writer.sync()
                assert compact_log(log.directory, window_samples=10) is None
        writer.sync()
        assert compact_log(log.directory, window_samples=10)
    with log.writer() as writer:
        resume = Resume.of(log.directory, writer.start_head)
        assert resume.meta.step == resume.base.manifest.meta.step == 3
        records = list(resume.records())
        assert [record.meta.step for record in records] == [4, 5]
        assert resume.meta.step == 5
        assert set(resume.executed_commands) == {f"o{step}" for step in range(6)}
        assert resume.executed_commands["o5"] == records[-1].number
        layers = [resume.base.main.layer, *(record_layer(record.tensors(), 2, 1) for record in records)]
        rows = rows_of(flatten_layers(layers, 2, 1))
        assert rows == {(0, step): (float(step + 1), 9) for step in range(6)} | {(0, 99): (6.0, 9)}


def test_a_log_that_cannot_be_read_to_its_end_is_an_error(log) -> None:
    with log.writer() as writer:
        put(writer, 1)
        put(writer, 2)
    with log.writer() as writer:
        resume = Resume.of(log.directory, writer.start_head)
        segment = next(log.path.glob("seg-*"))
        os.truncate(segment, segment.stat().st_size - 1)
        with pytest.raises(LogError, match=r"ends at 1\.1"):
            list(resume.records())


def test_a_replaced_trainer_cannot_resume(log) -> None:
    with log.writer() as writer:
        put(writer, 1)
    with log.writer() as writer:
        resume = Resume.of(log.directory, writer.start_head)
        (log.path / "epoch-0000000003.claim").touch()
        with pytest.raises(LogError, match="ends at"):
            list(resume.records())
