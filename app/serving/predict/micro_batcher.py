"""Scores the instances of several requests in one call of the model: a call costs far more than one more row in it.

A free thread takes all requests that wait, so batches grow with the load. Knows no HTTP.
"""

# N samples, L labels, K keys, J requests, F features
import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from springtide.app.serving.http.errors import ApiError, busy
from springtide.app.serving.predict.request import Instances, encode_features, request_times
from springtide.kernels.cpu.counter_rows import read_numbers
from springtide_client.errors import PartError
from springtide_client.features import Features
from springtide_client.keys import MISSING_ID
from springtide_client.model.view import View
from springtide_client.signals import hash_signals

logger = logging.getLogger(__name__)


class MemoryRead(NamedTuple):
    """What the instances of a request read of memory."""

    is_complete: bool  # this version has all that they may read
    signals_N: npt.NDArray[np.int64] | None  # the hash of it, where that was asked for


class Predictions(NamedTuple):
    """The result of one request."""

    probabilities_NL: npt.NDArray[np.float32]
    rows_by_status: npt.NDArray[np.int64]  # [4] how many rows were looked up for it, by status code
    missing_F: npt.NDArray[np.int64]  # instances without a value of each feature: categorical, lists, dense
    recalled: MemoryRead | None = None  # what its instances read of memory

    @property
    def signals(self) -> list[str] | msgspec.UnsetType:
        """The signals of each instance as text, which every reader of JSON keeps exactly; unset where not asked for."""
        if self.recalled is None or self.recalled.signals_N is None:
            return msgspec.UNSET
        return list(map(str, self.recalled.signals_N.tolist()))


class PendingRequest(NamedTuple):
    """A request that waits to be scored."""

    view: View
    instances: Instances
    arrived: float
    respond: Callable[[Predictions | Exception], None]
    is_alone: bool  # never scored together with others

    def may_join(self, other: "PendingRequest") -> bool:
        """Return True if both may be scored in one call."""
        return self.view is other.view and not (self.is_alone or other.is_alone)


class MicroBatcher:
    """Threads that score batches of requests, with a bounded queue."""

    def __init__(
        self,
        *,
        max_rows: int,
        wait_seconds: float,
        num_threads: int = 1,
        max_waiting: int = 256,
        max_waiting_rows: int = 65_536,
    ) -> None:
        """`max_rows` limits a batch; a request with more rows is scored alone. `wait_seconds` is how long the first
        request of a batch waits for others.
        """
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

    async def predict(self, view: View, instances: Instances, *, alone: bool = False) -> Predictions:
        """Score one request's instances in this view; ApiError 422 for an invalid one, 503 if the queue is full.

        `alone`: in a call of the model without other requests, which may change the last bits of a prediction.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Predictions] = loop.create_future()

        def set_outcome(outcome: Predictions | Exception) -> None:
            if future.done():
                return  # the client disconnected
            if isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

        def respond(outcome: Predictions | Exception) -> None:
            loop.call_soon_threadsafe(set_outcome, outcome)

        with self._ready:
            is_full = len(self._waiting) >= self._max_waiting
            if self._is_closed or is_full or (self._waiting and self._waiting_rows >= self._max_waiting_rows):
                raise busy()
            self._waiting.append(PendingRequest(view, instances, time.monotonic(), respond, alone))
            self._waiting_rows += len(instances)
            self._ready.notify()
        return await future

    def close(self) -> None:
        """Score no more; waiting requests get 503."""
        with self._ready:
            self._is_closed = True
            waiting = list(self._waiting)
            self._waiting.clear()
            self._ready.notify_all()
        for request in waiting:
            _respond(request, busy())

    def _run(self) -> None:
        while requests := self._take():
            try:
                self._score(requests)
            except PartError as error:  # rows of another server
                for request in requests:
                    _respond(request, error)
            except Exception as error:
                logger.exception("scoring failed")
                for request in requests:
                    _respond(request, error)

    def _take(self) -> list[PendingRequest]:
        """Take the next batch, in order of arrival: requests of one view, up to `max_rows`; empty once closed."""
        with self._ready:
            while not self._is_closed:
                if not self._waiting:
                    self._ready.wait()
                    continue
                left = self._waiting[0].arrived + self._wait_seconds - time.monotonic()
                if left <= 0 or self._waiting_rows >= self._max_rows or self._waiting[0].is_alone:
                    break
                self._ready.wait(left)
            taken: list[PendingRequest] = []
            rows = 0
            while self._waiting:
                following = self._waiting[0]
                rows += len(following.instances)
                if taken and (rows > self._max_rows or not taken[0].may_join(following)):
                    break
                taken.append(self._waiting.popleft())
                self._waiting_rows -= len(following.instances)
            if self._waiting:
                self._ready.notify()
            return taken

    def _score(self, requests: Sequence[PendingRequest]) -> None:
        view = requests[0].view
        valid: list[tuple[PendingRequest, Features, MemoryRead | None]] = []
        for request in requests:
            try:
                features, recalled = encode_features(view.schema, request.instances), None
                if view.schema.remembered:
                    times_N = request_times(view.schema, request.instances)
                    features = view.recalled(features, times_N, read_numbers)
                    signals_N = hash_signals(view.schema, features) if request.instances.wants_signals else None
                    recalled = MemoryRead(view.remembers_all(int(times_N.max())), signals_N)
                valid.append((request, features, recalled))
            except ApiError as error:
                _respond(request, error)
        if not valid:
            return
        features = Features.concatenate([part for _, part, _ in valid])
        probabilities_NL, status_K = view.predict_with_status(features)
        self.num_batches += 1
        ends = np.cumsum([len(part) for _, part, _ in valid])
        rows, missing = count_rows_by_request(features, status_K, ends), count_missing_by_request(features, ends)
        parts = np.split(probabilities_NL, ends[:-1])
        for (request, _, recalled), own_NL, own_rows, own_missing in zip(valid, parts, rows, missing, strict=True):
            _respond(request, Predictions(own_NL, own_rows, own_missing, recalled))


def count_rows_by_request(
    features: Features, status_K: npt.NDArray[np.uint8], ends_J: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Count the rows of each request by status, int64 [J, 4]; the samples of request j end at `ends_J[j]`."""
    num_samples = len(features)
    requests_N = np.searchsorted(ends_J, np.arange(num_samples), side="right")
    parts = [np.repeat(requests_N, features.categorical_NC.shape[1])]
    parts += [np.repeat(requests_N, np.diff(ragged.offsets)) for ragged in features.lists]
    return np.bincount(np.concatenate(parts) * 4 + status_K, minlength=4 * len(ends_J)).reshape(-1, 4)


def count_missing_by_request(features: Features, ends_J: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Count each request's samples without a value of each feature, int64 [J, F]: categorical, lists, dense.

    A value that is absent, null or an empty list is missing. The samples of request j, one or more, end at `ends_J[j]`.
    """
    empty_NM = [np.diff(ragged.offsets)[:, None] == 0 for ragged in features.lists]
    is_missing_NF = np.hstack([features.categorical_NC == MISSING_ID, *empty_NM, np.isnan(features.dense_NF)])
    starts_J = np.concatenate([[0], ends_J[:-1]])
    return np.add.reduceat(is_missing_NF, starts_J, axis=0, dtype=np.int64)


def _respond(request: PendingRequest, outcome: Predictions | Exception) -> None:
    try:
        request.respond(outcome)
    except RuntimeError:
        return  # the event loop has ended: no client waits
