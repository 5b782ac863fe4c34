"""Messages between the writers of one log: through a store of torch.distributed, from their own threads.

Rank 0 writes version records, each other rank the shard records of its rows. Ranks of one epoch speak only to each
other: every key begins with the epoch, and the epoch itself is heard from rank 0 of the same launch.
"""

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import msgspec

from springtide.app.errors import UserError
from springtide.app.version_log.errors import FencedError
from springtide_client.errors import LogError
from springtide_client.format.records import Tip, version_name
from springtide_client.format.shards import ShardEntry
from springtide_client.log.listing import LogManifest

TIMEOUT_SECONDS = 60.0
START_POLL_SECONDS = 0.02
T = TypeVar("T")


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
