"""Who hears of the versions that a follower serves. A listener that fails is logged and called again."""

import logging
from collections.abc import Callable, Iterable
from typing import NamedTuple

from springtide_client.format.records import Record, VersionMeta
from springtide_client.model.view import View

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


# the view that is served now, the version, the wall time in ms at which it became servable
Listener = Callable[[View, AppliedVersion, int], None]


class Listeners:
    """Called in the thread that advances the follower."""

    def __init__(self) -> None:
        self._of_versions: list[Listener] = []
        self._of_swaps: list[Callable[[View], None]] = []

    def add(self, listener: Listener) -> None:
        """Call `listener` for every version, in order."""
        self._of_versions.append(listener)

    def add_on_swap(self, callback: Callable[[View], None]) -> None:
        """Call `callback` after each swap to a newer version."""
        self._of_swaps.append(callback)

    def notify(self, view: View, versions: Iterable[AppliedVersion], servable_ms: int) -> None:
        """Call every listener for each version that became servable with `view`, then those of the swap."""
        for version in versions:
            for listener in self._of_versions:
                _call(listener, view, version, servable_ms)
        for callback in self._of_swaps:
            _call(callback, view)


def _call(function: Callable[..., object], *arguments: object) -> None:
    try:
        function(*arguments)
    except Exception:
        logger.exception("a listener of versions failed")
