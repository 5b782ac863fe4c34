"""Ranks wait for each other through the store: for as long as it takes, while the others live."""

import threading
import time
from datetime import timedelta
from typing import Any

import msgspec
from springtide_client.errors import SpringtideError

POLL_SECONDS, MAX_POLL_SECONDS = 0.002, 0.05
BEATS = 5  # within the timeout
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


class RankLostError(SpringtideError):
    """Another rank has ended, failed or frozen: this one cannot go on."""


class Meetings:
    """Meets the other ranks, each of which shows by a thread of its own that it lives."""

    def __init__(self, store: Any, rank: int, num_ranks: int, timeout_seconds: float) -> None:
        """`store`: a torch.distributed.Store of this launch alone."""
        self.rank, self.num_ranks, self.timeout_seconds = rank, num_ranks, timeout_seconds
        self._store = store.clone()
        self._num_meetings = 0
        self._left = threading.Event()
        self._heartbeat = Heartbeat(store.clone(), rank, timeout_seconds / BEATS, self._left)
        self._heartbeat.start()

    def answered_at(self) -> float:
        """Return when the store last answered, in seconds of the monotonic clock."""
        return self._heartbeat.answered_at

    def meet(self) -> None:
        """Return once all ranks have called it equally often; RankLostError if one of them has failed or is silent."""
        self._num_meetings += 1
        key, seconds = f"meeting/{self._num_meetings}", POLL_SECONDS
        seen, seen_at = self._beats(), time.monotonic()
        num_here = self._store.add(key, 1)
        while num_here < self.num_ranks:
            if reason := self.failure():
                raise RankLostError(reason)
            beats = self._beats()
            if all(beat != before for beat, before in zip(beats, seen, strict=True)):
                seen, seen_at = beats, time.monotonic()
            elif time.monotonic() - seen_at > self.timeout_seconds:
                silent = [rank for rank, (now, before) in enumerate(zip(beats, seen, strict=True)) if now == before]
                raise RankLostError(f"rank {', '.join(map(str, silent))} is silent for {self.timeout_seconds:g} s")
            time.sleep(seconds)
            seconds = min(2 * seconds, MAX_POLL_SECONDS)
            num_here = self._store.add(key, 0)

    def failure(self) -> str:
        """Return which rank has failed, and why; "" if none has said so."""
        try:
            if not self._store.check(["failed"]):
                return ""
            rank, text = msgspec.json.decode(self._store.get("failed"))
        except (RuntimeError, OSError):
            return "the launcher has ended"
        return "" if rank == self.rank else f"rank {rank} has ended: {text}"

    def leave(self, error: BaseException | None) -> None:
        """End the heartbeat; tell the others about an error."""
        self._left.set()
        if error is not None:
            text = " ".join(str(error).split()) or type(error).__name__
            try:
                self._store.compare_set("failed", "", msgspec.json.encode([self.rank, text]).decode())
            except (RuntimeError, OSError):
                return  # nobody is left to read it

    def _beats(self) -> list[int]:
        return [self._store.add(f"beat/{rank}", 0) for rank in range(self.num_ranks)]


class Heartbeat(threading.Thread):
    """Counts up in the store, for as long as this process runs."""

    def __init__(self, store: Any, rank: int, seconds: float, left: threading.Event) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self._store, self._key, self._seconds, self._left = store, f"beat/{rank}", seconds, left
        self.answered_at = time.monotonic()
        store.set_timeout(timedelta(seconds=max(1.0, BEATS * seconds)))

    def run(self) -> None:
        """Beat until the rank leaves, or nobody is left to hear it."""
        while not self._left.wait(self._seconds):
            try:
                self._store.add(self._key, 1)
                self.answered_at = time.monotonic()
            except (RuntimeError, OSError):
                return
