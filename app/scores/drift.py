"""Drift: the newest samples against an earlier window, by population stability indices of labels, scores, features."""

# B bins
# N samples, R of them chosen, D columns
# L labels, R sampled rows of the window, D columns, B bins
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from springtide.app.scores.samples import Arrays, samples_of_label
from springtide_client.features import Features
from springtide_client.keys import MISSING_ID
from springtide_client.schema import Schema

MODERATE, LARGE = 0.1, 0.25
# two samples of one distribution differ by (bins - 1) (1/n + 1/m) on average; so many times that is no chance
CHANCE = 4.0

Level = Literal["none", "moderate", "large"]
LEVELS: tuple[Level, ...] = ("none", "moderate", "large")
Counts = npt.NDArray[Any]


def psi(reference_B: Counts, recent_B: Counts) -> float | None:
    """Return the index of two histograms with the same bins; None if one is empty.

    Half a sample is added to each bin that either uses, so that an empty one does not make it infinite.
    """
    used_B = (reference_B > 0) | (recent_B > 0)
    if not reference_B.sum() > 0 or not recent_B.sum() > 0:
        return None
    q_B, p_B = reference_B[used_B] + 0.5, recent_B[used_B] + 0.5
    q_B, p_B = q_B / q_B.sum(), p_B / p_B.sum()
    return float(((p_B - q_B) * np.log(p_B / q_B)).sum())


def psi_level(index: float, reference_B: Counts, recent_B: Counts) -> Level:
    """Return what an index of these histograms means; one that chance explains means nothing."""
    num_bins = int(((reference_B > 0) | (recent_B > 0)).sum())
    chance = (num_bins - 1) * (1 / float(reference_B.sum()) + 1 / float(recent_B.sum()))
    if index < max(MODERATE, CHANCE * chance):
        return "none"
    return "large" if index >= LARGE else "moderate"


MISSING, ABSENT = 0, 1  # a missing value; a column that did not exist when the sample was seen
Codes = npt.NDArray[np.uint32]
MULTIPLIER = np.uint64(0x9E37_79B9_7F4A_7C15)


class Column(NamedTuple):
    """One column of codes: of a categorical feature, of a list's values or its length, or of a number."""

    name: str
    is_number: bool


def columns_of(schema: Schema) -> list[Column]:
    """Return the columns of a schema: categorical, then two for each list, then dense."""
    columns = [Column(name, False) for name in schema.categorical]
    for name in schema.lists:
        columns += [Column(name, False), Column(f"length of {name}", True)]
    return columns + [Column(name, True) for name in schema.dense]


def feature_codes(features: Features, rows_R: npt.NDArray[np.int64], turns_R: npt.NDArray[np.int64]) -> Codes:
    """Return the codes of the samples `rows_R`, uint32 (R, D).

    Of a list one element stands for all: the one whose turn it is, so that over the samples each counts alike.
    """
    parts = [id_codes(features.categorical_NC[rows_R])]
    for ragged in features.lists:
        starts_R = ragged.offsets[rows_R]
        lengths_R = ragged.offsets[rows_R + 1] - starts_R
        values_R = np.full(len(rows_R), MISSING_ID, np.int64)
        full = np.flatnonzero(lengths_R)
        values_R[full] = ragged.ids_M[starts_R[full] + turns_R[full] % lengths_R[full]]
        parts += [id_codes(values_R[:, None]), number_codes(lengths_R.astype(np.float32)[:, None])]
    parts.append(number_codes(features.dense_NF[rows_R]))
    return np.concatenate(parts, axis=1)


def id_codes(ids: npt.NDArray[np.int64]) -> Codes:
    """Return a hash of 16 bits: it does not reveal the id, and few frequent ids share one."""
    words = ids.view(np.uint64) if ids.flags.c_contiguous else np.ascontiguousarray(ids).view(np.uint64)
    hashed = ((words ^ (words >> np.uint64(32))) * MULTIPLIER) >> np.uint64(48)
    return np.where(ids == MISSING_ID, MISSING, hashed % np.uint64(65534) + np.uint64(2)).astype(np.uint32)


def number_codes(values: npt.NDArray[np.float32]) -> Codes:
    """Return codes in the order of the numbers; NaN is MISSING."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    ordered = np.where(bits >> np.uint32(31), ~bits, bits | np.uint32(1 << 31))
    return np.where(np.isnan(values), np.uint32(MISSING), ordered)


SAMPLED = 1024  # rows of a window; PSI of two such samples of one distribution is about 0.02
MAX_BYTES = 1 << 20  # of the rows of a window: many columns are sampled more thinly
MAX_COLUMNS = 1024  # the features after them are not compared
MAX_VALUES = 16  # of an id feature with a bin of their own
MIN_SHARE = 0.01  # of the reference, for a value to have one
NUM_TENTHS = 10  # bins of a number or a score: tenths of the reference
OTHERS, MISSING_BIN, NUM_BINS = MAX_VALUES, MAX_VALUES + 1, MAX_VALUES + 2
MAX_SHOWN = 50  # features, those that drift most

# a label's rate has also changed if it is so many times what it was, and significantly
RATE_MODERATE, RATE_LARGE, RATE_SIGMAS = 1.25, 2.0, 6.0


def sampling_stride(window_samples: int, num_columns: int) -> int:
    """Return k: features of every k-th sample are compared."""
    rows = max(1, min(SAMPLED, MAX_BYTES // (4 * max(1, num_columns))))
    return max(1, -(-window_samples // rows))


def next_snapshot(num_samples: int, window_samples: int, reference_samples: int) -> int | None:
    """Return after how many samples the window is next kept as a reference: at 1, 2, 4, 8 ... windows, then regularly.

    `reference_samples` 0: once, after the first window.
    """
    if not reference_samples:
        return window_samples if num_samples < window_samples else None
    every = max(reference_samples, window_samples)
    if num_samples >= every:
        return (num_samples // every + 1) * every
    point = window_samples
    while point <= num_samples:
        point *= 2
    return min(point, every)


class Snapshot(NamedTuple):
    """A window as a reference: bins, and how much of it is in each."""

    number: np.int64  # samples until its end
    bins_DB: Codes  # (D, MAX_VALUES): an id column's most frequent codes, a number column's inner edges; rest 0
    counts_DB: npt.NDArray[np.int64]  # (D, NUM_BINS)
    score_edges_LB: npt.NDArray[np.float64]  # (L, NUM_TENTHS - 1)
    score_counts_LB: npt.NDArray[np.int64]  # (L, NUM_TENTHS)
    sums_LQ: npt.NDArray[np.float64]  # (L, 2): weight and positive weight


class WindowDrift:
    """The sampled rows of the newest window, the reference, and the one that follows it."""

    def __init__(self, labels: Sequence[str], columns: Sequence[Column] = ()) -> None:
        self.labels, self.columns = tuple(labels), tuple(columns)
        self.codes_RD = np.zeros((0, len(self.columns)), np.uint32)
        self.numbers_R = np.zeros(0, np.int64)  # of the samples
        self.reference: Snapshot | None = None
        self.next: Snapshot | None = None

    def add(self, codes_RD: Codes, numbers_R: npt.NDArray[np.int64], *, first: int) -> None:
        """Add sampled rows, and drop those before the sample `first`."""
        numbers_R = np.concatenate([self.numbers_R, numbers_R])
        kept = slice(int(np.searchsorted(numbers_R, first)), None)
        self.codes_RD = np.concatenate([self.codes_RD, codes_RD])[kept].copy()
        self.numbers_R = numbers_R[kept].copy()

    def take_snapshot(self, number: int, window: Arrays) -> None:
        """Make the next reference the present one, and the window the next; the first window is both."""
        self.reference, self.next = self.next, self._snapshot(number, window)
        self.reference = self.reference or self.next

    def set_columns(self, columns: Sequence[Column]) -> None:
        """Continue with other columns; one that is new has no values until now, and no reference."""
        before = {column: place for place, column in enumerate(self.columns)}
        places = [before.get(column, len(self.columns)) for column in columns]
        absent_R1 = np.full((len(self.codes_RD), 1), ABSENT, np.uint32)
        self.codes_RD = np.concatenate([self.codes_RD, absent_R1], axis=1)[:, places]
        self.reference, self.next = (
            None
            if each is None
            else each._replace(bins_DB=_with_zeros(each.bins_DB, places), counts_DB=_with_zeros(each.counts_DB, places))
            for each in (self.reference, self.next)
        )
        self.columns = tuple(columns)

    def arrays(self) -> Arrays:
        """Return the state but the columns."""
        arrays: Arrays = {"codes": self.codes_RD.copy(), "numbers": self.numbers_R.copy()}
        for name, snapshot in (("reference", self.reference), ("next", self.next)):
            if snapshot is not None:
                arrays |= {f"{name}.{field}": np.array(value) for field, value in snapshot._asdict().items()}
        return arrays

    def restore(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Continue from what `arrays` returned, of the same columns."""
        self.codes_RD, self.numbers_R = np.array(arrays["codes"]), np.array(arrays["numbers"])
        self.reference, self.next = (_snapshot_of(arrays, f"{name}.") for name in ("reference", "next"))

    def document(self, number: int, window: Arrays) -> dict[str, Any] | None:
        """Return the window after `number` samples beside the reference; None while there is no reference."""
        if self.reference is None:
            return None
        reference, present = self.reference, self._snapshot(number, window, self.reference)
        features = sorted(self._features(reference, present), key=lambda each: -each["psi"])
        labels = {
            label: _label_drift(reference, present, place)
            for place, label in enumerate(self.labels)
            if reference.sums_LQ[place, 0] > 0 and present.sums_LQ[place, 0] > 0
        }
        levels = [each["level"] for each in features]
        levels += [part["level"] for label in labels.values() for part in (label["label_rate"], label["score"])]
        return {
            "level": max(levels, key=LEVELS.index, default="none"),
            "most": features[0]["name"] if features and features[0]["level"] != "none" else None,
            "reference_until": int(reference.number),
            "recent_until": number,
            "labels": labels,
            "features": features[:MAX_SHOWN],
        }

    def _features(self, reference: Snapshot, present: Snapshot) -> Iterator[dict[str, Any]]:
        for column, before_B, now_B in zip(self.columns, reference.counts_DB, present.counts_DB, strict=True):
            if (index := psi(before_B, now_B)) is not None:
                yield {
                    "name": column.name,
                    "psi": index,
                    "level": psi_level(index, before_B, now_B),
                    "missing": float(now_B[MISSING_BIN] / now_B.sum()),
                    "reference_missing": float(before_B[MISSING_BIN] / before_B.sum()),
                }

    def _snapshot(self, number: int, window: Arrays, like: Snapshot | None = None) -> Snapshot:
        """Return the window; in bins of its own, or in those of another."""
        num_columns, num_labels = len(self.columns), len(self.labels)
        bins_DB = np.zeros((num_columns, MAX_VALUES), np.uint32) if like is None else like.bins_DB
        counts_DB = np.zeros((num_columns, NUM_BINS), np.int64)
        for place, column in enumerate(self.columns):
            codes = self.codes_RD[:, place]
            if like is None:
                bins_DB[place] = _tenths_of_codes(codes) if column.is_number else _frequent_codes(codes)
            counts_DB[place] = (_count_numbers if column.is_number else _count_ids)(codes, bins_DB[place])
        edges_LB = np.zeros((num_labels, NUM_TENTHS - 1)) if like is None else like.score_edges_LB
        score_counts_LB, sums_LQ = np.zeros((num_labels, NUM_TENTHS), np.int64), np.zeros((num_labels, 2))
        for place in range(num_labels):
            each = samples_of_label(window, place)
            if like is None:
                edges_LB[place] = _inner_edges(np.sort(each.scores_N), NUM_TENTHS)
            at_N = np.searchsorted(edges_LB[place], each.scores_N, side="right")
            score_counts_LB[place] = np.bincount(at_N, minlength=NUM_TENTHS)
            sums_LQ[place] = each.weights_N.sum(), each.positive_N.sum()
        return Snapshot(np.int64(number), bins_DB, counts_DB, edges_LB, score_counts_LB, sums_LQ)


def _snapshot_of(arrays: Mapping[str, npt.NDArray[Any]], prefix: str) -> Snapshot | None:
    """Return the snapshot among the arrays, if there is one."""
    found: list[Any] = [np.array(arrays[f"{prefix}{field}"]) for field in Snapshot._fields if prefix + field in arrays]
    return Snapshot(*found) if found else None


def _label_drift(reference: Snapshot, present: Snapshot, place: int) -> dict[str, Any]:
    (weight_before, positive_before), (weight, positive) = reference.sums_LQ[place], present.sums_LQ[place]
    before, now = positive_before / weight_before, positive / weight
    classes_before = np.array([positive_before, weight_before - positive_before])
    classes = np.array([positive, weight - positive])
    index = psi(classes_before, classes) or 0.0
    level = psi_level(index, classes_before, classes)
    error = np.sqrt(before * (1 - before) / weight_before + now * (1 - now) / weight)
    ratio = max(before, now) / min(before, now) if min(before, now) > 0 else np.inf
    if abs(now - before) > RATE_SIGMAS * error and ratio >= RATE_MODERATE:
        rate_level: Level = "large" if ratio >= RATE_LARGE else "moderate"
        level = max(level, rate_level, key=LEVELS.index)
    rate = {"reference": float(before), "recent": float(now), "psi": index, "level": level}
    scores_before, scores = reference.score_counts_LB[place], present.score_counts_LB[place]
    score_index = psi(scores_before, scores) or 0.0
    return {
        "label_rate": rate,
        "score": {"psi": score_index, "level": psi_level(score_index, scores_before, scores)},
    }


def _frequent_codes(codes_R: Codes) -> Codes:
    """Return the most frequent codes of a column, most first, then zeros."""
    codes, counts = np.unique(codes_R[codes_R > ABSENT], return_counts=True)
    frequent = np.flatnonzero(counts >= MIN_SHARE * (codes_R != ABSENT).sum())
    chosen = codes[frequent[np.argsort(-counts[frequent], kind="stable")][:MAX_VALUES]]
    return np.pad(chosen, (0, MAX_VALUES - len(chosen)))


def _tenths_of_codes(codes_R: Codes) -> Codes:
    """Return the codes between a number column's tenths, then zeros."""
    return np.pad(_inner_edges(np.sort(codes_R[codes_R > ABSENT]), NUM_TENTHS), (0, MAX_VALUES - NUM_TENTHS + 1))


def _inner_edges(sorted_R: npt.NDArray[Any], num: int) -> npt.NDArray[Any]:
    """Return the values at 1/num, 2/num ... of sorted values; zeros if there are none."""
    if not len(sorted_R):
        return np.zeros(num - 1, sorted_R.dtype)
    return sorted_R[np.arange(1, num) * len(sorted_R) // num]


def _count_ids(codes_R: Codes, bins_B: Codes) -> npt.NDArray[np.int64]:
    """Return how many rows have each of the frequent codes, another one, or none."""
    values, counts = np.unique(codes_R[codes_R != ABSENT], return_counts=True)
    found = dict(zip(values.tolist(), counts.tolist(), strict=True))
    frequent = [found.pop(code, 0) if code else 0 for code in bins_B.tolist()]
    missing = found.pop(MISSING, 0)
    return np.array([*frequent, sum(found.values()), missing], np.int64)


def _count_numbers(codes_R: Codes, bins_B: Codes) -> npt.NDArray[np.int64]:
    """Return how many rows are in each tenth, or have no number."""
    counts = np.zeros(NUM_BINS, np.int64)
    at_R = np.searchsorted(bins_B[: NUM_TENTHS - 1], codes_R[codes_R > ABSENT], side="right")
    counts[:NUM_TENTHS] = np.bincount(at_R, minlength=NUM_TENTHS)
    counts[MISSING_BIN] = (codes_R == MISSING).sum()
    return counts


def _with_zeros(array_DB: npt.NDArray[Any], places: Sequence[int]) -> npt.NDArray[Any]:
    return np.concatenate([array_DB, np.zeros((1, array_DB.shape[1]), array_DB.dtype)])[list(places)]
