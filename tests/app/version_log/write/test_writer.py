"""The log writer: appended versions are read in order, named, chained, and reported as durable."""

import numpy as np
import pytest

from springtide.app.version_log.write.writer import LogWriter
from springtide_client.errors import LogError
from springtide_client.format.records import VersionMeta
from tests.support.waiting import wait_until
from tests.support.writer_log import SCHEMA, config, put


def test_appended_versions_are_read_in_order_with_their_contents(log) -> None:
    with log.writer() as writer:
        heads = [put(writer, step + 1, step=step) for step in range(5)]
        writer.sync()
        records = list(log.directory.records(writer.start_head))
    assert [record.head for record in records] == heads
    assert [record.meta.step for record in records] == list(range(5))
    assert [record.tensors()["rows.value"][0, 0] for record in records] == [1, 2, 3, 4, 5]
    assert all(record.meta.created_ms > 0 for record in records)


def test_the_next_writer_continues_from_the_head(log) -> None:
    with log.writer() as writer:
        heads = [put(writer, 1), put(writer, 2)]
    with log.writer() as writer:
        assert writer.epoch == 2
        assert writer.start_head == writer.durable == writer.published == heads[-1]
        heads.append(put(writer, 3))
        assert heads[-1].number == (2 << 32) + 1
    assert log.heads() == heads


def test_a_new_log_refuses_versions_before_its_first_base(log) -> None:
    with LogWriter.open(config(log.path), schema=SCHEMA) as writer:
        assert writer.start_head is None
        with pytest.raises(LogError, match="base"):
            put(writer, 1)


def test_a_version_is_durable_after_sync_and_records_what_was_durable_before(log) -> None:
    with log.writer() as writer:
        first = put(writer, 1)
        assert writer.durable == writer.first_base_head
        writer.sync()
        assert writer.durable == writer.published == first
        put(writer, 2)
        writer.sync()
        durable = [record.meta.durable for record in log.directory.records(writer.first_base_head)]
        assert durable == [writer.first_base_head.number, first.number]


def test_segments_roll_over_and_are_read_in_sequence(log) -> None:
    with log.writer(segment_bytes=1 << 16) as writer:
        heads = [put(writer, 1, trainer={"padding": "x" * 20_000}) for _ in range(20)]
    assert len(list(log.path.glob("seg-*"))) == 7
    assert log.heads() == heads


def test_copied_and_owned_versions_form_one_chain(log) -> None:
    big = np.arange(50_000.0)
    with log.writer() as writer:
        first = put(writer, 1)
        numbers = [writer.append_owned(VersionMeta(step=step), {"dense.w": big + step}) for step in (2, 3)]
        assert writer.last_number == numbers[-1]
        last = put(writer, 4)
        numbers.append(writer.append_owned(VersionMeta(step=5), {}))
    heads = log.heads()
    assert heads[0] == first
    assert heads[3] == last
    assert [head.number for head in heads] == [first.number, *numbers[:2], last.number, numbers[2]]
    steps = [record.tensors()["dense.w"][0] for record in log.directory.records(None) if record.meta.step in (2, 3)]
    assert steps == [2.0, 3.0]


def test_is_full_when_the_folder_exceeds_log_bytes(log) -> None:
    with log.writer(durable_seconds=0.01, log_bytes=1 << 16) as writer:
        assert not writer.is_full
        put(writer, 1, trainer={"padding": "x" * 100_000})
        wait_until(lambda: writer.is_full)


def test_append_does_not_change_the_meta_it_is_given(log) -> None:
    meta = VersionMeta()
    with log.writer() as writer:
        writer.append(meta, {})
    assert meta == VersionMeta()
