"""Compare responses with the version that they name, by a follower of the log in this process."""

# K keys, D dimension
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from springtide_client.encode import encode_instances
from springtide_client.follow.follower import AppliedVersion, Follower
from springtide_client.keys import encode_id
from springtide_client.log.directory import LogDirectory
from springtide_client.model.view import View
from tests.support.waiting import DEADLINE_SECONDS

NUM_VIEWS = 300
UNKNOWN, FORGOTTEN = 1, 3


class ResponseVerifier:
    """Keeps the views of the newest versions; a wrong response raises AssertionError."""

    def __init__(self, log: Path) -> None:
        self._changed = threading.Condition()
        self._views: OrderedDict[int, View] = OrderedDict()
        self._passed: set[int] = set()  # versions seen; some have no view because several were applied at once
        self.num_compared: dict[str, int] = {}
        self._follower = Follower(LogDirectory(log))
        self._follower.add_listener(self._on_version)
        self._follower.on_swap(self._keep)  # a base is a version without a record
        self._follower.start()
        view = self._follower.wait_for_view(DEADLINE_SECONDS)
        assert view is not None, self._follower.error
        self._first = view.version  # older versions cannot be compared

    @property
    def num_versions(self) -> int:
        """Return the number of versions published so far."""
        return len(self._passed)

    def check_rows(
        self, kind: str, version: int, feature: str, ids: Sequence[Any], rows_KD: Any, status_K: npt.NDArray[np.uint8]
    ) -> None:
        """Compare the rows of some ids bitwise."""
        view = self._view(kind, version)
        if view is None:
            return
        ids_K = np.array([encode_id(value)[0] for value in ids])
        expected_KD, expected_K = view.lookup(np.array([view.schema.number(feature)], np.uint16), ids_K)
        np.testing.assert_array_equal(rows_KD, expected_KD, f"{kind}: rows of version {version}")
        # an erased id is `forgotten` or `unknown`, depending on the base that a reader started from
        gone_K = np.isin(status_K, (UNKNOWN, FORGOTTEN)) & np.isin(expected_K, (UNKNOWN, FORGOTTEN))
        assert (gone_K | (status_K == expected_K)).all(), f"{kind}: {status_K} is not {expected_K} of version {version}"

    def check_predictions(
        self, kind: str, version: int, instances: Sequence[Mapping[str, Any]], found: list[dict[str, float]]
    ) -> None:
        """Compare the probabilities of some instances; the last digit depends on the size of the micro-batch."""
        view = self._view(kind, version)
        if view is not None:
            expected = view.predict(encode_instances(view.schema, instances))
            probabilities = [[row[label] for label in view.schema.labels] for row in found]
            np.testing.assert_allclose(probabilities, expected, rtol=1e-5, err_msg=f"{kind}: version {version}")

    def close(self) -> None:
        self._follower.close()

    def _view(self, kind: str, version: int) -> View | None:
        """Return the version's view; None if it is too old."""
        with self._changed:
            known = self._changed.wait_for(lambda: version in self._passed or version < self._first, DEADLINE_SECONDS)
            assert known, f"{kind} responded from version {version}, which was never published"
            view = self._views.get(version)
        if view is not None:
            self.num_compared[kind] = self.num_compared.get(kind, 0) + 1
        return view

    def _on_version(self, view: View, applied: AppliedVersion, servable_ms: int) -> None:
        if applied.number == view.version:
            self._keep(view)
            return
        with self._changed:
            self._passed.add(applied.number)
            self._changed.notify_all()

    def _keep(self, view: View) -> None:
        with self._changed:
            self._passed.add(view.version)
            self._views[view.version] = view
            while len(self._views) > NUM_VIEWS:
                self._views.popitem(last=False)
            self._changed.notify_all()
