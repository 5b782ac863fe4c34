"""The served model: follows the log in its own thread and gives out immutable views.

A request takes one view and keeps it; a swap only changes which view the next request takes.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from springtide.app.processes.tuning import take_short_slices
from springtide.app.serving.http.errors import not_ready
from springtide.app.serving.http.preconditions import NO_PRECONDITIONS, VERSION_NOT_REACHED, Preconditions
from springtide.app.serving.metrics.registry import MetricsRegistry
from springtide.app.serving.model.freshness import FreshnessMeter
from springtide.app.serving.model.log_sources import LogOfPart, LogUpTo
from springtide.app.serving.model.recent_records import LiveIdDictionary, LiveItems, RecordCache
from springtide.app.serving.model.served_view import WHOLE, Part, ServedView
from springtide.app.serving.model.versions import VersionIndex
from springtide.kernels.cpu.serving.layer_merge import merge_sorted
from springtide.kernels.cpu.serving.layer_search import LayerSearchCache
from springtide.kernels.cpu.serving.wide_steps import compiled_steps
from springtide_client.errors import VersionsDifferError
from springtide_client.follow.follower import AppliedVersion, Follower
from springtide_client.follow.views import DISK_BYTES
from springtide_client.format.records import Head, Record
from springtide_client.model.view import View
from springtide_client.parts.parted_view import AGREE_SECONDS
from springtide_client.system.clock import wall_ms

FIRST_VIEW_POLL_SECONDS = 0.01
RETRY_SECONDS = 0.05  # until servers of parts are asked again that serve another version
NO_VERSION_YET = "the log has no version yet: start a trainer on it"
LOADING_FIRST_VERSION = "the first version is being loaded"

Result = TypeVar("Result")

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
        on_base: Callable[[ServedView], object] = lambda view: None,
    ) -> None:
        """Nothing is read before `start` or the follower's first poll. Views hold the rows of `part`; `version`: serve
        this one alone.

        `cache_bytes`, `disk_bytes`, `cache_path` and `wait`: see Follower. `on_base(view)` hears of the first view over
        each base.
        """
        self._metrics = metrics
        self._on_base = on_base
        self._clock_ms = clock_ms
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed = asyncio.Event()
        self._live_since_ms: int | None = None
        self._recent_views: tuple[ServedView, ...] = ()  # where other servers ask for one of them
        self._base_number = -1
        self.part = part
        self.view: ServedView | None = None  # the newest, immutable: take it once per request
        self.stopping = False  # True once the server shuts down: streams end then
        self.num_swaps = 0
        self.versions = VersionIndex()
        self.freshness = FreshnessMeter()
        self.records = RecordCache()
        self._id_strings = LiveIdDictionary(part.hash_range)
        self._items = LiveItems(part.hash_range)
        self.follower = Follower(
            LogOfPart(log_path, part) if version is None else LogUpTo(log_path, version),
            cache_bytes=cache_bytes,
            cache_dir=cache_path,
            disk_bytes=disk_bytes,
            wait=wait,
            poll_seconds=poll_interval_seconds,
            on_start=take_short_slices,  # neither a trainer on the same cores nor the event loop must wait for it
            on_record=self._note_record,
            on_view=self._show,
            search_factory=LayerSearchCache(),
            wide_steps=compiled_steps(),
            hash_range=part.hash_range,
            merge=merge_sorted,
        )
        self.follower.add_listener(self._version_applied)
        self.follower.on_swap(self._swapped)

    @property
    def reason(self) -> str:
        """Why no version, or no newer one, is served; empty while everything works."""
        if (error := self.follower.error) is not None:
            return str(error) or type(error).__name__
        if self.view is not None:
            return ""
        return LOADING_FIRST_VERSION if self.follower.has_base else NO_VERSION_YET

    def start(self) -> None:
        """Start to follow; call inside the event loop that waits for changes."""
        self._loop = asyncio.get_running_loop()
        self.follower.start()

    def end_streams(self) -> None:
        """End every wait from now on; the log is still followed."""
        self.stopping = True
        self._wake()

    def stop(self) -> None:
        """Stop following the log too; may be called from the loop, does not block."""
        self.follower.stop()
        self.end_streams()

    async def wait_for_first_view(self, seconds: float) -> None:
        """Return once a version is served, the log is known to have none, the time is over, or the server stops."""
        deadline = time.monotonic() + seconds
        while self.view is None and not self.stopping and time.monotonic() < deadline:
            if self.follower.has_base is False:
                return
            await asyncio.sleep(FIRST_VIEW_POLL_SECONDS)

    def staleness_ms(self, view: ServedView) -> int | None:
        """Now minus complete_until_ms; None if the stream was never read to its end."""
        until_ms = view.own_view.meta.complete_until_ms
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

    def view_of(self, head: Head) -> ServedView | None:
        """Return the view of a version, one of the newest few; None if it is not served, or is kept no longer."""
        newest = () if (view := self.view) is None else (view,)
        return next((view for view in (*newest, *reversed(self._recent_views)) if view.own_view.head == head), None)

    async def at_one_version(
        self, preconditions: Preconditions, call: Callable[[ServedView], Awaitable[Result]]
    ) -> Result:
        """Call with the newest view, again with a newer one while the server of a part does not serve its version.

        VersionsDifferError once the servers have not agreed within AGREE_SECONDS.
        """
        deadline = time.monotonic() + AGREE_SECONDS
        while True:
            try:
                return await call(self.view_satisfying(preconditions))
            except VersionsDifferError:
                if time.monotonic() > deadline or self.stopping:
                    raise
            await self.wait_for_change(RETRY_SECONDS)

    async def wait_for_change(self, seconds: float) -> None:
        """Return once another version is served, the time is over, or the server stops."""
        changed = self._changed
        if self.stopping:
            return
        try:
            await asyncio.wait_for(changed.wait(), seconds)
        except TimeoutError:
            return

    def _note_record(self, record: Record) -> None:
        self.records.add(record)
        self._id_strings.add(record)
        if not self.part.hash_range.is_empty:  # retrieval compares rows
            self._items.add(record)

    def _show(self, view: View) -> None:
        """Serve a view: a newer version, or the same in another form."""
        served = self.view = ServedView(view, self._id_strings, self._items, self.part)
        if (base_number := view.base.manifest.number) != self._base_number:
            # items of the base before stay until those who read it have gone on to this one
            self._items.drop_through(self._base_number)
            self._id_strings.drop_through(base_number)
            self._base_number = base_number
            self._on_base(served)

    def _version_applied(self, view: View, applied: AppliedVersion, servable_ms: int) -> None:
        self._metrics.increment("springtide_applied_bytes_total", applied.num_bytes)
        meta = applied.meta
        # versions published before this server could serve do not show how fast it follows
        is_live = self._live_since_ms is not None and meta.created_ms >= self._live_since_ms
        phase = self.freshness.observe(
            meta.record_ms,
            catching_up=meta.catching_up,
            servable_ms=servable_ms,
            is_live=is_live,
        )
        if is_live:
            for timestamp_ms in meta.record_ms:
                seconds = max(0, servable_ms - timestamp_ms) / 1000
                self._metrics.observe("springtide_freshness_seconds", seconds, trainer=phase)
        self.versions.add(applied)

    def _swapped(self, view: View) -> None:
        # a base without later records is a version that no record announced
        self.versions.add(AppliedVersion(view.head.number, view.parent, view.head.checksum, view.meta))
        if self.part.num_kept_views and self.view is not None:
            self._recent_views = (*self._recent_views, self.view)[-self.part.num_kept_views :]
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
