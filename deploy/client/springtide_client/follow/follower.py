"""Keeps a view at the log's newest version: applies records, starts again from a base where the chain breaks.

Knows a log only as a `Source`: a directory or HTTP. One thread advances; any number take `view` and keep it.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from springtide_client.errors import CorruptRecordError, GapError, LogError, SpringtideError
from springtide_client.follow.log_source import LogSource as LogSource
from springtide_client.follow.log_source import RecordCursor as RecordCursor
from springtide_client.follow.memory_limit import MemoryLimit
from springtide_client.format.records import Record, Tip, VersionMeta
from springtide_client.log.listing import base_number
from springtide_client.model.view import View
from springtide_client.rows.search import NumpySearch, SearchFactory
from springtide_client.system.clock import wall_ms

# how long one poll may rebuild beside a view that is live: freshness goes before compactness
REBUILD_SECONDS = 0.02
# so many changed rows are worth a newer base, which is looked for at most so often
REBASE_ROWS, REBASE_SECONDS = 200_000, 5.0
# a directory is looked at so often: 22 µs each time
POLL_SECONDS = 0.005
# versions passed while catching up that listeners still hear of
MAX_PASSED = 10_000
# after an error nothing is tried for so long, doubled each time up to the second figure
RETRY_SECONDS, RETRY_SECONDS_MAX = 0.05, 2.0
# a thread that is amid connecting is not waited for longer; it ends by itself
CLOSE_SECONDS = 5.0
# what moved rows may take on disk
DISK_BYTES = 20 << 30

logger = logging.getLogger(__name__)


class AppliedVersion(NamedTuple):
    """A version that became servable, by itself or with a newer one."""

    number: int
    parent: int
    checksum: int
    meta: VersionMeta
    num_bytes: int = 0  # of its record


# the view that is served now, the version, the wall time in ms at which it became servable
Listener = Callable[[View, AppliedVersion, int], None]


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
    ) -> None:
        """`cache_bytes` bounds the memory of changed rows and parameters; beyond half of it (merging takes as much
        again) rows move to an unnamed file in `cache_dir` of at most `disk_bytes`. At both limits the served version
        stays where it is until a newer base lets go of rows. `wait(seconds)` returns once there may be news.
        """
        for name, limit in (("cache_bytes", cache_bytes), ("disk_bytes", disk_bytes)):
            if limit < 1:
                raise ValueError(f"{name} = {limit}: must be at least 1")
        self._source = source
        self._limit = MemoryLimit(memory_bytes=cache_bytes // 2, disk_bytes=disk_bytes, folder=cache_dir)
        self._stopping = threading.Event()
        self._is_abandoned = False
        self._wait = wait if wait is not None else self._stopping.wait
        self._clock_ms = clock_ms
        self._search_factory = search_factory
        self._polling = threading.Lock()
        self._swapped = threading.Condition()
        self._view: View | None = None
        self._is_broken = False  # the view's successor is not in the log: it is served until `_next` has passed it
        self._next: View | None = None  # rebuilt from a base
        self._cursors: dict[
            Tip, RecordCursor
        ] = {}  # by what was last taken from them: of the served view, and of `_next`
        self._passed: deque[AppliedVersion] = deque(maxlen=MAX_PASSED)  # by `_next`, and not yet served
        self._broken_by: SpringtideError | None = None
        self._tried: tuple[int, Tip] | None = None  # (base, tip) that a restart led nowhere from
        self._error: SpringtideError | OSError | ValueError | None = None
        self._rebase_at = 0.0
        self._retry_at, self._retry_seconds = 0.0, RETRY_SECONDS
        self._listeners: list[Listener] = []
        self._callbacks: list[Callable[[View], None]] = []
        self._thread: threading.Thread | None = None
        self.num_restarts = 0

    @property
    def view(self) -> View | None:
        """The newest servable view; None before the first. What was taken stays valid and never changes."""
        return self._view

    @property
    def error(self) -> Exception | None:
        """Why the view does not move; None while it does."""
        return self._error

    @property
    def staleness_ms(self) -> int | None:
        """Now - complete_until_ms of the view; None before a view, or before the stream was ever read to its end."""
        view = self._view
        if view is None or view.meta.complete_until_ms <= 0:
            return None
        return max(0, self._clock_ms() - view.meta.complete_until_ms)

    def add_listener(self, listener: Listener) -> None:
        """Call listener(view, applied, wall ms) for every version as it becomes servable, in order.

        Where many become servable at once, by catching up, it hears of the last MAX_PASSED of them.
        """
        self._listeners.append(listener)

    def on_swap(self, callback: Callable[[View], None]) -> None:
        """Call callback(view) in the follower's thread after a newer version became the one that is served."""
        self._callbacks.append(callback)

    def start(self) -> None:
        """Follow in a daemon thread until `close`."""
        self._thread = threading.Thread(target=self._run, name="springtide-follower", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end, without waiting for it."""
        self._stopping.set()

    def stop_from_finalizer(self) -> None:
        """`stop` for a finalizer: it takes no lock, for the collector may run in any thread, at any place."""
        self._is_abandoned = True

    def close(self) -> None:
        """Stop following; the last view stays usable."""
        self.stop()
        if self._thread is None or self._thread is threading.current_thread():
            self._let_go()
        else:
            self._thread.join(timeout=CLOSE_SECONDS)

    def _let_go(self) -> None:
        for cursor in self._cursors.values():
            cursor.close()
        self._cursors.clear()

    def wait_for_view(self, timeout_seconds: float) -> View | None:
        """The first view, or None when the time is over."""
        with self._swapped:
            self._swapped.wait_for(lambda: self._view is not None or self._stopping.is_set(), timeout_seconds)
        return self._view

    def poll(self) -> bool:
        """Apply all that the log has now; returns whether a newer version is served.

        What the world did is kept in `error`, tried again later, and never takes the served view away.
        """
        with self._polling:
            if time.monotonic() < self._retry_at:
                return False
            before = self._view
            try:
                self._advance()
                self._error, self._retry_seconds = self._waits_behind(), RETRY_SECONDS
            except (SpringtideError, OSError, ValueError) as error:
                self._note(error)
            return self._view is not None and (before is None or before.version != self._view.version)

    def _advance(self) -> None:
        """1. Go on with the served view. 2. Where it cannot go on, or grew, rebuild from a base. 3. Swap."""
        trouble: LogError | OSError | None = None
        if self._view is not None and not self._is_broken:
            try:
                self._follow_live(self._view)
            except (GapError, CorruptRecordError) as error:
                self._break(error)
            except (LogError, OSError) as error:
                trouble = error  # where memory and disk are full, a newer base is the mend
        if self._next is None:
            self._next = self._open_base()
        if self._next is not None:
            self._rebuild(self._next)
        if trouble is not None:
            raise trouble

    def _follow_live(self, view: View) -> None:
        if (
            view.num_bytes > self._limit.memory_bytes
        ):  # a disk was full, or the limit on it: no further before it is within
            self._view = view = self._limit.apply(view)
        for record in self._records(view.tip):
            view = view.apply(record)
            self._serve(view, [applied_of(record)])
            # the same version in fewer layers, made after it is served
            view = self._limit.apply(view.merged())
            view.prepare()
            self._view = view
            if self._stopping.is_set():
                return

    def _records(self, after: Tip) -> Iterator[Record]:
        """The records after a version up to the current end; whoever leaves in mid-way goes on with a new cursor."""
        cursor = self._cursors.pop(after, None) or self._source.follow(after)
        is_done = False
        try:
            while records := cursor.read():
                for record in records:
                    after = record.tip
                    yield record
            is_done = True
        finally:
            if is_done:
                # a rebuilt view ends where the served one stands: one cursor is enough for both
                if (other := self._cursors.get(after)) is not None:
                    other.close()
                self._cursors[after] = cursor
            else:
                cursor.close()

    def _break(self, error: SpringtideError) -> None:
        """The served view has no successor here. Restart, unless that led back to this very place before."""
        assert self._view is not None
        base_path = self._source.newest_base()
        tried = None if base_path is None else (base_number(base_path), self._view.tip)
        if tried is not None and self._tried == tried:
            raise error
        logger.warning("the log's chain broke, starting again from a base: %s", error)
        self._tried, self._broken_by = tried, error
        self._is_broken, self._next = True, None
        self.num_restarts += 1

    def _open_base(self) -> View | None:
        """A view of the newest base where one is wanted: at the start, after a break, or to let go of old layers."""
        served = self._view
        if served is None or self._is_broken:
            base_path = self._source.newest_base()
            return None if base_path is None else self._open_at_or_before(base_path, served)
        num_changed = sum(map(len, served.layers)) + (0 if served.disk_layer is None else len(served.disk_layer))
        is_heavy = num_changed >= REBASE_ROWS or 2 * served.num_bytes > self._limit.memory_bytes
        if not is_heavy or time.monotonic() < self._rebase_at:
            return None
        self._rebase_at = time.monotonic() + REBASE_SECONDS
        base_path = self._source.local_base()
        if base_path is None or base_number(base_path) <= served.base.manifest.number:
            return None
        is_stuck = served.num_bytes > self._limit.memory_bytes
        if base_number(base_path) > served.version and not is_stuck:
            return None  # what leads to it comes as records, each of which is told of
        return View.open(base_path, served, self._search_factory)

    def _open_at_or_before(self, base_path: Path, served: View | None) -> View:
        """A view of this base, or where that is damaged of the newest older one: the log leads on from any."""
        try:
            return View.open(base_path, served, self._search_factory)
        except LogError as error:
            for older in self._source.bases_before(base_path):
                with suppress(LogError):
                    view = View.open(older, served, self._search_factory)
                    logger.warning("beginning at an older base: %s", error)
                    return view
            raise

    def _rebuild(self, view: View) -> None:
        """Advance the view that begins at a base; once it has passed the served one, it takes its place."""
        served = self._view
        is_live = served is not None and not self._is_broken
        deadline = time.monotonic() + REBUILD_SECONDS
        try:
            for record in self._records(view.tip):
                view = self._limit.apply(view.apply(record).merged())
                self._next = view
                if served is None or view.version > served.version:
                    self._passed.append(applied_of(record))
                if self._stopping.is_set() or (is_live and time.monotonic() > deadline):
                    break
        except (GapError, CorruptRecordError):
            self._next = None
            if served is None:
                self._swap(view)  # what stands before the break is a version like any other
            elif view.tip == served.tip:
                self._is_broken = False  # nothing lies beyond: go on from here, should the log mend
            raise
        if served is None or view.version > served.version or view.tip == served.tip:
            self._swap(view)

    def _swap(self, view: View) -> None:
        """Serve a rebuilt view; the same version in other layers goes unmentioned."""
        served, passed = self._view, list(self._passed)
        self._next, self._is_broken = None, False
        self._passed.clear()
        for tip in [tip for tip in self._cursors if tip != view.tip]:
            self._cursors.pop(tip).close()
        if served is None or view.version != served.version:
            self._serve(view, passed)
        view.prepare()
        self._view = view

    def _serve(self, view: View, passed: list[AppliedVersion]) -> None:
        """1. Swap. 2. Tell the listeners of every version. 3. Call back."""
        view.prepare()
        with self._swapped:
            self._view = view
            self._swapped.notify_all()
        now_ms = self._clock_ms()
        for applied in passed:
            for listener in self._listeners:
                _tell(listener, view, applied, now_ms)
        for callback in self._callbacks:
            _tell(callback, view)

    def _waits_behind(self) -> LogError | None:
        """Why what is served stays: the log has no base, or has not got so far yet, after its chain broke."""
        view, rebuilt = self._view, self._next
        if view is None or not self._is_broken or (rebuilt is not None and rebuilt.version >= view.version):
            return None
        where = "has no base" if rebuilt is None else f"stands at version {rebuilt.version}"
        return LogError(
            f"{self._broken_by}; the log {where}, and {view.version} is served until it has passed that: restart to "
            "serve a log that was made anew from its beginning"
        )

    def _note(self, error: SpringtideError | OSError | ValueError) -> None:
        if str(error) != str(self._error):
            logger.warning("the log cannot be followed now: %s", error)
        self._error = error
        self._retry_at = time.monotonic() + self._retry_seconds
        self._retry_seconds = min(2 * self._retry_seconds, RETRY_SECONDS_MAX)

    def _run(self) -> None:
        while not self._stopping.is_set() and not self._is_abandoned:
            try:
                self.poll()
            except Exception as error:
                # a defect here must not end the following in silence: the view stays, the error is seen
                logger.exception("following failed")
                self._note(LogError(f"following failed, this is a defect: {type(error).__name__}: {error}"))
            self._wait(POLL_SECONDS)
        self._let_go()
        with self._swapped:
            self._swapped.notify_all()


def _tell(listener: Callable[..., object], *what: object) -> None:
    try:
        listener(*what)
    except Exception:
        logger.exception("a listener failed")  # it is the asker's own, and the next version comes all the same


def applied_of(record: Record) -> AppliedVersion:
    """What a record says of its version."""
    return AppliedVersion(record.number, record.parent, record.checksum, record.meta, record.num_bytes)
