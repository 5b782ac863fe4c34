"""From an event's offset and the version that showed it to the time each stage took."""

import bisect
from collections.abc import Sequence
from typing import Any, NamedTuple

STAGES = {
    "produce": "sent until it can be fetched and is",
    "decode": "bytes to columns",
    "batch": "waiting for its batch, and for the one before it",
    "learn": "the batch scored and learned",
    "due": "waiting for the version to be due",
    "cut": "what changed is gathered",
    "append": "handed over",
    "queue": "waiting for the thread that writes",
    "encode": "named, its checksum computed",
    "write": "into the file",
    "look": "waiting for the server to look",
    "follow": "read and checked by the server",
    "apply": "merged into a view, its search made",
    "swap": "the view takes the place of the other",
    "poll": "seen by who asks",
    "after": "the view's layers merged, once it is served (not on the way)",
}


class Probe(NamedTuple):
    """One event: sent, seen (ns), its offset, and the version that showed it."""

    begun: int
    seen: int
    offset: int
    version: int


def stages_of(
    probes: Sequence[Probe], train: Sequence[Sequence[Any]], serve: Sequence[Sequence[Any]]
) -> dict[str, list[float]]:
    """The ms of each stage, event by event."""
    decoded, learned, cut = (_by_offset(train, stage) for stage in ("decode", "learn", "cut"))
    appended, encoded, written = (_by_version(train, stage) for stage in ("append", "encode", "write"))
    applied, prepared, merged = (_by_version(serve, stage) for stage in ("apply", "prepare", "merge"))
    reads = sorted((number, times) for number, times in _by_version(serve, "read").items())
    appends = sorted(appended.values())
    numbers = {times: number for number, times in appended.items()}
    stages: dict[str, list[float]] = {name: [] for name in STAGES}
    for probe in probes:
        decode, learn, cutting = (_covering(marks, probe.offset) for marks in (decoded, learned, cut))
        append = appends[bisect.bisect_left(appends, (cutting[1], 0))]
        version = numbers[append]
        encode, write = encoded[version], written[version]
        apply, prepare = applied[version], prepared[version]
        looked = max(write[1], reads[bisect.bisect_left(reads, (version, (0, 0)))][1][0])
        times = {
            "produce": decode[0] - probe.begun,
            "decode": decode[1] - decode[0],
            "batch": learn[0] - decode[1],
            "learn": learn[1] - learn[0],
            "due": cutting[0] - learn[1],
            "cut": cutting[1] - cutting[0],
            "append": append[1] - cutting[1],
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
    """Events learned a second, from the first probe to the last."""
    learned = _by_offset(train, "learn")
    first, last = (bisect.bisect_right(learned.offsets, probe.offset) for probe in (probes[0], probes[-1]))
    seconds = (learned.times[last][1] - learned.times[first][1]) / 1e9
    return (learned.offsets[last] - learned.offsets[first]) / seconds


class _ByOffset(NamedTuple):
    offsets: list[int]  # ascending; a mark covers what lies below its own
    times: list[tuple[int, int]]


def _by_offset(marks: Sequence[Sequence[Any]], stage: str) -> _ByOffset:
    found = [(offset, (begun, ended)) for name, offset, begun, ended in marks if name == stage]
    return _ByOffset([offset for offset, _ in found], [times for _, times in found])


def _covering(marks: _ByOffset, offset: int) -> tuple[int, int]:
    """The first mark that went beyond the offset."""
    return marks.times[bisect.bisect_right(marks.offsets, offset)]


def _by_version(marks: Sequence[Sequence[Any]], stage: str) -> dict[int, tuple[int, int]]:
    """The first mark of each version."""
    found: dict[int, tuple[int, int]] = {}
    for name, number, begun, ended in marks:
        if name == stage:
            found.setdefault(number, (begun, ended))
    return found
