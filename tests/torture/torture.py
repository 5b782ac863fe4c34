"""A torture: random faults from a seed, a verification after each, at the end a bitwise comparison."""

import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from springtide_client.log.directory import LogDirectory
from tests.support.process_pool import ProcessPool
from tests.support.waiting import wait_until
from tests.torture.cluster.cluster import Cluster
from tests.torture.cluster.faults import Fault, Faults
from tests.torture.verify.log_contents import LogContents
from tests.torture.verify.reader_checks import check_follower, check_server
from tests.torture.verify.verifier import LogVerifier

COMPARE_EVERY = 20


class Torture:
    """`report` is called with a line for every fault, and with the final figures."""

    def __init__(
        self, folder: Path, seed: int, process_pool: ProcessPool, report: Callable[[str], None] = print
    ) -> None:
        self.seed, self.report = seed, report
        self.cluster = Cluster(folder, seed, process_pool)
        self.verifier = LogVerifier(self.cluster.log, folder, seed)
        self.faults = Faults(self.cluster, self.verifier)
        self.done: Counter[str] = Counter()
        self.num_skipped = 0

    def run(self, num_kills: int) -> None:
        """Inject faults until `num_kills` processes were killed; then learn the rest and compare."""
        while self.cluster.num_kills < num_kills:
            self.inject(None)
        self.finish()

    def inject(self, kind: Fault | None) -> None:
        """Inject one fault, random if `kind` is None, and verify the log.

        It is a function of the seed and of the number of faults before it, as far as timing allows.
        """
        number = self.done.total()
        draw = random.Random(f"{self.seed}-{number}")
        weights = self.faults.weights()
        drawn = draw.choices(list(weights), list(weights.values()))[0]
        kind = kind or drawn
        self.cluster.produce(draw.randrange(100, 900))
        if draw.random() < 0.5:
            self.faults.submit_command(draw)
        try:
            if draw.random() < 0.5:
                self.faults.pin_or_unpin(draw)
            what = kind(draw)
            self.done[kind.__name__] += 1
            self.verify(compare=number % COMPARE_EVERY == COMPARE_EVERY - 1)
        except BaseException:
            self.report(f"fault {number} of seed {self.seed}: {kind.__name__}\n{self.cluster.trainer_output()}")
            raise
        self.report(f"fault {number}: {what}; {self.cluster.num_kills} kills")

    def verify(self, *, compare: bool = False) -> None:
        """Check the log and its follower; with `compare` also bitwise against the reference run."""
        self.cluster.disarm_fault_points()
        if not self.cluster.log.exists():
            return
        for pid in self.cluster.compactors():
            self.cluster.kill(pid)
        directory = LogDirectory(self.cluster.log)
        if not directory.scan().is_settled or not directory.bases():
            self.num_skipped += 1  # killed during a start: readers wait, and the next verification covers this one
            return
        contents = self.verifier.verify()
        check_follower(self.cluster, self.verifier, contents)
        if compare:
            self.verifier.compare_with_reference()

    def finish(self) -> None:
        """Learn the topic to its end, and verify the log, a follower and a server."""
        self.cluster.disarm_fault_points()
        self.cluster.kill_all()
        done = self.cluster.start("train", "--until-end")
        assert self.cluster.process_pool.wait(done, 600.0) == 0, self.cluster.trainer_output()
        contents = self.verifier.verify()
        assert contents.offset == self.cluster.num_produced
        missing = self.verifier.submitted.keys() - {command.id for command in contents.meta.executed_commands}
        assert not missing, f"lost commands: {missing}"
        self.verifier.compare_with_reference()
        wait_until(lambda: self.cluster.newest_version() == contents.tip.number, "the follower's arrival")
        check_follower(self.cluster, self.verifier, contents)
        self.cluster.server = self.cluster.start("serve")
        check_server(self.cluster, self.verifier, contents)
        self.report(self.summary(contents))

    def summary(self, contents: LogContents) -> str:
        """Return the figures as JSON."""
        figures = {
            "seed": self.seed,
            "kills": self.cluster.num_kills,
            "faults": dict(self.done),
            "points": dict(self.faults.points),
            "power_loss_bytes": self.faults.num_bytes_lost,
            "verifications": self.verifier.num_verified,
            "bitwise": self.verifier.num_compared,
            "pins": self.faults.num_pins,
            "pinned_versions_restored": self.verifier.num_restored,
            "skipped_during_starts": self.num_skipped,
            "samples": contents.meta.samples_trained,
            "rows": len(contents.rows),
            "items_without_string": sum(key[0] == 1 and key not in contents.texts for key in contents.rows),
            "commands": len(contents.meta.executed_commands),
            "epochs": contents.tip.number >> 32,
            "follower_restarts": self.cluster.follower.num_restarts,
        }
        return json.dumps(figures)

    def close(self) -> None:
        self.verifier.close()
        self.cluster.close()
