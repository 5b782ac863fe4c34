"""The cluster under torture: trainer, compactor, server, broker and disk, and operations on each."""

import os
import signal
from pathlib import Path

from springtide.app.version_log.commands.queue import submit_command
from springtide_client.follow.follower import Follower
from springtide_client.log.directory import LogDirectory
from tests.support.config import Section
from tests.support.ports import free_port
from tests.support.process_pool import ProcessPool
from tests.torture.clicks import message
from tests.torture.cluster.config import CHANGES, PACED, TORTURED
from tests.torture.cluster.site import Site, is_running


class Cluster(Site):
    """One trainer at most, its compactors, one server, a broker, and a follower in this process.

    With an even seed the dense net has a pace of its own.
    """

    def __init__(self, folder: Path, seed: int, process_pool: ProcessPool) -> None:
        self.seed, self.num_produced, self.port = seed, 0, free_port()
        self.is_paced = seed % 2 == 0
        self._settings: list[Section] = [TORTURED, {"serve": {"port": self.port}}, PACED if self.is_paced else {}]
        super().__init__(folder, process_pool, *self._settings)
        self.record_disk()
        self.fsync_recorder.install()  # commands are submitted by this process
        self.trainer: int | None = None
        self.server: int | None = None
        self.follower = Follower(LogDirectory(self.log))
        self.follower.start()

    def change_settings(self, *names: str) -> None:
        """Let the next processes start with some of CHANGES."""
        self.configure(*self._settings, *(CHANGES[name] for name in names))

    def produce(self, number: int) -> None:
        """Append the next `number` records of the stream to the topic."""
        self.send([message(self.seed, offset) for offset in range(self.num_produced, self.num_produced + number)])
        self.num_produced += number

    def submit_command(self, kind: str, body: dict[str, object]) -> str:
        """Put a command into the log's queue and return its id."""
        return submit_command(self.log, kind, body)

    def start_trainer(self, *options: str) -> int:
        self.trainer = self.start("train", *options)
        return self.trainer

    def is_trainer_running(self) -> bool:
        return self.trainer is not None and self.process_pool.is_alive(self.trainer)

    def kill_trainer(self) -> None:
        if self.trainer is not None and self.is_trainer_running():
            self.kill(self.trainer)
        self.trainer = None

    def processes(self) -> list[int]:
        """Return everything that runs on the trainer's machine."""
        return [pid for pid in (self.trainer, self.server, *self.compactors()) if pid is not None and is_running(pid)]

    def kill_all(self) -> None:
        """Kill everything on the trainer's machine; all are stopped first, so that they end at one instant."""
        pids = self.processes()
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        self.kill(*pids)
        self.trainer = self.server = None

    def newest_version(self) -> int:
        """Return the newest version that a follower of the log sees; 0 before the first."""
        view = self.follower.view
        return 0 if view is None else view.version

    def close(self) -> None:
        self.follower.close()
        self.kill(*self.processes())
        super().close()
        self.fsync_recorder.remove()
