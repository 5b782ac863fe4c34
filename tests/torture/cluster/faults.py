"""The faults of a torture. Each leaves no trainer running, and returns a description of what it did."""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from springtide.app.errors import UserError
from springtide.app.version_log.commands.pin import pin_version, unpin_version
from springtide.app.version_log.read.index import LogIndex
from springtide_client.errors import LogError
from springtide_client.log.base import read_base_manifest
from springtide_client.log.directory import LogDirectory
from springtide_client.log.listing import base_name
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.torture.clicks import NUM_ITEMS, NUM_USERS
from tests.torture.cluster.cluster import Cluster
from tests.torture.cluster.config import CHANGES, WINDOW_SAMPLES
from tests.torture.cluster.site import is_running
from tests.torture.random_faults import Fault
from tests.torture.verify.log_contents import read_log_contents
from tests.torture.verify.reader_checks import check_server
from tests.torture.verify.reference_run import Change
from tests.torture.verify.verifier import LogVerifier

# failpoints of app/version_log and app/training; hit in the first process that reaches them, trainer or compactor
TRAINER_POINTS = (
    "after the epoch check before an append",
    "after an append before its fsync",
    "after an fsync before the epoch check",
    "before a checkpoint",
    "after a checkpoint",
    "after a claim",
    "before a manifest",
    "after a manifest",
    "while the log is replayed",
)
POINTS = (
    *TRAINER_POINTS,
    "between two row files of a base",
    "while a base is written",
    "before a base is renamed",
    "after a base is renamed",
    "before files are deleted",
    "during retention",
    "before a base is mapped",
    "while a generation is destroyed",
    "after a command is claimed",
    "after a command is executed",
    "before a command is deleted",
)
# reached only where the dense net has a pace of its own
STATE_POINTS = (
    "while an exact state is written",
    "before an exact state is renamed",
    "after an exact state is renamed",
)
# where a start with other settings is killed; None: it is not
CHANGE_POINTS = (
    None,
    "while the log is replayed",
    "before a changed schema begins",
    "while a base is written",
    "before a base is renamed",
    "after a base is renamed",
    "after a changed schema begins",
)
START_POINTS = {"after a claim", "before a manifest", "after a manifest", "while the log is replayed"}
COMMAND_POINTS = {point for point in POINTS if "command" in point}
MAX_PINS = 3
FAULT_DEADLINE_SECONDS = 12.0  # not every process reaches every point


class Faults:
    """A fault takes all its choices from the generator it is given."""

    def __init__(self, cluster: Cluster, verifier: LogVerifier) -> None:
        self.cluster, self.verifier = cluster, verifier
        self.points: Counter[str] = Counter()
        self.num_bytes_lost = self.num_pins = 0
        self._points = (*POINTS, *STATE_POINTS) if cluster.is_paced else POINTS

    def weights(self) -> dict[Fault, int]:
        """Return the faults with their relative frequencies."""
        return {
            self.kill_at_fault_point: 10,
            self.kill_at_random_time: 4,
            self.lose_power: 4,
            self.kill_compactor: 2,
            self.pause_trainer: 2,
            self.replace_trainer: 2,
            self.kill_server: 1,
            self.pause_broker: 1,
            self.disconnect_broker: 1,
            self.change_settings: 2,
        }

    def change_settings(self, draw: random.Random) -> str:
        """Start with other settings, killed at one of the points on the way; then let the start succeed."""
        self.train_until_published()
        self.cluster.kill_trainer()
        settings = self._other_settings(draw)
        self.cluster.change_settings(*settings)
        point = draw.choice(CHANGE_POINTS)
        if point is not None:
            self.cluster.arm(point, "KILL", 1)
            self.cluster.start_trainer()
            hit = wait_until(self.cluster.struck, f"the point: {point}")
            wait_until(lambda: not is_running(hit), "the end of the killed process")
            self.cluster.num_kills += 1
            self.points[point] += 1
            self.cluster.kill_trainer()
            self.cluster.kill_compactors()
            self.cluster.disarm()
        self.train_until_published(more=True)
        begin = LogIndex(LogDirectory(self.cluster.log)).begins[-1]
        meta = read_base_manifest(self.cluster.log / base_name(begin)).meta
        assert meta.change, "no base says what has changed"
        self.verifier.changes.append(Change(meta.samples_trained, settings))
        self.cluster.kill_trainer()
        return f"settings changed ({', '.join(settings) or 'as at first'}), killed {point or 'after it'}"

    def _other_settings(self, draw: random.Random) -> tuple[str, ...]:
        """Return other settings than the present ones; one way to change a key of the file at a time."""
        present = self.verifier.changes[-1].settings if self.verifier.changes else ()
        while True:
            drawn = tuple(name for name in CHANGES if draw.random() < 0.25)
            keys = [(section, key) for name in drawn for section, change in CHANGES[name].items() for key in change]
            if drawn != present and len(set(keys)) == len(keys):
                return drawn

    def kill_at_fault_point(self, draw: random.Random) -> str:
        point = draw.choice(self._points)
        hit = self._run_until_hit(draw, point, "KILL")
        return f"killed {point}" if hit else f"no process reached the point: {point}"

    def kill_at_random_time(self, draw: random.Random) -> str:
        self.train_until_published()
        self.pin_or_unpin(draw)
        time.sleep(draw.uniform(0, 1))
        self.cluster.kill_trainer()
        return "trainer killed"

    def lose_power(self, draw: random.Random) -> str:
        """Lose power at any time, or at a named point, where the process is stopped first."""
        point = draw.choice([None, *self._points])
        if point is None:
            self.train_until_published()
            self.pin_or_unpin(draw)
            time.sleep(draw.uniform(0, 1))
        else:
            self._run_until_hit(draw, point, "STOP")
        status = self.cluster.status()
        self.cluster.kill_all()
        profile, num_bytes = self.cluster.lose_power(draw)
        self.num_bytes_lost += num_bytes
        self.verifier.durable_version = max(self.verifier.durable_version, status.durable_version or 0)
        return f"power lost {point or 'at any moment'}, {profile}"

    def kill_compactor(self, draw: random.Random) -> str:
        self.train_until_published()
        time.sleep(draw.uniform(0, 2))
        self.cluster.kill_compactors()
        self.train_until_published(more=True)
        self.cluster.kill_trainer()
        return "compactor killed, then trainer"

    def pause_trainer(self, draw: random.Random) -> str:
        pid = self.train_until_published()
        os.kill(pid, signal.SIGSTOP)
        time.sleep(draw.uniform(0, 1.5))
        os.kill(pid, signal.SIGCONT)
        self.train_until_published(more=True)
        self.cluster.kill_trainer()
        return "trainer paused and resumed, then killed"

    def replace_trainer(self, draw: random.Random) -> str:
        """Pause a trainer between its epoch check and its write, replace it, resume it."""
        old = self.pause_before_an_append(draw.randrange(1, 4))
        self.cluster.start_trainer("--take-over")
        self.train_until_published(more=True)
        os.kill(old, signal.SIGCONT)
        assert self.cluster.process_pool.wait(old, DEADLINE_SECONDS) == 1, (
            "a replaced trainer did not end with an error"
        )
        self.train_until_published(more=True)
        self.cluster.kill_trainer()
        return "trainer paused, replaced, resumed; its successor killed"

    def kill_server(self, draw: random.Random) -> str:
        if self.cluster.server is None:
            self.cluster.server = self.cluster.start("serve")
        self.train_until_published()
        time.sleep(draw.uniform(0, 1))
        self.cluster.kill(self.cluster.server)
        self.cluster.server = self.cluster.start("serve")
        self.cluster.kill_trainer()
        check_server(self.cluster, self.verifier, self.verifier.verify())
        return "server killed, then trainer"

    def pause_broker(self, draw: random.Random) -> str:
        self.train_until_published()
        self.cluster.broker.pause()
        time.sleep(draw.uniform(0, 2))
        self.cluster.kill_trainer()
        self.cluster.start_trainer()
        time.sleep(draw.uniform(0, 1))
        self.cluster.broker.resume()
        self.train_until_published(more=True)
        self.cluster.kill_trainer()
        return "broker paused, trainer killed twice"

    def disconnect_broker(self, draw: random.Random) -> str:
        self.train_until_published()
        self.cluster.broker.disconnect()
        time.sleep(draw.uniform(0, 2))
        self.cluster.broker.reconnect()
        self.train_until_published(more=True)
        self.cluster.kill_trainer()
        return "broker disconnected, then trainer killed"

    def submit_command(self, draw: random.Random) -> None:
        """Submit a command: forget some users and items, or change the learning rate."""
        if not self.cluster.log.exists():
            return
        if draw.random() < 0.3:
            self._note(self.cluster.submit_command("limits", {"limits": {"lr": draw.choice([0.02, 0.05, 0.1])}}), 0)
            return
        keys: list[dict[str, Any]] = [
            {"feature": "user_id", "id": user} for user in draw.sample(range(NUM_USERS), draw.randrange(1, 30))
        ]
        keys += [{"feature": "item_id", "id": f"item-{draw.randrange(NUM_ITEMS)}"} for _ in range(10)]
        self._note(self.cluster.submit_command("forget", {"keys": keys}), len(keys))

    def pin_or_unpin(self, draw: random.Random) -> None:
        """Pin the newest version, or remove a pin, while the trainer and the compactor run."""
        pinned = self.verifier.pinned
        if len(pinned) >= MAX_PINS or (pinned and draw.random() < 0.3):
            name = draw.choice(sorted(pinned))
            unpin_version(self.cluster.log, name)
            del pinned[name]
            return
        name = f"pin-{self.num_pins}"
        try:
            pin = pin_version(self.cluster.log, draw.choice(["latest", "oldest", "-3"]), name, wait_seconds=2.0)
        except (UserError, LogError):  # no version yet, or a trainer has died while it started
            return
        self.num_pins += 1
        pinned[name] = read_log_contents(self.cluster.log, window_samples=WINDOW_SAMPLES, version=pin.version)

    def _note(self, command_id: str, num_keys: int) -> None:
        self.verifier.submitted[command_id] = num_keys

    def train_until_published(self, *, more: bool = False) -> int:
        """Run a trainer until it has published a version, with `more` one of records produced now; return its id."""
        if not self.cluster.is_trainer_running():
            self.cluster.start_trainer()
        assert self.cluster.trainer is not None
        pid, before = self.cluster.trainer, self.cluster.newest_version()
        if more:
            self.cluster.produce(200)

        def published() -> bool:
            assert is_running(pid), f"the trainer ended: {self.cluster.output()}"
            newest = self.cluster.newest_version()
            status = self.cluster.status()
            mine = status.pid == pid and newest >> 32 == status.epoch
            return mine and newest & 0xFFFFFFFF > 0 and (newest > before or not more)

        wait_until(published, "a version")
        return pid

    def _run_until_hit(self, draw: random.Random, point: str, name: str) -> bool:
        """Run until a process reaches this point and gets the signal; return False if none does within a while."""
        if point not in START_POINTS and draw.random() < 0.7:
            self.train_until_published()
        elif point in START_POINTS and self.cluster.is_trainer_running():
            self.cluster.kill_trainer()
        self.cluster.arm(
            point, name, 1 if point in START_POINTS else draw.randrange(1, 4) if "base" not in point else 1
        )
        if not self.cluster.is_trainer_running():
            self.cluster.start_trainer()
        self._produce_until_hit(
            FAULT_DEADLINE_SECONDS, lambda: self.submit_command(draw) if point in COMMAND_POINTS else None
        )
        hit = self.cluster.struck()
        if hit is not None:
            self.points[point] += 1
            if name == "KILL":
                wait_until(lambda: not is_running(hit), "the end of the killed process")
                self.cluster.num_kills += 1
        if name == "KILL":
            self.cluster.kill_trainer()
        return hit is not None

    def pause_before_an_append(self, visit: int) -> int:
        """Stop the trainer between its check for higher epochs and its write; return its id."""
        pid = self.train_until_published()
        self.cluster.arm("after the epoch check before an append", "STOP", visit)
        self._produce_until_hit(DEADLINE_SECONDS)
        assert self.cluster.struck() == pid
        self.cluster.disarm()
        return pid

    def _produce_until_hit(self, seconds: float, also: Callable[[], None] = lambda: None) -> None:
        """Produce records until a process reaches the armed point or the time is over."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.cluster.struck() is None:
            self.cluster.produce(64)
            also()
            time.sleep(0.05)
