"""What is done to the processes under torture. Each fault leaves no trainer behind, and tells what it did."""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from app.version_log.trainer_status import read_status
from tests.support.waiting import wait_until
from tests.torture.clicks import NUM_ITEMS, NUM_USERS
from tests.torture.cluster.cluster import DEADLINE_SECONDS, Cluster, is_running
from tests.torture.disk.power_loss import LOSS_PROFILES, CrashedDisk
from tests.torture.verify.reader_checks import check_server
from tests.torture.verify.verifier import LogVerifier

# failpoints of app/version_log and app/training; hit in the first process that reaches them, trainer or compactor
POINTS = (
    "after the epoch check before an append",
    "after an append before its fsync",
    "after an fsync before the epoch check",
    "before a checkpoint",
    "after a checkpoint",
    "after a claim",
    "before a manifest",
    "after a manifest",
    "while the log is replayed",
    "while a base is written",
    "before a base is renamed",
    "after a base is renamed",
    "during retention",
    "before a base is mapped",
    "while a generation is destroyed",
    "after a command is claimed",
    "after a command is executed",
    "before a command is deleted",
)
START_POINTS = {"after a claim", "before a manifest", "after a manifest", "while the log is replayed"}
COMMAND_POINTS = {point for point in POINTS if "command" in point}
FAULT_DEADLINE_SECONDS = 12.0

Fault = Callable[[random.Random], str]


class Faults:
    """Draws what a fault needs from the generator it is given."""

    def __init__(self, stage: Cluster, judge: LogVerifier) -> None:
        self.stage, self.judge = stage, judge
        self.points: Counter[str] = Counter()
        self.num_bytes_lost = 0

    def weights(self) -> dict[Fault, int]:
        """The faults, each with how often it is wanted."""
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
        }

    def kill_at_fault_point(self, draw: random.Random) -> str:
        point = draw.choice(POINTS)
        struck = self._strike(draw, point, "KILL")
        return f"killed {point}" if struck else f"nobody came to {point}"

    def kill_at_random_time(self, draw: random.Random) -> str:
        self.train_until_published()
        time.sleep(draw.uniform(0, 1))
        self.stage.kill_trainer()
        return "trainer killed"

    def lose_power(self, draw: random.Random) -> str:
        """At any moment, or at a named point, where the process is stopped first."""
        point = draw.choice([None, *POINTS])
        if point is None:
            self.train_until_published()
            time.sleep(draw.uniform(0, 1))
        else:
            self._strike(draw, point, "STOP")
        status = read_status(self.stage.log) or {}
        self.stage.kill_all()
        taste = draw.choice(LOSS_PROFILES)
        wreck = CrashedDisk(self.stage.fsync_recorder, self.stage.folder / "record", taste, draw)
        self.num_bytes_lost += wreck.num_bytes_lost("seg-*")
        wreck.make()
        self.judge.durable_version = max(self.judge.durable_version, status.get("durable_version") or 0)
        return f"power lost {point or 'at any moment'}, {taste}"

    def kill_compactor(self, draw: random.Random) -> str:
        self.train_until_published()
        time.sleep(draw.uniform(0, 2))
        for pid in self.stage.compactors():
            self.stage.kill(pid)
        self.train_until_published(more=True)
        self.stage.kill_trainer()
        return "merger killed, then trainer"

    def pause_trainer(self, draw: random.Random) -> str:
        pid = self.train_until_published()
        os.kill(pid, signal.SIGSTOP)
        time.sleep(draw.uniform(0, 1.5))
        os.kill(pid, signal.SIGCONT)
        self.train_until_published(more=True)
        self.stage.kill_trainer()
        return "trainer frozen and thawed, then killed"

    def replace_trainer(self, draw: random.Random) -> str:
        """Stopped between its look and its write, replaced, thawed."""
        old = self.pause_before_an_append(draw.randrange(1, 4))
        self.stage.start_trainer("--take-over")
        self.train_until_published(more=True)
        os.kill(old, signal.SIGCONT)
        assert self.stage.process_pool.wait(old, 30.0) == 1, "a replaced trainer did not end with an error"
        self.train_until_published(more=True)
        self.stage.kill_trainer()
        return "trainer frozen, replaced, thawed; its successor killed"

    def kill_server(self, draw: random.Random) -> str:
        if self.stage.server is None:
            self.stage.server = self.stage.start("serve")
        self.train_until_published()
        time.sleep(draw.uniform(0, 1))
        self.stage.kill(self.stage.server)
        self.stage.server = self.stage.start("serve")
        self.stage.kill_trainer()
        check_server(self.stage, self.judge, self.judge.verify())
        return "server killed, then trainer"

    def pause_broker(self, draw: random.Random) -> str:
        self.train_until_published()
        self.stage.broker.freeze()
        time.sleep(draw.uniform(0, 2))
        self.stage.kill_trainer()
        self.stage.start_trainer()
        time.sleep(draw.uniform(0, 1))
        self.stage.broker.thaw()
        self.train_until_published(more=True)
        self.stage.kill_trainer()
        return "broker frozen, trainer killed twice"

    def disconnect_broker(self, draw: random.Random) -> str:
        self.train_until_published()
        self.stage.broker.disconnect()
        time.sleep(draw.uniform(0, 2))
        self.stage.broker.reconnect()
        self.train_until_published(more=True)
        self.stage.kill_trainer()
        return "broker cut off, then trainer killed"

    # steps

    def submit_command(self, draw: random.Random) -> None:
        """Some users and items are to be forgotten, or the learning rate changes."""
        if not self.stage.log.exists():
            return
        if draw.random() < 0.3:
            self._note(self.stage.submit_command("limits", {"limits": {"lr": draw.choice([0.02, 0.05, 0.1])}}), 0)
            return
        keys: list[dict[str, Any]] = [
            {"feature": "user_id", "id": user} for user in draw.sample(range(NUM_USERS), draw.randrange(1, 30))
        ]
        keys += [{"feature": "item_id", "id": f"item-{draw.randrange(NUM_ITEMS)}"} for _ in range(10)]
        self._note(self.stage.submit_command("forget", {"keys": keys}), len(keys))

    def _note(self, order_id: str, num_keys: int) -> None:
        self.judge.submitted[order_id] = num_keys

    def train_until_published(self, *, more: bool = False) -> int:
        """A trainer that has published since it started, or since now."""
        if not self.stage.is_trainer_running():
            self.stage.start_trainer()
        assert self.stage.trainer is not None
        pid, before = self.stage.trainer, self.stage.newest_version()
        if more:
            self.stage.produce(200)

        def published() -> bool:
            assert is_running(pid), f"the trainer ended: {self.stage.trainer_output()}"
            newest = self.stage.newest_version()
            status = read_status(self.stage.log) or {}
            mine = status.get("pid") == pid and newest >> 32 == status.get("epoch")
            return mine and newest & 0xFFFFFFFF > 0 and (newest > before or not more)

        wait_until(published, "a version")
        return pid

    def _strike(self, draw: random.Random, point: str, name: str) -> bool:
        """Run until somebody comes to this point; after a while without anybody the trainer is killed as it stands."""
        if point not in START_POINTS and draw.random() < 0.7:
            self.train_until_published()
        elif point in START_POINTS and self.stage.is_trainer_running():
            self.stage.kill_trainer()
        self.stage.arm_fault_point(
            point, name, 1 if point in START_POINTS else draw.randrange(1, 4) if "base" not in point else 1
        )
        if not self.stage.is_trainer_running():
            self.stage.start_trainer()
        self._until_struck(
            FAULT_DEADLINE_SECONDS, lambda: self.submit_command(draw) if point in COMMAND_POINTS else None
        )
        struck = self.stage.process_at_fault_point()
        if struck is not None:
            self.points[point] += 1
            if name == "KILL":
                wait_until(lambda: not is_running(struck), "the end of who was struck")
                self.stage.num_kills += 1
        if name == "KILL":
            self.stage.kill_trainer()
        return struck is not None

    def pause_before_an_append(self, visit: int) -> int:
        """The trainer, stopped between its look for higher epochs and its write."""
        pid = self.train_until_published()
        self.stage.arm_fault_point("after the epoch check before an append", "STOP", visit)
        self._until_struck(DEADLINE_SECONDS)
        assert self.stage.process_at_fault_point() == pid
        self.stage.disarm_fault_points()
        return pid

    def _until_struck(self, seconds: float, also: Callable[[], None] = lambda: None) -> None:
        """Records for versions to be made of, until somebody is struck or the time is over."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.stage.process_at_fault_point() is None:
            self.stage.produce(64)
            also()
            time.sleep(0.05)
