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

from springtide.app.scores.config import RankingRoom
from springtide.app.scores.samples import Arrays
from springtide.kernels.cpu.open_groups import (
    CLOCK,
    HALVINGS,
    NUM_CLOSED,
    NUM_EARLY,
    NUM_GROUPS,
    NUM_SAMPLES,
    NUM_SUMS,
    add_samples,
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
Sums = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]
NAMES = "gauc", "auc", "mrr"  # the metrics without k
NUM_AUCS = 2  # the first of them: they do not depend on how many negatives there are
SAVED = HALVINGS, NUM_CLOSED, NUM_EARLY, CLOCK


class RankingPlan(msgspec.Struct, frozen=True):
    """By which fields samples are grouped, and how groups are measured."""

    request: str | None = None
    group: str | None = None
    at: tuple[int, ...] = ()
    num_bytes: int = 0
    wait_ms: int = 0
    is_sampled: bool = False  # negatives are: places in a ranking are not known

    @property
    def kinds(self) -> tuple[str, ...]:
        """Which of KINDS there are."""
        return tuple(kind for kind in KINDS if getattr(self, kind) is not None)

    def begin(self, num_labels: int) -> "dict[str, RankingScores]":
        """Return scores of nothing, by kind."""
        num_bytes = self.num_bytes // max(1, len(self.kinds))
        return {
            kind: RankingScores(
                num_labels, self.at, num_bytes, self.wait_ms, is_daily=kind == "group", is_sampled=self.is_sampled
            )
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
        """Return the columns by which samples are grouped: hashes, from which an id can be found by trying.

        `request_N`, `group_N`: as a batch has them; a group that is a feature is taken from the features.
        """
        if not self.kinds:
            return {}
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
        self,
        num_labels: int,
        at: Sequence[int],
        num_bytes: int,
        wait_ms: int,
        *,
        is_daily: bool = False,
        is_sampled: bool = False,
    ) -> None:
        """`wait_ms`: a group ends when the event clock is so far past its newest sample, a daily one past its day.

        `is_sampled`: negatives are, so nothing is said of places.
        """
        self.at, self.wait_ms, self.is_daily, self.is_sampled = tuple(at), wait_ms, is_daily, is_sampled
        room = RankingRoom.of(num_labels, len(self.at), num_bytes)
        at_K = np.array(at, np.int64)
        self._groups = empty_groups(room.num_groups, room.num_samples, room.num_window, num_labels, at_K)
        self._sums: tuple[Sums, Sums] | None = None  # of the whole and of the window, since the newest sample

    @property
    def num_bytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in self._groups)

    def add(self, hash_N: npt.NDArray[np.int64], samples: Arrays) -> None:
        """Add scored samples by the hashes of their groups; those without one or without weight do not count."""
        self._sums = None
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

    def document(self, label: int) -> dict[str, Any]:
        """Return the scores of one label.

        Of users the groups that are still open count as they are: a day is long. Requests count when they have ended.
        """
        numbers = self._groups.numbers
        whole, window = self._read_sums()
        return {
            "whole": ranking_document(whole[0][label], whole[1][label], self.at, is_sampled=self.is_sampled),
            "window": ranking_document(window[0][label], window[1][label], self.at, is_sampled=self.is_sampled),
            "num_open": int(numbers[NUM_GROUPS]),
            "num_ended_early": int(numbers[NUM_EARLY]),
            "share": 0.5 ** int(numbers[HALVINGS]),
        }

    def _read_sums(self) -> "tuple[Sums, Sums]":
        """Return sums and totals of all labels, of the whole and of the window."""
        if self._sums is None:
            groups = self._groups
            whole, window = (groups.sums_LM6.copy(), groups.totals_L2.copy()), sum_window(groups)
            if self.is_daily:
                still_open = measure_open(groups)
                whole = whole[0] + still_open[0], whole[1] + still_open[1]
                window = window[0] + still_open[0], window[1] + still_open[1]
            self._sums = whole, window
        return self._sums

    def arrays(self) -> Arrays:
        """Return the state: open groups with their samples, sums, and the newest groups that ended."""
        groups = self._groups
        places_O, samples_N = open_samples(groups)
        num_window = self._num_window
        return {
            "numbers": groups.numbers[list(SAVED)].copy(),
            "keys": groups.keys_G[places_O],
            "hashes": groups.hashes_G[places_O],
            "lists": groups.list_G[places_O],
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
        sizes = [len(SAVED) * 8, *[8 * num_open] * 3, 5 * num_open, *[4 * num_labels * num_samples] * 2]
        return [*sizes, groups.sums_LM6.nbytes, groups.totals_L2.nbytes, self._num_window * per_group]

    def restore(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Continue from what `arrays` returned, in an object of the same settings that has seen nothing."""
        groups, start = self._groups, 0
        groups.numbers[list(SAVED)], self._sums = arrays["numbers"], None
        scores_NL, labels_NL = np.array(arrays["scores"]), np.array(arrays["labels"])
        names = "keys", "hashes", "lists", "expires_ms", "num"
        for *group, num in zip(*(arrays[name].tolist() for name in names), strict=True):
            part = slice(start, start + num)
            restore_group(groups, *group, scores_NL[part], labels_NL[part])
            start += num
        groups.sums_LM6[:], groups.totals_L2[:] = arrays["sums"], arrays["totals"]
        num_window = self._num_window
        groups.window_WLM[:num_window] = arrays["window"]
        groups.window_WL2[:num_window] = arrays["window_weights"]

    @property
    def _num_window(self) -> int:
        return min(int(self._groups.numbers[NUM_CLOSED]), len(self._groups.window_WLM))


def ranking_document(
    sums_M6: npt.NDArray[Any], totals_2: npt.NDArray[Any], at: Sequence[int], *, is_sampled: bool = False
) -> dict[str, Any]:
    """Return metrics with their standard errors from sums over groups: see `kernels.cpu.open_groups`.

    `is_sampled`: negatives are, so what depends on their number is None.
    """
    metrics = [mean_and_error(sums_6) for sums_6 in sums_M6.tolist()]
    if is_sampled:
        metrics[NUM_AUCS:] = [mean_and_error([0] * NUM_SUMS)] * (len(metrics) - NUM_AUCS)
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
