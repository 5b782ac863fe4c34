"""Time to live: a row has expired if it was last seen before the expiry cutoff of its feature.

A least last-seen moves on while event time stands still: else rows learned then would all expire at once.
"""

# N rows, F features
from collections.abc import Mapping
from typing import Any

import numpy as np

from springtide.embeddings.config import FeaturePolicy
from springtide.embeddings.rows import BoolArray, Int64Array, UInt16Array
from springtide.kernels.ops import Ops
from springtide.kernels.types import Array

NEVER = 0  # the cutoff of a feature without one: event times are not negative


class ExpiryCutoffs:
    """Cutoffs in ms of event time by feature number. A cutoff never falls. False while no feature has one."""

    def __init__(self) -> None:
        self.by_feature_F: Int64Array = np.zeros(0, np.int64)

    def __bool__(self) -> bool:
        return len(self.by_feature_F) > 0

    def raise_to(self, cutoffs: Mapping[int, int]) -> bool:
        """Raise the cutoffs that are lower than these. Return True if any was."""
        raised = {feature: ms for feature, ms in cutoffs.items() if ms > self.of(feature)}
        if raised:
            by_feature_F = np.full(max(len(self.by_feature_F), max(raised) + 1), NEVER, np.int64)
            by_feature_F[: len(self.by_feature_F)] = self.by_feature_F
            for feature, ms in raised.items():
                by_feature_F[feature] = ms
            self.by_feature_F = by_feature_F
        return bool(raised)

    def of(self, feature: int) -> int:
        return int(self.by_feature_F[feature]) if feature < len(self.by_feature_F) else NEVER

    def alive(self, features_N: UInt16Array, last_seen_N: Int64Array) -> BoolArray:
        """Which of these rows have not expired."""
        known_N = features_N < len(self.by_feature_F)
        cutoffs_N = np.full(len(features_N), NEVER, np.int64)
        cutoffs_N[known_N] = self.by_feature_F[features_N[known_N]]
        alive_N: BoolArray = last_seen_N >= cutoffs_N
        return alive_N

    def last_seen_after_update(self, ops: Ops, features_N: Array, last_seen_N: Array, floor_ms: int = 0) -> Array:
        """The last-seen of rows updated at these times: at least the cutoff, so that an update keeps a row alive.

        Arrays of the device of `ops`. `floor_ms`: of LastSeenFloor.
        """
        if floor_ms:
            last_seen_N = ops.xp.maximum(last_seen_N, np.int64(floor_ms))
        if not self:
            return last_seen_N
        (cutoffs_F1,) = ops.put(np.append(self.by_feature_F, NEVER))  # the last one is for all features beyond
        features_N = ops.xp.minimum(features_N.astype(np.int32), len(self.by_feature_F))
        return ops.xp.maximum(last_seen_N, cutoffs_F1[features_N])

    def as_dict(self) -> dict[int, int]:
        """The cutoffs of the features that have one."""
        return {int(feature): int(self.by_feature_F[feature]) for feature in np.flatnonzero(self.by_feature_F)}


class TimeToLive:
    """Raises the cutoffs as event time passes, never by wall time, so that the same stream expires the same rows."""

    def __init__(self, cutoffs: ExpiryCutoffs, features: Mapping[int, FeaturePolicy]) -> None:
        self.cutoffs = cutoffs
        self.event_ms = 0
        self._ttl_ms = {f: _ms(policy.ttl_seconds) for f, policy in features.items() if policy.ttl_seconds is not None}

    def set_ttl(self, ttl_seconds: Mapping[int, float | None]) -> None:
        """Change the TTL of features; None: their rows no longer expire. What has expired stays expired."""
        for feature, seconds in ttl_seconds.items():
            if seconds is None:
                self._ttl_ms.pop(feature, None)
            else:
                self._ttl_ms[feature] = _ms(seconds)

    def advance(self, event_ms: int) -> None:
        """Advance event time; it never goes back."""
        self.event_ms = max(self.event_ms, event_ms)
        self.cutoffs.raise_to({feature: self.event_ms - ttl for feature, ttl in self._ttl_ms.items()})


def _ms(seconds: float) -> int:
    return round(1000 * seconds)


ROWS_PARTS = 512  # of the rows that the disk can hold: at most so many keys share one last-seen


class LastSeenFloor:
    """Advances by keys looked up, never by wall time, so that the same stream gives the same last-seen.

    A millisecond is added whenever many keys were looked up since event time moved last.
    """

    def __init__(self, disk_bytes: int, row_bytes: int) -> None:
        self.ms = 0
        self._row_bytes = row_bytes
        self._clock_ms = 0  # the newest last-seen that was given
        self._num_keys = 0  # looked up since
        self.set_limit(disk_bytes)

    def set_limit(self, disk_bytes: int) -> None:
        self._max_keys = max(1, disk_bytes // self._row_bytes // ROWS_PARTS)

    def advance(self, event_ms: int) -> None:
        """Before a batch: note event time, and move on if it has stood still for too many keys."""
        if event_ms > self._clock_ms:
            self._clock_ms, self._num_keys = event_ms, 0
        elif self._num_keys >= self._max_keys:
            self.ms = self._clock_ms = self._clock_ms + 1
            self._num_keys = 0

    def add_keys(self, num_keys: int) -> None:
        """Count keys that were looked up."""
        self._num_keys += num_keys

    def state(self) -> dict[str, int]:
        """The state that a version contains."""
        return {"ms": self.ms, "clock_ms": self._clock_ms, "num_keys": self._num_keys}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned."""
        self.ms, self._clock_ms = int(state.get("ms", 0)), int(state.get("clock_ms", 0))
        self._num_keys = int(state.get("num_keys", 0))
