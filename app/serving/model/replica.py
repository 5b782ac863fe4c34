"""The server's copy of the model: follows the log in a thread of its own and hands out immutable views.

A request takes one view and keeps it; a swap only changes which view the next request takes.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

from springtide_client.system.clock import wall_ms

from app.processes.priority import take_short_slices
from app.serving.http.errors import ApiError, not_ready
from app.serving.http.preconditions import Preconditions
from app.serving.model.freshness import Freshness
from app.serving.model.version_index import VersionEntry, VersionIndex
from app.serving.model.view import ModelView
from app.serving.ops.registry import MetricsRegistry

FIRST_LOOK_SECONDS = 0.01
NO_VERSION_YET = "the log has no version yet: start a trainer on it"
LOADING_FIRST_VERSION = "the first version is being loaded"

logger = logging.getLogger(__name__)


class ViewFollower(Protocol):
    """What the replica asks of a follower; app/serving/model/log_follower.py gives it."""

    @property
    def view(self) -> ModelView | None:
        """The newest view."""

    @property
    def has_base(self) -> bool:
        """Whether a version was found."""

    @property
    def error(self) -> Exception | None:
        """Why the view does not move; None while it does."""

    def poll(self) -> None:
        """Apply what the log has beyond the view; repairs itself."""

    def close(self) -> None: ...


# on_version(version, servable at ms, bytes of its record), on_swap(version)
Follow = Callable[[Callable[[VersionEntry, int, int], None], Callable[[VersionEntry], None]], ViewFollower]


class Replica:
    """Follows the log from the moment it exists; `view` is None until a first version is servable."""

    def __init__(
        self,
        follow: Follow,
        *,
        poll_interval_seconds: float,
        metrics: MetricsRegistry,
        clock_ms: Callable[[], int] = wall_ms,
        wait: Callable[[float], object] | None = None,
    ) -> None:
        """`wait(seconds)` returns once there may be news."""
        self._poll_seconds = poll_interval_seconds
        self._metrics = metrics
        self._clock_ms = clock_ms
        self._stopping = threading.Event()
        self._wait = wait if wait is not None else self._stopping.wait
        self._streams_end = False
        self._has_looked = False
        self._thread = threading.Thread(target=self._run, name="springtide-replica", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed = asyncio.Event()
        self._live_since_ms: int | None = None
        self._defect = ""
        self.num_swaps = 0
        self.versions = VersionIndex()
        self.freshness = Freshness()
        self._following = follow(self._heard, self._swapped)

    @property
    def view(self) -> ModelView | None:
        """The newest view; it never changes, take it once for a request."""
        return self._following.view

    @property
    def reason(self) -> str:
        """Why nothing, or nothing newer, is served; empty while all is well."""
        error = self._following.error
        if error is not None:
            return str(error) or type(error).__name__
        if self.view is not None or self._defect:
            return self._defect
        return LOADING_FIRST_VERSION if self._following.has_base else NO_VERSION_YET

    @property
    def stopping(self) -> bool:
        """Whether the server leaves: streams end with it."""
        return self._streams_end

    def start(self) -> None:
        """Begin to follow; call inside the event loop that waits for changes."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def end_streams(self) -> None:
        """Wake everyone who waits, for good; views go on following."""
        self._streams_end = True
        self._wake()

    def stop(self) -> None:
        """End the following too; may be called from the loop, does not block."""
        self._stopping.set()
        self.end_streams()

    async def wait_for_first_view(self, seconds: float) -> None:
        """Return once a version is served, the log turned out to have none, the time is over, or the server ends."""
        deadline = time.monotonic() + seconds
        while self.view is None and not self.stopping and time.monotonic() < deadline:
            if self._has_looked and self.reason == NO_VERSION_YET:
                return
            await asyncio.sleep(FIRST_LOOK_SECONDS)

    def join(self) -> None:
        """Wait for the thread's end."""
        if self._thread.ident is not None:
            self._thread.join(timeout=5.0)

    def staleness_ms(self, view: ModelView) -> int | None:
        """Now - complete_until_ms; None before the stream was ever read to its end."""
        until_ms = view.complete_until_ms
        return max(0, self._clock_ms() - until_ms) if until_ms > 0 else None

    def require_view(self) -> ModelView:
        """The newest view; ApiError 503 before the first."""
        view = self.view
        if view is None:
            raise not_ready(self.reason)
        return view

    def view_satisfying(self, demand: Preconditions) -> ModelView:
        """The newest view, where it satisfies the demand; ApiError 503 with Retry-After where not."""
        view = self.require_view()
        refusal = self._refusal(view, demand)
        if refusal is not None:
            reason = "min_version" if refusal.code == "version_not_reached" else "max_staleness"
            self._metrics.increment("springtide_refused_total", reason=reason)
            raise refusal
        return view

    def view_if_satisfying(self, demand: Preconditions) -> ModelView | None:
        """The newest view, where there is one and it satisfies the demand; nothing is counted."""
        view = self.view
        return None if view is None or self._refusal(view, demand) is not None else view

    def _refusal(self, view: ModelView, demand: Preconditions) -> ApiError | None:
        if demand.min_version is not None and view.version < demand.min_version:
            return ApiError(
                503,
                "version_not_reached",
                f"version {demand.min_version} is not served yet, the newest is {view.version}",
                "retry, or wait with /v1/versions/latest?after=",
                headers={"Retry-After": "1"},
            )
        if demand.max_staleness_ms is not None:
            staleness_ms = self.staleness_ms(view)
            if staleness_ms is None or staleness_ms > demand.max_staleness_ms:
                age = "of unknown age" if staleness_ms is None else f"{staleness_ms} ms old"
                return ApiError(
                    503,
                    "too_stale",
                    f"the newest model is {age}, {demand.max_staleness_ms:g} ms are allowed",
                    "retry, allow more, or see the trainer's state in /v1/status",
                    headers={"Retry-After": "1", **self.version_headers(view)},
                )
        return None

    def version_headers(self, view: ModelView) -> dict[str, str]:
        """The headers that say which version answered, and its age."""
        staleness_ms = self.staleness_ms(view)
        texts = {"X-Springtide-Version": str(view.version)}
        if staleness_ms is not None:
            texts["X-Springtide-Staleness-Ms"] = str(staleness_ms)
        return texts

    async def wait_for_change(self, seconds: float) -> None:
        """Return once another version is served, the time is over, or the server ends."""
        changed = self._changed
        if self.stopping:
            return
        try:
            await asyncio.wait_for(changed.wait(), seconds)
        except TimeoutError:
            return

    def _run(self) -> None:
        take_short_slices()  # a trainer on the same cores must not wait for it, nor who asks for an answer
        while not self._stopping.is_set():
            try:
                self._following.poll()
                self._has_looked, self._defect = True, ""
            except Exception as error:
                # the old view keeps being served: a defect here must not take the server down with it
                if not self._defect:
                    logger.exception("following failed")
                self._defect = f"{type(error).__name__}: {error}"
            if self._defect:
                self._stopping.wait(1.0)
            else:
                self._wait(self._poll_seconds)
        self._following.close()

    def _heard(self, entry: VersionEntry, servable_ms: int, num_bytes: int) -> None:
        self._metrics.increment("springtide_applied_bytes_total", num_bytes)
        # what was published before this server could serve says nothing of how fast it follows
        if self._live_since_ms is not None and entry.created_ms >= self._live_since_ms:
            self.freshness.observe(entry.record_ms, servable_ms=servable_ms)
            for timestamp_ms in entry.record_ms:
                seconds = max(0, servable_ms - timestamp_ms) / 1000
                self._metrics.observe("springtide_servable_seconds", seconds)
        self.versions.add(entry)

    def _swapped(self, entry: VersionEntry) -> None:
        self.versions.add(entry)
        self.num_swaps += 1
        self._metrics.increment("springtide_swaps_total")
        if self._live_since_ms is None:
            self._live_since_ms = self._clock_ms()
            logger.info("serving")
        self._wake()

    def _wake(self) -> None:
        loop = self._loop
        if loop is None or loop.is_closed():
            return
        try:
            loop.call_soon_threadsafe(self._flip)
        except RuntimeError:
            return  # the loop closed between the look and the call: nobody waits any more

    def _flip(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
