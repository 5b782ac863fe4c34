"""Kills between the shard records and the version record of a version."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from springtide.app.version_log.failpoints import VARIABLE
from springtide_client.log.frames import sound_frames
from springtide_client.log.listing import shard_segment_name
from tests.app.version_log.write.team_appender import KEYS
from tests.support.processes import IMPORT_PATH
from tests.support.team_log import TeamLog

ROOT = Path(__file__).parents[4]


@pytest.mark.parametrize("visit", [1, 40])
def test_a_version_whose_version_record_was_not_written_never_was(tmp_path, visit: int) -> None:
    log, points = TeamLog(tmp_path / "log"), tmp_path / "points"
    points.mkdir()
    (points / "after-the-shard-records-before-the-version-record").write_text(f"KILL {visit}")
    path = IMPORT_PATH
    process = subprocess.run(
        [sys.executable, "-P", "-m", "tests.app.version_log.write.team_appender", str(log.path)],
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": path, VARIABLE: str(points)},
        check=False,
    )
    assert process.returncode == -9
    tip, rows = log.read()
    assert tip.number == (1 << 32) + visit - 1
    assert rows == {key: (float(visit - 1), 100) for key in KEYS if visit > 1}
    shards = [frame.header.number for frame in sound_frames(log.path / shard_segment_name(1, 1, 0))]
    assert shards[-1] > tip.number
    assert all(int(line) <= tip.number for line in process.stdout.split())
    with log.team(3) as team:
        assert team.lead.start_tip == tip
        team.put({KEYS[0]: (7.0, 100)})
    assert log.read()[1] == rows | {KEYS[0]: (7.0, 100)}
