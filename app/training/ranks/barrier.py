"""Ranks wait for each other through the store: for as long as it takes, while the others live."""

import os
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec

from springtide.app.training.ranks.errors import RankLostError, is_final

POLL_SECONDS, MAX_POLL_SECONDS = 0.002, 0.05
BEATS = 5  # within the seconds of silence that mean death
START_SECONDS = 300.0


def wait_for_all(store: Any, num_ranks: int, *, seconds: float = START_SECONDS) -> None:
    """Return once every rank has called it: on a busy machine one may import much longer than another."""
    deadline = time.monotonic() + seconds
    num_here = store.add("here", 1)
    while num_here < num_ranks:
        if time.monotonic() > deadline:
            raise RankLostError(f"only {num_here} of {num_ranks} ranks have come within {seconds:g} s")
        time.sleep(MAX_POLL_SECONDS)
        num_here = store.add("here", 0)


class StoreBarrier:
    """A barrier of all ranks, each of which shows by a thread of its own that it lives."""

    def __init__(self, store: Any, rank: int, num_ranks: int, seconds: float) -> None:
        """`store`: a torch.distributed.Store of this launch alone. A rank that is silent for `seconds` is dead."""
        self.rank, self.num_ranks = rank, num_ranks
        self._store = store.clone()
        self._num_barriers = 0
        self._left = threading.Event()
        self._pulses = Pulses(store.clone(), num_ranks, seconds)
        self._heartbeat = Heartbeat(store.clone(), rank, seconds / BEATS, self._left)
        self._heartbeat.start()

    def answered_at(self) -> float:
        """Return when the store last answered, in seconds of the monotonic clock."""
        return self._heartbeat.answered_at

    def silence(self) -> str:
        """Return which ranks are silent for too long; "" if all live. Any thread, often while it waits."""
        return self._pulses.silence()

    def wait(self) -> None:
        """Return once all ranks have called it equally often; RankLostError if one of them has failed or is silent."""
        self._num_barriers += 1
        key, seconds = f"barrier/{self._num_barriers}", POLL_SECONDS
        num_here = self._store.add(key, 1)
        while num_here < self.num_ranks:
            if lost := self.lost():
                raise lost
            if silence := self.silence():
                raise RankLostError(silence)
            time.sleep(seconds)
            seconds = min(2 * seconds, MAX_POLL_SECONDS)
            num_here = self._store.add(key, 0)

    def lost(self) -> RankLostError | None:
        """Return which rank has failed, and why; None if no other one has said so."""
        try:
            if not self._store.check(["failed"]):
                return None
            rank, text, ends_launch = msgspec.json.decode(self._store.get("failed"))
        except (RuntimeError, OSError):
            return RankLostError("the store of the ranks cannot be reached: rank 0 or the launcher has ended")
        if rank == self.rank:
            return None
        error = RankLostError(f"rank {rank} has ended: {text}")
        error.ends_launch = ends_launch
        return error

    def leave(self, error: BaseException | None) -> bool:
        """End the heartbeat; show an error to the others. Return True if another rank has shown the same before."""
        self._left.set()
        if error is None:
            return False
        text = " ".join(str(error).split()) or type(error).__name__
        own = msgspec.json.encode([self.rank, text, is_final(error)]).decode()
        try:
            rank, first, _ = msgspec.json.decode(self._store.compare_set("failed", "", own))
        except (RuntimeError, OSError):
            return False  # the store has ended: no other rank can read the error
        return bool(rank != self.rank and first == text)

    def mark_reported(self) -> None:
        """The error is reported to the user: ranks with the same one need not do that again."""
        self._store.set("reported", "")

    def wait_until_reported(self, seconds: float) -> bool:
        """Return True once the rank that ended first has reported its error; False if it does not in time."""
        try:
            self._store.wait(["reported"], timedelta(seconds=seconds))
        except (RuntimeError, OSError):
            return False
        return True


class Pulses:
    """Which ranks live, by the numbers that their heartbeats count up in the store. Any thread may ask."""

    def __init__(self, store: Any, num_ranks: int, seconds: float) -> None:
        self._store, self._seconds = store, seconds
        self._lock = threading.Lock()
        self._beats, self._heard_at = [0] * num_ranks, [0.0] * num_ranks
        self._looked_at = float("-inf")

    def silence(self) -> str:
        """Return which ranks have sent no heartbeat for too long, between calls of this method; "" if all live."""
        with self._lock:
            now = time.monotonic()
            since = now - self._looked_at
            if since > self._seconds / (2 * BEATS):
                beats = [self._store.add(f"beat/{rank}", 0) for rank in range(len(self._beats))]
                self._looked_at = now
                for rank, beat in enumerate(beats):
                    # no call for a while, or this process was frozen: missed heartbeats do not count as silence
                    if beat != self._beats[rank] or since > self._seconds / 2:
                        self._beats[rank], self._heard_at[rank] = beat, now
            silent = [rank for rank, heard_at in enumerate(self._heard_at) if now - heard_at > self._seconds]
        return f"rank {', '.join(map(str, silent))} is silent for {self._seconds:g} s" if silent else ""


class Heartbeat(threading.Thread):
    """Counts up in the store, for as long as this process runs."""

    def __init__(self, store: Any, rank: int, seconds: float, left: threading.Event) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self._store, self._key, self._seconds, self._left = store, f"beat/{rank}", seconds, left
        self.answered_at = time.monotonic()
        store.set_timeout(timedelta(seconds=max(1.0, BEATS * seconds)))

    def run(self) -> None:
        """Send heartbeats until the rank leaves or the store ends."""
        while not self._left.wait(self._seconds):
            try:
                self._store.add(self._key, 1)
                self.answered_at = time.monotonic()
            except (RuntimeError, OSError):
                return


LOOKS = 16  # within the seconds of silence that mean death


class Watchdog(threading.Thread):
    """Ends this process once the store has not answered for too long; the log takes that as a kill.

    Time is counted in looks at the clock: while this process stands still, for which the store can do nothing, it looks
    no more.
    """

    def __init__(self, answered_at: Callable[[], float], seconds: float) -> None:
        """answered_at: when the store last answered this process, in seconds of the monotonic clock."""
        super().__init__(name="watchdog", daemon=True)
        self._answered_at, self._seconds = answered_at, seconds
        self._deadline, self._reason = float("inf"), f"the other ranks cannot be reached for {seconds:g} s"
        self._over = threading.Event()

    def run(self) -> None:
        """Look until `stop`."""
        num_looks, answered_at = 0, self._answered_at()
        while not self._over.wait(self._seconds / LOOKS):
            num_looks, before, answered_at = num_looks + 1, answered_at, self._answered_at()
            if answered_at != before:
                num_looks = 0
            if num_looks >= LOOKS or time.monotonic() > self._deadline:
                print(f"springtide: {self._reason}", file=sys.stderr, flush=True)
                os._exit(1)

    def end_within(self, seconds: float, reason: str) -> None:
        """Let the process end by itself, but not for longer than this."""
        self._reason, self._deadline = reason, time.monotonic() + seconds

    def stop(self) -> None:
        """The ranks have parted: the store is not needed any more."""
        self._over.set()
