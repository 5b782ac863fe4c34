"""One process at a time holds the lock, a dead holder holds nothing, and waiting can be ended."""

import subprocess
import sys
from pathlib import Path

from springtide_client.system.file_lock import file_lock

HOLDER = """
import sys, time
from pathlib import Path
from springtide_client.system.file_lock import file_lock
with file_lock(Path(sys.argv[1]), lambda: time.sleep(0.01)):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_free_lock_is_held_at_once_and_again_later(tmp_path: Path) -> None:
    for _ in range(2):
        with file_lock(tmp_path / "lock", lambda: True) as is_held:
            assert is_held


def test_a_held_lock_is_waited_for_until_its_holder_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with file_lock(path, lambda: True) as is_held:
            assert not is_held  # waiting was ended at once

        def kill() -> None:
            holder.kill()
            holder.wait()

        with file_lock(path, kill) as is_held:
            assert is_held
