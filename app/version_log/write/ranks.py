"""Several ranks write one log: what they tell each other, and what each does for a version to be durable."""

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import msgspec

from springtide.app.errors import UserError
from springtide.app.version_log.errors import FencedError
from springtide.app.version_log.failpoints import failpoint
from springtide_client.errors import LogError
from springtide_client.format.records import ShardEntry, Tip, version_name
from springtide_client.log.listing import LogManifest

TIMEOUT_SECONDS = 60.0
START_POLL_SECONDS = 0.02
T = TypeVar("T")
POLL_SECONDS, MAX_POLL_SECONDS = 0.001, 0.02  # between two looks for a report; ever longer
PATIENCE_SECONDS = 1.0  # a rank that takes longer with its shard record stalls the log
ALL = 2**63 - 1  # a number above every version


class RankStore(Protocol):
    """The methods in use of `torch.distributed.Store`: TCPStore, FileStore, HashStore, or a PrefixStore over one."""

    def set(self, key: str, value: str) -> None: ...

    def get(self, key: str) -> bytes: ...

    def check(self, keys: list[str]) -> bool: ...

    def delete_key(self, key: str) -> bool: ...


@dataclass
class LogRanks:
    """One process's place among the writers of a log. A process keeps it for as long as it lives.

    The store must belong to this launch alone, such as a PrefixStore with torchrun's restart count: what an earlier
    launch has left there would be taken for this one's. Every rank opens the log equally often, in the same order.
    """

    store: RankStore
    rank: int
    num_ranks: int
    # how long rank 0 waits for the shard record of another rank that does not say what it waits for
    timeout_seconds: float = TIMEOUT_SECONDS
    # which ranks are dead, or "": then a live one is waited for as long as it takes, instead of `timeout_seconds`
    silence: Callable[[], str] | None = None
    num_opened: int = field(default=0, init=False)  # how often this process has opened the log

    def why_not_wait(self, seconds: float) -> str:
        """Return why other ranks are not waited for any longer, after so many seconds; "" if they are. LogError."""
        if self.silence is None:
            return f"within {self.timeout_seconds:g} s" if seconds > self.timeout_seconds else ""
        silence = _guarded(self.silence)
        return f"and {silence}" if silence else ""


class StartReport(msgspec.Struct, kw_only=True):
    """The epoch that rank 0 has started; or why it could not."""

    manifest: LogManifest | None = None
    exact_state: int = 0
    error: str = ""
    is_user_error: bool = False


class RankReports:
    """The keys of one epoch in the store. Any thread may call it; LogError when the store cannot be reached."""

    def __init__(self, ranks: LogRanks, epoch: int) -> None:
        self._ranks, self._prefix = ranks, f"log/{epoch}/"

    def put(self, key: str, value: str = "") -> None:
        """Set a key."""
        _guarded(lambda: self._ranks.store.set(self._prefix + key, value))

    def get(self, key: str) -> str | None:
        """Return the value of a key; None if nobody has set it."""
        store, name = self._ranks.store, self._prefix + key
        return _guarded(lambda: store.get(name).decode() if store.check([name]) else None)

    def have_all(self, keys: list[str]) -> bool:
        """Return True if all keys are set."""
        return _guarded(lambda: self._ranks.store.check([self._prefix + key for key in keys]))

    def forget(self, key: str) -> None:
        """Delete a key."""
        _guarded(lambda: self._ranks.store.delete_key(self._prefix + key))

    def put_tip(self, key: str, tip: Tip) -> None:
        """Set a key to a version."""
        self.put(key, f"{tip.number} {tip.checksum}")

    def get_tip(self, key: str) -> Tip | None:
        """Return the version that a key was set to."""
        text = self.get(key)
        return None if text is None else Tip(*map(int, text.split()))

    def put_written(self, rank: int, tip: Tip) -> None:
        """A shard record of this number and checksum can be read."""
        self.put(f"written/{tip.number}/{rank}", str(tip.checksum))

    def take_written(self, number: int) -> list[ShardEntry] | None:
        """Return the shard records of a version once all ranks have written theirs, and forget them; None before."""
        keys = {rank: f"written/{number}/{rank}" for rank in range(1, self._ranks.num_ranks)}
        if not self.have_all(list(keys.values())):
            return None
        entries = [ShardEntry(rank, int(self.get(key) or 0)) for rank, key in keys.items()]
        for key in keys.values():
            self.forget(key)
        return entries

    def missing(self, number: int) -> list[int]:
        """Return the ranks that have not written their shard record of a version."""
        return [rank for rank in range(1, self._ranks.num_ranks) if not self.have_all([f"written/{number}/{rank}"])]

    def put_stall(self, rank: int, reason: str) -> None:
        """Say why this rank's disk does not take its shard records at present; empty: it does again."""
        self.put(f"stalled/{rank}", reason)

    def stalls(self) -> str:
        """Return why other ranks cannot write at present; empty if they can."""
        reasons = {rank: self.get(f"stalled/{rank}") for rank in range(1, self._ranks.num_ranks)}
        return "; ".join(f"rank {rank}: {reason}" for rank, reason in reasons.items() if reason)

    def fsynced_by_all(self) -> int:
        """Return the newest version whose shard records all other ranks have fsynced; 0 before the first."""
        return min(int(self.get(f"fsynced/{rank}") or 0) for rank in range(1, self._ranks.num_ranks))

    def put_failure(self, rank: int, error: Exception) -> None:
        """Say why this rank writes no more."""
        self.put("failed", json.dumps([rank, isinstance(error, FencedError), str(error)]))

    def failure_elsewhere(self) -> LogError | None:
        """Return why another rank writes no more: FencedError if it was replaced; None while all write."""
        text = self.get("failed")
        if text is None:
            return None
        rank, is_fenced, reason = json.loads(text)
        if rank == self._ranks.rank:
            return None
        return FencedError(reason) if is_fenced else LogError(f"rank {rank} writes no more: {reason}")


@contextlib.contextmanager
def put_start(ranks: LogRanks) -> Iterator[StartReport]:
    """Tell the other ranks what is put into the report, or why that failed."""
    ranks.num_opened += 1
    report = StartReport()
    try:
        yield report
    except Exception as error:
        report.error, report.is_user_error = str(error) or type(error).__name__, isinstance(error, UserError)
        raise
    finally:
        text = msgspec.json.encode(report).decode()
        _guarded(lambda: ranks.store.set(_start_key(ranks), text))


def wait_for_start(ranks: LogRanks, timeout_seconds: float) -> StartReport:
    """Return what rank 0 tells. LogError if it tells nothing in time, or could not start; UserError as it has got."""
    ranks.num_opened += 1
    key, deadline = _start_key(ranks), time.monotonic() + timeout_seconds
    while not _guarded(lambda: ranks.store.check([key])):
        if silence := "" if ranks.silence is None else _guarded(ranks.silence):
            raise LogError(f"rank 0 has not started the log, and {silence}")
        if time.monotonic() > deadline:
            raise LogError(f"rank 0 has not started the log within {timeout_seconds:g} s")
        time.sleep(START_POLL_SECONDS)
    report = msgspec.json.decode(_guarded(lambda: ranks.store.get(key)), type=StartReport)
    if report.is_user_error:
        raise UserError(report.error)
    if report.error:
        raise LogError(f"rank 0 could not start the log: {report.error}")
    return report


def not_written(number: int, ranks: list[int]) -> str:
    """Say for whose shard records a version waits."""
    who = f"rank {ranks[0]} has" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))} have"
    return f"{who} not written the shard record of version {version_name(number)}"


def _start_key(ranks: LogRanks) -> str:
    return f"log/start/{ranks.num_opened}"


def _guarded(call: Callable[[], T]) -> T:
    try:
        return call()
    except (RuntimeError, OSError) as error:
        raise LogError(f"the store between the ranks cannot be reached: {error}") from None


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
