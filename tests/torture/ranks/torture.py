"""Random faults of ranks from a seed; after each, the log is compared with a dictionary of what was sent."""

import json
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

from tests.support.process_pool import ProcessPool
from tests.support.waiting import wait_until
from tests.torture.cluster.faults import START_POINTS, TRAINER_POINTS
from tests.torture.random_faults import Fault, RandomFaults, Report
from tests.torture.ranks.cluster import START_SECONDS, RankCluster
from tests.torture.ranks.comparison import Comparison
from tests.torture.ranks.site import TIMEOUT_SECONDS
from tests.torture.verify.log_contents import LogContents

POINTS = ("after the shard records before the version record", *TRAINER_POINTS)
WAIT_SECONDS = 10.0  # for a rank to reach a failpoint: not every one is reached


class RankTorture(RandomFaults):
    """Launches of ranks, each of another number than the one before."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        process_pool: ProcessPool,
        *,
        max_ranks: int = 4,
        report: Report = print,
    ) -> None:
        self.cluster = RankCluster(folder, seed, process_pool)
        super().__init__(self.cluster, seed, report)
        self.max_ranks = max_ranks
        self.comparison = Comparison(self.cluster)
        self.launches: Counter[int] = Counter()  # by number of ranks
        self.points: Counter[str] = Counter()
        self.num_bytes_lost = 0
        self.num_unasked = 0  # launches that ended though nobody had killed a rank

    def weights(self) -> dict[Fault, int]:
        return {
            self.kill_one: 6,
            self.kill_all: 3,
            self.kill_at_point: 8,
            self.lose_power: 4,
            self.freeze_and_replace: 2,
            self.freeze_for_a_moment: 1,
            self.stop_one: 1,
            self.break_connections: 1,
        }

    def prepare(self, draw: random.Random) -> None:
        """Send some records to some partitions."""
        for _ in range(draw.randrange(1, 4)):
            self.cluster.produce(draw.randrange(20, 200), draw.randrange(self.cluster.partitions))

    def kill_one(self, draw: random.Random) -> str:
        """Kill one rank at any time: the others end by themselves, with exit code 1."""
        ranks = self.train(draw)
        time.sleep(draw.uniform(0, 1))
        rank = draw.randrange(len(ranks))
        self.cluster.kill(ranks[rank])
        self.others_end()
        return f"killed rank {rank} of {len(ranks)}"

    def kill_all(self, draw: random.Random) -> str:
        """Kill all ranks at one instant, at any time: while they start, learn or publish."""
        if draw.random() < 0.5:
            ranks = self.train(draw)
        else:
            ranks = self.launch(draw)
        time.sleep(draw.uniform(0, 1.5))
        self.cluster.kill(*ranks)
        self.cluster.kill_compactors()
        return f"killed all {len(ranks)} ranks"

    def kill_at_point(self, draw: random.Random) -> str:
        point = draw.choice(POINTS if self.cluster.watcher.version else POINTS[:6])
        hit = self.reach(draw, point, "KILL")
        if hit is not None:
            self.cluster.num_kills += 1
            self.others_end()
            return f"killed rank {self.cluster.ranks.index(hit)} of {len(self.cluster.ranks)} {point}"
        self.cluster.kill(*self.cluster.living())
        return f"no rank reached the point: {point}; killed all"

    def freeze_and_replace(self, draw: random.Random) -> str:
        """Stop a rank for longer than the timeout: the others end. It goes on beside the ranks that replaced it."""
        point = draw.choice([None, *POINTS[:4]])
        if point is None:
            ranks = self.train(draw, at_least=2)
            frozen = draw.choice(ranks)
            os.kill(frozen, signal.SIGSTOP)
        else:
            hit = self.reach(draw, point, "STOP", at_least=2)
            if hit is None:
                self.cluster.kill(*self.cluster.living())
                return f"no rank reached the point: {point}; killed all"
            frozen, ranks = hit, self.cluster.ranks
        others = [pid for pid in ranks if pid != frozen]
        began = time.monotonic()
        assert self.cluster.end_codes(others) == [1] * len(others), "ranks beside a frozen one did not end with 1"
        seconds = time.monotonic() - began
        self.cluster.kill_compactors()
        self.cluster.disarm()
        self.cluster.ranks = []  # the frozen rank stays, beside the ranks of the next launch
        self.train(draw, "--take-over", more=True)
        os.kill(frozen, signal.SIGCONT)
        assert self.cluster.end_codes([frozen]) == [1], "a frozen rank that was replaced did not end with an error"
        self.train(draw, more=True)
        self.cluster.kill(draw.choice(self.cluster.living()))
        self.others_end()
        return (
            f"rank {ranks.index(frozen)} of {len(ranks)} frozen {point or 'at any moment'}, the others ended after "
            f"{seconds:.1f} s; replaced, resumed; a rank of its successors killed"
        )

    def freeze_for_a_moment(self, draw: random.Random) -> str:
        """Stop a rank for less than the timeout: nothing ends."""
        ranks = self.train(draw)
        os.kill(frozen := draw.choice(ranks), signal.SIGSTOP)
        time.sleep(draw.uniform(0, TIMEOUT_SECONDS / 3))
        os.kill(frozen, signal.SIGCONT)
        self.train(draw, more=True)
        self.cluster.kill(*self.cluster.living())
        return "a rank frozen for a moment, then all killed"

    def stop_one(self, draw: random.Random) -> str:
        """Ask one rank to stop: all publish and end."""
        ranks = self.train(draw)
        os.kill(draw.choice(ranks), signal.SIGTERM)
        assert self.cluster.end_codes(ranks) == [0] * len(ranks)
        return f"{len(ranks)} ranks stopped"

    def break_connections(self, draw: random.Random) -> str:
        """Break the connections to the broker, and let a rank die meanwhile."""
        ranks = self.train(draw)
        self.cluster.broker.disconnect()
        time.sleep(draw.uniform(0, 2))
        self.cluster.kill(draw.choice(ranks))
        self.others_end()
        self.cluster.broker.reconnect()
        return "broker disconnected, a rank killed"

    def lose_power(self, draw: random.Random) -> str:
        """Take from every file a part of what was not fsynced: each writer loses another part of its own."""
        point = draw.choice([None, *POINTS])
        if point is None:
            self.train(draw)
            time.sleep(draw.uniform(0, 1))
        else:
            self.reach(draw, point, "STOP")
        status = self.cluster.status()
        ranks = self.cluster.living()
        for pid in ranks:
            os.kill(pid, signal.SIGSTOP)  # all end at one instant
        self.cluster.kill(*ranks)
        self.cluster.kill_compactors()
        profile, num_bytes = self.cluster.lose_power(draw)
        self.num_bytes_lost += num_bytes
        self.comparison.is_durable(status.durable_version or 0)
        return f"power lost {point or 'at any moment'}, {profile}"

    def launch(self, draw: random.Random, *options: str, at_least: int = 1) -> list[int]:
        """Start another number of ranks than before; half of the launches have a compactor."""
        self.cluster.disarm()
        before = len(self.cluster.ranks)
        numbers = [number for number in range(at_least, self.max_ranks + 1) if number != before]
        number = draw.choice(numbers or [at_least])
        self.cluster.launch(number, *options, *([] if draw.random() < 0.5 else ["--no-compact"]))
        self.launches[number] += 1
        return self.cluster.ranks

    def train(self, draw: random.Random, *options: str, more: bool = False, at_least: int = 1) -> list[int]:
        """Run ranks until they have published a version, with `more` one of records sent now; return them."""
        if len(self.cluster.living()) < max(at_least, len(self.cluster.ranks), 1):
            self.cluster.kill(*self.cluster.living())
            self.launch(draw, *options, at_least=at_least)
        before = self.cluster.watcher.version
        if more:
            self.prepare(draw)

        def is_published() -> bool:
            if len(self.cluster.living()) < len(self.cluster.ranks):
                codes = self.cluster.end_codes(self.cluster.ranks)
                assert self.num_unasked < 20, f"ranks ended with {codes}"
                self.report(f"ranks ended unasked with {codes}\n{self.cluster.output()}")
                self.num_unasked += 1
                self.launch(draw, *options, at_least=at_least)
            newest, status = self.cluster.watcher.version, self.cluster.status()
            mine = status.pid == self.cluster.ranks[0] and newest >> 32 == status.epoch
            return mine and newest & 0xFFFFFFFF > 0 and (newest > before or not more)

        wait_until(is_published, lambda: f"a version\n{self.cluster.output()}", seconds=START_SECONDS)
        return self.cluster.ranks

    def reach(self, draw: random.Random, point: str, name: str, *, at_least: int = 1) -> int | None:
        """Run ranks until one reaches this point and gets the signal; None if none does within a while."""
        if point in START_POINTS:
            self.cluster.kill(*self.cluster.living())
            self.cluster.arm(point, name, 1)
            self._launch_armed(draw, at_least)
        else:
            self.train(draw, at_least=at_least)
            self.cluster.arm(point, name, draw.randrange(1, 5))
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline and self.cluster.struck() is None:
            self.cluster.produce(20, draw.randrange(self.cluster.partitions))
            time.sleep(0.05)
        hit = self.cluster.struck()
        if hit is not None:
            self.points[point] += 1
            if name == "KILL":
                wait_until(lambda: not self.cluster.process_pool.is_alive(hit), "the end of the killed rank")
        return hit

    def _launch_armed(self, draw: random.Random, at_least: int) -> None:
        number = draw.randrange(at_least, self.max_ranks + 1)
        self.cluster.launch(number, "--no-compact")
        self.launches[number] += 1

    def others_end(self) -> None:
        """A rank was killed: the others end with exit code 1 by themselves."""
        codes = self.cluster.end_codes(self.cluster.ranks)
        assert set(codes) <= {1, -signal.SIGKILL}, f"ranks ended with {codes}"
        self.cluster.kill_compactors()

    def compare(self, number: int) -> None:
        """Compare the log's end, and every version that the follower has got, with what was sent."""
        self.cluster.disarm()
        self.comparison.compare()

    def finish(self) -> None:
        """Learn the topic to its end with one last number of ranks; compare, verify the log, ask the follower."""
        self.cluster.kill(*self.cluster.living())
        self.cluster.kill_compactors()
        self.cluster.disarm()
        draw = random.Random(f"{self.seed}-end")
        while True:
            ranks = self.launch(draw, "--until-end")
            codes = self.cluster.end_codes(ranks)
            if codes == [0] * len(ranks):
                break
            self.num_unasked += 1
            assert self.num_unasked < 20, f"{codes}\n{self.cluster.output()}"
        contents = self.comparison.compare_at_end()
        self.report(self.summary(contents))
        assert not self.cluster.bugs(), self.cluster.bugs()

    def summary(self, contents: LogContents) -> str:
        """Return the figures as JSON."""
        figures = {
            "seed": self.seed,
            "seconds": round(time.monotonic() - self.began),
            "kills": self.cluster.num_kills,
            "launches": self.cluster.num_launches,
            "ended_unasked": self.num_unasked,
            "launches_by_ranks": dict(sorted(self.launches.items())),
            "faults": dict(self.done),
            "points": dict(self.points),
            "comparisons_of_the_log": self.comparison.num_logs,
            "rows_compared": self.comparison.num_rows,
            "versions_compared_by_the_follower": self.cluster.watcher.num_compared,
            "follower_restarts": self.cluster.watcher.follower.num_restarts,
            "power_loss_bytes": self.num_bytes_lost,
            "samples": contents.meta.samples_trained,
            "rows": len(contents.rows),
            "epochs": contents.head.number >> 32,
            "differences": 0,
        }
        return json.dumps(figures)
