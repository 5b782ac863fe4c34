"""Keeps a view at the log's newest version: applies records, starts again from a base when the chain breaks.

Knows a log only as a LogSource. One thread advances; any number of threads read `view` and keep what they got.
Listeners hear of each version in the thread that advances; one that fails is logged and called again.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import NamedTuple

from springtide_client.errors import CorruptRecordError, GapError, LogError, SpringtideError
from springtide_client.follow.log_source import LogSource, RecordCursor
from springtide_client.follow.views import DISK_BYTES, BaseOpener, MemoryLimit, RetiredViews
from springtide_client.format.records import Head, Record, VersionMeta, version_name
from springtide_client.log.listing import base_number
from springtide_client.model.view import View
from springtide_client.rows.hash_range import ALL_KEYS, HashRange
from springtide_client.rows.layers import LayerMerge, merge_layers
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


class AppliedVersion(NamedTuple):
    """A version that became servable, alone or together with newer ones."""

    number: int
    parent: int
    checksum: int
    meta: VersionMeta
    num_bytes: int = 0  # of its record

    @staticmethod
    def of(record: Record) -> "AppliedVersion":
        return AppliedVersion(record.number, record.parent, record.checksum, record.meta, record.num_bytes)

    @property
    def head(self) -> Head:
        """Its position in the log."""
        return Head(self.number, self.checksum)


# the view that is served now, the version, the wall time in ms at which it became servable
Listener = Callable[[View, AppliedVersion, int], None]


class OpenCursors:
    """Cursors that stay open, at most one behind each version. Not thread-safe."""

    def __init__(self, source: LogSource, on_record: Callable[[Record], object]) -> None:
        self._source, self._on_record = source, on_record
        self._cursors: dict[Head, RecordCursor] = {}

    def records(self, after: Head) -> Iterator[Record]:
        """Yield the records after a version up to the current end. Leaving before the end closes the cursor."""
        cursor = self._cursors.pop(after, None) or self._source.follow(after)
        is_at_end = False
        try:
            while records := cursor.read():
                for record in records:
                    after = record.head
                    self._on_record(record)
                    yield record
            is_at_end = True
        finally:
            if is_at_end:
                # a rebuilt view ends behind the same version as the served one: one cursor is enough for both
                if (other := self._cursors.get(after)) is not None:
                    other.close()
                self._cursors[after] = cursor
            else:
                cursor.close()

    def keep_only(self, head: Head) -> None:
        """Close all cursors but the one behind this version."""
        for other in [other for other in self._cursors if other != head]:
            self._cursors.pop(other).close()

    def close(self) -> None:
        """Close all cursors."""
        for cursor in self._cursors.values():
            cursor.close()
        self._cursors.clear()


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
        poll_seconds: float = POLL_SECONDS,
        on_start: Callable[[], object] = lambda: None,
        on_record: Callable[[Record], object] = lambda record: None,
        on_view: Callable[[View], object] = lambda view: None,
        clock_ms: Callable[[], int] = wall_ms,
        search_factory: SearchFactory = NumpySearch,
        wide_steps: WideSteps = NUMPY_STEPS,
        hash_range: HashRange = ALL_KEYS,
        merge: LayerMerge = merge_layers,
    ) -> None:
        """`cache_bytes` limits the memory of changed rows and parameters. Half of it is for merging layers; rows beyond
        the other half move to an unnamed file of at most `disk_bytes` in `cache_dir`. When both are full, the served
        version stays until a newer base replaces changed rows. Views hold the rows of `hash_range` and no others.

        `wait(seconds)` returns once there may be new records. In the thread that polls, `on_start` is called first,
        `on_record(record)` for each record as it is read, and `on_view(view)` for each view that `view` is from now on,
        also where it is the same version in fewer layers.
        """
        for name, limit in (("cache_bytes", cache_bytes), ("disk_bytes", disk_bytes)):
            if limit < 1:
                raise ValueError(f"{name} = {limit}: must be at least 1")
        self._source = source
        self._limit = MemoryLimit(memory_bytes=cache_bytes // 2, disk_bytes=disk_bytes, folder=cache_dir)
        self._stopping = threading.Event()
        self._is_finalized = False
        self._wait = wait if wait is not None else self._stopping.wait
        self._poll_seconds = poll_seconds
        self._on_start, self._on_view = on_start, on_view
        self._clock_ms = clock_ms
        self._bases = BaseOpener(source, self._limit, search_factory, wide_steps, hash_range, merge)
        self._polling = threading.Lock()
        self._swapped = threading.Condition()
        self._listeners: list[Listener] = []
        self._swap_listeners: list[Callable[[View], object]] = []
        self._cursors = OpenCursors(source, on_record)
        self._state = State.EMPTY
        self._view: View | None = None
        self._retired = RetiredViews()
        self._rebuild: Rebuild | None = None
        self._break_cause: SpringtideError | None = None
        self._restart: tuple[int, Head] | None = None  # the base and the served version of the last restart
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
    def has_base(self) -> bool | None:
        """True if the log had a base when it was looked for; None before."""
        return self._bases.has_base

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
        self._listeners.append(listener)

    def on_swap(self, callback: Callable[[View], object]) -> None:
        """Call callback(view) in the thread that polls, after each swap to a newer version."""
        self._swap_listeners.append(callback)

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
        for record in self._cursors.records(view.head):
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
        restart = None if base_path is None else (base_number(base_path), self._view.head)
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
            for record in self._cursors.records(rebuild.view.head):
                rebuild.view = self._limit.apply(rebuild.view.apply(record).merged())
                if served is None or rebuild.view.version > served.version:
                    rebuild.passed.append(AppliedVersion.of(record))
                if self._stopping.is_set() or time.monotonic() > deadline:
                    break
        except (GapError, CorruptRecordError):
            if served is None:
                self._swap(rebuild)  # the version before the break is as good as any
            else:
                is_at_served = rebuild.view.head == served.head
                self._rebuild = None
                self._enter(Event.ENDED_AT_SERVED if is_at_served else Event.REBUILD_FAILED)
            raise
        if served is None or rebuild.view.version > served.version or rebuild.view.head == served.head:
            self._swap(rebuild)

    def _swap(self, rebuild: Rebuild) -> None:
        """Serve a rebuilt view. Listeners do not hear of the same version over another base."""
        served, self._rebuild = self._view, None
        self._enter(Event.CAUGHT_UP)
        self._cursors.keep_only(rebuild.view.head)
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
        servable_ms = self._clock_ms()
        for version in versions:
            for listener in self._listeners:
                _call(listener, view, version, servable_ms)
        for callback in self._swap_listeners:
            _call(callback, view)

    def _replace(self, view: View) -> None:
        """Let later calls use this view. The one before it is freed here, once no call uses it."""
        if self._view is view:
            return
        if self._view is not None:
            self._retired.add(self._view)
        self._view = view
        self._on_view(view)

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
        self._on_start()
        while not self._stopping.is_set() and not self._is_finalized:
            try:
                self.poll()
            except Exception as error:
                # a bug must not end the following silently: the view stays, `error` shows it
                logger.exception("following failed")
                self._fail(LogError(f"following failed, this is a bug: {type(error).__name__}: {error}"))
            (self._stopping.wait if self.is_busy else self._wait)(self._poll_seconds)
        self._cursors.close()
        with self._swapped:
            self._swapped.notify_all()


def _call(function: Callable[..., object], *arguments: object) -> None:
    try:
        function(*arguments)
    except Exception:
        logger.exception("a listener of versions failed")
