"""Metrics shared by the workers of one server: each writes its values to a file, the one that is scraped adds them up.

A sum never falls: the counters of a worker stay after it has exited.
"""

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec

from springtide_client.system.files import write_atomically

Labels = tuple[tuple[str, str], ...]
ValuesByName = dict[str, list[tuple[Labels, float]]]

EXITED_WORKERS_NAME = "exited_workers.json"

logger = logging.getLogger(__name__)


class MetricValues(msgspec.Struct):
    """Values by metric and labels; a histogram is (labels, counts by bucket, sum)."""

    counters: ValuesByName = {}
    gauges: ValuesByName = {}
    histograms: dict[str, list[tuple[Labels, list[int], float]]] = {}


class ExitedWorkers(msgspec.Struct):
    """The numbers of the workers that have exited, and the sum of what they counted."""

    workers: list[int]
    values: MetricValues


class SharedMetrics:
    """A folder with one file for each worker.

    A worker's number is never used again. Any thread of a worker may publish.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._can_write = True  # the last publication succeeded

    def publish(self, worker: int, values: MetricValues) -> None:
        """Replace a worker's values; if the disk is full, the old ones stay and a warning is logged once."""
        try:
            self._replace(f"worker-{worker}.json", msgspec.json.encode(values))
        except OSError as error:
            if self._can_write:
                logger.warning("metrics cannot be shared with the other workers", extra={"error": str(error)})
            self._can_write = False
        else:
            self._can_write = True

    def read(self) -> list[MetricValues]:
        """The values of each live worker that has published, and last the sum of the exited ones."""
        found: dict[int, MetricValues] = {}
        for path in self._folder.glob("worker-*.json"):
            try:
                number = int(path.stem.removeprefix("worker-"))
                found[number] = msgspec.json.decode(path.read_bytes(), type=MetricValues)
            except FileNotFoundError:
                continue  # it has just exited: the file read below includes it
        # read last: a worker that exited meanwhile is in it, and not counted twice
        exited = self._exited()
        return [*(values for worker, values in found.items() if worker not in exited.workers), exited.values]

    def record_exit(self, worker: int, how: str) -> None:
        """Add a worker's counts to the sum of the exited workers. Only one process may call this.

        Raises OSError if the disk is full: then nothing has changed, and the call may be repeated.
        """
        path = self._folder / f"worker-{worker}.json"
        exited = self._exited()
        try:
            last = msgspec.json.decode(path.read_bytes(), type=MetricValues)
        except FileNotFoundError:
            last = MetricValues()
        exit_count = MetricValues(counters={"springtide_worker_exits_total": [((("how", how),), 1.0)]})
        counts = MetricValues(counters=last.counters, histograms=last.histograms)
        total = aggregate([exited.values, counts, exit_count])
        self._replace(EXITED_WORKERS_NAME, msgspec.json.encode(ExitedWorkers([*exited.workers, worker], total)))
        path.unlink(missing_ok=True)

    def _exited(self) -> ExitedWorkers:
        try:
            return msgspec.json.decode((self._folder / EXITED_WORKERS_NAME).read_bytes(), type=ExitedWorkers)
        except FileNotFoundError:
            return ExitedWorkers([], MetricValues())

    def _replace(self, name: str, content: bytes) -> None:
        write_atomically(self._folder / name, content, durable=False)


class WorkerSlot(NamedTuple):
    """One worker's place among the workers of a server."""

    number: int
    shared: SharedMetrics


def aggregate(
    parts: Iterable[MetricValues], *, minimum: frozenset[str] = frozenset(), maximum: frozenset[str] = frozenset()
) -> MetricValues:
    """Sum values by metric and labels, except for gauges named in `minimum` or `maximum`."""
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
                earlier_counts, earlier_seconds = known.get(labels, ([0] * len(counts), 0.0))
                both = [one + other for one, other in zip(earlier_counts, counts, strict=True)]
                known[labels] = (both, earlier_seconds + seconds)
    return MetricValues(
        counters={name: list(values.items()) for name, values in counters.items()},
        gauges={
            name: [
                (labels, (min if name in minimum else max if name in maximum else sum)(found))
                for labels, found in values.items()
            ]
            for name, values in gauges.items()
        },
        histograms={
            name: [(labels, *found) for labels, found in values.items()] for name, values in histograms.items()
        },
    )
