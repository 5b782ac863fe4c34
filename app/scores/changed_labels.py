"""The state of ProgressiveScores for other labels: those that stay keep their scores, a new one has no sample yet."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from springtide.app.scores.progressive import ProgressiveScores
from springtide.app.scores.samples import Arrays


def with_labels(
    state: Mapping[str, npt.NDArray[Any]], old: Sequence[Hashable], new: Sequence[Hashable], *, window_samples: int
) -> Arrays:
    """Return the state with the labels `new`; that of nothing observed where `state` is empty."""
    fresh = ProgressiveScores([str(label) for label in new], window_samples).state()
    if not state:
        return fresh
    places = [old.index(label) if label in old else len(old) for label in new]
    fresh |= {name: array for name, array in state.items() if not name.startswith(("histogram.", "ranking."))}
    if len(new) == len(old):  # else another number of groups has room: they are reset
        fresh |= {
            name: _ranking_of_labels(name, array, places)
            for name, array in state.items()
            if name.startswith("ranking.")
        }
    for name, array in state.items():
        if name in ("window.logits", "window.labels"):
            nothing = np.nan if name == "window.labels" else 0  # masked
            fresh[name] = np.concatenate([array, np.full((len(array), 1), nothing, np.float32)], axis=1)[:, places]
        elif name == "sums" or name.endswith((".score_edges_LB", ".score_counts_LB", ".sums_LQ")):
            fresh[name] = np.concatenate([array, np.zeros((1, array.shape[1]), array.dtype)])[places]
        elif name.startswith("segments.") and name.endswith(".bins"):
            at = name.removesuffix("bins") + "weights"
            fresh[name], fresh[at] = _segments_of_labels(array, state[at], places)
    for place, before in enumerate(places):
        if before < len(old):
            for name in ("bins", "positive", "negative"):
                fresh[f"histogram.{place}.{name}"] = state[f"histogram.{before}.{name}"]
    return fresh


def _ranking_of_labels(name: str, array: npt.NDArray[Any], places: Sequence[int]) -> npt.NDArray[Any]:
    """Return an array of ranking scores for other labels; of a new one nothing is known."""
    axis = {"scores": 1, "labels": 1, "window": 1, "window_weights": 1, "sums": 0, "totals": 0}.get(name.split(".")[-1])
    if axis is None:
        return array
    by_label = np.moveaxis(array, axis, 0)
    nothing = np.nan if name.endswith(".labels") else 0
    by_label = np.concatenate([by_label, np.full((1, *by_label.shape[1:]), nothing, array.dtype)])[np.array(places)]
    return np.ascontiguousarray(np.moveaxis(by_label, 0, axis))


def _segments_of_labels(
    bins_U4: npt.NDArray[Any], weights_U: npt.NDArray[Any], places: Sequence[int]
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return the used bins of the segments' histograms for other labels, in their order."""
    parts, weights = [], []
    for place, before in enumerate(places):
        chosen = np.array(bins_U4[bins_U4[:, 1] == before])
        chosen[:, 1] = place
        parts.append(chosen)
        weights.append(weights_U[bins_U4[:, 1] == before])
    bins_V4 = np.concatenate(parts)
    order = np.lexsort(bins_V4.T[::-1])
    return bins_V4[order], np.concatenate(weights)[order]
