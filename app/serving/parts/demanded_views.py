"""The views that other servers and clients demand of this part: exactly one version, maybe a few versions old."""

import time

from springtide.app.serving.http.errors import misdirected, version_gone, version_not_reached
from springtide.app.serving.model.part import Part
from springtide.app.serving.model.replica import Replica
from springtide.app.serving.model.served_view import ServedView
from springtide_client.format.records import Tip
from springtide_client.parts.rankings import Demand


class RecentViews:
    """Keeps the newest few views. One thread adds, any thread finds."""

    def __init__(self, max_views: int) -> None:
        """0: keep none, for no other server asks."""
        self._max_views = max_views
        self._views: tuple[ServedView, ...] = ()

    def add(self, view: ServedView) -> None:
        """Take a view that is served from now on."""
        if self._max_views:
            self._views = (*self._views, view)[-self._max_views :]

    def find(self, tip: Tip) -> ServedView | None:
        """Return the view of a version; None when it is kept no longer."""
        return next((view for view in reversed(self._views) if view.own_view.tip == tip), None)


class DemandedViews:
    """Finds the view of a demanded version. For the event loop's thread alone."""

    def __init__(self, replica: Replica, recent: RecentViews, part: Part) -> None:
        self._replica, self._recent, self._part = replica, recent, part

    async def at(self, demand: Demand) -> ServedView:
        """Return the demanded version, once it is served.

        ApiError 421 for another part, 410 when the version is kept no longer, 503 when it does not come in time.
        """
        if demand.hash_range != self._part.hash_range:
            message = f"this server holds {self._part.words}, and not part {demand.hash_range}"
            raise misdirected(message, "give the addresses of the parts in the order of their ranges")
        tip, deadline = demand.tip, time.monotonic() + demand.wait_ms / 1000
        while True:
            view = self._replica.require_view()
            if (found := self.find(tip)) is not None:
                return found
            if view.version >= tip.number:
                raise version_gone(tip.number, view.version)
            if (left := deadline - time.monotonic()) <= 0 or self._replica.stopping:
                raise version_not_reached(tip.number, view.version)
            await self._replica.wait_for_change(left)

    def find(self, tip: Tip) -> ServedView | None:
        """Return the view of a version, None if there is none now."""
        view = self._replica.view
        return view if view is not None and view.own_view.tip == tip else self._recent.find(tip)

    def headers_of(self, view: ServedView) -> dict[str, str]:
        """Return the headers of a response from a view."""
        return self._replica.version_headers(view)
