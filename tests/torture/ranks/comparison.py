"""Compare a log that ranks have written with a dictionary of what was sent, at the positions that the log says."""

from typing import Any

import numpy as np

from springtide.app.version_log.verify.verify import verify
from springtide_client.log.directory import LogDirectory
from tests.support.waiting import wait_until
from tests.torture.cluster.config import TOPIC
from tests.torture.ranks.sent import Expected
from tests.torture.ranks.site import RankSite
from tests.torture.verify.log_contents import LogContents, read_log_contents

WINDOW_SAMPLES = 2_000


class Comparison:
    """Counts what it has compared. Every method raises AssertionError on a difference."""

    def __init__(self, site: RankSite) -> None:
        self.num_logs = self.num_rows = self.num_unsettled = 0
        self._site, self._expected, self._durable_version = site, Expected(site.sent), 0

    def is_durable(self, version: int) -> None:
        """Know that a version was reported as durable: the log must never end before it."""
        self._durable_version = max(self._durable_version, version)

    def compare(self) -> LogContents | None:
        """Compare the log's end, and every version that the follower has got; None if there is no base yet."""
        self._site.watcher.check()
        directory = LogDirectory(self._site.log)
        if not self._site.log.exists() or not directory.scan().is_settled or not directory.bases():
            self.num_unsettled += 1  # killed during a start: the next comparison covers this one
            return None
        contents = read_log_contents(self._site.log, window_samples=WINDOW_SAMPLES)
        assert contents.head.number >= self._durable_version, (
            f"{self._durable_version} was durable, the log ends at {contents.head}"
        )
        self._expected.advance(contents.meta.positions)
        rows = self._expected.rows
        assert contents.meta.samples_trained == self._expected.num_samples
        assert sum(contents.meta.dead_letters.values()) == self._expected.num_bad, "dead letters are miscounted"
        found = {key: (row[2], row[3]) for key, row in contents.rows.items() if key[0] < 2}
        assert found == rows, describe(found, rows)
        assert all(np.isfinite(np.frombuffer(row[0], np.float32)).all() for row in contents.rows.values())
        self.num_logs += 1
        self.num_rows += len(rows)
        return contents

    def compare_at_end(self) -> LogContents:
        """Compare, with everything sent learned; verify the log; wait for the follower."""
        contents = self.compare()
        assert contents is not None, "the log has no base"
        ends = {f"{TOPIC}/{partition}": end for partition, end in self._site.sent.ends().items()}
        positions = {name: at["offset"] for name, at in contents.meta.positions.items() if at["offset"]}
        assert positions == ends, describe(positions, ends)
        report = verify(LogDirectory(self._site.log))
        assert not report.errors, report.errors
        wait_until(lambda: self._site.watcher.version >= contents.head.number, "the follower's arrival")
        self._site.watcher.check()
        return contents


def describe(found: dict[Any, Any], expected: dict[Any, Any], num: int = 10) -> str:
    """Return some of the differences between two dictionaries."""
    keys = [key for key in found.keys() | expected.keys() if found.get(key) != expected.get(key)]
    return f"{len(keys)} are wrong: {[(key, found.get(key), expected.get(key)) for key in keys[:num]]}"
