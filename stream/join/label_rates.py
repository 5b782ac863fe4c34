"""How often each label is above 0, by event time: says which labels have become far rarer than they were."""

# N samples, L labels, U minutes, ascending
from collections.abc import Sequence

import numpy as np

from springtide_client.array_types import Float32Array, Int64Array

MINUTE_MS, DAY_MINUTES = 60_000, 24 * 60
MIN_POSITIVES = 30  # that were to be expected: none of them comes once in 10 ** 13
SUSPECT_PART = 0.1


class LabelRates:
    """Samples and positives of each minute of the last day of event time, of this run."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        self._counts: dict[int, Int64Array] = {}  # minute -> samples and positives, (2, L)

    def add(self, due_ms_N: Int64Array, labels_NL: Float32Array) -> None:
        """Count samples whose windows ended at these times; a masked label is no sample."""
        minute_U, at_N = np.unique(due_ms_N // MINUTE_MS, return_inverse=True)
        is_sample_NL, is_positive_NL = ~np.isnan(labels_NL), labels_NL > 0
        counts_U2L = np.zeros((len(minute_U), 2, len(self.names)), np.int64)
        for label in range(len(self.names)):
            for kind, is_one_NL in enumerate((is_sample_NL, is_positive_NL)):
                counts_U2L[:, kind, label] = np.bincount(at_N, is_one_NL[:, label], len(minute_U))
        for minute, counts_2L in zip(minute_U.tolist(), counts_U2L, strict=True):
            self._counts[minute] = self._counts.get(minute, 0) + counts_2L
        if self._counts and len(self._counts) > 2 * DAY_MINUTES:
            self._forget()

    def suspects(self) -> list[str]:
        """The labels of which the newest samples have less than a tenth of the positives that the day's rate gives.

        The newest samples are as many as, by the rate of those before them, would have 30 positives.
        """
        self._forget()
        minutes = sorted(self._counts, reverse=True)
        if len(minutes) < 2:
            return []
        newest_U2L = np.cumsum([self._counts[minute] for minute in minutes], axis=0)
        samples_UL, positives_UL = newest_U2L[:, 0], newest_U2L[:, 1]
        samples_before_UL, positives_before_UL = samples_UL[-1] - samples_UL, positives_UL[-1] - positives_UL
        expected_UL = samples_UL * positives_before_UL / np.maximum(samples_before_UL, 1)
        is_enough_UL = (expected_UL >= MIN_POSITIVES) & (positives_before_UL >= MIN_POSITIVES)
        found = []
        for label, name in enumerate(self.names):
            enough = np.flatnonzero(is_enough_UL[:, label])
            if len(enough) and positives_UL[enough[0], label] < SUSPECT_PART * expected_UL[enough[0], label]:
                found.append(name)
        return found

    def _forget(self) -> None:
        """Drop what is older than a day before the newest minute."""
        oldest = max(self._counts, default=0) - DAY_MINUTES
        self._counts = {minute: counts for minute, counts in self._counts.items() if minute > oldest}
