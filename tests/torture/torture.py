"""One torture: faults drawn from a seed, a verdict after each, and at the end the comparison bit by bit."""

import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from springtide_client.log.directory import LogDirectory

from tests.support.waiting import wait_until
from tests.torture.cluster.cluster import Cluster
from tests.torture.cluster.faults import Fault, Faults
from tests.torture.cluster.process_pool import ProcessPool
from tests.torture.verify.log_contents import LogContents
from tests.torture.verify.reader_checks import check_follower, check_server
from tests.torture.verify.verifier import LogVerifier

COMPARE_EVERY = 20


class Torture:
    """`say` is told every fault, and the figures."""

    def __init__(self, folder: Path, seed: int, nursery: ProcessPool, say: Callable[[str], None] = print) -> None:
        self.seed, self.say = seed, say
        self.stage = Cluster(folder, seed, nursery)
        self.judge = LogVerifier(self.stage.log, folder, seed)
        self.faults = Faults(self.stage, self.judge)
        self.done: Counter[str] = Counter()
        self.num_unsettled = 0

    def run(self, num_kills: int) -> None:
        """Until so many processes were killed; then learn the rest, and compare."""
        while self.stage.num_kills < num_kills:
            self.inject(None)
        self.finish()

    def inject(self, kind: Fault | None) -> None:
        """One fault, a function of (seed, how many came before) as far as the clock allows, and the verdict."""
        number = self.done.total()
        draw = random.Random(f"{self.seed}-{number}")
        weights = self.faults.weights()
        drawn = draw.choices(list(weights), list(weights.values()))[0]
        kind = kind or drawn
        self.stage.produce(draw.randrange(100, 900))
        if draw.random() < 0.5:
            self.faults.submit_command(draw)
        try:
            what = kind(draw)
            self.done[kind.__name__] += 1
            self.verify(compare=number % COMPARE_EVERY == COMPARE_EVERY - 1)
        except BaseException:
            self.say(f"fault {number} of seed {self.seed}: {kind.__name__}\n{self.stage.trainer_output()}")
            raise
        self.say(f"fault {number}: {what}; {self.stage.num_kills} kills")

    def verify(self, *, compare: bool = False) -> None:
        self.stage.disarm_fault_points()
        if not self.stage.log.exists():
            return
        mergers = self.stage.compactors()
        for pid in mergers:
            self.stage.kill(pid)
        directory = LogDirectory(self.stage.log)
        if not directory.scan().is_settled or not directory.bases():
            self.num_unsettled += 1  # killed amid a start: readers wait, and the next verdict is on this one too
            return
        image = self.judge.verify()
        check_follower(self.stage, self.judge, image)
        if compare:
            self.judge.compare_with_reference(image)

    def finish(self) -> None:
        """The rest of the topic learned, to its end."""
        self.stage.disarm_fault_points()
        self.stage.kill_all()
        done = self.stage.start("train", "--until-end")
        assert self.stage.process_pool.wait(done, 120.0) == 0, self.stage.trainer_output()
        image = self.judge.verify()
        assert image.offset == self.stage.num_produced
        missing = self.judge.submitted.keys() - {order.id for order in image.meta.executed_commands}
        assert not missing, f"orders are lost: {missing}"
        self.judge.compare_with_reference(image)
        wait_until(lambda: self.stage.newest_version() == image.tip.number, "the follower's arrival")
        check_follower(self.stage, self.judge, image)
        self.stage.server = self.stage.start("serve")
        check_server(self.stage, self.judge, image)
        self.say(self.summary(image))

    def summary(self, image: LogContents) -> str:
        """The figures."""
        told = {
            "seed": self.seed,
            "kills": self.stage.num_kills,
            "faults": dict(self.done),
            "points": dict(self.faults.points),
            "power_loss_bytes": self.faults.num_bytes_lost,
            "verdicts": self.judge.num_verified,
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
