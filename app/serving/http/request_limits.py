"""How many requests and streams one worker answers at once."""

from springtide.app.serving.http.errors import busy, too_many_requests


class RequestLimits:
    """Counts requests in flight and open streams. For the event loop's thread alone."""

    def __init__(self, *, max_in_flight: int, max_streams: int) -> None:
        self._max_in_flight, self._max_streams = max_in_flight, max_streams
        self.num_in_flight = self.num_streams = 0

    def begin_request(self) -> None:
        """Count one more request in flight; ApiError 429 beyond the limit."""
        if self.num_in_flight >= self._max_in_flight:
            raise too_many_requests("requests", self._max_in_flight)
        self.num_in_flight += 1

    def end_request(self) -> None:
        """The request was answered."""
        self.num_in_flight -= 1

    def open_stream(self) -> None:
        """Count one more open stream; ApiError 503 beyond the limit."""
        if self.num_streams >= self._max_streams:
            raise busy()
        self.num_streams += 1

    def close_stream(self) -> None:
        """The stream ended."""
        self.num_streams -= 1
