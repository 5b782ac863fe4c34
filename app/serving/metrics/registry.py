"""A registry of counters, gauges and histograms, and their Prometheus text (exposition format 0.0.4)."""

import threading
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from springtide.app.serving.metrics.shared_metrics import Labels, MetricValues, aggregate

LATENCY_SECONDS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)

# how the values of several workers become one: their sum, minimum or maximum; "local": the answering worker's own value
Aggregation = Literal["sum", "min", "max", "local"]


class UnlockedCounter:
    """A counter that a single thread increments without a lock."""

    __slots__ = ("amount",)

    def __init__(self) -> None:
        self.amount = 0


class UnlockedHistogram:
    """A distribution of seconds that a single thread observes without a lock."""

    __slots__ = ("buckets", "sum")

    def __init__(self) -> None:
        self.buckets = [0] * (len(LATENCY_SECONDS) + 1)
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self.buckets[bisect_left(LATENCY_SECONDS, seconds)] += 1
        self.sum += seconds


@dataclass(frozen=True)
class MetricFamily:
    """The declaration of a metric."""

    kind: Literal["counter", "gauge", "histogram"]
    help: str
    aggregation: Aggregation


class MetricsRegistry:
    """The metrics of one process. Any thread may update them; a metric must be declared first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._families: dict[str, MetricFamily] = {}
        self._values: dict[str, dict[Labels, float]] = {}
        self._buckets: dict[str, dict[Labels, list[int]]] = {}
        self._sums: dict[str, dict[Labels, float]] = {}
        self._unlocked_counters: list[tuple[str, Labels, UnlockedCounter]] = []
        self._unlocked_histograms: list[tuple[str, Labels, UnlockedHistogram]] = []

    @property
    def families(self) -> Mapping[str, MetricFamily]:
        """Every declared metric, by name."""
        return self._families

    def counter(self, name: str, help: str, *, aggregation: Aggregation = "sum") -> None:
        """Declare a number that only grows."""
        self._families[name] = MetricFamily("counter", help, aggregation)
        self._values[name] = {}

    def gauge(self, name: str, help: str, *, aggregation: Aggregation = "local") -> None:
        """Declare a number that rises and falls."""
        self._families[name] = MetricFamily("gauge", help, aggregation)
        self._values[name] = {}

    def histogram(self, name: str, help: str) -> None:
        """Declare a distribution of seconds."""
        self._families[name] = MetricFamily("histogram", help, "sum")
        self._buckets[name] = {}
        self._sums[name] = {}

    def increment(self, name: str, amount: float = 1.0, **labels: str) -> None:
        """Add to a counter."""
        key = tuple(sorted(labels.items()))
        with self._lock:
            values = self._values[name]
            values[key] = values.get(key, 0.0) + amount

    def set(self, name: str, value: float | None, **labels: str) -> None:
        """Set a gauge, or a counter whose value is counted elsewhere; None removes it."""
        key = tuple(sorted(labels.items()))
        with self._lock:
            if value is None:
                self._values[name].pop(key, None)
            else:
                self._values[name][key] = value

    def replace_all(self, name: str, label: str, values: Mapping[str, float]) -> None:
        """Set all values of a metric with one label; label values that are not given are removed."""
        with self._lock:
            self._values[name] = {((label, key),): value for key, value in values.items()}

    def replace_labeled(self, name: str, values: Mapping[Labels, float]) -> None:
        """Set all values of a metric by (label, value) pairs, sorted by label; others are removed."""
        with self._lock:
            self._values[name] = dict(values)

    def observe(self, name: str, seconds: float, **labels: str) -> None:
        """Count one duration in a histogram."""
        key = tuple(sorted(labels.items()))
        with self._lock:
            buckets = self._buckets[name].get(key)
            if buckets is None:
                buckets = self._buckets[name][key] = [0] * (len(LATENCY_SECONDS) + 1)
                self._sums[name][key] = 0.0
            buckets[bisect_left(LATENCY_SECONDS, seconds)] += 1
            self._sums[name][key] += seconds

    def unlocked_counter(self, name: str, **labels: str) -> UnlockedCounter:
        """Return a counter for the calling thread alone; it is added to the others of its name and labels."""
        counter = UnlockedCounter()
        self._unlocked_counters.append((name, tuple(sorted(labels.items())), counter))
        return counter

    def unlocked_histogram(self, name: str, **labels: str) -> UnlockedHistogram:
        """Return a histogram for the calling thread alone; it is added to the others of its name and labels."""
        histogram = UnlockedHistogram()
        self._unlocked_histograms.append((name, tuple(sorted(labels.items())), histogram))
        return histogram

    def values(self) -> MetricValues:
        """The values that are aggregated over workers."""
        with self._lock:
            values = MetricValues({}, {}, {})
            for name, family in self._families.items():
                if family.kind == "histogram":
                    found = self._distributions(name).items()
                    values.histograms[name] = [(labels, counts, seconds) for labels, (counts, seconds) in found]
                elif family.aggregation != "local":
                    by_name = values.counters if family.kind == "counter" else values.gauges
                    by_name[name] = list(self._summed(name).items())
            return values

    def aggregate(self, workers: Iterable[MetricValues]) -> MetricValues:
        """Combine the values of several workers, each metric by its declared aggregation."""

        def declared(aggregation: Aggregation) -> frozenset[str]:
            return frozenset(name for name, family in self._families.items() if family.aggregation == aggregation)

        return aggregate(workers, minimum=declared("min"), maximum=declared("max"))

    def text(self, values: MetricValues | None = None) -> str:
        """The Prometheus text; `values` are those of all workers, None if this process is the whole server."""
        if values is None:
            values = self.values()
        with self._lock:
            return "".join(f"{line}\n" for line in self._lines(values))

    def _lines(self, aggregated: MetricValues) -> Iterable[str]:
        for name, family in self._families.items():
            yield f"# HELP {name} {family.help}"
            yield f"# TYPE {name} {family.kind}"
            if family.aggregation == "local":
                yield from _value_lines(name, self._summed(name).items())
            elif family.kind != "histogram":
                by_name = aggregated.counters if family.kind == "counter" else aggregated.gauges
                yield from _value_lines(name, by_name.get(name, []))
            else:
                yield from _bucket_lines(name, aggregated.histograms.get(name, []))

    def _summed(self, name: str) -> dict[Labels, float]:
        values = dict(self._values[name])
        for counted, labels, counter in self._unlocked_counters:
            if counted == name and counter.amount:
                values[labels] = values.get(labels, 0.0) + counter.amount
        return values

    def _distributions(self, name: str) -> dict[Labels, tuple[list[int], float]]:
        found = {labels: (buckets, self._sums[name][labels]) for labels, buckets in self._buckets[name].items()}
        for observed, labels, histogram in self._unlocked_histograms:
            if observed == name and any(histogram.buckets):
                buckets, seconds = found.get(labels, ([0] * len(histogram.buckets), 0.0))
                both = [one + other for one, other in zip(buckets, histogram.buckets, strict=True)]
                found[labels] = (both, seconds + histogram.sum)
        return found


def _value_lines(name: str, values: Iterable[tuple[Labels, float]]) -> Iterable[str]:
    for labels, value in sorted(values):
        yield f"{name}{_label_text(labels)} {_number_text(value)}"


def _bucket_lines(name: str, distributions: Iterable[tuple[Labels, list[int], float]]) -> Iterable[str]:
    for labels, counts, seconds in sorted(distributions):
        total = 0
        for bound, count in zip((*LATENCY_SECONDS, float("inf")), counts, strict=True):
            total += count
            yield f"{name}_bucket{_label_text((*labels, ('le', _number_text(bound))))} {total}"
        yield f"{name}_sum{_label_text(labels)} {_number_text(seconds)}"
        yield f"{name}_count{_label_text(labels)} {total}"


def _label_text(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in labels) + "}"


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number_text(value: float) -> str:
    if value == float("inf"):
        return "+Inf"
    if value == float("-inf"):
        return "-Inf"
    return str(int(value)) if value == value and value == int(value) and abs(value) < 2**53 else repr(float(value))
