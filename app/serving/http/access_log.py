"""One line for every so-many-th request: its route, status and time; what was asked stays with the asker."""

import logging

logger = logging.getLogger(__name__)


class AccessLog:
    """Logs an even share of what it is told. For the event loop's thread alone."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._due = 0.0

    def record(self, method: str, route: str, status: int, seconds: float) -> None:
        """A request was answered."""
        self._due += self._share
        if self._due >= 1.0:
            self._due -= 1.0
            extra = {"method": method, "route": route, "status": status, "ms": round(seconds * 1000, 3)}
            logger.info("request", extra=extra)
