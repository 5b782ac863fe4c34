"""Samples that one of several ranks has learned since the last exchange: scores need those of all, in order."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from springtide.app.scores.progressive import ProgressiveScores
from springtide.app.scores.segments import SegmentNames
from springtide.app.training.step.report import StepReport
from springtide_client.features import Features, IdStrings
from springtide_client.format.tensors import Arrays


class PendingStep(NamedTuple):
    """A step of all ranks whose samples are not counted in the scores yet: their features are spread over the ranks."""

    report: StepReport  # of all samples
    features: Arrays  # what scores keep of this rank's


class PendingScores:
    """Keeps steps and texts of ids until all ranks have exchanged theirs; then counts them."""

    def __init__(self, scores: ProgressiveScores, segment_names: SegmentNames, num_ranks: int) -> None:
        self._scores, self._segment_names, self._num_ranks = scores, segment_names, num_ranks
        self._steps: list[PendingStep] = []
        self._num_samples = 0  # of those steps, on all ranks
        self._strings: list[IdStrings] = []

    def add_step(self, report: StepReport, features: Features, num_before: int) -> None:
        """Keep a step's report. `num_before`: samples of the same step on the ranks below this one."""
        first = self._scores.num_samples + self._num_samples + num_before
        self._steps.append(PendingStep(report, self._scores.columns_of(features, first)))
        self._num_samples += len(report.weights_N)

    def add_strings(self, strings: list[IdStrings]) -> None:
        """Keep texts by whose ids scores are split."""
        if self._scores.by:
            self._strings += strings

    def features(self) -> list[Arrays]:
        """Return, of each step, what scores keep of this rank's features."""
        return [step.features for step in self._steps]

    def take_strings(self) -> list[IdStrings]:
        """Return texts by whose ids scores are split, once."""
        strings, self._strings = self._strings, []
        return strings

    def count_own(self) -> None:
        """Count what needs no other rank's features: everything, if there is no other rank."""
        if self._num_ranks == 1:
            self.merge([self.features()], [self.take_strings()])

    def merge(self, features_R: Sequence[Sequence[Arrays]], strings_R: Sequence[Iterable[IdStrings]]) -> None:
        """Count the samples of all steps, and take over texts, given each rank's `features` and `take_strings`."""
        for step, *parts in zip(self._steps, *features_R, strict=True):
            columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
            report = step.report
            self._scores.observe(report.logits_NL, report.labels_NL, report.weights_N, columns=columns)
        self._steps, self._num_samples = [], 0
        for strings in strings_R:
            self._segment_names.add(strings)
