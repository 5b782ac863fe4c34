"""Scores by the values of a feature: histograms of scores for each value, and the names of the values."""

# N samples, L labels, S segments and the others after them, B bins
from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from springtide.app.scores.auc import ScoreGroups
from springtide.app.scores.samples import Arrays, all_samples_of_label
from springtide_client.features import IdStrings
from springtide_client.keys import MISSING_ID
from springtide_client.schema import Schema

MAX_LOGIT = 16.0  # logits beyond it share the outermost bins
BINS_PER_LOGIT = 32
NUM_BINS = int(2 * MAX_LOGIT * BINS_PER_LOGIT)
BYTES = 2 * 8 * NUM_BINS  # of one segment and label
BLOCK = 4096  # samples after which a value that has become frequent takes the place of one that is no longer
KEPT = 0.98  # of a count from block to block: the counts remember about 50 blocks

NO_VALUE = np.iinfo(np.int64).min  # of samples from before the feature was among `by`
Int64Array = npt.NDArray[np.int64]
PROBABILITIES_B = 1.0 / (1.0 + np.exp(MAX_LOGIT - (np.arange(NUM_BINS) + 0.5) / BINS_PER_LOGIT))  # mid-bin


class SegmentHistograms:
    """The weights of positives and negatives by value, label and logit, whose bins are 1/32 wide.

    A value gets a histogram when it first comes, while there are free ones; then, every BLOCK samples, where it was
    more frequent lately than the least frequent that has one, whose histogram joins the others'. The result is equal
    bit by bit however the samples are split into calls.
    """

    def __init__(self, num_labels: int, num_segments: int) -> None:
        self.num_labels, self.num_segments = num_labels, num_segments
        self.ids_S = np.zeros(0, np.int64)  # in the order in which they came
        self._counts_S = np.zeros(0)  # recent samples, where every segment is taken
        self._weights_SLCB = np.zeros((num_segments + 1, num_labels, 2, NUM_BINS))  # C: positive, negative
        self._block = np.zeros(0, np.int64)  # values of the samples since the last full block
        self._sorted_S, self._order_S = self.ids_S, np.zeros(0, np.intp)

    def add(self, ids_N: Int64Array, samples: Arrays) -> None:
        """Add scored samples, with their terms, by the feature's value of each."""
        start, num = 0, len(ids_N)
        while start < num:
            stop = min(num, start + BLOCK - len(self._block))
            part = samples if stop - start == num else {name: array[start:stop] for name, array in samples.items()}
            self._add(ids_N[start:stop], part)
            self._block = np.concatenate([self._block, ids_N[start:stop]])
            if len(self._block) == BLOCK:
                self._end_block()
            start = stop

    def groups(self, segment: int, label: int) -> ScoreGroups:
        """Return the scores of one segment."""
        return ScoreGroups(PROBABILITIES_B, *self._weights_SLCB[segment, label])

    def groups_of_rest(self, but: npt.NDArray[np.intp], label: int) -> ScoreGroups:
        """Return the scores of all but these segments."""
        rest = np.setdiff1d(np.arange(self.num_segments + 1), but)
        return ScoreGroups(PROBABILITIES_B, *self._weights_SLCB[rest, label].sum(axis=0))

    def most_frequent(self, num: int) -> npt.NDArray[np.intp]:
        """Return the segments with the most weight, most first."""
        weights_S = self._weights_SLCB[: len(self.ids_S)].sum(axis=(1, 2, 3))
        return np.argsort(-weights_S, kind="stable")[:num]

    def arrays(self) -> Arrays:
        """Return the state: of the histograms the bins in use."""
        used_U4 = np.argwhere(self._weights_SLCB).astype(np.int32)
        return {
            "ids": self.ids_S.copy(),
            "counts": self._counts_S.copy(),
            "block": self._block.copy(),
            "bins": used_U4,
            "weights": self._weights_SLCB[tuple(used_U4.T)],
        }

    def restore(self, arrays: Mapping[str, npt.NDArray[np.generic]]) -> None:
        """Continue from what `arrays` returned; where there is room for fewer values now, the last ones are others."""
        ids_S, bins_U4 = np.array(arrays["ids"]), np.array(arrays["bins"])
        kept = min(len(ids_S), self.num_segments)
        bins_U4[bins_U4[:, 0] >= kept, 0] = self.num_segments
        self._weights_SLCB[:] = 0
        np.add.at(self._weights_SLCB, tuple(bins_U4.T), np.array(arrays["weights"]))
        self._counts_S, self._block = np.array(arrays["counts"])[:kept], np.array(arrays["block"])
        self._set_ids(ids_S[:kept])

    def _add(self, ids_N: Int64Array, samples: Arrays) -> None:
        segments_N = self._find(ids_N)
        free = self.num_segments - len(self.ids_S)
        if free and (segments_N == self.num_segments).any():
            unknown = ids_N[(segments_N == self.num_segments) & (ids_N != NO_VALUE)]
            values, first = np.unique(unknown, return_index=True)
            fresh = values[np.argsort(first)][:free]
            self._counts_S = np.concatenate([self._counts_S, np.zeros(len(fresh))])
            self._set_ids(np.concatenate([self.ids_S, fresh]))
            segments_N = self._find(ids_N)
        for label in range(self.num_labels):
            each, known_N = all_samples_of_label(samples, label)
            known_N &= ids_N != NO_VALUE
            each, segment_K = each.take(known_N), segments_N[known_N]
            bin_K = np.clip((each.scores_N + MAX_LOGIT) * BINS_PER_LOGIT, 0, NUM_BINS - 1).astype(np.int64)
            flat = self._weights_SLCB.reshape(-1)
            at_K = ((segment_K * self.num_labels + label) * 2) * NUM_BINS + bin_K
            np.add.at(flat, at_K, each.positive_N)
            np.add.at(flat, at_K + NUM_BINS, each.negative_N)

    def _end_block(self) -> None:
        values, counts = np.unique(self._block[self._block != NO_VALUE], return_counts=True)
        self._block = np.zeros(0, np.int64)
        segments = self._find(values)
        is_other = segments == self.num_segments
        self._counts_S *= KEPT
        self._counts_S[segments[~is_other]] += counts[~is_other]
        if len(self.ids_S) < self.num_segments or not is_other.any():
            return
        candidates, num_seen = values[is_other], counts[is_other].astype(np.float64)
        most, least = np.argsort(-num_seen, kind="stable"), np.argsort(self._counts_S, kind="stable")
        ids_S = self.ids_S.copy()
        for candidate, segment in zip(most, least, strict=False):
            if not num_seen[candidate] > self._counts_S[segment]:
                break
            self._weights_SLCB[-1] += self._weights_SLCB[segment]
            self._weights_SLCB[segment] = 0
            ids_S[segment], self._counts_S[segment] = candidates[candidate], num_seen[candidate]
        self._set_ids(ids_S)

    def _set_ids(self, ids_S: Int64Array) -> None:
        self.ids_S, self._order_S = ids_S, np.argsort(ids_S)
        self._sorted_S = ids_S[self._order_S]

    def _find(self, ids_N: Int64Array) -> npt.NDArray[np.intp]:
        """Return the segment of each value; `num_segments` where it has none."""
        if not len(self.ids_S):
            return np.full(len(ids_N), self.num_segments, np.intp)
        at_N = np.minimum(np.searchsorted(self._sorted_S, ids_N), len(self.ids_S) - 1)
        return np.where(self._sorted_S[at_N] == ids_N, self._order_S[at_N], self.num_segments)


MAX_NAMES = 50_000  # of all features; others are shown by their ids


class SegmentNames:
    """Texts by feature and id. After a restart they come again as their values do."""

    def __init__(self, schema: Schema, by: Iterable[str] = ()) -> None:
        self._numbers = {name: schema.number(name) for name in by}
        self._names: dict[tuple[int, int], str] = {}

    def add(self, parts: Iterable[IdStrings]) -> None:
        """Keep the strings of the features that scores are split by."""
        if not self._numbers:
            return
        wanted = set(self._numbers.values())
        for part in parts:
            for number, row_id, text in zip(part.features.tolist(), part.ids.tolist(), part.strings, strict=True):
                if number in wanted and len(self._names) < MAX_NAMES:
                    self._names[number, row_id] = text

    def name_of(self, feature: str, row_id: int) -> str:
        """Return the text of a value; a number's digits, also of one whose text is not known."""
        if row_id == MISSING_ID:
            return "(missing)"
        return self._names.get((self._numbers[feature], row_id), str(row_id))

    def clear(self) -> None:
        """Forget all texts."""
        self._names.clear()
