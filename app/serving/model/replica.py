"""The served model: follows the log in its own thread and gives out immutable views.

A request takes one view and keeps it; a swap only changes which view the next request takes.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from springtide.app.processes.tuning import take_short_slices
from springtide.app.serving.http.errors import not_ready
from springtide.app.serving.http.preconditions import NO_PRECONDITIONS, VERSION_NOT_REACHED, Preconditions
from springtide.app.serving.metrics.registry import MetricsRegistry
from springtide.app.serving.model.freshness import FreshnessMeter
from springtide.app.serving.model.live_ids import LiveIdDictionary, LiveItems
from springtide.app.serving.model.log_sources import LogOfPart, LogUpTo, ObservedLog
from springtide.app.serving.model.part import WHOLE, Part
from springtide.app.serving.model.served_view import ServedView
from springtide.app.serving.model.versions import VersionEntry, VersionIndex
from springtide.kernels.cpu.serving.layer_search import LayerSearchCache
from springtide.kernels.cpu.serving.wide_steps import compiled_steps
from springtide_client.follow.follower import Follower
from springtide_client.follow.listeners import AppliedVersion
from springtide_client.follow.views import DISK_BYTES
from springtide_client.format.records import Record
from springtide_client.model.view import View
from springtide_client.system.clock import wall_ms

FIRST_VIEW_POLL_SECONDS = 0.01
NO_VERSION_YET = "the log has no version yet: start a trainer on it"
LOADING_FIRST_VERSION = "the first version is being loaded"

logger = logging.getLogger(__name__)


class Replica:
    """Follows the log from the moment it exists; `view` is None until a first version is servable."""

    def __init__(
        self,
        log_path: Path,
        *,
        metrics: MetricsRegistry,
        poll_interval_seconds: float,
        cache_bytes: int = 2**30,
        disk_bytes: int = DISK_BYTES,
        cache_path: Path | None = None,
        part: Part = WHOLE,
        version: int | None = None,
        clock_ms: Callable[[], int] = wall_ms,
        wait: Callable[[float], object] | None = None,
        on_record: Callable[[Record], None] = lambda record: None,
        on_view: Callable[[ServedView], object] = lambda view: None,
    ) -> None:
        """Nothing is read before the first `poll`. Views hold the rows of `part`; `version`: serve this one alone.

        `cache_bytes`, `disk_bytes` and `cache_path`: see Follower. `wait(seconds)` returns early if the log may have
        changed; `on_record(record)` hears of each record as it is read, `on_view(view)` of each view that is served.
        """
        self._poll_seconds = poll_interval_seconds
        self._metrics = metrics
        self._on_view = on_view
        self._clock_ms = clock_ms
        self._stopping = threading.Event()
        self._wait = wait if wait is not None else self._stopping.wait
        self._streams_end = False
        self._has_polled = False
        self._thread = threading.Thread(target=self._run, name="springtide-replica", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed = asyncio.Event()
        self._live_since_ms: int | None = None
        self._defect = ""
        self.num_swaps = 0
        self.versions = VersionIndex()
        self.freshness = FreshnessMeter()
        self._part = part
        self._id_strings = LiveIdDictionary(part.hash_range)
        self._items = LiveItems(part.hash_range)
        observers = [on_record, self._id_strings.add]
        if not part.hash_range.is_empty:  # retrieval compares rows
            observers.append(self._items.add)
        log = LogOfPart(log_path, part) if version is None else LogUpTo(log_path, version)
        self._source = ObservedLog(log, observers)
        self._follower = Follower(
            self._source,
            cache_bytes=cache_bytes,
            cache_dir=cache_path,
            disk_bytes=disk_bytes,
            search_factory=LayerSearchCache(),
            wide_steps=compiled_steps(),
            hash_range=part.hash_range,
        )
        self._served: ServedView | None = None
        self._base_number = -1
        self._follower.add_listener(self._version_applied)
        self._follower.on_swap(self._swapped)

    @property
    def view(self) -> ServedView | None:
        """The newest view; it is immutable: take it once per request."""
        view, served = self._follower.view, self._served
        if view is None:
            return None
        if served is None or served.own_view is not view:
            served = self._served = ServedView(view, self._id_strings, self._items, self._part)
        return served

    @property
    def reason(self) -> str:
        """Why no version, or no newer one, is served; empty while everything works."""
        error = self._follower.error
        if error is not None:
            return str(error) or type(error).__name__
        if self.view is not None or self._defect:
            return self._defect
        return LOADING_FIRST_VERSION if self._source.has_base else NO_VERSION_YET

    @property
    def stopping(self) -> bool:
        """True once the server shuts down: streams end then."""
        return self._streams_end

    def start(self) -> None:
        """Start to follow; call inside the event loop that waits for changes."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def end_streams(self) -> None:
        """End every wait from now on; the log is still followed."""
        self._streams_end = True
        self._wake()

    def stop(self) -> None:
        """Stop following the log too; may be called from the loop, does not block."""
        self._stopping.set()
        self.end_streams()

    async def wait_for_first_view(self, seconds: float) -> None:
        """Return once a version is served, the log is known to have none, the time is over, or the server stops."""
        deadline = time.monotonic() + seconds
        while self.view is None and not self.stopping and time.monotonic() < deadline:
            if self._has_polled and self.reason == NO_VERSION_YET:
                return
            await asyncio.sleep(FIRST_VIEW_POLL_SECONDS)

    def join(self) -> None:
        """Wait until the thread has ended; the log is not followed from then on."""
        if self._thread.ident is not None:
            self._thread.join(timeout=5.0)
        else:
            self._follower.close()

    def poll(self) -> bool:
        """Apply the records that follow the view, or start again from a base; True where the next poll should be soon.

        For one thread at a time: the replica's own, once it is started.
        """
        self._follower.poll()
        view = self._follower.view
        if view is not None and view.base.manifest.number != self._base_number:
            # items of the base before stay until those who read it have gone on to this one
            self._items.drop_through(self._base_number)
            self._base_number = view.base.manifest.number
            self._id_strings.drop_through(self._base_number)
        return self._follower.is_busy

    def staleness_ms(self, view: ServedView) -> int | None:
        """Now minus complete_until_ms; None if the stream was never read to its end."""
        until_ms = view.complete_until_ms
        return max(0, self._clock_ms() - until_ms) if until_ms > 0 else None

    def require_view(self) -> ServedView:
        """The newest view; ApiError 503 before the first."""
        view = self.view
        if view is None:
            raise not_ready(self.reason)
        return view

    def view_satisfying(self, preconditions: Preconditions) -> ServedView:
        """The newest view if it satisfies the preconditions; ApiError 503 with Retry-After, counted, if not."""
        view = self.require_view()
        if preconditions is not NO_PRECONDITIONS:
            self.check(view, preconditions)
        return view

    def check(self, view: ServedView, preconditions: Preconditions) -> None:
        """Raise ApiError 503 with Retry-After, counted, if a view does not satisfy the preconditions."""
        violation = preconditions.violation(view.version, lambda: self.staleness_ms(view))
        if violation is not None:
            reason = "min_version" if violation.code == VERSION_NOT_REACHED else "max_staleness"
            self._metrics.increment("springtide_requests_rejected_total", reason=reason)
            violation.headers |= self.version_headers(view)
            raise violation

    def view_if_satisfying(self, preconditions: Preconditions) -> ServedView | None:
        """The newest view if there is one and it satisfies the preconditions, else None; nothing is counted."""
        view = self.view
        if view is None or preconditions is NO_PRECONDITIONS:
            return view
        violation = preconditions.violation(view.version, lambda: self.staleness_ms(view))
        return view if violation is None else None

    def version_headers(self, view: ServedView) -> dict[str, str]:
        """The response headers with the version and its staleness."""
        staleness_ms = self.staleness_ms(view)
        headers = {"X-Springtide-Version": str(view.version)}
        if staleness_ms is not None:
            headers["X-Springtide-Staleness-Ms"] = str(staleness_ms)
        return headers

    async def wait_for_change(self, seconds: float) -> None:
        """Return once another version is served, the time is over, or the server stops."""
        changed = self._changed
        if self.stopping:
            return
        try:
            await asyncio.wait_for(changed.wait(), seconds)
        except TimeoutError:
            return

    def _run(self) -> None:
        take_short_slices()  # neither a trainer on the same cores nor the event loop must wait for this thread
        while not self._stopping.is_set():
            is_busy = True
            try:
                is_busy = self.poll()
                self._has_polled, self._defect = True, ""
            except Exception as error:
                # the old view stays served: a defect here must not stop the server
                if not self._defect:
                    logger.exception("following the log failed")
                self._defect = f"{type(error).__name__}: {error}"
            if self._defect:
                self._stopping.wait(1.0)
            else:
                (self._stopping.wait if is_busy else self._wait)(self._poll_seconds)
        self._follower.close()

    def _version_applied(self, view: View, applied: AppliedVersion, servable_ms: int) -> None:
        entry = VersionEntry.of(applied)
        self._metrics.increment("springtide_applied_bytes_total", applied.num_bytes)
        # versions published before this server could serve do not show how fast it follows
        is_live = self._live_since_ms is not None and entry.created_ms >= self._live_since_ms
        phase = self.freshness.observe(
            entry.record_ms,
            created_ms=entry.created_ms,
            complete_until_ms=entry.meta["complete_until_ms"],
            servable_ms=servable_ms,
            is_live=is_live,
        )
        if is_live:
            for timestamp_ms in entry.record_ms:
                seconds = max(0, servable_ms - timestamp_ms) / 1000
                self._metrics.observe("springtide_freshness_seconds", seconds, trainer=phase)
        self.versions.add(entry)

    def _swapped(self, view: View) -> None:
        # a base without later records is a version that no record announced
        self.versions.add(VersionEntry.of(AppliedVersion(view.tip.number, view.parent, view.tip.checksum, view.meta)))
        if (served := self.view) is not None:
            self._on_view(served)
        self.freshness.continue_from(created_ms=view.meta.created_ms, complete_until_ms=view.meta.complete_until_ms)
        self.num_swaps += 1
        self._metrics.increment("springtide_view_swaps_total")
        if self._live_since_ms is None:
            self._live_since_ms = self._clock_ms()
            logger.info("serving the first version", extra={"version": view.version})
        self._wake()

    def _wake(self) -> None:
        loop = self._loop
        if loop is None or loop.is_closed():
            return
        try:
            loop.call_soon_threadsafe(self._set_changed)
        except RuntimeError:
            return  # the loop was closed just now: no request waits

    def _set_changed(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
