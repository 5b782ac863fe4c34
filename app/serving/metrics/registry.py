"""A registry of counters, gauges and histograms, and their Prometheus text (exposition format 0.0.4)."""

import threading
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from springtide.app.serving.metrics.shared_metrics import Aggregation, Labels, MetricValues, combine

LATENCY_SECONDS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class UnlockedCounter:
    """A counter that a single thread increments without a lock."""

    __slots__ = ("amount",)

    def __init__(self) -> None:
        self.amount = 0

    @property
    def numbers(self) -> list[float]:
        """Its value."""
        return [self.amount]


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

    @property
    def numbers(self) -> list[float]:
        """The counts by bucket, and the sum."""
        return [*self.buckets, self.sum]


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
        self._values: dict[str, dict[Labels, list[float]]] = {}
        self._unlocked: list[tuple[str, Labels, UnlockedCounter | UnlockedHistogram]] = []

    @property
    def families(self) -> Mapping[str, MetricFamily]:
        """Every declared metric, by name."""
        return self._families

    def counter(self, name: str, help: str, *, aggregation: Aggregation = "sum") -> None:
        """Declare a number that only grows."""
        self._families[name], self._values[name] = MetricFamily("counter", help, aggregation), {}

    def gauge(self, name: str, help: str, *, aggregation: Aggregation = "local") -> None:
        """Declare a number that rises and falls."""
        self._families[name], self._values[name] = MetricFamily("gauge", help, aggregation), {}

    def histogram(self, name: str, help: str) -> None:
        """Declare a distribution of seconds."""
        self._families[name], self._values[name] = MetricFamily("histogram", help, "sum"), {}

    def increment(self, name: str, amount: float = 1.0, **labels: str) -> None:
        """Add to a counter."""
        key = tuple(sorted(labels.items()))
        with self._lock:
            self._values[name].setdefault(key, [0.0])[0] += amount

    def set(self, name: str, value: float | None, **labels: str) -> None:
        """Set a gauge, or a counter whose value is counted elsewhere; None removes it."""
        key = tuple(sorted(labels.items()))
        with self._lock:
            if value is None:
                self._values[name].pop(key, None)
            else:
                self._values[name][key] = [value]

    def replace_all(self, name: str, label: str, values: Mapping[str, float]) -> None:
        """Set all values of a metric with one label; label values that are not given are removed."""
        self.replace_labeled(name, {((label, key),): value for key, value in values.items()})

    def replace_labeled(self, name: str, values: Mapping[Labels, float]) -> None:
        """Set all values of a metric by (label, value) pairs, sorted by label; others are removed."""
        with self._lock:
            self._values[name] = {labels: [value] for labels, value in values.items()}

    def observe(self, name: str, seconds: float, **labels: str) -> None:
        """Count one duration in a histogram."""
        key = tuple(sorted(labels.items()))
        with self._lock:
            numbers = self._values[name].setdefault(key, [0.0] * (len(LATENCY_SECONDS) + 2))
            numbers[bisect_left(LATENCY_SECONDS, seconds)] += 1
            numbers[-1] += seconds

    def unlocked_counter(self, name: str, **labels: str) -> UnlockedCounter:
        """Return a counter for the calling thread alone; it is added to the others of its name and labels."""
        counter = UnlockedCounter()
        self._unlocked.append((name, tuple(sorted(labels.items())), counter))
        return counter

    def unlocked_histogram(self, name: str, **labels: str) -> UnlockedHistogram:
        """Return a histogram for the calling thread alone; it is added to the others of its name and labels."""
        histogram = UnlockedHistogram()
        self._unlocked.append((name, tuple(sorted(labels.items())), histogram))
        return histogram

    def values(self) -> MetricValues:
        """The values that are aggregated over workers."""
        found = MetricValues({}, {})
        with self._lock:
            for name, family in self._families.items():
                if family.aggregation != "local":
                    by_name = found.gauges if family.kind == "gauge" else found.counted
                    by_name[name] = list(self._read(name).items())
        return found

    def aggregate(self, workers: Sequence[MetricValues]) -> MetricValues:
        """Combine the values of several workers, each metric by its declared aggregation."""
        aggregations = {name: family.aggregation for name, family in self._families.items()}
        counted = combine(worker.counted for worker in workers)
        return MetricValues(counted, combine((worker.gauges for worker in workers), aggregations))

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
            by_name = aggregated.gauges if family.kind == "gauge" else aggregated.counted
            found = self._read(name).items() if family.aggregation == "local" else by_name.get(name, [])
            yield from (_bucket_lines if family.kind == "histogram" else _value_lines)(name, found)

    def _read(self, name: str) -> dict[Labels, list[float]]:
        """Return copies of the values of a metric, with what single threads have counted."""
        unlocked = [(labels, [*each.numbers]) for counted, labels, each in self._unlocked if counted == name]
        own = [(labels, [*numbers]) for labels, numbers in self._values[name].items()]
        counted = [(labels, numbers) for labels, numbers in unlocked if any(numbers)]
        return dict(combine([{name: own}, {name: counted}])[name])


def _value_lines(name: str, values: Iterable[tuple[Labels, list[float]]]) -> Iterable[str]:
    for labels, (value,) in sorted(values):
        yield f"{name}{_label_text(labels)} {_number_text(value)}"


def _bucket_lines(name: str, distributions: Iterable[tuple[Labels, list[float]]]) -> Iterable[str]:
    for labels, (*counts, seconds) in sorted(distributions):
        total = 0.0
        for bound, count in zip((*LATENCY_SECONDS, float("inf")), counts, strict=True):
            total += count
            yield f"{name}_bucket{_label_text((*labels, ('le', _number_text(bound))))} {_number_text(total)}"
        yield f"{name}_sum{_label_text(labels)} {_number_text(seconds)}"
        yield f"{name}_count{_label_text(labels)} {_number_text(total)}"


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
