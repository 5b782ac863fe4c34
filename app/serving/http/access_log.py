"""The access log: a sample of the requests, by route, status and duration; never their contents."""

import logging

logger = logging.getLogger(__name__)


class AccessLog:
    """Logs an evenly spaced sample of the requests. For the event loop's thread alone."""

    def __init__(self, sample_rate: float) -> None:
        """`sample_rate` 0.01 logs every hundredth request."""
        self._sample_rate = sample_rate
        self._due = 0.0

    def record(self, method: str, route: str, status: int, seconds: float) -> None:
        """Log a finished request, if it is its turn."""
        self._due += self._sample_rate
        if self._due >= 1.0:
            self._due -= 1.0
            extra = {"method": method, "route": route, "status": status, "ms": round(seconds * 1000, 3)}
            logger.info("request", extra=extra)
