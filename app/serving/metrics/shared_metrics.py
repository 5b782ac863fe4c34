"""Metrics shared by the workers of one server: each writes its values to a file, the one that is scraped adds them up.

A sum never falls: the counters of a worker stay after it has exited.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from operator import add
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NamedTuple

import msgspec

from springtide_client.system.files import write_atomically

Labels = tuple[tuple[str, str], ...]
# by metric and labels: one number, or of a histogram the counts by bucket and then the sum
ValuesByName = dict[str, list[tuple[Labels, list[float]]]]
# how the values of several workers become one: their sum, minimum or maximum; "local": the answering worker's own value
Aggregation = Literal["sum", "min", "max", "local"]
COMBINE: dict[Aggregation, Callable[[float, float], float]] = {"sum": add, "min": min, "max": max}

EXITED_WORKERS_NAME = "exited_workers.json"

logger = logging.getLogger(__name__)


class MetricValues(msgspec.Struct):
    """The values of one worker, or of several: those that only grow, and the gauges."""

    counted: ValuesByName = {}
    gauges: ValuesByName = {}


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
        exit_count: ValuesByName = {"springtide_worker_exits_total": [((("how", how),), [1.0])]}
        total = MetricValues(combine([exited.values.counted, last.counted, exit_count]))
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


def combine(
    parts: Iterable[ValuesByName], aggregations: Mapping[str, Aggregation] = MappingProxyType({})
) -> ValuesByName:
    """Combine values by metric and labels; a metric without an aggregation is summed."""
    found: dict[str, dict[Labels, list[float]]] = {}
    for part in parts:
        for name, values in part.items():
            known, both = found.setdefault(name, {}), COMBINE[aggregations.get(name, "sum")]
            for labels, numbers in values:
                earlier = known.get(labels)
                known[labels] = numbers if earlier is None else list(map(both, earlier, numbers))
    return {name: list(known.items()) for name, known in found.items()}
