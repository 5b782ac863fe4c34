"""Ranks under torture: as torchrun starts them, by names in the environment.

A launch starts the ranks anew; who starts it decides what became of the ranks before: dead, or only frozen.
"""

import time
from pathlib import Path

from tests.support.ports import free_port
from tests.support.process_pool import ProcessPool
from tests.torture.ranks.site import RankSite

START_SECONDS = 300.0


class RankCluster(RankSite):
    """One launch of ranks at a time, and perhaps frozen ranks of earlier ones. `num_kills`: SIGKILLs of ranks."""

    def __init__(self, folder: Path, seed: int, process_pool: ProcessPool) -> None:
        super().__init__(folder, seed, process_pool)
        self.record_disk()
        self.num_launches = 0
        self.ranks: list[int] = []  # the newest launch's
        self._everyone: list[int] = []

    def launch(self, num_ranks: int, *options: str) -> None:
        """Start so many ranks; one is a trainer without others."""
        self.ranks, port = [], free_port()
        self.num_launches += 1
        for rank in range(num_ranks):
            environment = {}
            if num_ranks > 1:
                environment = {"RANK": str(rank), "LOCAL_RANK": str(rank), "GLOO_SOCKET_IFNAME": "lo"}
                environment |= {"WORLD_SIZE": str(num_ranks), "LOCAL_WORLD_SIZE": str(num_ranks)}
                environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            self.ranks.append(self.start("train", *options, out=f"rank-{rank}", environment=environment))
        self._everyone += self.ranks

    def living(self) -> list[int]:
        """Return the ranks of the newest launch that have not ended; frozen ones are among them."""
        return [pid for pid in self.ranks if self.process_pool.is_alive(pid)]

    def end_codes(self, pids: list[int], seconds: float = START_SECONDS) -> list[int | None]:
        """Wait for the ends of these ranks; None for one that still runs."""
        deadline = time.monotonic() + seconds
        return [self.process_pool.wait(pid, max(0.0, deadline - time.monotonic())) for pid in pids]

    def kill(self, *pids: int) -> None:
        """Kill those of these ranks that live: of another the id may be another process's by now."""
        super().kill(*(pid for pid in pids if self.process_pool.is_alive(pid)))

    def kill_compactors(self) -> None:
        """Kill what the ranks have started; they end with their rank 0 anyway."""
        num_kills = self.num_kills
        super().kill_compactors()
        self.num_kills = num_kills

    def bugs(self) -> set[str]:
        """Return the lines in which a rank called its own end a bug."""
        texts = [path.read_text() for path in self.folder.glob("rank-*.out")]
        return {line for text in texts for line in text.splitlines() if "(a bug:" in line}

    def close(self) -> None:
        self.kill(*self._everyone)
        self.kill_compactors()
        super().close()
