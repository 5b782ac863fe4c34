"""Compute the time of each stage from an event's offset and the version that showed it."""

import bisect
from collections.abc import Sequence
from typing import Any, NamedTuple

STAGES = {
    "produce": "from sending to fetching",
    "decode": "bytes to columns",
    "batch": "waiting for its batch, and for the batch before it",
    "learn": "the batch scored and learned",
    "due": "waiting for the version to be due",
    "checkpoint": "dirty rows gathered",
    "append": "passed to the writer's queue",
    "queue": "waiting for the writer thread",
    "encode": "numbered, checksum computed",
    "write": "written to the file",
    "look": "waiting for the server to notice",
    "follow": "read and checked by the server",
    "apply": "merged into a view, its search prepared",
    "swap": "the new view replaces the old one",
    "poll": "until the client's next poll",
    "after": "the view's layers merged after it is served (not in the sum)",
}


class Probe(NamedTuple):
    """One event: when it was sent and seen (ns), its offset, and the version that showed it."""

    begun: int
    seen: int
    offset: int
    version: int


def stages_of(
    probes: Sequence[Probe], train: Sequence[Sequence[Any]], serve: Sequence[Sequence[Any]]
) -> dict[str, list[float]]:
    """Return the milliseconds of each stage, one value per event."""
    decoded, learned, checkpointed = (_by_offset(train, stage) for stage in ("decode", "learn", "checkpoint"))
    appended, encoded, written = (_by_version(train, stage) for stage in ("append", "encode", "write"))
    applied, prepared, merged = (_by_version(serve, stage) for stage in ("apply", "prepare", "merge"))
    reads = sorted((number, times) for number, times in _by_version(serve, "read").items())
    appends = sorted(appended.values())
    numbers = {times: number for number, times in appended.items()}
    stages: dict[str, list[float]] = {name: [] for name in STAGES}
    for probe in probes:
        decode, learn, checkpoint = (_covering(marks, probe.offset) for marks in (decoded, learned, checkpointed))
        append = appends[bisect.bisect_left(appends, (checkpoint[1], 0))]
        version = numbers[append]
        encode, write = encoded[version], written[version]
        apply, prepare = applied[version], prepared[version]
        looked = max(write[1], reads[bisect.bisect_left(reads, (version, (0, 0)))][1][0])
        times = {
            "produce": decode[0] - probe.begun,
            "decode": decode[1] - decode[0],
            "batch": learn[0] - decode[1],
            "learn": learn[1] - learn[0],
            "due": checkpoint[0] - learn[1],
            "checkpoint": checkpoint[1] - checkpoint[0],
            "append": append[1] - checkpoint[1],
            "queue": encode[0] - append[1],
            "encode": write[0] - encode[0],
            "write": write[1] - write[0],
            "look": looked - write[1],
            "follow": apply[0] - looked,
            "apply": apply[1] - apply[0],
            "swap": prepare[1] - apply[1],
            "poll": probe.seen - prepare[1],
        }
        for name, time in times.items():
            stages[name].append(time / 1e6)
    stages["after"] = [(ended - begun) / 1e6 for begun, ended in merged.values()]
    return stages


def rate_of(probes: Sequence[Probe], train: Sequence[Sequence[Any]]) -> float:
    """Return the events learned per second between the first probe and the last."""
    learned = _by_offset(train, "learn")
    first, last = (bisect.bisect_right(learned.offsets, probe.offset) for probe in (probes[0], probes[-1]))
    seconds = (learned.times[last][1] - learned.times[first][1]) / 1e9
    return (learned.offsets[last] - learned.offsets[first]) / seconds


def processor_milliseconds(marks: Sequence[Sequence[Any]], first: int, last: int) -> dict[str, tuple[int, float]]:
    """Return how often each stage ran between two times (ns), and the mean of its processor time."""
    found: dict[str, list[float]] = {}
    for name, _, begun, ended, used in marks:
        if first <= begun and ended <= last:
            found.setdefault(name, []).append(used / 1e6)
    return {name: (len(times), sum(times) / len(times)) for name, times in found.items()}


class _ByOffset(NamedTuple):
    offsets: list[int]  # ascending; a mark covers the offsets below its own
    times: list[tuple[int, int]]


def _by_offset(marks: Sequence[Sequence[Any]], stage: str) -> _ByOffset:
    found = [(offset, (begun, ended)) for name, offset, begun, ended, _ in marks if name == stage]
    return _ByOffset([offset for offset, _ in found], [times for _, times in found])


def _covering(marks: _ByOffset, offset: int) -> tuple[int, int]:
    """Return the times of the first mark beyond the offset."""
    return marks.times[bisect.bisect_right(marks.offsets, offset)]


def _by_version(marks: Sequence[Sequence[Any]], stage: str) -> dict[int, tuple[int, int]]:
    """Return the times of each version's first mark."""
    found: dict[int, tuple[int, int]] = {}
    for name, number, begun, ended, _ in marks:
        if name == stage:
            found.setdefault(number, (begun, ended))
    return found
