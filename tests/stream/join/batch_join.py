"""The definition of the label join: of whole logs at once, in plain Python, whatever the order of reading."""

# A log is {(topic, partition): [record, ...]} in the order of offsets.
from collections import defaultdict
from typing import Any, NamedTuple

Log = dict[tuple[str, int], list["Record"]]


class Record(NamedTuple):
    """One record of a topic: `kind` is "impression" or what the event is."""

    kind: str
    key: int | None  # its hash; None: a field of it is null
    ms: int
    value: float = 0.0


class Label(NamedTuple):
    """How a label is made."""

    kind: str
    window_ms: int
    value: str = "any"


def label_value(kind: str, found: list[tuple[int, float]]) -> float:
    """The label that events (ms, value) within the window make."""
    if not found:
        return 0.0
    newest = max(ms for ms, _ in found)
    return float(
        {
            "any": 1,
            "count": len(found),
            "sum": sum(value for _, value in found),
            "max": max(value for _, value in found),
            "last": max(value for ms, value in found if ms == newest),
        }[kind]
    )


def batch_join(
    logs: Log,
    labels: dict[str, Label],
    *,
    lateness_ms: int,
    early_ms: int,
    dedupe_ms: int,
    floors: dict[tuple[str, tuple[str, int], int], int] | None = None,
) -> tuple[list[tuple[Any, ...]], dict[str, list[tuple[Any, ...]]]]:
    """All samples, (due, key, shown, partition, offset, window, values), in order; and the refused records by reason.

    1. A record is late if it is older than the newest one before it in its partition (or a floor) less the lateness.
    2. An impression is a duplicate if one of its key came at most `dedupe_ms` before it.
    3. A label counts the events of its kind from `early_ms` before the impression to the end of its window.
    4. An event that no sample counts is unmatched.

    `floors`: (cursor, partition, offset) -> the newest time that the clock was set to before that record. A topic is
    read by one cursor for each window, events by one: so the same record may be late for one window alone.
    """
    samples, refused = [], defaultdict(list)
    topics = {topic for topic, _ in logs}
    events: dict[tuple[int, str], list[tuple[int, float]]] = defaultdict(list)
    windows = sorted({label.window_ms for label in labels.values()})

    def passed(cursor: str, partition: tuple[str, int]) -> list[tuple[int, Record]]:
        newest, kept = float("-inf"), []
        for offset, record in enumerate(logs[partition]):
            newest = max(newest, (floors or {}).get((cursor, partition, offset), newest))
            if record.key is None:
                refused["no_key"].append((cursor, partition, offset))
            elif record.ms < newest - lateness_ms:
                refused["late"].append((cursor, partition, offset))
            else:
                kept.append((offset, record))
            newest = max(newest, record.ms)
        return kept

    for topic in topics - {"imp"}:
        for partition in [p for p in logs if p[0] == topic]:
            for _, record in passed(topic, partition):
                events[record.key, record.kind].append((record.ms, record.value))
    for window_ms in windows:
        shown: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        for partition in [p for p in logs if p[0] == "imp"]:
            for offset, record in passed(f"imp+{window_ms}", partition):
                shown[record.key].append((record.ms, partition[1], offset))
        for key, ranks in shown.items():
            for before, rank in zip([None, *sorted(ranks)], sorted(ranks), strict=False):
                if before is not None and rank[0] - before[0] <= dedupe_ms:
                    refused["duplicate"].append((window_ms, *rank))
                    continue
                values = tuple(
                    label_value(
                        label.value, [e for e in events[key, label.kind] if -early_ms <= e[0] - rank[0] <= window_ms]
                    )
                    for label in labels.values()
                    if label.window_ms == window_ms
                )
                samples.append((rank[0] + window_ms, key, *rank, window_ms, values))
    for name, label in labels.items():
        found = defaultdict(list)
        for _, key, ms, _, _, window_ms, _ in samples:
            found[key, window_ms].append(ms)
        refused["unmatched"] += [
            (name, key, ms)
            for (key, kind), times in events.items()
            for ms, _ in times
            if kind == label.kind
            and not any(-early_ms <= ms - shown_ms <= label.window_ms for shown_ms in found[key, label.window_ms])
        ]
    return sorted(samples), refused
