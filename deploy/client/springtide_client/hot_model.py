"""A model that reloads itself: predictions and lookups in this process, always from the newest version of a log."""

# N instances, L labels, K ids
import os
import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from springtide_client.array_types import Float32Array, Int64Array, UInt8Array
from springtide_client.encode import encode_instances
from springtide_client.errors import EncodeError, LogError, NoModelError, StaleModelError
from springtide_client.features import Features
from springtide_client.follow.follower import Follower
from springtide_client.http.http_log import HttpLog
from springtide_client.keys import encode_id
from springtide_client.log.directory import DirectoryWatcher, LogDirectory
from springtide_client.model.view import KNOWN, View
from springtide_client.parts.part_servers import PartServers
from springtide_client.parts.parted_view import at_one_version, parted_view
from springtide_client.parts.rankings import NeighborsRequest, ask_rankings
from springtide_client.recall import times_of
from springtide_client.rows.hash_range import ALL_KEYS, NO_KEYS
from springtide_client.rows.nearest import METRICS
from springtide_client.signals import hash_signals
from springtide_client.system.clock import wall_ms
from springtide_client.system.settings import parse_size

WAIT_SECONDS = 30.0
Result = TypeVar("Result")
ADDRESS = re.compile(r"[\w.-]+:\d+(/.*)?")


class HotModel:
    """Follows a log in a background thread. Each call uses one version, and a swap never delays a call.

    `url_or_directory`: a server's http(s) URL, or the log's folder; or the URLs of the servers of all parts, in the
    order of their ranges. Then rows stay on the servers: each call asks them for those it needs, all at one version;
    PartError names a server that does not answer. `token`: sent as a bearer token. With
    `max_staleness_seconds`, calls raise StaleModelError rather than use an older model. `cache_dir` keeps downloaded
    bases for other processes and later ones; the default is a temporary folder. `cache_bytes` limits the memory of rows
    changed since the base; `cache_disk_bytes` limits the downloaded bases, and the file for rows beyond `cache_bytes`.
    Sizes are bytes, or strings such as "1GiB". Thread-safe.
    """

    def __init__(
        self,
        url_or_directory: str | Path | Sequence[str],
        token: str | None = None,
        max_staleness_seconds: float | None = None,
        cache_dir: str | Path | None = None,
        cache_bytes: int | str = "1GiB",
        *,
        cache_disk_bytes: int | str = "20GiB",
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        """Wait for the first model, at most `wait_seconds`; NoModelError says why none came.

        ValueError for an argument that is not valid.
        """
        self._parts: PartServers | None = None
        if max_staleness_seconds is not None and not max_staleness_seconds >= 0:
            raise ValueError(f"max_staleness_seconds = {max_staleness_seconds}: must be at least 0")
        if not isinstance(url_or_directory, (str, Path)):
            if not url_or_directory:
                raise ValueError("give the URL of at least one server")
            self._parts = PartServers(url_or_directory, token=token)
            url_or_directory = self._parts.urls[0]
        self._where = str(url_or_directory)
        self._max_staleness_seconds = max_staleness_seconds
        cache_path = None if cache_dir is None else Path(cache_dir)
        memory_bytes, disk_bytes = parse_size(cache_bytes), parse_size(cache_disk_bytes)
        self._http: HttpLog | None = None
        source: HttpLog | LogDirectory
        hash_range = ALL_KEYS if self._parts is None else NO_KEYS
        if self._where.lower().startswith(("http://", "https://")):
            source = self._http = HttpLog(
                self._where, token=token, cache_dir=cache_path, disk_bytes=disk_bytes, hash_range=hash_range
            )
        elif ADDRESS.fullmatch(self._where) and not Path(url_or_directory).exists():
            raise ValueError(f"{self._where!r} is not a folder: write a server as http://{self._where}")
        else:
            source = LogDirectory(Path(url_or_directory))
        self._follower = Follower(
            source,
            cache_bytes=memory_bytes,
            cache_dir=cache_path,
            disk_bytes=disk_bytes,
            wait=DirectoryWatcher(self._where).wait if self._http is None else self._http.wait,
            hash_range=hash_range,
        )
        self._pid = os.getpid()
        # a model that is dropped without `close` stops following
        weakref.finalize(self, self._follower.stop_from_finalizer).atexit = False
        self._follower.start()
        if self._follower.wait_for_view(wait_seconds) is None:
            reason = self._follower.error or self._missing()
            self.close()
            fix = "start a trainer (springtide run, springtide train) on it, or raise wait_seconds"
            raise NoModelError(f"no model from {self._where} within {wait_seconds:g} s: {reason}; {fix}")

    def predict(self, instances: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
        """Return a probability for each label of each instance, `[{"click": 0.12}, ...]`.

        Instances are raw features, as in a record. EncodeError names the index and the field of an invalid one.
        """

        def predict(view: View) -> list[dict[str, float]]:
            if not len(instances):
                return []
            rows = view.predict(features_of(view, instances)).tolist()
            return [dict(zip(view.schema.labels, row, strict=True)) for row in rows]

        return self._answer(predict)

    def signals(self, instances: Sequence[Mapping[str, Any]]) -> list[str]:
        """Return a hash of what each instance reads of memory at its time, else at present.

        A record that brings it back, with the same time, is checked by the trainer: `[memory] check`. Give instances
        their time in the schema's timestamp field. ValueError where nothing is remembered.
        """

        def signals(view: View) -> list[str]:
            if not view.schema.remembered:
                raise ValueError("nothing is remembered: set [sequences.*], [remember] or [counters.*] for the trainer")
            return list(map(str, hash_signals(view.schema, features_of(view, instances)).tolist()))

        return self._answer(signals)

    def lookup(self, feature: str, ids: npt.ArrayLike) -> tuple[Float32Array, UInt8Array]:
        """Return rows float32 (*ids.shape, the feature's dim), NaN where there is none, and status uint8 ids.shape.

        Status: 0 known, 1 unknown, 2 not admitted, 3 forgotten. Ids are integers or strings. KeyError if `feature` is
        not an id feature.
        """
        ids_K, shape = encode_ids(ids)

        def look_up(view: View) -> tuple[Float32Array, UInt8Array]:
            rows_KD, status_K = view.lookup(np.array([number_of(view, feature)], np.uint16), ids_K)
            return rows_KD.reshape(*shape, rows_KD.shape[1]), status_K.reshape(shape)

        return self._answer(look_up)

    def neighbors(
        self, feature: str, row_id: int | str, k: int = 10, metric: str = "cosine"
    ) -> tuple[Int64Array, Float32Array]:
        """Return ids int64 (M) and scores float32 (M) of the k nearest other rows, nearest first; none without a row.

        `metric`: cosine, dot or euclidean, whose score is the distance. Every row of the feature is compared; those of
        parts by their servers. A string's id is its hash. KeyError if `feature` is not an id feature.
        """
        if metric not in METRICS or k < 1:
            raise ValueError(f"metric = {metric!r}, k = {k}: the metrics are {', '.join(METRICS)}, k is 1 or more")
        encoded, _ = encode_ids([row_id])

        def find(view: View) -> tuple[Int64Array, Float32Array]:
            number = number_of(view, feature)
            rows_1D, status_1 = view.lookup(np.array([number], np.uint16), encoded)
            if status_1[0] != KNOWN:
                return np.zeros(0, np.int64), np.zeros(0, np.float32)
            without_id, query_D = int(encoded[0]), rows_1D[0]
            if self._parts is not None:
                query = query_D.astype("<f4", copy=False).tobytes()
                request = NeighborsRequest(number, without_id, k, metric, query)
                ids_M, scores_M, _ = ask_rankings(self._parts, view.head, request)
            else:
                ids_M, scores_M = view.nearest(number, without_id, query_D, k=k, metric=metric)
            return ids_M, -scores_M if metric == "euclidean" else scores_M

        return self._answer(find)

    @property
    def version(self) -> int:
        """The version that the next call uses; it only grows."""
        return self._view.version

    @property
    def staleness_seconds(self) -> float:
        """Now minus the wall time up to which the version reflects every record; infinite while none is known."""
        staleness_ms = self._follower.staleness_ms
        return float("inf") if staleness_ms is None else staleness_ms / 1000.0

    @property
    def error(self) -> Exception | None:
        """Why no newer versions arrive; None while they do."""
        if os.getpid() != self._pid:
            return LogError("this process was forked from the one that follows the log: create a HotModel here")
        return self._follower.error

    def on_swap(self, callback: Callable[[int], None]) -> None:
        """Call callback(version) in the background thread after each swap to a newer version."""
        self._follower.on_swap(lambda view: callback(view.version))

    def close(self) -> None:
        """Stop following. Calls go on using the last version."""
        if os.getpid() != self._pid:
            return  # threads, connections and folder belong to the parent process
        self._follower.stop()
        if self._http is not None:
            self._http.stop()
        self._follower.close()
        if self._http is not None:
            self._http.close()
        if self._parts is not None:
            self._parts.close()

    def __enter__(self) -> "HotModel":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _missing(self) -> str:
        path = Path(self._where)
        if self._http is not None:
            return "the server has no version yet, or its base is still being downloaded"
        if not path.is_dir():
            return "there is no such folder"
        if LogDirectory(path).newest_base() is None:
            return "the folder holds no log with a version"
        return "the model is still being loaded"

    @property
    def _view(self) -> View:
        view = self._follower.view
        assert view is not None  # the constructor waited for it
        return view

    def _answer(self, call: Callable[[View], Result]) -> Result:
        """Call with a view that is fresh enough, and has the rows of all parts."""
        if self._parts is None:
            return call(self._fresh_view())
        servers = self._parts
        return at_one_version(lambda: parted_view(self._fresh_view(), NO_KEYS, servers), call)

    def _fresh_view(self) -> View:
        limit = self._max_staleness_seconds
        if limit is not None and (staleness := self.staleness_seconds) > limit:
            reason = self.error
            why = str(reason) if reason is not None else "see the trainer's state in /v1/status"
            raise StaleModelError(f"the model is {staleness:.3g} s old, {limit:g} s are allowed: {why}")
        return self._view


def number_of(view: View, feature: str) -> int:
    """Return the number of an id feature; KeyError for any other name."""
    if feature not in view.schema.features:
        raise KeyError(f"no id feature {feature!r}: there are {', '.join(view.schema.features)}")
    number: int = view.schema.number(feature)
    return number


def features_of(view: View, instances: Sequence[Mapping[str, Any]]) -> Features:
    """Return the features of the whole schema of raw instances. EncodeError names the index and the field."""
    try:
        features = encode_instances(view.schema, instances)
        if not view.schema.remembered:
            return features
        return view.recalled(features, times_of(view.schema, instances, wall_ms()))
    except EncodeError as error:
        raise error.in_instance() from None


def encode_ids(ids: npt.ArrayLike) -> tuple[Int64Array, tuple[int, ...]]:
    """Return int64 ids, flat, and the shape of `ids`. Strings and numbers become ids as in a record."""
    array = np.asarray(ids)
    if array.dtype.kind == "i":
        return array.reshape(-1).astype(np.int64, copy=False), array.shape
    if not isinstance(ids, np.ndarray):
        array = np.asarray(ids, object)  # otherwise numbers in a list with strings would become strings
    flat = [value.item() if isinstance(value, np.generic) else value for value in array.reshape(-1)]
    return np.array([encode_id(value)[0] for value in flat], np.int64), array.shape
