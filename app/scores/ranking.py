"""Ranking scores: GAUC, AUC, MRR, NDCG@k and recall@k of groups of samples, a request's or a user's of a day.

GAUC is the mean of the groups' AUCs by their samples (Zhou et al. 2018), and all others are means over groups. Standard
errors take groups as independent.
"""

# N samples, L labels, M metrics, O open groups, W of the newest groups that ended
import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from springtide.app.scores.samples import Arrays
from springtide.kernels.cpu.open_groups import (
    CLOCK,
    HALVINGS,
    MAX_SAMPLES,
    NUM_CLOSED,
    NUM_EARLY,
    NUM_GROUPS,
    NUM_SAMPLES,
    NUM_SUMS,
    add_samples,
    close_all,
    empty_groups,
    measure_open,
    open_samples,
    restore_group,
    sum_window,
)
from springtide_client.features import Features
from springtide_client.keys import MISSING_ID, mix64_array
from springtide_client.schema import Schema

EVENT_MS = "ranking.event_ms"  # columns of scored samples; those of groups are "ranking.request" and "ranking.group"
KINDS = "request", "group"
SAMPLES_PER_GROUP = 8  # for which there is room when all groups are open
WINDOW_GROUPS = 20_000
NAMES = "gauc", "auc", "mrr"  # the metrics without k
SAVED = HALVINGS, NUM_CLOSED, NUM_EARLY, CLOCK


class RankingPlan(msgspec.Struct, frozen=True):
    """By which fields samples are grouped, and how groups are measured."""

    request: str | None = None
    group: str | None = None
    at: tuple[int, ...] = ()
    num_bytes: int = 0
    wait_ms: int = 0

    @property
    def kinds(self) -> tuple[str, ...]:
        """Which of KINDS there are."""
        return tuple(kind for kind in KINDS if getattr(self, kind) is not None)

    def begin(self, num_labels: int) -> "dict[str, RankingScores]":
        """Return scores of nothing, by kind."""
        num_bytes = self.num_bytes // max(1, len(self.kinds))
        return {
            kind: RankingScores(num_labels, self.at, num_bytes, self.wait_ms, is_daily=kind == "group")
            for kind in self.kinds
        }

    def take(
        self,
        features: Features,
        schema: Schema,
        event_ms_N: npt.NDArray[np.int64],
        request_N: npt.NDArray[np.int64] | None,
        group_N: npt.NDArray[np.int64] | None,
    ) -> Arrays:
        """Return the columns by which samples are grouped: hashes, from which nobody reads an id.

        `request_N`, `group_N`: as a batch has them; a group that is a feature is taken from the features.
        """
        arrays: Arrays = {}
        for kind, ids_N in (("request", request_N), ("group", group_N)):
            name = getattr(self, kind)
            if name in schema.categorical:
                ids_N = features.categorical_NC[:, schema.categorical.index(name)]
            if name is not None and ids_N is not None:
                hash_N = mix64_array(ids_N.astype(np.uint64)).astype(np.int64)
                arrays[f"ranking.{kind}"] = np.where(ids_N == MISSING_ID, MISSING_ID, hash_N)
        return arrays | {EVENT_MS: event_ms_N} if arrays else {}


class RankingScores:
    """Metrics by group, for the whole run and the newest groups, in a fixed number of bytes."""

    def __init__(
        self, num_labels: int, at: Sequence[int], num_bytes: int, wait_ms: int, *, is_daily: bool = False
    ) -> None:
        """`wait_ms`: a group ends when the event clock is so far past its newest sample, a daily one past its day."""
        self.at, self.wait_ms, self.is_daily = tuple(at), wait_ms, is_daily
        num_metrics = len(NAMES) + 2 * len(at)
        window_bytes = 4 * num_labels * (num_metrics + 2)
        num_window = max(1, min(WINDOW_GROUPS, num_bytes // 4 // window_bytes))
        sample_bytes, group_bytes = 8 * num_labels + 4, 4 * num_labels * num_metrics + 69
        left = num_bytes - num_window * window_bytes - 2 * window_bytes * NUM_SUMS - 8 * MAX_SAMPLES
        num_groups = max(256, left // (group_bytes + SAMPLES_PER_GROUP * sample_bytes))
        at_K = np.array(at, np.int64)
        self._groups = empty_groups(num_groups, SAMPLES_PER_GROUP * num_groups, num_window, num_labels, at_K)

    @property
    def num_bytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in self._groups)

    def add(self, hash_N: npt.NDArray[np.int64], samples: Arrays) -> None:
        """Add scored samples by the hashes of their groups; those without one or without weight do not count."""
        is_known_N = (hash_N != MISSING_ID) & (samples["weights"] > 0)
        add_samples(
            self._groups,
            np.ascontiguousarray(hash_N),
            is_known_N,
            np.ascontiguousarray(samples[EVENT_MS]),
            np.ascontiguousarray(samples["logits"], np.float32),
            np.ascontiguousarray(samples["labels"], np.float32),
            self.wait_ms,
            self.is_daily,
        )

    def close(self) -> None:
        """End all groups: no sample follows."""
        close_all(self._groups)

    def document(self, label: int) -> dict[str, Any]:
        """Return the scores of one label.

        Of users the groups that are still open count as they are: a day is long. Requests count when they have ended.
        """
        groups, numbers = self._groups, self._groups.numbers
        whole, window = (groups.sums_LM6, groups.totals_L2), sum_window(groups)
        if self.is_daily:
            still_open = measure_open(groups)
            whole = whole[0] + still_open[0], whole[1] + still_open[1]
            window = window[0] + still_open[0], window[1] + still_open[1]
        return {
            "whole": ranking_document(whole[0][label], whole[1][label], self.at),
            "window": ranking_document(window[0][label], window[1][label], self.at),
            "num_open": int(numbers[NUM_GROUPS]),
            "num_ended_early": int(numbers[NUM_EARLY]),
            "share": 0.5 ** int(numbers[HALVINGS]),
        }

    def arrays(self) -> Arrays:
        """Return the state: open groups with their samples, sums, and the newest groups that ended."""
        groups = self._groups
        places_O, samples_N = open_samples(groups)
        num_window = self._num_window
        return {
            "numbers": groups.numbers[list(SAVED)].copy(),
            "keys": groups.keys_G[places_O],
            "hashes": groups.hashes_G[places_O],
            "expires_ms": groups.expires_ms_G[places_O],
            "num": groups.num_G[places_O],
            "scores": groups.scores_SL[samples_N],
            "labels": groups.labels_SL[samples_N],
            "sums": groups.sums_LM6.copy(),
            "totals": groups.totals_L2.copy(),
            "window": groups.window_WLM[:num_window].copy(),
            "window_weights": groups.window_WL2[:num_window].copy(),
        }

    def state_sizes(self) -> list[int]:
        """Return the bytes of each array of `arrays`."""
        groups, num_labels = self._groups, len(self._groups.totals_L2)
        num_open, num_samples = int(groups.numbers[NUM_GROUPS]), int(groups.numbers[NUM_SAMPLES])
        per_group = 4 * num_labels * (len(NAMES) + 2 * len(self.at) + 2)
        sizes = [len(SAVED) * 8, *[8 * num_open] * 3, 4 * num_open, *[4 * num_labels * num_samples] * 2]
        return [*sizes, groups.sums_LM6.nbytes, groups.totals_L2.nbytes, self._num_window * per_group]

    def restore(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Continue from what `arrays` returned, in an object of the same settings that has seen nothing."""
        groups, start = self._groups, 0
        groups.numbers[list(SAVED)] = arrays["numbers"]
        scores_NL, labels_NL = np.array(arrays["scores"]), np.array(arrays["labels"])
        for key, hash, expires_ms, num in zip(
            *(arrays[name].tolist() for name in ("keys", "hashes", "expires_ms", "num")), strict=True
        ):
            part = slice(start, start + num)
            restore_group(groups, key, hash, expires_ms, scores_NL[part], labels_NL[part])
            start += num
        groups.sums_LM6[:], groups.totals_L2[:] = arrays["sums"], arrays["totals"]
        num_window = self._num_window
        groups.window_WLM[:num_window] = arrays["window"]
        groups.window_WL2[:num_window] = arrays["window_weights"]

    @property
    def _num_window(self) -> int:
        return min(int(self._groups.numbers[NUM_CLOSED]), len(self._groups.window_WLM))


def ranking_document(sums_M6: npt.NDArray[Any], totals_2: npt.NDArray[Any], at: Sequence[int]) -> dict[str, Any]:
    """Return metrics with their standard errors from sums over groups: see `kernels.cpu.open_groups`."""
    metrics = [mean_and_error(sums_6) for sums_6 in sums_M6.tolist()]
    plain = dict(zip(NAMES, metrics, strict=False))
    ndcg, recall = metrics[len(NAMES) : len(NAMES) + len(at)], metrics[len(NAMES) + len(at) :]
    num_groups, num_samples = totals_2.tolist()
    return {
        "groups": num_groups,
        "samples": num_samples,
        # only these have an AUC
        "samples_with_both": float(sums_M6[0, 1]) / num_samples if num_samples else None,
        **plain,
        "ndcg": {str(k): each for k, each in zip(at, ndcg, strict=True)},
        "recall": {str(k): each for k, each in zip(at, recall, strict=True)},
    }


def mean_and_error(sums_6: Sequence[float]) -> dict[str, float | None]:
    """Return a weighted mean and its standard error from number, w, w x, w^2, w^2 x, w^2 x^2; None if undefined."""
    num, w, wx, w2, w2x, w2x2 = sums_6
    if not num:
        return {"value": None, "standard_error": None}
    mean = wx / w
    if num < 2:
        return {"value": mean, "standard_error": None}
    squares = max(w2x2 - 2 * mean * w2x + mean * mean * w2, 0.0)
    return {"value": mean, "standard_error": math.sqrt(squares * num / (num - 1)) / w}
