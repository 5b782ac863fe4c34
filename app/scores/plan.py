"""The plan of what ProgressiveScores measures: a part of its state, so that every reader of a log measures alike.

A version that begins with another plan carries it; the compactor follows it without reading the configuration.
"""

# N samples
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from springtide.app.scores.config import ScoresConfig
from springtide.app.scores.drift import MAX_COLUMNS, Column, columns_of, feature_codes, next_snapshot, sampling_stride
from springtide.app.scores.samples import Arrays
from springtide.app.scores.segments import BYTES
from springtide_client.features import Features
from springtide_client.schema import Schema

IDS = "segments."  # and a feature's name: the values of samples


class ScoresPlan(msgspec.Struct, frozen=True):
    """Features to split scores by, columns to compare, and when a window becomes a reference."""

    by: tuple[str, ...] = ()
    num_segments: int = 0  # of each feature
    columns: tuple[Column, ...] = ()
    stride: int = 1  # features of every sample whose number this divides are compared
    drift: bool = False
    reference_samples: int = 0

    @staticmethod
    def of(config: ScoresConfig, schema: Schema, window_samples: int) -> "ScoresPlan":
        """Return the plan of a configuration."""
        columns = tuple(columns_of(schema)[:MAX_COLUMNS]) if config.drift else ()
        num_segments = config.segment_bytes // max(1, BYTES * len(schema.labels) * len(config.by))
        stride = sampling_stride(window_samples, len(columns))
        return ScoresPlan(config.by, max(1, num_segments), columns, stride, config.drift, config.reference_samples)

    def to_array(self) -> npt.NDArray[np.uint8]:
        """Return it as a tensor."""
        return np.frombuffer(msgspec.json.encode(self), np.uint8)

    @staticmethod
    def from_array(array: npt.NDArray[Any]) -> "ScoresPlan":
        """Invert `to_array`."""
        return msgspec.json.decode(bytes(array), type=ScoresPlan)

    def next_snapshot(self, num_samples: int, window_samples: int) -> int | None:
        """Return after how many samples the window becomes a reference."""
        return next_snapshot(num_samples, window_samples, self.reference_samples) if self.drift else None

    def take(self, features: Features, schema: Schema, first: int) -> Arrays:
        """Return what is kept of a batch's features, whose first sample has the number `first`."""
        arrays: Arrays = {f"{IDS}{name}": _column(features, schema.categorical, name) for name in self.by}
        if self.columns:
            rows_R = np.arange(-first % self.stride, len(features), self.stride)
            numbers_R = first + rows_R
            arrays["drift.codes"] = feature_codes(features, rows_R, numbers_R // self.stride)[:, : len(self.columns)]
            arrays["drift.numbers"] = numbers_R
        return arrays


def _column(features: Features, names: Sequence[str], name: str) -> npt.NDArray[np.int64]:
    return np.ascontiguousarray(features.categorical_NC[:, names.index(name)])
