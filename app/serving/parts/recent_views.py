"""The versions that were served last: servers of other parts, which follow the log by themselves, may ask for them."""

from springtide.app.serving.model.served_view import ServedView
from springtide_client.format.records import Tip


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
