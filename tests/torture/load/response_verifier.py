"""Says whether what was answered is what the version named with it holds: by a follower of the log of its own."""

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

NUM_VIEWS = 300
PATIENCE_SECONDS = 10.0
UNKNOWN, FORGOTTEN = 1, 3


class ResponseVerifier:
    """Keeps the views of the last versions; AssertionError names what an answer has wrong."""

    def __init__(self, log: Path) -> None:
        self._told = threading.Condition()
        self._views: OrderedDict[int, View] = OrderedDict()
        self._passed: set[int] = set()  # that had no view of their own here: several were applied at once
        self.num_compared: dict[str, int] = {}
        self._follower = Follower(LogDirectory(log))
        self._follower.add_listener(self._heard)
        self._follower.on_swap(self._keep)  # a base is a version that no record tells of
        self._follower.start()
        view = self._follower.wait_for_view(60.0)
        assert view is not None, self._follower.error
        self._first = view.version  # what was before, nobody here has seen

    @property
    def num_versions(self) -> int:
        """Published so far."""
        return len(self._passed)

    def check_rows(
        self, who: str, version: int, feature: str, ids: Sequence[Any], rows_KD: Any, status_K: npt.NDArray[np.uint8]
    ) -> None:
        """The rows of some ids, bit by bit."""
        view = self._view(who, version)
        if view is None:
            return
        ids_K = np.array([encode_id(value)[0] for value in ids])
        wanted_KD, wanted_K = view.lookup(np.array([view.schema.number(feature)], np.uint16), ids_K)
        np.testing.assert_array_equal(rows_KD, wanted_KD, f"{who}: rows of version {version}")
        # how long a forgetting is remembered depends on the base that one began with
        gone_K = np.isin(status_K, (UNKNOWN, FORGOTTEN)) & np.isin(wanted_K, (UNKNOWN, FORGOTTEN))
        assert (gone_K | (status_K == wanted_K)).all(), f"{who}: {status_K} is not {wanted_K} of version {version}"

    def check_predictions(
        self, who: str, version: int, instances: Sequence[Mapping[str, Any]], found: list[dict[str, float]]
    ) -> None:
        """The probabilities of some instances; who was scored together with whom changes the last digit."""
        view = self._view(who, version)
        if view is not None:
            wanted = view.predict(encode_instances(view.schema, instances))
            probabilities = [[row[label] for label in view.schema.labels] for row in found]
            np.testing.assert_allclose(probabilities, wanted, rtol=1e-5, err_msg=f"{who}: version {version}")

    def close(self) -> None:
        self._follower.close()

    def _view(self, who: str, version: int) -> View | None:
        """The view; None where it is too long ago."""
        with self._told:
            known = self._told.wait_for(lambda: version in self._passed or version < self._first, PATIENCE_SECONDS)
            assert known, f"{who} answered from version {version}, which nobody published"
            view = self._views.get(version)
        if view is not None:
            self.num_compared[who] = self.num_compared.get(who, 0) + 1
        return view

    def _heard(self, view: View, applied: AppliedVersion, servable_ms: int) -> None:
        if applied.number == view.version:
            self._keep(view)
            return
        with self._told:
            self._passed.add(applied.number)
            self._told.notify_all()

    def _keep(self, view: View) -> None:
        with self._told:
            self._passed.add(view.version)
            self._views[view.version] = view
            while len(self._views) > NUM_VIEWS:
                self._views.popitem(last=False)
            self._told.notify_all()
