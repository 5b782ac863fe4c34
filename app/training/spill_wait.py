"""Waits for a spill that accepts no rows: what it has refused is tried again until it succeeds."""

import logging
from collections.abc import Callable

from springtide.app.training.ranks.ranks import Ranks
from springtide.embeddings.errors import OtherSpillError, SpillError

logger = logging.getLogger(__name__)


class SpillWait:
    """Repeats actions that raise SpillError. Of several ranks all repeat them together."""

    def __init__(self, ranks: Ranks, meanwhile: Callable[[], bool]) -> None:
        """`meanwhile`: called between two tries; returns True if a stop was requested."""
        self.reason = ""  # why rows cannot leave this rank's memory, and learning waits
        self._ranks, self._meanwhile = ranks, meanwhile

    def retry(self, action: Callable[[], None]) -> None:
        """Repeat an action, which fails on all ranks or on none; a stop leaves it to the next trainer."""
        while True:
            try:
                action()
                self.reason = ""
                return
            except SpillError as error:
                # only the rank whose spill it is knows the reason
                reason = "" if isinstance(error, OtherSpillError) else str(error)
                if reason and reason != self.reason:
                    logger.warning("learning waits for the spill", extra={"reason": reason})
                self.reason = reason
            if self._meanwhile():
                return

    def retry_on_each(self, action: Callable[[], None]) -> None:
        """Repeat an action that each rank does for itself, on all until it has succeeded on all."""
        self.retry(lambda: self._together(action))

    def _together(self, action: Callable[[], None]) -> None:
        error = None
        try:
            action()
        except SpillError as raised:
            error = raised
        if self._ranks.any_rank(error is not None):
            raise error or OtherSpillError("the spill of another rank accepts no rows: see its error")
