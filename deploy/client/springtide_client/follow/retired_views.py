"""Views that a newer one replaced: freed by the follower, so that no call pays for it."""

import sys

from springtide_client.model.view import View

# of a view that nothing but the list holds: the list's, and the one that `getrefcount` is called with
UNUSED_REFERENCES = 2


class RetiredViews:
    """Keeps replaced views until no call uses them. Not thread-safe: for the thread that advances the follower.

    A call keeps the view it began with. If its reference were the last one, the call would free the view's rows and
    unmap its base when it ends, which takes ms where they are large.
    """

    def __init__(self) -> None:
        self._views: list[View] = []

    def __len__(self) -> int:
        return len(self._views)

    def add(self, view: View) -> None:
        """Take a view that is not served any more."""
        self._views.append(view)

    def free_unused(self) -> None:
        """Free the views that no call uses, and no caller of this method."""
        for index in range(len(self._views) - 1, -1, -1):
            if sys.getrefcount(self._views[index]) <= UNUSED_REFERENCES:
                del self._views[index]
