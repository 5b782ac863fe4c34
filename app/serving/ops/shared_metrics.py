"""The numbers of all workers of one server: each writes its own to a file, whoever is asked adds them up.

A sum never falls: a worker's counters stay when it is gone.
"""

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec
from springtide_client.system.files import write_atomically

Labels = tuple[tuple[str, str], ...]
Values = dict[str, list[tuple[Labels, float]]]

EXITED_WORKERS_NAME = "ended.json"

logger = logging.getLogger(__name__)


class MetricValues(msgspec.Struct):
    """By metric, then by labels; histograms as (labels, counts by bucket, sum)."""

    counters: Values = {}
    gauges: Values = {}
    histograms: dict[str, list[tuple[Labels, list[int], float]]] = {}


class ExitedWorkers(msgspec.Struct):
    """What workers that are gone have counted, and which they were."""

    workers: list[int]
    numbers: MetricValues


class SharedMetrics:
    """A folder with a file a worker. Workers have numbers that are never used again; any thread of one may publish."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._is_well = True  # what was told last was written

    def publish(self, worker: int, numbers: MetricValues) -> None:
        """Replace a worker's numbers; where the disk has no room, the others tell of it as it was."""
        try:
            self._replace(f"worker-{worker}.json", msgspec.json.encode(numbers))
        except OSError as error:
            if self._is_well:
                logger.warning("the other workers cannot be told now", extra={"error": str(error)})
            self._is_well = False
        else:
            self._is_well = True

    def read(self) -> list[MetricValues]:
        """Of each living worker that has published, and of the ended ones together."""
        found: dict[int, MetricValues] = {}
        for path in self._folder.glob("worker-*.json"):
            try:
                number = int(path.stem.removeprefix("worker-"))
                found[number] = msgspec.json.decode(path.read_bytes(), type=MetricValues)
            except FileNotFoundError:
                continue  # it has ended, and is among those read now
        # read last: who ended in between is here and not counted twice
        ended = self._ended()
        return [*(numbers for worker, numbers in found.items() if worker not in ended.workers), ended.numbers]

    def record_exit(self, worker: int, how: str) -> None:
        """A worker is gone: keep what it counted, in one place with the others. For one process alone.

        OSError where the disk has no room: then nothing has changed, and it may be said again.
        """
        path = self._folder / f"worker-{worker}.json"
        ended = self._ended()
        try:
            last = msgspec.json.decode(path.read_bytes(), type=MetricValues)
        except FileNotFoundError:
            last = MetricValues()
        told = MetricValues(counters={"springtide_workers_ended_total": [((("how", how),), 1.0)]})
        sums = aggregate([ended.numbers, MetricValues(counters=last.counters, histograms=last.histograms), told])
        self._replace(EXITED_WORKERS_NAME, msgspec.json.encode(ExitedWorkers([*ended.workers, worker], sums)))
        path.unlink(missing_ok=True)

    def _ended(self) -> ExitedWorkers:
        try:
            return msgspec.json.decode((self._folder / EXITED_WORKERS_NAME).read_bytes(), type=ExitedWorkers)
        except FileNotFoundError:
            return ExitedWorkers([], MetricValues())

    def _replace(self, name: str, content: bytes) -> None:
        write_atomically(self._folder / name, content, durable=False)


class WorkerSlot(NamedTuple):
    """One worker's, among all."""

    number: int
    tally: SharedMetrics


def aggregate(
    parts: Iterable[MetricValues], *, lowest: frozenset[str] = frozenset(), highest: frozenset[str] = frozenset()
) -> MetricValues:
    """Sums by metric and labels; of gauges in `lowest` the least, of those in `highest` the greatest value."""
    counters: dict[str, dict[Labels, float]] = {}
    gauges: dict[str, dict[Labels, list[float]]] = {}
    histograms: dict[str, dict[Labels, tuple[list[int], float]]] = {}
    for part in parts:
        for name, values in part.counters.items():
            sums = counters.setdefault(name, {})
            for labels, value in values:
                sums[labels] = sums.get(labels, 0.0) + value
        for name, values in part.gauges.items():
            for labels, value in values:
                gauges.setdefault(name, {}).setdefault(labels, []).append(value)
        for name, distributions in part.histograms.items():
            known = histograms.setdefault(name, {})
            for labels, counts, seconds in distributions:
                before, so_far = known.get(labels, ([0] * len(counts), 0.0))
                known[labels] = ([one + other for one, other in zip(before, counts, strict=True)], so_far + seconds)
    return MetricValues(
        counters={name: list(values.items()) for name, values in counters.items()},
        gauges={
            name: [
                (labels, (min if name in lowest else max if name in highest else sum)(found))
                for labels, found in values.items()
            ]
            for name, values in gauges.items()
        },
        histograms={
            name: [(labels, *found) for labels, found in values.items()] for name, values in histograms.items()
        },
    )
