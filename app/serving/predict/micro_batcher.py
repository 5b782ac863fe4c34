"""Scores what several requests ask in one call of the model: a call costs far more than one more row in it.

Threads take what waits when they are free, so the more is asked, the more goes into a call. Knows no HTTP.
"""

# N samples, L labels, K keys, J requests
import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from springtide_client.features import Features

from app.serving.http.errors import ApiError, busy
from app.serving.model.view import ModelView
from app.serving.predict.request import Instances, concatenate, encode_features

logger = logging.getLogger(__name__)


class Predictions(NamedTuple):
    """The answer to one request."""

    probabilities_NL: npt.NDArray[np.float32]
    rows_by_status: npt.NDArray[np.int64]  # how many rows were looked up for it, by status code


class PendingRequest(NamedTuple):
    """One that waits."""

    view: ModelView
    instances: Instances
    arrived: float
    answer: Callable[[Predictions | Exception], None]


class MicroBatcher:
    """Threads that score; one request more than may wait is refused with 503 `busy`.

    `wait_seconds`: so long the first of a call waits for others on purpose. `max_rows`: more are not gathered; a
    request that has more by itself is scored alone.
    """

    def __init__(
        self,
        *,
        max_rows: int,
        wait_seconds: float,
        num_threads: int = 1,
        max_waiting: int = 256,
        max_waiting_rows: int = 65_536,
    ) -> None:
        self._max_rows, self._wait_seconds = max_rows, wait_seconds
        self._max_waiting, self._max_waiting_rows = max_waiting, max_waiting_rows
        self._ready = threading.Condition()
        self._waiting: deque[PendingRequest] = deque()
        self._waiting_rows = 0
        self._is_closed = False
        self.num_batches = 0
        self._threads = [
            threading.Thread(target=self._run, name=f"springtide-score-{n}", daemon=True) for n in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()

    async def predict(self, view: ModelView, instances: Instances) -> Predictions:
        """The probabilities of one request's instances, all from this view; ApiError 422 for one that is bad."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Predictions] = loop.create_future()

        def settle(answer: Predictions | Exception) -> None:
            if future.done():
                return  # the asker left
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)

        def tell(answer: Predictions | Exception) -> None:
            loop.call_soon_threadsafe(settle, answer)

        with self._ready:
            is_full = len(self._waiting) >= self._max_waiting
            if self._is_closed or is_full or (self._waiting and self._waiting_rows >= self._max_waiting_rows):
                raise busy()
            self._waiting.append(PendingRequest(view, instances, time.monotonic(), tell))
            self._waiting_rows += len(instances)
            self._ready.notify()
        return await future

    def close(self) -> None:
        """Score no more; what waits is refused."""
        with self._ready:
            self._is_closed = True
            waiting = list(self._waiting)
            self._waiting.clear()
            self._ready.notify_all()
        for request in waiting:
            _tell(request, busy())

    def _run(self) -> None:
        while requests := self._take():
            try:
                self._score(requests)
            except Exception as error:
                logger.exception("scoring failed")
                for request in requests:
                    _tell(request, error)

    def _take(self) -> list[PendingRequest]:
        """Those that go into one call, in the order they came: of one view, and not more rows than allowed."""
        with self._ready:
            while not self._is_closed:
                if not self._waiting:
                    self._ready.wait()
                    continue
                left = self._waiting[0].arrived + self._wait_seconds - time.monotonic()
                if left <= 0 or self._waiting_rows >= self._max_rows:
                    break
                self._ready.wait(left)
            taken: list[PendingRequest] = []
            rows = 0
            while self._waiting:
                following = self._waiting[0]
                rows += len(following.instances)
                if taken and (rows > self._max_rows or following.view is not taken[0].view):
                    break
                taken.append(self._waiting.popleft())
                self._waiting_rows -= len(following.instances)
            if self._waiting:
                self._ready.notify()
            return taken

    def _score(self, requests: Sequence[PendingRequest]) -> None:
        view = requests[0].view
        good: list[tuple[PendingRequest, Features]] = []
        for request in requests:
            try:
                good.append((request, encode_features(view.schema, request.instances)))
            except ApiError as error:
                _tell(request, error)
        if not good:
            return
        features = concatenate([part for _, part in good])
        probabilities_NL, status_K = view.predict(features)
        self.num_batches += 1
        ends = np.cumsum([len(part) for _, part in good])
        counts = count_rows_by_request(features, status_K, ends)
        for (request, _), rows_NL, rows_by_status in zip(
            good, np.split(probabilities_NL, ends[:-1]), counts, strict=True
        ):
            _tell(request, Predictions(rows_NL, rows_by_status))


def count_rows_by_request(
    features: Features, status_K: npt.NDArray[np.uint8], ends_J: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """How many rows of each status went into each request's samples, int64 [J, 4]; its samples end at `ends_J`."""
    num_samples = len(features)
    requests_N = np.searchsorted(ends_J, np.arange(num_samples), side="right")
    parts = [np.repeat(requests_N, features.categorical_NC.shape[1])]
    parts += [np.repeat(requests_N, np.diff(ragged.offsets)) for ragged in features.lists]
    return np.bincount(np.concatenate(parts) * 4 + status_K, minlength=4 * len(ends_J)).reshape(-1, 4)


def _tell(request: PendingRequest, answer: Predictions | Exception) -> None:
    try:
        request.answer(answer)
    except RuntimeError:
        return  # the event loop ended first: nobody waits
