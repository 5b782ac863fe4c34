"""The whole loop where the calls that only Linux has are missing, and where rocksdb-py is."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.clicks import make_clicks
from tests.e2e.workspace import Workspace
from tests.support.processes import IMPORT_PATH, our_environment

WITHOUT_LINUX = Path(__file__).parents[1] / "support" / "without_linux"


def run(workspace: Workspace, *command: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run `springtide COMMAND` to its end, without Linux."""
    paths = os.pathsep.join([str(WITHOUT_LINUX), IMPORT_PATH])
    return subprocess.run(
        [sys.executable, "-m", "springtide", *command],
        cwd=workspace.folder,
        env=our_environment(PYTHONPATH=paths, **environment),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("rocksdb", [True, False], ids=["with rocksdb-py", "without"])
def test_learning_goes_on_after_a_restart(workspace: Workspace, rocksdb: bool) -> None:
    environment = {} if rocksdb else {"WITHOUT_ROCKSDB": "1"}
    workspace.configure({"table": {"device_bytes": "256KiB"}})  # fewer rows than ids
    workspace.start_broker()
    values = make_clicks(4_000)
    for upto in (2_000, 4_000):
        workspace.produce(values[upto - 2_000 : upto])
        done = run(workspace, "train", "--until-end", **environment)
        assert done.returncode == 0, done.stderr[-3000:]
        assert ("rocksdb-py is missing" in done.stderr) is not rocksdb
        status = json.loads(done.stdout.strip().splitlines()[-1])
        assert status["samples_trained"] == upto
    assert status["table"]["spill_hits"] > 0 if rocksdb else status["table"]["lost"] > 0
