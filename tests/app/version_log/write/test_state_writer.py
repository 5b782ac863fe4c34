"""Exact states are written beside the log; a failed log is not waited for."""

from pathlib import Path

import numpy as np

from springtide.app.version_log.read.exact_state import find_state
from springtide.app.version_log.write.segment_writer import PendingRecord
from springtide.app.version_log.write.state_writer import PendingState, StateWriter
from springtide_client.format.records import Head, VersionMeta
from springtide_client.format.tensors import map_tensors
from tests.support.waiting import wait_until


def pending(number: int, *, head: Head | None) -> PendingState:
    version = PendingRecord(number, VersionMeta(), {})
    if head is not None:
        version.head = head
        version.encoded.set()
    arrays = {"state.parameters.w": np.arange(300_000, dtype=np.float32), "state.optimizer.step": np.float32([3])[0:1]}
    return PendingState(arrays, version)


def test_a_state_is_there_once_it_is_reported(tmp_path: Path) -> None:
    written: list[int] = []
    writer = StateWriter(tmp_path, on_written=written.append, has_log_failed=lambda: False)
    state = pending(7, head=Head(7, 99))
    writer.put(state)
    writer.wait()
    assert written == [7]
    assert find_state(tmp_path, Head(7, 98)) is None
    file = find_state(tmp_path, Head(7, 99), verify=True)
    assert file is not None
    np.testing.assert_array_equal(map_tensors(file)["state.parameters.w"], state.arrays["state.parameters.w"])
    writer.stop()


def test_when_the_log_has_failed_a_state_that_cannot_be_written_stalls_nothing(tmp_path: Path) -> None:
    failed: list[bool] = []
    writer = StateWriter(tmp_path / "gone", on_written=lambda number: None, has_log_failed=lambda: bool(failed))
    writer.put(pending(7, head=None))
    wait_until(lambda: writer.stall_reason != "")
    failed.append(True)
    wait_until(lambda: writer.is_idle)
    assert not writer.stall_reason
    writer.wait()
    writer.stop()
