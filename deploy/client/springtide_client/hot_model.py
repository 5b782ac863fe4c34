"""A model that stays hot: predictions and look-ups in this process, always from the newest version of a log."""

# N instances, L labels, K ids
import os
import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from springtide_client.array_types import Float32Array, Int64Array
from springtide_client.encode import encode_instances
from springtide_client.errors import LogError, NoModelError, StaleModelError
from springtide_client.follow.follower import Follower
from springtide_client.http.http_log import HttpLog
from springtide_client.keys import encode_id
from springtide_client.log.directory import LogDirectory
from springtide_client.log.directory_watcher import DirectoryWatcher
from springtide_client.model.view import View
from springtide_client.system.sizes import parse_size

WAIT_SECONDS = 30.0
ADDRESS = re.compile(r"[\w.-]+:\d+(/.*)?")


class HotModel:
    """Follows the log in the background; every call answers from one version, and a swap never delays a call.

    `url_or_directory`: a server's http(s) URL, or the log's folder. `token`: sent as a bearer token. With
    `max_staleness_seconds`, calls raise StaleModelError instead of answering from an older model. `cache_dir` keeps
    fetched bases between processes; without it they go to a temporary folder. `cache_bytes` bounds the memory of rows
    changed since the base, `cache_disk_bytes` the fetched bases, and the file that rows beyond `cache_bytes` move to.
    All methods may be called from any thread.
    """

    def __init__(
        self,
        url_or_directory: str | Path,
        token: str | None = None,
        max_staleness_seconds: float | None = None,
        cache_dir: str | Path | None = None,
        cache_bytes: int | str = "1GiB",
        *,
        cache_disk_bytes: int | str = "20GiB",
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        """Wait for the first model, at most `wait_seconds`; NoModelError, which says why, where none came."""
        if max_staleness_seconds is not None and not max_staleness_seconds >= 0:
            raise ValueError(f"max_staleness_seconds = {max_staleness_seconds}: must be at least 0")
        self._where = str(url_or_directory)
        self._max_staleness_seconds = max_staleness_seconds
        cache_path = None if cache_dir is None else Path(cache_dir)
        memory_bytes, disk_bytes = parse_size(cache_bytes), parse_size(cache_disk_bytes)
        self._http: HttpLog | None = None
        source: HttpLog | LogDirectory
        if self._where.lower().startswith(("http://", "https://")):
            source = self._http = HttpLog(self._where, token=token, cache_dir=cache_path, disk_bytes=disk_bytes)
        elif ADDRESS.fullmatch(self._where) and not Path(url_or_directory).exists():
            raise ValueError(f"{self._where!r} is no folder: give a server as http://{self._where}")
        else:
            source = LogDirectory(Path(url_or_directory))
        self._follower = Follower(
            source,
            cache_bytes=memory_bytes,
            cache_dir=cache_path,
            disk_bytes=disk_bytes,
            wait=DirectoryWatcher(self._where).wait if self._http is None else self._http.wait,
        )
        self._pid = os.getpid()
        # a model that is dropped without a word is followed no longer
        weakref.finalize(self, self._follower.stop_from_finalizer).atexit = False
        self._follower.start()
        if self._follower.wait_for_view(wait_seconds) is None:
            reason = self._follower.error or self._what_is_missing()
            self.close()
            mend = "start a trainer (springtide run, springtide train) on it, or give more wait_seconds"
            raise NoModelError(f"no model from {self._where} within {wait_seconds:g} s: {reason}; {mend}")

    def predict(self, instances: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
        """A probability for every label of each instance, `[{"click": 0.12}, ...]`.

        Instances are raw features, as a record has them. EncodeError names the index and the field of a bad one.
        """
        view = self._fresh_view()
        if not len(instances):
            return []
        labels = view.schema.labels
        rows = view.predict(encode_instances(view.schema, instances)).tolist()
        return [dict(zip(labels, row, strict=True)) for row in rows]

    def lookup(self, feature: str, ids: npt.ArrayLike) -> tuple[Float32Array, npt.NDArray[np.uint8]]:
        """Rows float32 (*ids.shape, dim), NaN where there is none, and status uint8 ids.shape.

        Status: 0 known, 1 unknown, 2 not admitted, 3 forgotten. Ids are integers or texts; KeyError for a name that is
        no id feature.
        """
        view = self._fresh_view()
        if feature not in view.schema.features:
            raise KeyError(f"there is no id feature {feature!r}, there are {', '.join(view.schema.features)}")
        number = view.schema.number(feature)
        ids_K, shape = as_ids(ids)
        rows_KD, status_K = view.lookup(np.full(len(ids_K), number, np.uint16), ids_K)
        return rows_KD.reshape(*shape, view.dim), status_K.reshape(shape)

    @property
    def version(self) -> int:
        """The version that the next call answers from; it only grows."""
        return self._view.version

    @property
    def staleness_seconds(self) -> float:
        """Now minus the wall time up to which the version holds every record; infinite while that was never so."""
        staleness_ms = self._follower.staleness_ms
        return float("inf") if staleness_ms is None else staleness_ms / 1000.0

    @property
    def error(self) -> Exception | None:
        """Why no newer version arrives; None while they do."""
        if os.getpid() != self._pid:
            return LogError("this process was forked after the model was made: make a HotModel of its own here")
        return self._follower.error

    def on_swap(self, callback: Callable[[int], None]) -> None:
        """Call callback(version) in the follower's thread each time a newer version became the one that answers."""
        self._follower.on_swap(lambda view: callback(view.version))

    def close(self) -> None:
        """Stop following. Calls still answer, from the last version."""
        if os.getpid() != self._pid:
            return  # threads, connections and folder are those of the process that made the model
        self._follower.stop()
        if self._http is not None:
            self._http.stop()
        self._follower.close()
        if self._http is not None:
            self._http.close()

    def __enter__(self) -> "HotModel":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _what_is_missing(self) -> str:
        path = Path(self._where)
        if self._http is not None:
            return "the server has no version yet, or its base is on the way still"
        if not path.is_dir():
            return "there is no such folder"
        if LogDirectory(path).newest_base() is None:
            return "the folder holds no log with a version"
        return "the model is being loaded still"

    @property
    def _view(self) -> View:
        view = self._follower.view
        assert view is not None  # the constructor waited for it
        return view

    def _fresh_view(self) -> View:
        limit = self._max_staleness_seconds
        if limit is not None and (staleness := self.staleness_seconds) > limit:
            reason = self.error
            why = str(reason) if reason is not None else "see the trainer's state in /v1/status"
            raise StaleModelError(f"the model is {staleness:.3g} s old, {limit:g} s are allowed: {why}")
        return self._view


def as_ids(ids: npt.ArrayLike) -> tuple[Int64Array, tuple[int, ...]]:
    """The int64 ids, flat, and the shape they came in; texts and numbers become ids as in a record."""
    array = np.asarray(ids)
    if array.dtype.kind == "i":
        return array.reshape(-1).astype(np.int64, copy=False), array.shape
    if not isinstance(ids, np.ndarray):
        array = np.asarray(ids, object)  # a list of texts and numbers would all become texts
    flat = [value.item() if isinstance(value, np.generic) else value for value in array.reshape(-1)]
    return np.array([encode_id(value)[0] for value in flat], np.int64), array.shape
