"""Forgetting by rule: a row of a feature is alive where it was last seen at or after the feature's horizon."""

# N rows, F features
from collections.abc import Mapping

import numpy as np

from embeddings.rows import BoolArray, Int64Array, UInt16Array
from kernels.ops import Ops
from kernels.types import Array

NEVER = 0  # the horizon of a feature without a rule: event times begin there


class ExpiryCutoffs:
    """Horizons in ms of event time by feature number; they only rise. False where no rule was ever made."""

    def __init__(self) -> None:
        self.by_feature_F: Int64Array = np.zeros(0, np.int64)

    def __bool__(self) -> bool:
        return len(self.by_feature_F) > 0

    def raise_to(self, horizons: Mapping[int, int]) -> bool:
        """Whether any horizon rose."""
        risen = {feature: ms for feature, ms in horizons.items() if ms > self.of(feature)}
        if risen:
            by_feature_F = np.full(max(len(self.by_feature_F), max(risen) + 1), NEVER, np.int64)
            by_feature_F[: len(self.by_feature_F)] = self.by_feature_F
            for feature, ms in risen.items():
                by_feature_F[feature] = ms
            self.by_feature_F = by_feature_F
        return bool(risen)

    def of(self, feature: int) -> int:
        return int(self.by_feature_F[feature]) if feature < len(self.by_feature_F) else NEVER

    def alive(self, features_N: UInt16Array, last_seen_N: Int64Array) -> BoolArray:
        """Which of these rows are not forgotten by rule."""
        alive_N: BoolArray = last_seen_N >= self._of_each_row(features_N)
        return alive_N

    def last_seen_after_touch(self, ops: Ops, features_N: Array, last_seen_N: Array) -> Array:
        """When rows touched at these times count as last seen: a touched row is alive. Arrays of the ops' device."""
        if not self:
            return last_seen_N
        (horizons_F1,) = ops.put(np.append(self.by_feature_F, NEVER))  # the last one is of all features beyond
        features_N = ops.xp.minimum(features_N.astype(np.int32), len(self.by_feature_F))
        return ops.xp.maximum(last_seen_N, horizons_F1[features_N])

    def as_dict(self) -> dict[int, int]:
        """The horizons that were ever raised."""
        return {int(feature): int(self.by_feature_F[feature]) for feature in np.flatnonzero(self.by_feature_F)}

    def _of_each_row(self, features_N: UInt16Array) -> Int64Array:
        known_N = features_N < len(self.by_feature_F)
        horizons_N = np.full(len(features_N), NEVER, np.int64)
        horizons_N[known_N] = self.by_feature_F[features_N[known_N]]
        return horizons_N
