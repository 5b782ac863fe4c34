"""One torture: faults drawn from a seed, a verdict after each, and at the end the comparison bit by bit."""

import json
import os
import random
import signal
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from app.versions.status import read_status
from tests.torture.clicks import NUM_ITEMS, NUM_USERS
from tests.torture.image import LogImage
from tests.torture.judge import Judge
from tests.torture.power_loss import TASTES, Wreck
from tests.torture.stage import PATIENCE_SECONDS, Stage, lives, until

# named in app/versions and app/training; struck in whoever comes there first, trainer or merger
POINTS = (
    "after the look before an append",
    "after an append before its fsync",
    "after an fsync before the look",
    "before a cut",
    "after a cut",
    "after a claim",
    "before a manifest",
    "after a manifest",
    "amid reading back",
    "amid a base",
    "before a base is renamed",
    "after a base is renamed",
    "amid retiring",
    "before a base is mapped",
    "while a generation is destroyed",
    "after an order is claimed",
    "after an order is executed",
    "before an order is unlinked",
)
STARTS = {"after a claim", "before a manifest", "after a manifest", "amid reading back"}
ORDERS = {point for point in POINTS if "order" in point}
COMPARE_EVERY = 20
STRIKE_SECONDS = 12.0


class Torture:
    """`say` is told every fault and every verdict."""

    def __init__(self, folder: Path, seed: int, say: Callable[[str], None] = print) -> None:
        self.seed, self.say = seed, say
        self.stage = Stage(folder, seed)
        self.judge = Judge(self.stage.log, folder, seed)
        self.faults: Counter[str] = Counter()
        self.points: Counter[str] = Counter()
        self.num_unsettled = self.num_records_lost = 0

    def run(self, num_kills: int) -> None:
        """Until so many processes were killed; then learn the rest, and compare."""
        number = 0
        while self.stage.num_kills < num_kills:
            self.fault(number)
            number += 1
        self.finish()

    def fault(self, number: int) -> None:
        """One fault, a function of (seed, number) as far as the clock allows, and the verdict."""
        draw = random.Random(f"{self.seed}-{number}")
        kinds = {
            self.at_a_point: 10,
            self.any_moment: 4,
            self.lose_power: 4,
            self.merger: 2,
            self.freeze: 2,
            self.replace: 2,
            self.server: 1,
            self.freeze_broker: 1,
            self.cut_broker: 1,
        }
        kind = draw.choices(list(kinds), list(kinds.values()))[0]
        self.stage.produce(draw.randrange(100, 900))
        if draw.random() < 0.5:
            self.order(draw)
        try:
            what = kind(draw)
            self.faults[kind.__name__] += 1
            self.verdict(compare=number % COMPARE_EVERY == COMPARE_EVERY - 1)
        except BaseException:
            self.say(f"fault {number} of seed {self.seed}: {kind.__name__}\n{self.stage.errors()}")
            raise
        self.say(f"fault {number}: {what}; {self.stage.num_kills} kills")

    # faults; each leaves no trainer behind

    def at_a_point(self, draw: random.Random) -> str:
        point = draw.choice(POINTS)
        struck = self._strike(draw, point, "KILL")
        return f"killed {point}" if struck else f"nobody came to {point}"

    def any_moment(self, draw: random.Random) -> str:
        self._learn()
        time.sleep(draw.uniform(0, 1))
        self.stage.kill_trainer()
        return "trainer killed"

    def lose_power(self, draw: random.Random) -> str:
        """At any moment, or at a named point, where the process is stopped first."""
        point = draw.choice([None, *POINTS])
        if point is None:
            self._learn()
            time.sleep(draw.uniform(0, 1))
        else:
            self._strike(draw, point, "STOP")
        status = read_status(self.stage.log) or {}
        self.stage.kill_all()
        taste = draw.choice(TASTES)
        before = self._num_bytes()
        Wreck(self.stage.recorder, self.stage.folder / "record", taste, draw).make()
        self.num_records_lost += before - self._num_bytes()
        self.judge.promised = max(self.judge.promised, status.get("durable_version") or 0)
        return f"power lost {point or 'at any moment'}, {taste}"

    def merger(self, draw: random.Random) -> str:
        self._learn()
        time.sleep(draw.uniform(0, 2))
        for pid in self.stage.mergers():
            self.stage.kill(pid)
        self._learn(more=True)
        self.stage.kill_trainer()
        return "merger killed, then trainer"

    def freeze(self, draw: random.Random) -> str:
        pid = self._learn()
        os.kill(pid, signal.SIGSTOP)
        time.sleep(draw.uniform(0, 1.5))
        os.kill(pid, signal.SIGCONT)
        self._learn(more=True)
        self.stage.kill_trainer()
        return "trainer frozen and thawed, then killed"

    def replace(self, draw: random.Random) -> str:
        """Stopped between its look and its write, replaced, thawed."""
        old = self._learn()
        self.stage.arm("after the look before an append", "STOP", draw.randrange(1, 4))
        self._until_struck(PATIENCE_SECONDS)
        assert self.stage.struck() == old
        self.stage.disarm()
        self.stage.start_trainer("--take-over")
        self._learn(more=True)
        os.kill(old, signal.SIGCONT)
        assert self.stage.nursery.wait(old, 30.0) == 1, "a replaced trainer did not end with an error"
        self._learn(more=True)
        self.stage.kill_trainer()
        return "trainer frozen, replaced, thawed; its successor killed"

    def server(self, draw: random.Random) -> str:
        if self.stage.server is None:
            self.stage.server = self.stage.start("serve")
        self._learn()
        time.sleep(draw.uniform(0, 1))
        self.stage.kill(self.stage.server)
        self.stage.server = self.stage.start("serve")
        self.stage.kill_trainer()
        self._check_server(self.judge.look())
        return "server killed, then trainer"

    def freeze_broker(self, draw: random.Random) -> str:
        self._learn()
        self.stage.broker.freeze()
        time.sleep(draw.uniform(0, 2))
        self.stage.kill_trainer()
        self.stage.start_trainer()
        time.sleep(draw.uniform(0, 1))
        self.stage.broker.thaw()
        self._learn(more=True)
        self.stage.kill_trainer()
        return "broker frozen, trainer killed twice"

    def cut_broker(self, draw: random.Random) -> str:
        self._learn()
        self.stage.broker.cut()
        time.sleep(draw.uniform(0, 2))
        self.stage.broker.mend()
        self._learn(more=True)
        self.stage.kill_trainer()
        return "broker cut off, then trainer killed"

    # verdicts

    def verdict(self, *, compare: bool = False) -> None:
        self.stage.disarm()
        if not self.stage.log.exists():
            return
        mergers = self.stage.mergers()
        for pid in mergers:
            self.stage.kill(pid)
        directory = self.stage.follower._source
        if not directory.look().settled or not directory.bases():  # type: ignore[attr-defined]
            self.num_unsettled += 1  # killed amid a start: readers wait, and the next verdict is on this one too
            return
        image = self.judge.look()
        self._check_follower(image)
        if compare:
            self.judge.compare(image)

    def finish(self) -> None:
        """The rest of the topic learned, to its end."""
        self.stage.disarm()
        self.stage.kill_all()
        done = self.stage.start("train", "--until-end")
        assert self.stage.nursery.wait(done, 120.0) == 0, self.stage.errors()
        image = self.judge.look()
        assert image.offset == self.stage.num_produced
        missing = self.judge.submitted.keys() - {order["id"] for order in image.meta.orders}
        assert not missing, f"orders are lost: {missing}"
        self.judge.compare(image)
        until(lambda: self.stage.newest() == image.tip.number, "the follower's arrival")
        self._check_follower(image)
        self.stage.server = self.stage.start("serve")
        self._check_server(image)
        self.say(self.summary(image))

    def summary(self, image: LogImage) -> str:
        """The figures."""
        told = {
            "seed": self.seed,
            "kills": self.stage.num_kills,
            "faults": dict(self.faults),
            "points": dict(self.points),
            "power_loss_bytes": self.num_records_lost,
            "verdicts": self.judge.num_judged,
            "bitwise": self.judge.num_compared,
            "amid_starts": self.num_unsettled,
            "samples": image.meta.samples_trained,
            "rows": len(image.rows),
            "orders": len(image.meta.orders),
            "epochs": image.tip.number >> 32,
            "follower_restarts": self.stage.follower.num_restarts,
        }
        return json.dumps(told)

    def close(self) -> None:
        self.judge.close()
        self.stage.close()

    # steps

    def order(self, draw: random.Random) -> None:
        """Some users and items are to be forgotten, or the learning rate changes."""
        if not self.stage.log.exists():
            return
        if draw.random() < 0.3:
            self._note(self.stage.order("limits", {"limits": {"lr": draw.choice([0.02, 0.05, 0.1])}}), 0)
            return
        keys: list[dict[str, Any]] = [
            {"feature": "user_id", "id": user} for user in draw.sample(range(NUM_USERS), draw.randrange(1, 30))
        ]
        keys += [{"feature": "item_id", "id": f"item-{draw.randrange(NUM_ITEMS)}"} for _ in range(10)]
        self._note(self.stage.order("forget", {"keys": keys}), len(keys))

    def _note(self, order_id: str, num_keys: int) -> None:
        self.judge.submitted[order_id] = num_keys

    def _learn(self, *, more: bool = False) -> int:
        """A trainer that has published since it started, or since now."""
        if not self.stage.trainer_lives():
            self.stage.start_trainer()
        assert self.stage.trainer is not None
        pid, before = self.stage.trainer, self.stage.newest()
        if more:
            self.stage.produce(200)

        def published() -> bool:
            assert lives(pid), f"the trainer ended: {self.stage.errors()}"
            newest = self.stage.newest()
            status = read_status(self.stage.log) or {}
            mine = status.get("pid") == pid and newest >> 32 == status.get("epoch")
            return mine and newest & 0xFFFFFFFF > 0 and (newest > before or not more)

        until(published, "a version")
        return pid

    def _strike(self, draw: random.Random, point: str, name: str) -> bool:
        """Run until somebody comes to this point; after a while without anybody the trainer is killed as it stands."""
        if point not in STARTS and draw.random() < 0.7:
            self._learn()
        elif point in STARTS and self.stage.trainer_lives():
            self.stage.kill_trainer()
        self.stage.arm(point, name, 1 if point in STARTS else draw.randrange(1, 4) if "base" not in point else 1)
        if not self.stage.trainer_lives():
            self.stage.start_trainer()
        self._until_struck(STRIKE_SECONDS, lambda: self.order(draw) if point in ORDERS else None)
        struck = self.stage.struck()
        if struck is not None:
            self.points[point] += 1
            if name == "KILL":
                until(lambda: not lives(struck), "the end of who was struck")
                self.stage.num_kills += 1
        if name == "KILL":
            self.stage.kill_trainer()
        return struck is not None

    def _until_struck(self, seconds: float, also: Callable[[], None] = lambda: None) -> None:
        """Records for versions to be made of, until somebody is struck or the time is over."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.stage.struck() is None:
            self.stage.produce(64)
            also()
            time.sleep(0.05)

    def _check_follower(self, image: LogImage) -> None:
        """It has what the log has, or a version that a power loss took away and that nothing has passed yet."""
        until(lambda: self.stage.newest() >= image.tip.number, f"the follower's arrival at {image.tip}", 20.0)
        view = self.stage.follower.view
        assert view is not None
        if view.tip == image.tip:
            for user in self.judge.users():
                info = view.row_info(0, user)
                assert (info["count"], info["last_seen_ms"]) == self.judge.expected_user(image, user), user

    def _check_server(self, image: LogImage) -> None:
        def served() -> int:
            try:
                return int(self._get("/v1/versions/latest")["version"])
            except (OSError, KeyError):
                return -1

        until(lambda: served() >= image.tip.number, "the server's arrival")
        for user in random.Random(self.seed).sample(self.judge.users(), 30):
            count, _ = self.judge.expected_user(image, user)
            try:
                assert self._get(f"/v1/embeddings/user_id/{user}")["count"] == count
            except urllib.request.HTTPError as error:  # type: ignore[attr-defined]
                assert (error.code, count) == (404, None)

    def _get(self, path: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.stage.port}{path}", timeout=5) as answer:
            document: dict[str, Any] = json.loads(answer.read())
            return document

    def _num_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.stage.log.glob("seg-*"))
