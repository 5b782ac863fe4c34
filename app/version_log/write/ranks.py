"""Several ranks write one log: what they tell each other, and what each does for a version to be durable."""

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar

import msgspec

from springtide.app.errors import UserError
from springtide.app.version_log.errors import FencedError
from springtide.app.version_log.failpoints import failpoint
from springtide_client.errors import LogError
from springtide_client.format.records import Head, ShardEntry, version_name
from springtide_client.log.listing import LogManifest

TIMEOUT_SECONDS = 60.0
START_POLL_SECONDS = 0.02
T = TypeVar("T")
POLL_SECONDS, MAX_POLL_SECONDS = 0.001, 0.02  # between two looks for a report; ever longer
PATIENCE_SECONDS = 1.0  # a rank that takes longer with its shard record stalls the log
ALL = 2**63 - 1  # above every version


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


def not_written(version: int, ranks: list[int]) -> str:
    """Say for whose shard records a version waits."""
    who = f"rank {ranks[0]} has" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))} have"
    return f"{who} not written the shard record of version {version_name(version)}"


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

    def shards_of(self, version: int) -> list[ShardEntry]:
        """Return the shard records of a version that is about to be encoded; waits for them."""
        return []

    def written(self, head: Head) -> None:
        """A record was written to its file."""

    def stalled(self, reason: str) -> None:
        """The disk does not take a record, for this reason; or it does again."""

    def synced(self, version: int) -> None:
        """All records of this writer up to this version are fsynced."""

    def durable(self, head: Head) -> None:
        """A version is durable."""

    def durable_limit(self) -> int:
        """Return up to which number versions can be durable, as far as the other ranks say."""
        return ALL

    def published(self) -> Head | None:
        """Return the newest version that readers can see, where another rank publishes it."""
        return None

    def failed(self, error: Exception) -> None:
        """This writer writes no more."""

    def failure_elsewhere(self) -> LogError | None:
        """Return why another rank writes no more, if one does not."""
        return None

    def settle(self, version: int) -> None:
        """Tell the other ranks: of the versions up to this one, all that can become durable have been reported."""

    def is_settled(self, version: int) -> bool:
        """Return True if nothing has to be waited for before a version that this writer has fsynced can be durable."""
        return True

    def wait_for_sync(self, version: int) -> None:
        """Wait a moment until all ranks have fsynced a version; LogError after too long, or if one is dead."""

    def _wait_until(self, done: Callable[[], bool]) -> bool:
        """Look ever less often; return False if the waiting was stopped."""
        seconds = POLL_SECONDS
        while not done():
            if self.stop_waiting.wait(seconds):
                return False
            seconds = min(2 * seconds, MAX_POLL_SECONDS)
        return True


class _Ranked(Alone):
    """One of several writers. They report to each other in the keys of one epoch in the store.

    Any thread may call it; LogError when the store cannot be reached.
    """

    def __init__(self, ranks: LogRanks, epoch: int) -> None:
        super().__init__()
        self._ranks, self._prefix = ranks, f"log/{epoch}/"
        self._sync_since = (0, 0.0)  # the version whose becoming durable is waited for, and since when

    def _put(self, key: str, value: str = "") -> None:
        _guarded(lambda: self._ranks.store.set(self._prefix + key, value))

    def _get(self, key: str) -> str | None:
        """Return the value of a key; None if nobody has set it."""
        store, name = self._ranks.store, self._prefix + key
        return _guarded(lambda: store.get(name).decode() if store.check([name]) else None)

    def _get_version(self, key: str) -> int:
        """Return the version that a key was set to; 0 if nobody has set it."""
        return int(self._get(key) or 0)

    def failed(self, error: Exception) -> None:
        with contextlib.suppress(LogError):
            self._put("failed", json.dumps([self._ranks.rank, isinstance(error, FencedError), str(error)]))

    def failure_elsewhere(self) -> LogError | None:
        text = self._get("failed")
        if text is None:
            return None
        rank, is_fenced, reason = json.loads(text)
        if rank == self._ranks.rank:
            return None
        return FencedError(reason) if is_fenced else LogError(f"rank {rank} writes no more: {reason}")

    def wait_for_sync(self, version: int) -> None:
        if self._sync_since[0] != version:
            self._sync_since = version, time.monotonic()
        if why := self._ranks.why_not_wait(time.monotonic() - self._sync_since[1]):
            raise LogError(f"other ranks have not made version {version_name(version)} durable {why}")
        self.stop_waiting.wait(MAX_POLL_SECONDS)


class RankZero(_Ranked):
    """Writes the version records."""

    _settled = 0

    def shards_of(self, version: int) -> list[ShardEntry]:
        keys = {rank: f"written/{version}/{rank}" for rank in self._others}
        begin = last_reason = time.monotonic()

        def are_written() -> bool:
            nonlocal last_reason
            if self._have_all(*keys.values()):
                return True
            if (error := self.failure_elsewhere()) is not None:
                raise error
            now = time.monotonic()
            if now - begin > PATIENCE_SECONDS:
                # a full disk is waited for as long as it takes
                if stalls := self._stalls():
                    self.stall_reason, last_reason = stalls, now
                else:
                    self.stall_reason = not_written(version, [rank for rank in keys if not self._have_all(keys[rank])])
                if why := self._ranks.why_not_wait(now - last_reason):
                    raise LogError(f"{self.stall_reason} {why}")
            return False

        try:
            if not self._wait_until(are_written):
                raise LogError("the log was closed before the other ranks had written their shard records")
        finally:
            self.stall_reason = ""
        entries = [ShardEntry(rank, self._get_version(key)) for rank, key in keys.items()]
        for key in keys.values():
            _guarded(partial(self._ranks.store.delete_key, self._prefix + key))
        failpoint("after the shard records before the version record")
        return entries

    @property
    def _others(self) -> range:
        return range(1, self._ranks.num_ranks)

    def _have_all(self, *keys: str) -> bool:
        return _guarded(lambda: self._ranks.store.check([self._prefix + key for key in keys]))

    def _stalls(self) -> str:
        """Return why other ranks cannot write at present; empty if they can."""
        reasons = {rank: self._get(f"stalled/{rank}") for rank in self._others}
        return "; ".join(f"rank {rank}: {reason}" for rank, reason in reasons.items() if reason)

    def written(self, head: Head) -> None:
        self._put("published", f"{head.number} {head.checksum}")

    def durable(self, head: Head) -> None:
        self._put("durable", str(head.number))

    def durable_limit(self) -> int:
        return min(self._get_version(f"fsynced/{rank}") for rank in self._others)

    def settle(self, version: int) -> None:
        if version != self._settled:
            self._put("settled", str(version))
            self._settled = version

    def is_settled(self, version: int) -> bool:
        return self.durable_limit() >= version


class OtherRank(_Ranked):
    """Writes the shard records of one rank above 0."""

    def __init__(self, ranks: LogRanks, epoch: int) -> None:
        super().__init__(ranks, epoch)
        self._published: Head | None = None
        self._stall = ""
        self._next_look = 0.0

    def written(self, head: Head) -> None:
        self._put(f"written/{head.number}/{self._ranks.rank}", str(head.checksum))

    def stalled(self, reason: str) -> None:
        if reason != self._stall:
            self._put(f"stalled/{self._ranks.rank}", reason)
            self._stall = reason

    def synced(self, version: int) -> None:
        self._put(f"fsynced/{self._ranks.rank}", str(version))

    def durable_limit(self) -> int:
        return self._get_version("durable")

    def is_settled(self, version: int) -> bool:
        return self._get_version("settled") >= version

    def published(self) -> Head | None:
        if time.monotonic() >= self._next_look:
            if (text := self._get("published")) is not None:
                self._published = Head(*map(int, text.split()))
            self._next_look = time.monotonic() + MAX_POLL_SECONDS
        return self._published


def role_of(ranks: LogRanks | None, epoch: int) -> Alone:
    """Return the role of a writer of this epoch."""
    if ranks is None or ranks.num_ranks == 1:
        return Alone()
    return RankZero(ranks, epoch) if ranks.rank == 0 else OtherRank(ranks, epoch)
