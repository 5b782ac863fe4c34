"""Samples and events that are learned and not published yet, or not exchanged between ranks yet."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from springtide.app.scores.progressive import ProgressiveScores
from springtide.app.scores.segments import SegmentNames
from springtide.app.training.step.learning_step import StepReport
from springtide.app.version_log.items import ItemLayout
from springtide.app.version_log.read.replay_state import newest_items
from springtide.app.version_log.trainer_meta import SeekMeta
from springtide.stream.columns import Batch
from springtide_client.array_types import BoolArray
from springtide_client.features import Features, IdStrings
from springtide_client.format.records import CommandEntry
from springtide_client.format.tensors import Arrays

MAX_RECORD_TIMES = 64  # of a version
PENDING_ITEMS = 32  # batches whose items are merged at once
IS_SCORED = "is_scored"  # a column of a step's samples


class Unpublished:
    """Gathers what happens between two versions; replaced by an empty one at each checkpoint."""

    def __init__(self, item_layout: ItemLayout | None = None) -> None:
        """`item_layout`: of a model with two towers, whose versions carry the items of their samples."""
        self.has_changes = False
        self.is_catching_up = False  # one of the batches was learned while the trainer caught up
        self._item_layout, self._items = item_layout, list[Arrays]()
        self.num_keys = 0  # of the batches, every occurrence, bins included
        self.num_crosses = 0  # that they looked up
        self.id_strings: list[IdStrings] = []
        self.commands: list[CommandEntry] = []
        self.seeks: dict[str, SeekMeta] = {}
        self._record_ms: list[npt.NDArray[np.int64]] = []

    def add_batch(self, batch: Batch, num_keys: int, num_crosses: int) -> None:
        """Note a learned batch, which may have no samples, and how many keys and crosses it looked up."""
        self.has_changes = True
        self.id_strings += batch.id_strings
        self.num_keys += num_keys
        self.num_crosses += num_crosses
        if self._item_layout is not None and len(batch):
            self._items.append(self._item_layout.encode(batch.features))
            if len(self._items) > PENDING_ITEMS:
                self._items = [newest_items(self._items)]
        if len(batch):
            self._record_ms.append(batch.record_ms_N)

    def items(self) -> Arrays | None:
        """Return the items of the batches, each as its newest sample has it; None if there are none."""
        items = [part for part in self._items if len(part["id"])]
        return newest_items(items) if items else None

    def add_command(self, entry: CommandEntry) -> None:
        """Note an executed command and its result."""
        self.has_changes = True
        self.commands.append(entry)

    def add_seek(self, partition: str, seek: SeekMeta) -> None:
        """Note a change of position that was requested on the command line."""
        self.has_changes = True
        self.seeks[partition] = seek

    def record_times(self) -> npt.NDArray[np.int64]:
        """Return the record times of the samples, ms."""
        return np.concatenate([np.zeros(0, np.int64), *self._record_ms])


def sample_times(parts: Sequence[npt.NDArray[np.int64]]) -> list[int]:
    """Return at most 64 of the times, picked evenly from the oldest to the newest."""
    if not parts:
        return []
    times = np.sort(np.concatenate(parts))
    picked = np.linspace(0, len(times) - 1, min(len(times), MAX_RECORD_TIMES)).round().astype(np.int64)
    return [int(time) for time in times[picked]]


class PendingStep(NamedTuple):
    """A step of all ranks whose samples are not counted in the scores yet: their features are spread over the ranks."""

    report: StepReport  # of all samples
    features: Arrays  # what scores keep of this rank's, of those that are scored
    is_scored_N: BoolArray  # which of this rank's samples are


class PendingScores:
    """Counts steps and texts of ids; of many ranks it keeps them until all ranks have exchanged theirs."""

    def __init__(self, scores: ProgressiveScores, segment_names: SegmentNames, num_ranks: int) -> None:
        self._scores, self._segment_names, self._num_ranks = scores, segment_names, num_ranks
        self._steps: list[PendingStep] = []
        self._num_scored = 0  # samples of those steps, on all ranks
        self._strings: list[IdStrings] = []

    def add_step(
        self,
        report: StepReport,
        features: Features,
        is_scored_N: BoolArray | None = None,
        groups: Arrays | None = None,
    ) -> None:
        """Count a step's report, or keep it. `is_scored_N`: of this rank's samples those that test what was learned
        before them, and do not correct it; None: all. `groups`: what `groups_of` the scores returned for them.
        """
        groups = groups or {}
        if self._num_ranks == 1 and is_scored_N is None:
            self._scores.observe(report.logits_NL, report.labels_NL, report.weights_N, features, groups=groups)
            return
        if is_scored_N is None:
            is_scored_N = np.ones(len(features), np.bool_)
        rows = np.flatnonzero(is_scored_N)
        features, groups = features.take(rows), {name: array[rows] for name, array in groups.items()}
        if self._num_ranks == 1:
            report = report.take(rows)
            self._scores.observe(report.logits_NL, report.labels_NL, report.weights_N, features, groups=groups)
            return
        first = self._scores.num_samples + self._num_scored + report.num_scored_before
        self._steps.append(PendingStep(report, self._scores.columns_of(features, first) | groups, is_scored_N))
        self._num_scored += report.num_scored

    def add_strings(self, strings: list[IdStrings]) -> None:
        """Keep texts by whose ids scores are split."""
        if self._scores.by:
            self._strings += strings

    def features(self) -> list[Arrays]:
        """Return, of each step, what scores keep of this rank's features, and which of its samples are scored."""
        return [step.features | {IS_SCORED: step.is_scored_N} for step in self._steps]

    def take_strings(self) -> list[IdStrings]:
        """Return texts by whose ids scores are split, once."""
        strings, self._strings = self._strings, []
        return strings

    def count_own(self) -> None:
        """Count what is kept, if there is only one rank."""
        if self._num_ranks == 1:
            self.merge([self.features()], [self.take_strings()])

    def merge(self, features_R: Sequence[Sequence[Arrays]], strings_R: Sequence[Iterable[IdStrings]]) -> None:
        """Count the samples of all steps, and take over texts, given each rank's `features` and `take_strings`."""
        for step, *parts in zip(self._steps, *features_R, strict=True):
            columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
            report = step.report.take(np.flatnonzero(columns.pop(IS_SCORED)))
            self._scores.observe(report.logits_NL, report.labels_NL, report.weights_N, columns=columns)
        self._steps, self._num_scored = [], 0
        for strings in strings_R:
            self._segment_names.add(strings)
