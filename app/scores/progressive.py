"""Progressive scores: how well samples were predicted before they were learned, over the whole run and a window."""

# N samples, L labels, W samples of the window
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from springtide.app.scores.auc import HISTOGRAM_ARRAYS, Float64Array, RocHistogram, exact_groups
from springtide.app.scores.config import ScoresConfig
from springtide.app.scores.document import label_scores, segments_document, value_scores
from springtide.app.scores.drift import (
    MAX_COLUMNS,
    Column,
    WindowDrift,
    columns_of,
    feature_codes,
    next_snapshot,
    sampling_stride,
)
from springtide.app.scores.ranking import EVENT_MS, RankingPlan, RankingScores
from springtide.app.scores.samples import (
    SAMPLES,
    TERMS,
    Arrays,
    LabelSamples,
    join,
    no_samples,
    samples_of_label,
    with_terms,
)
from springtide.app.scores.segments import BYTES, NO_VALUE, SegmentHistograms
from springtide_client.features import Features
from springtide_client.schema import Schema

IDS = "segments."  # and a feature's name: the values of samples


class ScoresPlan(msgspec.Struct, frozen=True):
    """Features to split scores by, columns to compare, and when a window becomes a reference.

    It is a part of the state, so that every reader of a log measures alike: a version that begins with another plan
    carries it, and the compactor follows it without reading the configuration.
    """

    by: tuple[str, ...] = ()
    num_segments: int = 0  # of each feature
    columns: tuple[Column, ...] = ()
    stride: int = 1  # features of every sample whose number this divides are compared
    drift: bool = False
    reference_samples: int = 0
    ranking: RankingPlan = RankingPlan()

    @staticmethod
    def of(config: ScoresConfig, schema: Schema, window_samples: int) -> "ScoresPlan":
        """Return the plan of a configuration."""
        columns = tuple(columns_of(schema)[:MAX_COLUMNS]) if config.drift else ()
        num_segments = config.segment_bytes // max(1, BYTES * len(schema.labels) * len(config.by))
        stride = sampling_stride(window_samples, len(columns))
        ranking = RankingPlan()
        if config.request is not None or config.group is not None:
            wait_ms = round(1000 * config.request_seconds)
            ranking = RankingPlan(
                config.request, config.group, config.at, config.group_bytes, wait_ms, config.is_sampled
            )
        return ScoresPlan(
            config.by, max(1, num_segments), columns, stride, config.drift, config.reference_samples, ranking
        )

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
        arrays: Arrays = {}
        for name in self.by:
            column_N = features.categorical_NC[:, schema.categorical.index(name)]
            arrays[f"{IDS}{name}"] = np.ascontiguousarray(column_N)
        if self.columns:
            rows_R = np.arange(-first % self.stride, len(features), self.stride)
            numbers_R = first + rows_R
            arrays["drift.codes"] = feature_codes(features, rows_R, numbers_R // self.stride)[:, : len(self.columns)]
            arrays["drift.numbers"] = numbers_R
        return arrays


NUM_SUMS = 4  # weight, loss, predicted, positive
MAX_WAITING = 4096  # samples that are counted together


class Observed(NamedTuple):
    """Samples that wait to be counted, with their features or with what is kept of them."""

    samples: Arrays
    features: Features | None
    columns: Arrays | None
    groups: Arrays


class ProgressiveScores:
    """AUC (within 1e-4 of exact), logloss and calibration of each label; scores by segment; drift.

    Labels between 0 and 1 count in part as positive and in part as negative; NaN is masked. Segments and drift are of
    labels that are probabilities. A version holds the samples since the previous one (`delta`), a base holds `state`.
    A state and the deltas after it give the same bits as observing every sample. Observed samples are counted when
    scores are read, or once MAX_WAITING have come: counting many at once costs little more than counting one.
    """

    def __init__(
        self,
        labels: Sequence[str],
        window_samples: int,
        config: ScoresConfig | None = None,
        schema: Schema | None = None,
        *,
        links: Sequence[str] = (),
    ) -> None:
        """Without `config` and `schema` everything that is read back goes on, and no features are observed.

        `links`: `Schema.label_links`, if any label is a value: it has a mean, a calibration and an error, and no AUC.
        """
        self.labels, self.window_samples = tuple(labels), window_samples
        if schema is not None:
            links = [schema.links.get(label, "logit") for label in labels]
        self.links = tuple(links)
        self._schema = schema
        self._wanted = None
        if config is not None and schema is not None:
            self._wanted = ScoresPlan.of(config, schema, window_samples)
        self._begin()

    @property
    def by(self) -> tuple[str, ...]:
        """The features by whose values samples are split from now on."""
        return self._plan.by if self._wanted is None else self._wanted.by

    def _begin(self) -> None:
        """Forget everything observed."""
        num_labels = len(self.labels)
        self._waiting: list[Observed] = []
        self._num_waiting = 0
        self._num_counted = 0
        self._sums_LQ = np.zeros((num_labels, NUM_SUMS))
        self._histograms = [RocHistogram() for _ in self.labels]
        self._window = no_samples(num_labels)
        self._recent: list[Arrays] = []  # observed, not joined into the window yet
        self._num_recent = 0
        self._delta: list[Arrays] = []
        self._plan = ScoresPlan()
        self._delta_has_plan = False
        self._segments: dict[str, SegmentHistograms] = {}
        self._drift = WindowDrift(self.labels)
        self._rankings: dict[str, RankingScores] = {}

    def observe(
        self,
        logits_NL: npt.NDArray[np.float32],
        labels_NL: npt.NDArray[np.float32],
        weights_N: npt.NDArray[np.float32],
        features: Features | None = None,
        *,
        columns: Arrays | None = None,
        groups: Arrays | None = None,
    ) -> None:
        """Take scored samples; they belong to the next delta. `features`: those of the samples, always or never.

        `columns`: instead of features, what `columns_of` returned for them, and `groups_of`. `groups`: beside features,
        what `groups_of` returned. The arrays are kept and must not change.
        """
        samples: Arrays = dict(zip(SAMPLES, (logits_NL, labels_NL, weights_N), strict=True))
        self._waiting.append(Observed(samples, features, columns, groups or {}))
        self._num_waiting += len(weights_N)
        if self._num_waiting >= MAX_WAITING:
            self._count_waiting()

    @property
    def num_samples(self) -> int:
        """Samples observed."""
        return self._num_counted + self._num_waiting

    def _count_waiting(self) -> None:
        """Count what waits, in the order in which it came."""
        if not self._waiting:
            return
        waiting = [each for each in self._waiting if len(each.samples["weights"])] or self._waiting[:1]
        self._waiting, num_waiting, self._num_waiting = [], self._num_waiting, 0
        samples = join([each.samples for each in waiting], SAMPLES)
        if num_waiting and (columns := self._columns_of_waiting(waiting)) is not None:
            if self._wanted is not None and self._plan != self._wanted:
                self._follow(self._wanted)
                self._delta_has_plan = True
            samples |= columns
        self._count(samples)
        self._delta.append(samples)

    def _columns_of_waiting(self, waiting: Sequence[Observed]) -> Arrays | None:
        """Return what is kept of the features of samples; None if they were observed without any."""
        columns = [each.columns for each in waiting if each.columns is not None]
        if columns:
            return join(columns, list(columns[0]))
        features = [each.features for each in waiting if each.features is not None]
        if not features:
            return None
        return self.columns_of(Features.concatenate(features), self._num_counted) | self._groups_of_waiting(waiting)

    def _groups_of_waiting(self, waiting: Sequence[Observed]) -> Arrays:
        """Return by what samples are grouped; nothing where some do not say it."""
        first = waiting[0].groups
        if any(each.groups.keys() != first.keys() for each in waiting):
            return {}
        return join([each.groups for each in waiting], list(first))

    def columns_of(self, features: Features, first: int) -> Arrays:
        """Return what is kept of the features of samples, the first of which is sample number `first` of all."""
        if self._wanted is None or self._schema is None:
            return {}
        return self._wanted.take(features, self._schema, first)

    def groups_of(
        self,
        features: Features,
        event_ms_N: npt.NDArray[np.int64],
        request_N: npt.NDArray[np.int64] | None,
        group_N: npt.NDArray[np.int64] | None,
    ) -> Arrays:
        """Return by what samples are grouped for ranking metrics: {} where they are not."""
        if self._wanted is None or self._schema is None:
            return {}
        return self._wanted.ranking.take(features, self._schema, event_ms_N, request_N, group_N)

    def delta(self) -> Arrays:
        """Return the samples observed since the last call; {} if there are none."""
        self._count_waiting()
        parts, self._delta = self._delta, []
        parts = [part for part in parts if len(part["weights"])] or parts[:1]
        delta = join(parts, list(parts[0])) if parts else {}
        if self._delta_has_plan and delta:
            delta["plan"], self._delta_has_plan = self._plan.to_array(), False
        return delta

    def apply(self, delta: Mapping[str, npt.NDArray[Any]]) -> None:
        """Count the samples of another object's `delta`."""
        self._count_waiting()
        if "plan" in delta:
            self._follow(ScoresPlan.from_array(delta["plan"]))
        if delta:
            self._count({name: np.array(array) for name, array in delta.items() if name != "plan"})

    def state(self) -> Arrays:
        """Return sums, histograms, window and plan: everything but the list of samples for the next delta."""
        window = self._join_window()  # of all that was observed, so this comes first
        arrays = {f"window.{name}": array for name, array in window.items() if name not in TERMS}
        arrays["sums"], arrays["num_samples"] = self._sums_LQ.copy(), np.array(self._num_counted)
        arrays["plan"] = self._plan.to_array()
        for number, histogram in enumerate(self._histograms):
            arrays |= {f"histogram.{number}.{name}": array for name, array in histogram.arrays().items()}
        for feature, segments in self._segments.items():
            arrays |= {f"{IDS}{feature}.{name}": array for name, array in segments.arrays().items()}
        for kind, ranking in self._rankings.items():
            arrays |= {f"ranking.{kind}.{name}": array for name, array in ranking.arrays().items()}
        return arrays | {f"drift.{name}": array for name, array in self._drift.arrays().items()}

    def state_sizes(self) -> list[int]:
        """Return the bytes of each array of `state`, without copying one: every version asks."""
        sizes = [array.nbytes for name, array in self._join_window().items() if name not in TERMS]
        sizes += [self._sums_LQ.nbytes, np.dtype(np.int64).itemsize, self._plan.to_array().nbytes]
        for histogram in self._histograms:
            sizes += [histogram.num_used * np.dtype(np.int64).itemsize] * len(HISTOGRAM_ARRAYS)
        for segments in self._segments.values():
            sizes += [array.nbytes for array in segments.arrays().values()]
        for ranking in self._rankings.values():
            sizes += ranking.state_sizes()
        return sizes + [array.nbytes for array in self._drift.arrays().values()]

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Replace everything observed by what `state` returned; {}: nothing was observed."""
        self._begin()
        if not state:
            return
        self._sums_LQ, self._num_counted = np.array(state["sums"]), int(state["num_samples"])
        for number, histogram in enumerate(self._histograms):
            parts = (np.array(state[f"histogram.{number}.{name}"]) for name in HISTOGRAM_ARRAYS)
            histogram.restore(*parts)
        self._follow(ScoresPlan.from_array(state["plan"]))
        names = [*SAMPLES, *(f"{IDS}{feature}" for feature in self._plan.by)]
        self._window = with_terms({name: np.array(state[f"window.{name}"]) for name in names}, self.links)
        for feature, segments in self._segments.items():
            segments.restore({name: state[f"{IDS}{feature}.{name}"] for name in segments.arrays()})
        for kind, ranking in self._rankings.items():
            own = f"ranking.{kind}."
            if arrays := {name.removeprefix(own): array for name, array in state.items() if name.startswith(own)}:
                ranking.restore(arrays)
        drift = {name.removeprefix("drift."): array for name, array in state.items() if name.startswith("drift.")}
        self._drift.restore(drift)

    def window_of_label(self, number: int) -> LabelSamples:
        """Return the window's samples for one label, oldest first."""
        return samples_of_label(self._join_window(), number)

    def non_finite_fraction(self, num: int) -> float:
        """Return the fraction of the window's newest `num` samples whose logits are not finite."""
        logits_NL = self._join_window()["logits"][-num:]
        return float(1 - np.isfinite(logits_NL).all(axis=1).mean()) if len(logits_NL) else 0.0

    def document(self) -> dict[str, Any]:
        """Return `{"whole": {...}, "window": {...}}`, and `tasks` by label if there are several."""
        return self._by_label(lambda number: self._label_document(number, curve=False))

    def detailed_document(self, name_of: Callable[[str, int], str]) -> dict[str, Any]:
        """Return the document with calibration curves, segments and drift; it takes some milliseconds.

        `name_of` returns the text of a value by its feature and id.
        """

        def of_label(number: int) -> dict[str, Any]:
            window, histograms = self._without_values(self._join_window()), self._segments
            segments = {
                feature: segments_document(
                    histograms[feature], window, window[f"{IDS}{feature}"], number, partial(name_of, feature)
                )
                for feature in self._plan.by
            }
            found = self._label_document(number, curve=True) | ({"segments": segments} if segments else {})
            rankings = {} if self.is_value(number) else self._rankings
            ranking = {kind: each.document(number) for kind, each in rankings.items()}
            return found | ({"ranking": ranking} if ranking else {})

        document = self._by_label(of_label)
        window = self._without_values(self._join_window())
        drift = self._drift.document(self.num_samples, window) if self._plan.drift else None
        return document if drift is None else document | {"drift": drift}

    def _by_label(self, of_label: Callable[[int], dict[str, Any]]) -> dict[str, Any]:
        tasks = {label: of_label(number) for number, label in enumerate(self.labels)}
        first = tasks[self.labels[0]]
        return {**first, "tasks": tasks} if len(self.labels) > 1 else dict(first)

    def is_value(self, number: int) -> bool:
        """Return True if a label is a value and not a probability."""
        return bool(self.links) and self.links[number] != "logit"

    def _label_document(self, number: int, *, curve: bool) -> dict[str, Any]:
        each = samples_of_label(self._join_window(), number)
        if self.is_value(number):
            sums_Q = np.array([terms_N.sum() for terms_N in each.summed_terms()])
            return {"whole": value_scores(self._sums_LQ[number]), "window": value_scores(sums_Q)}
        groups = exact_groups(each.scores_N, each.probabilities_N, each.positive_N, each.negative_N)
        sums_Q = np.array([terms_N.sum() for terms_N in each.summed_terms()])
        return {
            "whole": label_scores(self._sums_LQ[number], self._histograms[number].groups(), curve=curve),
            "window": label_scores(sums_Q, groups, curve=curve),
        }

    def _follow(self, plan: ScoresPlan) -> None:
        """Go on with another plan; what both measure is kept."""
        window = self._join_window()
        for feature in {*self._plan.by} - {*plan.by}:
            window.pop(f"{IDS}{feature}")
        for feature in {*plan.by} - {*self._plan.by}:
            window[f"{IDS}{feature}"] = np.full(len(window["weights"]), NO_VALUE)
        before, self._segments = self._segments, {}
        for feature in plan.by:
            segments = before.get(feature)
            if segments is None or segments.num_segments != plan.num_segments:
                segments = SegmentHistograms(len(self.labels), plan.num_segments)
                if feature in before:
                    segments.restore(before[feature].arrays())
            self._segments[feature] = segments
        if plan.ranking != self._plan.ranking:
            self._rankings = plan.ranking.begin(len(self.labels))
        if plan.drift:
            self._drift.set_columns(plan.columns)
        else:
            self._drift = WindowDrift(self.labels)
        self._plan = plan

    def _count(self, samples: Arrays) -> None:
        """Count samples, up to where a window becomes a reference, and then the rest."""
        samples = dict(samples)
        codes_RD, numbers_R = samples.pop("drift.codes", None), samples.pop("drift.numbers", None)
        start, num = 0, len(samples["weights"])
        while start < num or start == num == 0:
            begin = self._num_counted
            snapshot_at = self._plan.next_snapshot(begin, self.window_samples)
            stop = num if snapshot_at is None else min(num, start + snapshot_at - begin)
            self._add({name: array[start:stop] for name, array in samples.items()})
            if numbers_R is not None and codes_RD is not None:
                within = slice(*np.searchsorted(numbers_R, [begin, self._num_counted]))
                first = self._num_counted - self.window_samples
                self._drift.add(codes_RD[within], numbers_R[within], first=first)
            if self._num_counted == snapshot_at:
                self._drift.take_snapshot(snapshot_at, self._without_values(self._join_window()))
            start = stop
            if not num:
                break

    def _without_values(self, samples: Arrays) -> Arrays:
        """Return the samples with labels that are values masked."""
        values = [number for number in range(len(self.labels)) if self.is_value(number)]
        if not values:
            return samples
        labels_NL = samples["labels"].copy()
        labels_NL[:, values] = np.nan
        return samples | {"labels": labels_NL}

    def _add(self, samples: Arrays) -> None:
        samples = with_terms(samples, self.links)
        for number, histogram in enumerate(self._histograms):
            each = samples_of_label(samples, number)
            if not self.is_value(number):
                histogram.add(each.scores_N, each.positive_N, each.negative_N)
            for quantity, terms_N in enumerate(each.summed_terms()):
                self._sums_LQ[number, quantity] = _add_in_order(self._sums_LQ[number, quantity], terms_N)
        for feature, segments in self._segments.items():
            name = f"{IDS}{feature}"
            if name not in samples:
                samples[name] = np.full(len(samples["weights"]), NO_VALUE)
            segments.add(samples[name], self._without_values(samples))
        for kind, ranking in self._rankings.items():
            if (hash_N := samples.pop(f"ranking.{kind}", None)) is not None:
                ranking.add(hash_N, self._without_values(samples))
        samples.pop(EVENT_MS, None)
        self._recent.append(samples)
        self._num_recent += len(samples["weights"])
        self._num_counted += len(samples["weights"])
        if self._num_recent > 2 * self.window_samples:
            self._join_window()

    def _join_window(self) -> Arrays:
        """Return the window's samples as one array each; of all that was observed."""
        self._count_waiting()
        if self._recent:
            joined = join([self._window, *self._recent], list(self._window))
            self._window = {name: array[-self.window_samples :].copy() for name, array in joined.items()}
            self._recent, self._num_recent = [], 0
        return self._window


def _add_in_order(total: float, terms_N: Float64Array) -> float:
    """Add one term after another, so that the sum does not depend on how the terms are split into calls."""
    return float(np.cumsum(np.concatenate([[total], terms_N]))[-1])
