"""Batches of samples that a test or a benchmark made itself."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from springtide.stream.columns import Batch
from springtide.stream.positions import Partition
from springtide_client.features import Features


def batch_of(
    features: Features,
    labels_NL: npt.ArrayLike,
    times_N: npt.ArrayLike = 0,
    positions: Mapping[Partition, int] | None = None,
) -> Batch:
    """Return samples of weight 1.

    labels_NL: 0 or 1 of any type, (N) of one label; times_N: in ms, of events and records, or one time for all.
    """
    labels_NL = np.asarray(labels_NL, np.float32)
    if labels_NL.ndim == 1:
        labels_NL = labels_NL[:, None]
    times_N = np.full(len(features), times_N, np.int64)
    return Batch(features, labels_NL, np.ones(len(features), np.float32), times_N, times_N, dict(positions or {}))


def cut(batch: Batch, start: int, stop: int) -> Batch:
    """Return the samples from `start` to `stop`, or to the end, without positions."""
    rows = slice(start, min(stop, len(batch)))
    return replace(
        batch,
        features=batch.features.slice(rows.start, rows.stop),
        labels_NL=batch.labels_NL[rows],
        weights_N=batch.weights_N[rows],
        event_ms_N=batch.event_ms_N[rows],
        record_ms_N=batch.record_ms_N[rows],
        positions={},
    )
