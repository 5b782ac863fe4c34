"""The cluster under torture: trainer, compactor, server, broker and disk, and operations on each."""

import os
import signal
from collections.abc import Sequence
from pathlib import Path

from springtide.app.version_log.commands.queue import submit_command
from springtide.stream.kafka.admin import Admin
from springtide.stream.kafka.config import KafkaConfig
from springtide.stream.kafka.producer import Producer
from springtide_client.follow.follower import Follower
from springtide_client.log.directory import LogDirectory
from tests.support.ports import free_port
from tests.support.process_pool import ProcessPool
from tests.support.processes import IMPORT_PATHS
from tests.support.waiting import wait_until
from tests.torture.clicks import message
from tests.torture.cluster.config import PACED, TOPIC, write_config
from tests.torture.cluster.faulty_broker import FaultyBroker
from tests.torture.disk.fsync_recorder import FsyncRecorder

STARTUP_FOLDER = Path(__file__).parents[1] / "disk" / "record_at_startup"


class Cluster:
    """One trainer at most, its compactors, one server, a broker, and a follower in this process.

    `num_kills` counts the SIGKILLs sent. With an even seed the dense net has a pace of its own.
    """

    def __init__(self, folder: Path, seed: int, process_pool: ProcessPool) -> None:
        self.folder, self.seed, self.num_produced, self.num_kills = folder, seed, 0, 0
        (folder / "disk").mkdir()
        (folder / "faults").mkdir()
        self.fsync_recorder = FsyncRecorder(folder / "disk", folder / "record")
        self.fsync_recorder.install()  # commands are submitted by this process
        self.fsync_recorder.record_all()
        self.log = folder / "disk" / "log"
        self.broker, self.port = FaultyBroker(), free_port()
        self.is_paced = seed % 2 == 0
        self.config = write_config(
            folder / "springtide.toml",
            folder,
            address=self.broker.address,
            port=self.port,
            log=PACED if self.is_paced else "",
        )
        self.process_pool = process_pool
        self.trainer: int | None = None
        self.server: int | None = None
        self.follower = Follower(LogDirectory(self.log))
        self.follower.start()
        kafka = KafkaConfig(bootstrap_servers=self.broker.address)
        with Admin(kafka, patient=True) as admin:
            admin.ensure_topic(TOPIC)
        self.producer = Producer(kafka, patient=True)

    def change_config(self, changes: Sequence[str]) -> None:
        """Let the next processes start with other settings."""
        write_config(
            self.folder / "springtide.toml",
            self.folder,
            address=self.broker.address,
            port=self.port,
            changes=changes,
            log=PACED if self.is_paced else "",
        )

    def produce(self, number: int) -> None:
        """Append the next `number` records of the stream to the topic."""
        for offset in range(self.num_produced, self.num_produced + number):
            self.producer.send(TOPIC, message(self.seed, offset))
        self.producer.flush()
        self.num_produced += number

    def submit_command(self, kind: str, body: dict[str, object]) -> str:
        """Put a command into the log's queue and return its id."""
        return submit_command(self.log, kind, body)

    def arm_fault_point(self, point: str, signal_name: str, visit: int) -> None:
        """Send the signal to the process that reaches this point for the n-th time."""
        draft = self.folder / "faults" / ".draft"
        draft.write_text(f"{signal_name} {visit}")
        draft.rename(self.folder / "faults" / point.replace(" ", "-"))

    def disarm_fault_points(self) -> None:
        for path in (self.folder / "faults").iterdir():
            path.unlink()

    def process_at_fault_point(self) -> int | None:
        """Return the process that reached an armed point and got its signal; None before that."""
        return next((int(path.name.rpartition("-")[2]) for path in (self.folder / "faults").glob("*.struck-*")), None)

    def start(self, *command: str) -> int:
        """Start `springtide COMMAND` and return its process id; its fsyncs are recorded."""
        environment = {
            "SPRINGTIDE_FAILPOINTS": str(self.folder / "faults"),
            "SPRINGTIDE_RECORD": f"{self.folder / 'disk'}{os.pathsep}{self.folder / 'record'}",
            "PYTHONPATH": os.pathsep.join([str(STARTUP_FOLDER), *IMPORT_PATHS]),
        }
        out = self.folder / f"{command[0]}.out"
        return self.process_pool.start(list(command), cwd=self.folder, out=out, environment=environment)

    def start_trainer(self, *options: str) -> int:
        self.trainer = self.start("train", *options)
        return self.trainer

    def is_trainer_running(self) -> bool:
        return self.trainer is not None and self.process_pool.is_alive(self.trainer)

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

    def kill(self, pid: int) -> None:
        """Send SIGKILL and wait for the end; works on a stopped process too."""
        try:
            os.kill(pid, signal.SIGKILL)
            self.num_kills += 1
        except ProcessLookupError:
            return
        wait_until(lambda: not is_running(pid), f"the end of {pid}")

    def kill_trainer(self) -> None:
        if self.trainer is not None and self.is_trainer_running():
            self.kill(self.trainer)
        self.trainer = None

    def kill_all(self) -> None:
        """Kill everything on the trainer's machine; all are stopped first, so that they end at one instant."""
        pids = [pid for pid in (self.trainer, self.server, *self.compactors()) if pid is not None and is_running(pid)]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        for pid in pids:
            self.kill(pid)
        self.trainer = self.server = None

    def newest_version(self) -> int:
        """Return the newest version that a follower of the log sees; 0 before the first."""
        view = self.follower.view
        return 0 if view is None else view.version

    def trainer_output(self) -> str:
        """Return the end of the trainers' output."""
        path = self.folder / "train.out"
        return path.read_text()[-3000:] if path.exists() else ""

    def close(self) -> None:
        self.follower.close()
        for pid in (self.trainer, self.server, *self.compactors()):
            if pid is not None and is_running(pid):
                self.kill(pid)
        self.producer.close()
        self.broker.close()
        self.fsync_recorder.remove()


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
