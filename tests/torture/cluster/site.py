"""Where trainers are tortured: a broker with a topic, a disk whose fsyncs are recorded, failpoints, and processes."""

import os
import random
import signal
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from springtide.app.version_log.trainer_status import TrainerStatus, read_status
from springtide.stream.kafka.admin import Admin
from springtide.stream.kafka.config import KafkaConfig
from springtide.stream.kafka.producer import Producer
from tests.support.config import Section
from tests.support.process_pool import ProcessPool
from tests.support.processes import IMPORT_PATH
from tests.support.waiting import wait_until
from tests.torture.cluster.config import TOPIC, write_settings
from tests.torture.cluster.faulty_broker import FaultyBroker
from tests.torture.disk.fsync_recorder import FsyncRecorder
from tests.torture.disk.power_loss import LOSS_PROFILES, CrashedDisk, LossProfile

STARTUP_FOLDER = Path(__file__).parents[1] / "disk" / "record_at_startup"


class Site:
    """`num_kills` counts the SIGKILLs sent. `address`: of the host on which the broker listens.

    `process_pool` starts the processes; without it nothing is started here.
    """

    def __init__(
        self,
        folder: Path,
        process_pool: ProcessPool | None = None,
        *layers: Section,
        partitions: int = 1,
        address: str = "127.0.0.1",
    ) -> None:
        self.folder, self.partitions, self.num_kills = folder, partitions, 0
        self.log, self._faults = folder / "disk" / "log", folder / "faults"
        for path in (self.log.parent, self._faults):
            path.mkdir()
        self.broker, self._process_pool = FaultyBroker(address), process_pool
        self._environment = {"PYTHONPATH": IMPORT_PATH}
        self.configure(*layers)
        kafka = KafkaConfig(bootstrap_servers=self.broker.address)
        with Admin(kafka, patient=True) as admin:
            admin.ensure_topic(TOPIC, num_partitions=partitions)
        self._producer = Producer(kafka, patient=True)

    def configure(self, *layers: Section) -> None:
        """Let the next processes start with these settings."""
        self.config = write_settings(self.folder, self.broker.address, *layers)

    def send(self, values: list[bytes], partition: int = 0) -> None:
        """Append records to a partition of the topic."""
        for value in values:
            self._producer.send(TOPIC, value, partition=partition)
        self._producer.flush()

    def status(self) -> TrainerStatus:
        return read_status(self.log) or TrainerStatus()

    def record_disk(self) -> None:
        """Give the processes that are started from now on failpoints, and a disk that can lose its power."""
        self.fsync_recorder = FsyncRecorder(self.folder / "disk", self.folder / "record")
        self.fsync_recorder.record_all()
        self._environment = {
            "SPRINGTIDE_FAILPOINTS": str(self._faults),
            "SPRINGTIDE_RECORD": f"{self.folder / 'disk'}{os.pathsep}{self.folder / 'record'}",
            "PYTHONPATH": os.pathsep.join([str(STARTUP_FOLDER), IMPORT_PATH]),
        }

    @property
    def process_pool(self) -> ProcessPool:
        assert self._process_pool is not None
        return self._process_pool

    def start(self, *command: str, out: str = "", environment: Mapping[str, str] = MappingProxyType({})) -> int:
        """Start `springtide COMMAND`, whose output goes to `out`; return its process id."""
        path = self.folder / f"{out or command[0]}.out"
        environment = {**self._environment, **environment}
        return self.process_pool.start(list(command), cwd=self.folder, out=path, environment=environment)

    def output(self, size: int = 2_000) -> str:
        """Return the end of each process's output."""
        return "\n".join(f"{path.name}: {path.read_text()[-size:]}" for path in sorted(self.folder.glob("*.out")))

    def arm(self, point: str, signal_name: str, visit: int) -> None:
        """Send the signal to the process that reaches this failpoint for the n-th time."""
        draft = self._faults / ".draft"
        draft.write_text(f"{signal_name} {visit}")
        draft.rename(self._faults / point.replace(" ", "-"))

    def disarm(self) -> None:
        for path in self._faults.iterdir():
            path.unlink()

    def struck(self) -> int | None:
        """Return the process that reached an armed failpoint and got its signal; None before that."""
        return next((int(path.name.rpartition("-")[2]) for path in self._faults.glob("*.struck-*")), None)

    def compactors(self) -> list[int]:
        """Return the process ids of this log's compactors."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                arguments = path.read_bytes().split(b"\0")
                folder = (path.parent / "cwd").readlink()
            except OSError:
                continue
            if arguments[1:5] == [b"-P", b"-m", b"springtide", b"compact"] and folder == self.folder.resolve():
                found.append(int(path.parent.name))
        return found

    def kill(self, *pids: int) -> None:
        """Send SIGKILL to processes, at one instant, and wait until they are gone; works on stopped ones too."""
        for pid in pids:
            if is_running(pid):
                os.kill(pid, signal.SIGKILL)
                self.num_kills += 1
        for pid in pids:
            wait_until(lambda pid=pid: not is_running(pid), f"the end of {pid}")

    def kill_compactors(self) -> None:
        self.kill(*self.compactors())

    def lose_power(self, draw: random.Random) -> tuple[LossProfile, int]:
        """Take from every file a part of what was not fsynced; return how, and how many bytes of the log."""
        profile = draw.choice(LOSS_PROFILES)
        disk = CrashedDisk(self.fsync_recorder, self.folder / "record", profile, draw)
        num_bytes = disk.num_bytes_lost("seg-*")
        disk.make()
        return profile, num_bytes

    def close(self) -> None:
        self._producer.close()
        self.broker.close()


def is_running(pid: int) -> bool:
    """Return True while any thread of the process runs; a zombie does not.

    A killed process's main thread may be a zombie while other threads still hold its files and ports.
    """
    try:
        return any(_state(task) not in "ZX" for task in Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return False


def _state(task: Path) -> str:
    """Return the one-letter state of a thread; "X" if it is gone."""
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"
