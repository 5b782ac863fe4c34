"""A follower that compares every version it gets with what was sent: never half a version, never an older one."""

from pathlib import Path

from springtide_client.follow.follower import Follower
from springtide_client.log.directory import LogDirectory
from springtide_client.model.view import View
from tests.torture.ranks.sent import Expected, Sent

MAX_DIFFERENCES = 10


class Watcher:
    """`differences`: what was wrong with a version, a line each. `num_compared`: how many versions were right."""

    def __init__(self, log: Path, sent: Sent) -> None:
        self.differences: list[str] = []
        self.num_compared = self.version = 0
        self._expected = Expected(sent)
        self.follower = Follower(LogDirectory(log))
        self.follower.on_swap(self._compare)
        self.follower.start()

    def _compare(self, view: View) -> None:
        if view.version < self.version:
            self.differences.append(f"version {view.version} was served after {self.version}")
        self._expected.advance(view.meta.positions)
        if view.meta.samples_trained != (num_samples := self._expected.num_samples):
            self.differences.append(f"{view.head}: {view.meta.samples_trained} samples, not {num_samples}")
        for (feature, row_id), expected in self._expected.rows.items():
            info = view.row_info(feature, row_id)
            found = info["count"], info["last_seen_ms"]
            if found != expected and len(self.differences) < MAX_DIFFERENCES:
                self.differences.append(f"{view.head}: {feature, row_id} has {found}, not {expected}")
        self.version = view.version
        self.num_compared += 1

    def check(self) -> None:
        """Raise AssertionError if a version was wrong, or following has failed for good."""
        assert not self.differences, "\n".join(self.differences)
        assert "this is a bug" not in str(self.follower.error), self.follower.error

    def close(self) -> None:
        self.follower.close()
