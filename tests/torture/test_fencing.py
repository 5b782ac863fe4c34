"""A trainer paused between its look and its write, replaced, and woken: not a byte that anyone reads is another."""

import os
import signal
from pathlib import Path
from typing import Any

from springtide_client.log.directory import LogDirectory

from app.version_log.trainer_status import read_status
from tests.torture.cluster.cluster import Cluster
from tests.torture.cluster.faults import Faults
from tests.torture.cluster.process_pool import ProcessPool
from tests.torture.verify.verifier import LogVerifier


def all_that_is_read(log: Path) -> dict[str, Any]:
    """Every record that counts as it stands, every file of every base, the manifest, the status."""
    directory = LogDirectory(log)
    base = directory.open_base()
    assert base is not None
    status = read_status(log) or {}
    return {
        "records": [record.frame() for record in directory.records(base.tip)],
        "manifest": directory.manifest(),
        "bases": {str(path): path.read_bytes() for path in sorted(log.glob("base-*/*"))},
        "status": {name: value for name, value in status.items() if name != "updated_ms"},
    }


def test_a_trainer_that_wakes_up_between_its_look_and_its_write_changes_nothing_that_is_read(
    tmp_path: Path, nursery: ProcessPool
) -> None:
    stage = Cluster(tmp_path, 5, nursery)
    judge = LogVerifier(stage.log, tmp_path, 5)
    faults = Faults(stage, judge)
    try:
        old = faults.pause_before_an_append(2)
        stage.start_trainer("--take-over")
        successor = faults.train_until_published(more=True)
        for pid in (successor, *stage.compactors()):
            os.kill(pid, signal.SIGSTOP)
        before = all_that_is_read(stage.log)
        written = {path: path.stat().st_size for path in stage.log.glob("seg-0000000001-*")}
        os.kill(old, signal.SIGCONT)
        assert stage.process_pool.wait(old, 30.0) == 1
        # it did write what it had in hand
        assert sum(path.stat().st_size for path in stage.log.glob("seg-0000000001-*")) > sum(written.values())
        assert all_that_is_read(stage.log) == before
        stage.kill_trainer()
        judge.compare_with_reference(judge.verify())
    finally:
        judge.close()
        stage.close()
