"""Ranks under torture: as torchrun starts them, by names in the environment.

A launch starts the ranks anew; who starts it decides what became of the ranks before: dead, or only frozen.
"""

import os
import signal
import time
from pathlib import Path

from tests.support.ports import free_port
from tests.support.process_pool import ProcessPool
from tests.support.processes import IMPORT_PATHS
from tests.support.waiting import wait_until
from tests.torture.cluster.cluster import STARTUP_FOLDER, is_running
from tests.torture.disk.fsync_recorder import FsyncRecorder
from tests.torture.ranks.site import Site

START_SECONDS = 300.0


class RankCluster(Site):
    """One launch of ranks at a time, and perhaps frozen ranks of earlier ones. `num_kills`: SIGKILLs of ranks."""

    def __init__(self, folder: Path, seed: int, process_pool: ProcessPool) -> None:
        super().__init__(folder, seed)
        self.process_pool, self.num_kills, self.num_launches = process_pool, 0, 0
        (folder / "faults").mkdir()
        self.fsync_recorder = FsyncRecorder(folder / "disk", folder / "record")
        self.fsync_recorder.record_all()
        self.ranks: list[int] = []  # the newest launch's
        self._everyone: list[int] = []

    def launch(self, num_ranks: int, *options: str) -> None:
        """Start so many ranks; one is a trainer without others."""
        self.ranks, port = [], free_port()
        self.num_launches += 1
        for rank in range(num_ranks):
            self.ranks.append(self._start(rank, num_ranks, port, options))
        self._everyone += self.ranks

    def _start(self, rank: int, num_ranks: int, port: int, options: tuple[str, ...]) -> int:
        environment = {
            "SPRINGTIDE_FAILPOINTS": str(self.folder / "faults"),
            "SPRINGTIDE_RECORD": f"{self.folder / 'disk'}{os.pathsep}{self.folder / 'record'}",
            "PYTHONPATH": os.pathsep.join([str(STARTUP_FOLDER), *IMPORT_PATHS]),
        }
        if num_ranks > 1:
            environment |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "GLOO_SOCKET_IFNAME": "lo"}
            environment |= {"WORLD_SIZE": str(num_ranks), "LOCAL_WORLD_SIZE": str(num_ranks)}
            environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        out = self.folder / f"rank-{rank}.out"
        return self.process_pool.start(["train", *options], cwd=self.folder, out=out, environment=environment)

    def living(self) -> list[int]:
        """Return the ranks of the newest launch that have not ended; frozen ones are among them."""
        return [pid for pid in self.ranks if self.process_pool.is_alive(pid)]

    def end_codes(self, pids: list[int], seconds: float = START_SECONDS) -> list[int | None]:
        """Wait for the ends of these ranks; None for one that still runs."""
        deadline = time.monotonic() + seconds
        return [self.process_pool.wait(pid, max(0.0, deadline - time.monotonic())) for pid in pids]

    def kill(self, *pids: int) -> None:
        """Send SIGKILL to ranks, all at one instant, and wait until they are gone."""
        for pid in pids:
            if self.process_pool.is_alive(pid):
                os.kill(pid, signal.SIGKILL)
                self.num_kills += 1
        for pid in pids:
            wait_until(lambda pid=pid: not self.process_pool.is_alive(pid), f"the end of {pid}")

    def kill_compactors(self) -> None:
        """Kill what the ranks have started; they end with their rank 0 anyway."""
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                is_ours = path.read_bytes().split(b"\0")[1:5] == [b"-P", b"-m", b"springtide", b"compact"]
                if not is_ours or (path.parent / "cwd").readlink() != self.folder.resolve():
                    continue
                os.kill(int(path.parent.name), signal.SIGKILL)
            except OSError:
                continue
            wait_until(lambda pid=int(path.parent.name): not is_running(pid), "the end of a compactor")

    def arm(self, point: str, signal_name: str, visit: int) -> None:
        """Send the signal to the rank that reaches this failpoint for the n-th time."""
        draft = self.folder / "faults" / ".draft"
        draft.write_text(f"{signal_name} {visit}")
        draft.rename(self.folder / "faults" / point.replace(" ", "-"))

    def struck(self) -> int | None:
        """Return the process that reached the armed failpoint."""
        return next((int(path.name.rpartition("-")[2]) for path in (self.folder / "faults").glob("*.struck-*")), None)

    def disarm(self) -> None:
        for path in (self.folder / "faults").iterdir():
            path.unlink()

    def bugs(self) -> set[str]:
        """Return the lines in which a rank called its own end a bug."""
        texts = [path.read_text() for path in self.folder.glob("rank-*.out")]
        return {line for text in texts for line in text.splitlines() if "(a bug:" in line}

    def output(self) -> str:
        """Return the ends of the ranks' outputs."""
        return "\n".join(f"{path.name}: {path.read_text()[-1500:]}" for path in sorted(self.folder.glob("rank-*.out")))

    def close(self) -> None:
        self.kill(*(pid for pid in self._everyone if self.process_pool.is_alive(pid)))
        self.kill_compactors()
        super().close()
