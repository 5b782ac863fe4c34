"""A trainer that is paused between its epoch check and its write, replaced and resumed changes nothing readable."""

import os
import signal
from pathlib import Path
from typing import Any

import msgspec

from springtide.app.version_log.trainer_status import TrainerStatus, read_status
from springtide_client.log.directory import LogDirectory
from tests.support.process_pool import ProcessPool
from tests.support.waiting import DEADLINE_SECONDS
from tests.torture.cluster.cluster import Cluster
from tests.torture.cluster.faults import Faults
from tests.torture.verify.verifier import LogVerifier


def read_everything(log: Path) -> dict[str, Any]:
    """Return everything that readers see: records, bases, manifest, status."""
    directory = LogDirectory(log)
    base = directory.open_base()
    assert base is not None
    status = read_status(log) or TrainerStatus()
    return {
        "records": [record.frame() for record in directory.records(base.head)],
        "manifest": directory.manifest(),
        "bases": {str(path): path.read_bytes() for path in sorted(log.glob("base-*/*"))},
        "status": msgspec.structs.replace(status, updated_ms=0),
    }


def test_a_fenced_trainer_changes_nothing_that_is_read(tmp_path: Path, process_pool: ProcessPool) -> None:
    cluster = Cluster(tmp_path, 5, process_pool)
    verifier = LogVerifier(cluster.log, tmp_path, 5)
    faults = Faults(cluster, verifier)
    try:
        old = faults.pause_before_an_append(2)
        cluster.start_trainer("--take-over")
        successor = faults.train_until_published(more=True)
        for pid in (successor, *cluster.compactors()):
            os.kill(pid, signal.SIGSTOP)
        before = read_everything(cluster.log)
        written = {path: path.stat().st_size for path in cluster.log.glob("seg-0000000001-*")}
        os.kill(old, signal.SIGCONT)
        assert cluster.process_pool.wait(old, DEADLINE_SECONDS) == 1
        # it did write the record that it was about to append
        assert sum(path.stat().st_size for path in cluster.log.glob("seg-0000000001-*")) > sum(written.values())
        assert read_everything(cluster.log) == before
        cluster.kill_trainer()
        verifier.verify()
        verifier.compare_with_reference()
    finally:
        verifier.close()
        cluster.close()
