"""Counters, gauges and histograms, written as Prometheus text (exposition format 0.0.4)."""

import threading
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from app.serving.ops.shared_metrics import Labels, MetricValues, aggregate

LATENCY_SECONDS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)

# of several workers: the sum, the least, the greatest; or what whoever is asked knows by itself
Aggregation = Literal["sum", "min", "max", "own"]


class UnlockedCounter:
    """A counter of one thread, which adds to it without a lock."""

    __slots__ = ("amount",)

    def __init__(self) -> None:
        self.amount = 0


class UnlockedHistogram:
    """A distribution of one thread."""

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
    """A metric: its kind, what it tells, and how the values of several workers make one."""

    kind: Literal["counter", "gauge", "histogram"]
    help: str
    aggregation: Aggregation


class MetricsRegistry:
    """The numbers of one process; any thread may add to them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._families: dict[str, MetricFamily] = {}
        self._values: dict[str, dict[Labels, float]] = {}
        self._buckets: dict[str, dict[Labels, list[int]]] = {}
        self._sums: dict[str, dict[Labels, float]] = {}
        self._own_counters: list[tuple[str, Labels, UnlockedCounter]] = []
        self._own_histograms: list[tuple[str, Labels, UnlockedHistogram]] = []

    def counter(self, name: str, about: str, *, over: Aggregation = "sum") -> None:
        """Declare a number that only grows."""
        self._families[name] = MetricFamily("counter", about, over)
        self._values[name] = {}

    def gauge(self, name: str, about: str, *, over: Aggregation = "own") -> None:
        """Declare a number that comes and goes."""
        self._families[name] = MetricFamily("gauge", about, over)
        self._values[name] = {}

    def histogram(self, name: str, about: str) -> None:
        """Declare a distribution of seconds."""
        self._families[name] = MetricFamily("histogram", about, "sum")
        self._buckets[name] = {}
        self._sums[name] = {}

    def increment(self, name: str, amount: float = 1.0, **labels: str) -> None:
        """Let a counter grow."""
        key = tuple(sorted(labels.items()))
        with self._lock:
            values = self._values[name]
            values[key] = values.get(key, 0.0) + amount

    def set(self, name: str, value: float | None, **labels: str) -> None:
        """Set a gauge, or a counter that is counted elsewhere; None takes it away."""
        key = tuple(sorted(labels.items()))
        with self._lock:
            if value is None:
                self._values[name].pop(key, None)
            else:
                self._values[name][key] = value

    def replace_all(self, name: str, label: str, values: Mapping[str, float]) -> None:
        """Set every value of a one-label metric, forgetting labels that are gone."""
        with self._lock:
            self._values[name] = {((label, key),): value for key, value in values.items()}

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
        """A counter for the caller's thread alone, summed with the others of its name and labels."""
        own = UnlockedCounter()
        self._own_counters.append((name, tuple(sorted(labels.items())), own))
        return own

    def unlocked_histogram(self, name: str, **labels: str) -> UnlockedHistogram:
        """The same of a histogram."""
        own = UnlockedHistogram()
        self._own_histograms.append((name, tuple(sorted(labels.items())), own))
        return own

    def values(self) -> MetricValues:
        """All that workers add up."""
        with self._lock:
            numbers = MetricValues({}, {}, {})
            for name, family in self._families.items():
                if family.kind == "histogram":
                    found = self._distributions(name).items()
                    numbers.histograms[name] = [(labels, counts, seconds) for labels, (counts, seconds) in found]
                elif family.aggregation != "own":
                    values = numbers.counters if family.kind == "counter" else numbers.gauges
                    values[name] = list(self._summed(name).items())
            return numbers

    def aggregate(self, workers: Iterable[MetricValues]) -> MetricValues:
        """The numbers of several workers as one's."""
        by_over = {
            over: frozenset(n for n, f in self._families.items() if f.aggregation == over) for over in ("min", "max")
        }
        return aggregate(workers, lowest=by_over["min"], highest=by_over["max"])

    def text(self, numbers: MetricValues | None = None) -> str:
        """All of it, for a scrape; `numbers`: what workers have added up, absent where there is this process alone."""
        if numbers is None:
            numbers = self.values()
        with self._lock:
            return "".join(f"{line}\n" for line in self._lines(numbers))

    def _lines(self, numbers: MetricValues) -> Iterable[str]:
        for name, family in self._families.items():
            yield f"# HELP {name} {family.help}"
            yield f"# TYPE {name} {family.kind}"
            if family.aggregation == "own":
                yield from _plain_lines(name, self._summed(name).items())
            elif family.kind != "histogram":
                values = numbers.counters if family.kind == "counter" else numbers.gauges
                yield from _plain_lines(name, values.get(name, []))
            else:
                yield from _bucket_lines(name, numbers.histograms.get(name, []))

    def _summed(self, name: str) -> dict[Labels, float]:
        values = dict(self._values[name])
        for of, labels, own in self._own_counters:
            if of == name and own.amount:
                values[labels] = values.get(labels, 0.0) + own.amount
        return values

    def _distributions(self, name: str) -> dict[Labels, tuple[list[int], float]]:
        found = {labels: (buckets, self._sums[name][labels]) for labels, buckets in self._buckets[name].items()}
        for of, labels, own in self._own_histograms:
            if of == name and any(own.buckets):
                buckets, seconds = found.get(labels, ([0] * len(own.buckets), 0.0))
                both = [one + other for one, other in zip(buckets, own.buckets, strict=True)]
                found[labels] = (both, seconds + own.sum)
        return found


def _plain_lines(name: str, values: Iterable[tuple[Labels, float]]) -> Iterable[str]:
    for labels, value in sorted(values):
        yield f"{name}{_braces(labels)} {_number(value)}"


def _bucket_lines(name: str, distributions: Iterable[tuple[Labels, list[int], float]]) -> Iterable[str]:
    for labels, counts, seconds in sorted(distributions):
        total = 0
        for bound, count in zip((*LATENCY_SECONDS, float("inf")), counts, strict=True):
            total += count
            yield f"{name}_bucket{_braces((*labels, ('le', _number(bound))))} {total}"
        yield f"{name}_sum{_braces(labels)} {_number(seconds)}"
        yield f"{name}_count{_braces(labels)} {total}"


def _braces(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in labels) + "}"


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    if value == float("inf"):
        return "+Inf"
    if value == float("-inf"):
        return "-Inf"
    return str(int(value)) if value == value and value == int(value) and abs(value) < 2**53 else repr(float(value))
