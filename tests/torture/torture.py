"""Faults of one trainer, compactor, server, broker and disk; at the end a bitwise comparison."""

import json
import random
from pathlib import Path

from springtide_client.log.directory import LogDirectory
from tests.support.process_pool import ProcessPool
from tests.support.waiting import wait_until
from tests.torture.cluster.cluster import Cluster
from tests.torture.cluster.faults import Faults
from tests.torture.random_faults import Fault, RandomFaults, Report
from tests.torture.verify.log_contents import LogContents
from tests.torture.verify.reader_checks import check_follower, check_server
from tests.torture.verify.verifier import LogVerifier

COMPARE_EVERY = 20


class Torture(RandomFaults):
    """One trainer and all that is around it."""

    def __init__(self, folder: Path, seed: int, process_pool: ProcessPool, report: Report = print) -> None:
        self.cluster = Cluster(folder, seed, process_pool)
        super().__init__(self.cluster, seed, report)
        self.verifier = LogVerifier(self.cluster.log, folder, seed)
        self.faults = Faults(self.cluster, self.verifier)
        self.num_skipped = 0

    def weights(self) -> dict[Fault, int]:
        return self.faults.weights()

    def prepare(self, draw: random.Random) -> None:
        self.cluster.produce(draw.randrange(100, 900))
        if draw.random() < 0.5:
            self.faults.submit_command(draw)
        if draw.random() < 0.5:
            self.faults.pin_or_unpin(draw)

    def compare(self, number: int) -> None:
        """Check the log and its follower; now and then also bitwise against the reference run."""
        self.cluster.disarm()
        if not self.cluster.log.exists():
            return
        self.cluster.kill_compactors()
        directory = LogDirectory(self.cluster.log)
        if not directory.scan().is_settled or not directory.bases():
            self.num_skipped += 1  # killed during a start: readers wait, and the next comparison covers this one
            return
        contents = self.verifier.verify()
        check_follower(self.cluster, self.verifier, contents)
        if number % COMPARE_EVERY == COMPARE_EVERY - 1:
            self.verifier.compare_with_reference()

    def finish(self) -> None:
        """Learn the topic to its end, and verify the log, a follower and a server."""
        self.cluster.disarm()
        self.cluster.kill_all()
        done = self.cluster.start("train", "--until-end")
        assert self.cluster.process_pool.wait(done, 600.0) == 0, self.cluster.output()
        contents = self.verifier.verify()
        assert contents.offset == self.cluster.num_produced
        missing = self.verifier.submitted.keys() - {command.id for command in contents.meta.executed_commands}
        assert not missing, f"lost commands: {missing}"
        self.verifier.compare_with_reference()
        wait_until(lambda: self.cluster.newest_version() == contents.head.number, "the follower's arrival")
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
            "epochs": contents.head.number >> 32,
            "follower_restarts": self.cluster.follower.num_restarts,
        }
        return json.dumps(figures)

    def close(self) -> None:
        self.verifier.close()
        super().close()
