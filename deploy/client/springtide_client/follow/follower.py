"""Keeps a view at the log's newest version: applies records, starts again from a base when the chain breaks.

Knows a log only as a LogSource. One thread advances; any number of threads read `view` and keep what they got.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path

from springtide_client.errors import CorruptRecordError, GapError, LogError, SpringtideError
from springtide_client.follow.listeners import AppliedVersion, Listener, Listeners
from springtide_client.follow.log_source import LogSource, OpenCursors
from springtide_client.follow.views import DISK_BYTES, BaseOpener, MemoryLimit, RetiredViews
from springtide_client.format.records import Tip, version_name
from springtide_client.log.listing import base_number
from springtide_client.model.view import View
from springtide_client.rows.hash_range import ALL_KEYS, HashRange
from springtide_client.rows.search import NumpySearch, SearchFactory
from springtide_client.system.clock import Backoff, wall_ms
from springtide_client.wide.score import NUMPY_STEPS, WideSteps


class State(Enum):
    """The version that a follower serves, and its way to a newer one."""

    EMPTY = auto()  # nothing is served; a view of the newest base catches up
    LIVE = auto()  # the served view follows the log, record by record
    REBUILDING = auto()  # the same, and a view of a newer base catches up: it needs less memory
    BROKEN = auto()  # the log does not continue the served view; a view of the newest base has to pass it

    @property
    def is_followed(self) -> bool:
        """True when the served view takes the log's next record."""
        return self in (State.LIVE, State.REBUILDING)


class Event(Enum):
    """An event that changes the state of a follower."""

    BASE_OPENED = auto()  # a view of a base starts to catch up
    CAUGHT_UP = auto()  # that view is served from now on
    CHAIN_BROKE = auto()  # the log does not continue the served view
    REBUILD_FAILED = auto()  # the log does not continue the view that catches up
    ENDED_AT_SERVED = auto()  # the same, and that view had reached the served version: nothing lies beyond it


TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.EMPTY, Event.BASE_OPENED): State.EMPTY,
    (State.EMPTY, Event.CAUGHT_UP): State.LIVE,
    (State.LIVE, Event.BASE_OPENED): State.REBUILDING,
    (State.LIVE, Event.CHAIN_BROKE): State.BROKEN,
    (State.REBUILDING, Event.CAUGHT_UP): State.LIVE,
    (State.REBUILDING, Event.CHAIN_BROKE): State.BROKEN,
    (State.REBUILDING, Event.REBUILD_FAILED): State.LIVE,
    (State.REBUILDING, Event.ENDED_AT_SERVED): State.LIVE,
    (State.BROKEN, Event.BASE_OPENED): State.BROKEN,
    (State.BROKEN, Event.CAUGHT_UP): State.LIVE,
    (State.BROKEN, Event.REBUILD_FAILED): State.BROKEN,
    (State.BROKEN, Event.ENDED_AT_SERVED): State.LIVE,
}


# how long one poll may rebuild beside a live view: freshness comes before less memory
REBUILD_SECONDS = 0.02
# how often a directory is looked at; a look takes 22 µs
POLL_SECONDS = 0.005
# versions passed while catching up that listeners still hear of
MAX_PASSED = 10_000
# the pauses after errors; jitter, so that the clients of a restarted server do not all return at once
RETRY_SECONDS, RETRY_SECONDS_MAX, RETRY_JITTER = 0.05, 2.0, 0.5
# a thread that is just connecting is not waited for longer; it ends by itself
CLOSE_SECONDS = 5.0

logger = logging.getLogger(__name__)


@dataclass
class Rebuild:
    """A view of a base that catches up with the log, and the versions it passed that were never served."""

    view: View
    passed: deque[AppliedVersion] = field(default_factory=lambda: deque(maxlen=MAX_PASSED))


class Follower:
    """Follows a log. Call `poll` yourself, or `start` a thread that does."""

    def __init__(
        self,
        source: LogSource,
        *,
        cache_bytes: int = 2**30,
        cache_dir: Path | None = None,
        disk_bytes: int = DISK_BYTES,
        wait: Callable[[float], object] | None = None,
        clock_ms: Callable[[], int] = wall_ms,
        search_factory: SearchFactory = NumpySearch,
        wide_steps: WideSteps = NUMPY_STEPS,
        hash_range: HashRange = ALL_KEYS,
    ) -> None:
        """`cache_bytes` limits the memory of changed rows and parameters. Half of it is for merging layers; rows beyond
        the other half move to an unnamed file of at most `disk_bytes` in `cache_dir`. When both are full, the served
        version stays until a newer base replaces changed rows. `wait(seconds)` returns once there may be new records.
        Views hold the rows of `hash_range` and no others.
        """
        for name, limit in (("cache_bytes", cache_bytes), ("disk_bytes", disk_bytes)):
            if limit < 1:
                raise ValueError(f"{name} = {limit}: must be at least 1")
        self._source = source
        self._limit = MemoryLimit(memory_bytes=cache_bytes // 2, disk_bytes=disk_bytes, folder=cache_dir)
        self._stopping = threading.Event()
        self._is_finalized = False
        self._wait = wait if wait is not None else self._stopping.wait
        self._clock_ms = clock_ms
        self._bases = BaseOpener(source, self._limit, search_factory, wide_steps, hash_range)
        self._polling = threading.Lock()
        self._swapped = threading.Condition()
        self._listeners = Listeners()
        self._cursors = OpenCursors(source)
        self._state = State.EMPTY
        self._view: View | None = None
        self._retired = RetiredViews()
        self._rebuild: Rebuild | None = None
        self._break_cause: SpringtideError | None = None
        self._restart: tuple[int, Tip] | None = None  # the base and the served version of the last restart
        self._error: SpringtideError | OSError | ValueError | None = None
        self._backoff = Backoff(RETRY_SECONDS, RETRY_SECONDS_MAX, jitter=RETRY_JITTER)
        self._thread: threading.Thread | None = None
        self.num_restarts = 0

    @property
    def view(self) -> View | None:
        """The newest servable view, immutable; None before the first."""
        return self._view

    @property
    def error(self) -> Exception | None:
        """Why the view does not advance; None while it does."""
        return self._error

    @property
    def staleness_ms(self) -> int | None:
        """Now - complete_until_ms of the view; None before a view, or until the stream was once read to its end."""
        view = self._view
        if view is None or view.meta.complete_until_ms <= 0:
            return None
        return max(0, self._clock_ms() - view.meta.complete_until_ms)

    @property
    def is_busy(self) -> bool:
        """True if the next poll has work to do, whether or not the log has changed: a rebuild, or a retry."""
        return self._rebuild is not None or self._error is not None

    def add_listener(self, listener: Listener) -> None:
        """Call listener(view, version, wall ms) for every version as it becomes servable, in order.

        When many become servable at once, by catching up, it hears of the last MAX_PASSED of them. It is called in the
        thread that polls, after the swap.
        """
        self._listeners.add(listener)

    def on_swap(self, callback: Callable[[View], None]) -> None:
        """Call callback(view) in the thread that polls, after each swap to a newer version."""
        self._listeners.add_on_swap(callback)

    def start(self) -> None:
        """Follow in a daemon thread until `close`."""
        self._thread = threading.Thread(target=self._run, name="springtide-follower", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Tell the thread to end, without waiting for it."""
        self._stopping.set()

    def stop_from_finalizer(self) -> None:
        """Tell the thread to end, without taking a lock: the garbage collector may run in any thread, at any line."""
        self._is_finalized = True

    def close(self) -> None:
        """Stop following. The last view stays usable."""
        self.stop()
        if self._thread is None or self._thread is threading.current_thread():
            self._cursors.close()
        else:
            self._thread.join(timeout=CLOSE_SECONDS)

    def wait_for_view(self, timeout_seconds: float) -> View | None:
        """Wait for the first view; None after the timeout."""
        with self._swapped:
            self._swapped.wait_for(lambda: self._view is not None or self._stopping.is_set(), timeout_seconds)
        return self._view

    def poll(self) -> bool:
        """Apply all that the log has now. Returns True if a newer version is served.

        Errors of the log are kept in `error` and retried after a pause. The served view stays.
        """
        with self._polling:
            if not self._backoff.is_over:
                return False
            before = None if self._view is None else self._view.version
            try:
                self._advance()
            except (SpringtideError, OSError, ValueError) as error:
                self._fail(error)
            else:
                self._error = self._lag_error()
                self._backoff.succeed()
            self._retired.free_unused()
            return self._view is not None and before != self._view.version

    def _advance(self) -> None:
        """1. Follow with the served view. 2. If it cannot go on, or grew large, rebuild from a base. 3. Swap."""
        failure: LogError | OSError | None = None
        if self._view is not None and self._state.is_followed:
            try:
                self._follow(self._view)
            except (GapError, CorruptRecordError) as error:
                self._restart_from_base(error)
            except (LogError, OSError) as error:
                failure = error  # when memory and disk are full, only a newer base helps: go on to 2
        if self._rebuild is None:
            served = self._view
            is_live = served is not None and self._state.is_followed
            view = self._bases.open_newer(served) if served is not None and is_live else self._bases.open_newest(served)
            if view is not None:
                self._rebuild = Rebuild(view)
                self._enter(Event.BASE_OPENED)
        if self._rebuild is not None:
            self._catch_up(self._rebuild)
        if failure is not None:
            raise failure

    def _enter(self, event: Event) -> None:
        self._state = TRANSITIONS[self._state, event]

    def _follow(self, view: View) -> None:
        """Serve the versions that follow the served one."""
        if self._limit.is_exceeded_by(view):  # the disk was full: no further before the view is within the limit
            view = self._limit.apply(view)
            self._replace(view)
        for record in self._cursors.records(view.tip):
            view = view.apply(record)
            self._serve(view, [AppliedVersion.of(record)])
            # the same version in fewer layers, merged after it is served
            view = self._limit.apply(view.merged())
            view.prepare()
            self._replace(view)
            self._retired.free_unused()
            if self._stopping.is_set():
                return

    def _restart_from_base(self, cause: SpringtideError) -> None:
        """Leave the broken chain; raises `cause` if the same restart has already led back to this version."""
        assert self._view is not None
        base_path = self._source.newest_base()
        restart = None if base_path is None else (base_number(base_path), self._view.tip)
        if restart is not None and self._restart == restart:
            raise cause
        logger.warning("the log does not continue the served version, starting again from a base: %s", cause)
        # its traceback would keep the view that it was raised for
        self._restart, self._break_cause, self._rebuild = restart, cause.with_traceback(None), None
        self._enter(Event.CHAIN_BROKE)
        self.num_restarts += 1

    def _catch_up(self, rebuild: Rebuild) -> None:
        """Advance the rebuilt view, for a moment only if another is live; swap once it has reached the served one."""
        served = self._view
        deadline = time.monotonic() + REBUILD_SECONDS if self._state.is_followed else float("inf")
        try:
            for record in self._cursors.records(rebuild.view.tip):
                rebuild.view = self._limit.apply(rebuild.view.apply(record).merged())
                if served is None or rebuild.view.version > served.version:
                    rebuild.passed.append(AppliedVersion.of(record))
                if self._stopping.is_set() or time.monotonic() > deadline:
                    break
        except (GapError, CorruptRecordError):
            if served is None:
                self._swap(rebuild)  # the version before the break is as good as any
            else:
                is_at_served = rebuild.view.tip == served.tip
                self._rebuild = None
                self._enter(Event.ENDED_AT_SERVED if is_at_served else Event.REBUILD_FAILED)
            raise
        if served is None or rebuild.view.version > served.version or rebuild.view.tip == served.tip:
            self._swap(rebuild)

    def _swap(self, rebuild: Rebuild) -> None:
        """Serve a rebuilt view. Listeners do not hear of the same version over another base."""
        served, self._rebuild = self._view, None
        self._enter(Event.CAUGHT_UP)
        self._cursors.keep_only(rebuild.view.tip)
        if served is None or rebuild.view.version != served.version:
            self._serve(rebuild.view, list(rebuild.passed))
        rebuild.view.prepare()
        self._replace(rebuild.view)

    def _serve(self, view: View, versions: list[AppliedVersion]) -> None:
        """1. Swap. 2. Call the listeners."""
        view.prepare()
        with self._swapped:
            self._replace(view)
            self._swapped.notify_all()
        self._listeners.notify(view, versions, self._clock_ms())

    def _replace(self, view: View) -> None:
        """Let later calls use this view. The one before it is freed here, once no call uses it."""
        if self._view is not None and self._view is not view:
            self._retired.add(self._view)
        self._view = view

    def _lag_error(self) -> LogError | None:
        """Return why the served version stays after a break: the log has no base, or is behind that version."""
        view, rebuild = self._view, self._rebuild
        is_behind = rebuild is None or (view is not None and rebuild.view.version < view.version)
        if view is None or self._state is not State.BROKEN or not is_behind:
            return None
        where = "has no base" if rebuild is None else f"is at version {version_name(rebuild.view.version)}"
        return LogError(
            f"{self._break_cause}; the log {where}, and version {version_name(view.version)} stays served until the "
            "log has passed it: restart to serve a re-created log from its beginning"
        )

    def _fail(self, error: SpringtideError | OSError | ValueError) -> None:
        if str(error) != str(self._error):
            logger.warning("the log cannot be followed now: %s", error)
        self._error = error
        self._backoff.fail()

    def _run(self) -> None:
        while not self._stopping.is_set() and not self._is_finalized:
            try:
                self.poll()
            except Exception as error:
                # a bug must not end the following silently: the view stays, `error` shows it
                logger.exception("following failed")
                self._fail(LogError(f"following failed, this is a bug: {type(error).__name__}: {error}"))
            (self._stopping.wait if self.is_busy else self._wait)(POLL_SECONDS)
        self._cursors.close()
        with self._swapped:
            self._swapped.notify_all()
