"""A log writer's duties to the writers of other ranks: none if it is alone, else those of its rank.

Rank 0 writes a version record when all shard records of its number are written, and calls it durable when all are
fsynced. Another rank reports both, and hears from rank 0 what is published and durable.
"""

import contextlib
import threading
import time
from collections.abc import Callable

from springtide.app.version_log.failpoints import failpoint
from springtide.app.version_log.write.ranks import LogRanks, RankReports, not_written
from springtide_client.errors import LogError
from springtide_client.format.records import Tip, version_name
from springtide_client.format.shards import ShardEntry

POLL_SECONDS, MAX_POLL_SECONDS = 0.001, 0.02  # between two looks for a report; ever longer
PATIENCE_SECONDS = 1.0  # a rank that takes longer with its shard record stalls the log
ALL = 2**63 - 1  # a number above every version


class Alone:
    """The only writer of a log. `stop_waiting` ends waits; `stall_reason`: for what another rank is waited."""

    def __init__(self) -> None:
        self.stop_waiting = threading.Event()
        self.stall_reason = ""

    def shards_of(self, number: int) -> list[ShardEntry]:
        """Return the shard records of a version that is about to be encoded; waits for them."""
        return []

    def written(self, tip: Tip) -> None:
        """A record was written to its file."""

    def stalled(self, reason: str) -> None:
        """The disk does not take a record, for this reason; or it does again."""

    def synced(self, number: int) -> None:
        """All records of this writer up to this number are fsynced."""

    def durable(self, tip: Tip) -> None:
        """A version is durable."""

    def durable_limit(self) -> int:
        """Return up to which number versions can be durable, as far as the other ranks say."""
        return ALL

    def published(self) -> Tip | None:
        """Return the newest version that readers can see, where another rank publishes it."""
        return None

    def failed(self, error: Exception) -> None:
        """This writer writes no more."""

    def failure_elsewhere(self) -> LogError | None:
        """Return why another rank writes no more, if one does not."""
        return None

    def settle(self, number: int) -> None:
        """Tell the other ranks: of the versions up to this one, all that can become durable have been reported."""

    def is_settled(self, number: int) -> bool:
        """Return True if nothing has to be waited for before a version that this writer has fsynced can be durable."""
        return True

    def wait_for_sync(self, number: int) -> None:
        """Wait a moment until all ranks have fsynced a version; LogError after too long, or if one is dead."""

    def _wait_until(self, done: Callable[[], bool]) -> None:
        """Look ever less often."""
        seconds = POLL_SECONDS
        while not done() and not self.stop_waiting.wait(seconds):
            seconds = min(2 * seconds, MAX_POLL_SECONDS)


class _Ranked(Alone):
    def __init__(self, ranks: LogRanks, epoch: int) -> None:
        super().__init__()
        self._ranks, self._reports = ranks, RankReports(ranks, epoch)
        self._sync_since = (0, 0.0)  # the version whose becoming durable is waited for, and since when

    def failed(self, error: Exception) -> None:
        with contextlib.suppress(LogError):
            self._reports.put_failure(self._ranks.rank, error)

    def failure_elsewhere(self) -> LogError | None:
        return self._reports.failure_elsewhere()

    def wait_for_sync(self, number: int) -> None:
        if self._sync_since[0] != number:
            self._sync_since = number, time.monotonic()
        if why := self._ranks.why_not_wait(time.monotonic() - self._sync_since[1]):
            raise LogError(f"other ranks have not made version {version_name(number)} durable {why}")
        self.stop_waiting.wait(MAX_POLL_SECONDS)


class RankZero(_Ranked):
    """Writes the version records."""

    _settled = 0

    def shards_of(self, number: int) -> list[ShardEntry]:
        entries: list[ShardEntry] = []
        begin = last_reason = time.monotonic()

        def are_written() -> bool:
            nonlocal entries, last_reason
            found = self._reports.take_written(number)
            if found is not None:
                entries = found
                return True
            if (error := self._reports.failure_elsewhere()) is not None:
                raise error
            now = time.monotonic()
            if now - begin > PATIENCE_SECONDS:
                # a full disk is waited for as long as it takes
                if stalls := self._reports.stalls():
                    self.stall_reason, last_reason = stalls, now
                else:
                    self.stall_reason = not_written(number, self._reports.missing(number))
                if why := self._ranks.why_not_wait(now - last_reason):
                    raise LogError(f"{self.stall_reason} {why}")
            return False

        try:
            self._wait_until(are_written)
        finally:
            self.stall_reason = ""
        if not entries:
            raise LogError("the log was closed before the other ranks had written their shard records")
        failpoint("after the shard records before the version record")
        return entries

    def written(self, tip: Tip) -> None:
        self._reports.put_tip("published", tip)

    def durable(self, tip: Tip) -> None:
        self._reports.put_tip("durable", tip)

    def durable_limit(self) -> int:
        return self._reports.fsynced_by_all()

    def settle(self, number: int) -> None:
        if number != self._settled:
            self._reports.put("settled", str(number))
            self._settled = number

    def is_settled(self, number: int) -> bool:
        return self._reports.fsynced_by_all() >= number


class OtherRank(_Ranked):
    """Writes the shard records of one rank above 0."""

    def __init__(self, ranks: LogRanks, epoch: int) -> None:
        super().__init__(ranks, epoch)
        self._published: Tip | None = None
        self._stall = ""
        self._next_look = 0.0

    def written(self, tip: Tip) -> None:
        self._reports.put_written(self._ranks.rank, tip)

    def stalled(self, reason: str) -> None:
        if reason != self._stall:
            self._reports.put_stall(self._ranks.rank, reason)
            self._stall = reason

    def synced(self, number: int) -> None:
        self._reports.put(f"fsynced/{self._ranks.rank}", str(number))

    def durable_limit(self) -> int:
        tip = self._reports.get_tip("durable")
        return 0 if tip is None else tip.number

    def is_settled(self, number: int) -> bool:
        return int(self._reports.get("settled") or 0) >= number

    def published(self) -> Tip | None:
        if time.monotonic() >= self._next_look:
            self._published = self._reports.get_tip("published") or self._published
            self._next_look = time.monotonic() + MAX_POLL_SECONDS
        return self._published
