"""One torture: faults drawn from a seed, a verdict after each, and at the end the comparison bit by bit."""

import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from springtide_client.log.directory import LogDirectory

from tests.torture.cluster.cluster import Stage, until
from tests.torture.cluster.faults import Fault, Faults
from tests.torture.cluster.process_pool import Nursery
from tests.torture.verify.log_contents import LogImage
from tests.torture.verify.reader_checks import check_follower, check_server
from tests.torture.verify.verifier import Judge

COMPARE_EVERY = 20


class Torture:
    """`say` is told every fault, and the figures."""

    def __init__(self, folder: Path, seed: int, nursery: Nursery, say: Callable[[str], None] = print) -> None:
        self.seed, self.say = seed, say
        self.stage = Stage(folder, seed, nursery)
        self.judge = Judge(self.stage.log, folder, seed)
        self.faults = Faults(self.stage, self.judge)
        self.done: Counter[str] = Counter()
        self.num_unsettled = 0

    def run(self, num_kills: int) -> None:
        """Until so many processes were killed; then learn the rest, and compare."""
        while self.stage.num_kills < num_kills:
            self.fault(None)
        self.finish()

    def fault(self, kind: Fault | None) -> None:
        """One fault, a function of (seed, how many came before) as far as the clock allows, and the verdict."""
        number = self.done.total()
        draw = random.Random(f"{self.seed}-{number}")
        weights = self.faults.weights()
        drawn = draw.choices(list(weights), list(weights.values()))[0]
        kind = kind or drawn
        self.stage.produce(draw.randrange(100, 900))
        if draw.random() < 0.5:
            self.faults.order(draw)
        try:
            what = kind(draw)
            self.done[kind.__name__] += 1
            self.verdict(compare=number % COMPARE_EVERY == COMPARE_EVERY - 1)
        except BaseException:
            self.say(f"fault {number} of seed {self.seed}: {kind.__name__}\n{self.stage.errors()}")
            raise
        self.say(f"fault {number}: {what}; {self.stage.num_kills} kills")

    def verdict(self, *, compare: bool = False) -> None:
        self.stage.disarm()
        if not self.stage.log.exists():
            return
        mergers = self.stage.mergers()
        for pid in mergers:
            self.stage.kill(pid)
        directory = LogDirectory(self.stage.log)
        if not directory.scan().is_settled or not directory.bases():
            self.num_unsettled += 1  # killed amid a start: readers wait, and the next verdict is on this one too
            return
        image = self.judge.look()
        check_follower(self.stage, self.judge, image)
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
        missing = self.judge.submitted.keys() - {order["id"] for order in image.meta.executed_commands}
        assert not missing, f"orders are lost: {missing}"
        self.judge.compare(image)
        until(lambda: self.stage.newest() == image.tip.number, "the follower's arrival")
        check_follower(self.stage, self.judge, image)
        self.stage.server = self.stage.start("serve")
        check_server(self.stage, self.judge, image)
        self.say(self.summary(image))

    def summary(self, image: LogImage) -> str:
        """The figures."""
        told = {
            "seed": self.seed,
            "kills": self.stage.num_kills,
            "faults": dict(self.done),
            "points": dict(self.faults.points),
            "power_loss_bytes": self.faults.num_bytes_lost,
            "verdicts": self.judge.num_judged,
            "bitwise": self.judge.num_compared,
            "amid_starts": self.num_unsettled,
            "samples": image.meta.samples_trained,
            "rows": len(image.rows),
            "items_without_text": sum(key[0] == 1 and key not in image.texts for key in image.rows),
            "orders": len(image.meta.executed_commands),
            "epochs": image.tip.number >> 32,
            "follower_restarts": self.stage.follower.num_restarts,
        }
        return json.dumps(told)

    def close(self) -> None:
        self.judge.close()
        self.stage.close()
