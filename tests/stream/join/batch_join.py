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
    until_ms: int = 0  # 0: events after the window do not count
    late: str = "scale"

    @property
    def has_late(self) -> bool:
        """True if events after the window count."""
        return self.until_ms > self.window_ms and self.late != "ignore"

    @property
    def holds_impressions(self) -> bool:
        """True if an impression is a sample once more at a late event."""
        return self.has_late and self.late == "importance_weighted"

    @property
    def looks(self) -> list[tuple[int, int]]:
        """When an impression is looked at for this label, and the grade of that."""
        grade = SETTLED if self.late == "settle" else COUNTED
        return [(self.window_ms, FIRST), *([(self.until_ms, grade)] if self.has_late else [])]

    def late_ms(self, shown_ms: int, early_ms: int, times: list[int]) -> int | None:
        """When an impression is learned once more: at its first event, if that came after the window."""
        near = [ms for ms in times if -early_ms <= ms - shown_ms <= self.until_ms]
        is_late = self.holds_impressions and near and min(near) > shown_ms + self.window_ms
        return min(near) if is_late else None


FIRST, LATE, SETTLED, COUNTED = range(4)


class Share:
    """The share of a label's positives whose event comes within the window: STREAM's F, one positive after another."""

    def __init__(self) -> None:
        self.within = self.late = self.num = self.early_within = self.early_late = 0.0

    def __call__(self) -> float:
        if self.num >= 30:
            return self.within / (self.within + self.late) if self.within + self.late > 0 else 1.0
        return (self.early_within + 1) / (self.early_within + self.early_late + 1)

    def settle(self, within: float, late: float) -> None:
        """Count a positive of which no more events count."""
        self.within, self.late, self.num = 0.9995 * self.within, 0.9995 * self.late, 0.9995 * self.num
        self.within, self.late, self.num = self.within + within, self.late + late, self.num + 1
        self.early_late += late


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


def cursor_of(labels: dict[str, Label], after_ms: int, grade: int) -> str:
    """The name of the cursor that reads the impressions for a look."""
    ends = [label.until_ms for label in labels.values() if label.holds_impressions and label.window_ms == after_ms]
    held = f"-late-{max(ends)}" if ends else ""
    return f"imp+{after_ms}" + {FIRST: held, SETTLED: "-settled", COUNTED: "-counted"}[grade]


def batch_join(
    logs: Log,
    labels: dict[str, Label],
    *,
    lateness_ms: int,
    early_ms: int,
    dedupe_ms: int,
    release: str = "window",
    floors: dict[tuple[str, tuple[str, int], int], int] | None = None,
    last_shares: dict[str, float] | None = None,
) -> tuple[list[tuple[Any, ...]], dict[str, list[tuple[Any, ...]]]]:
    """Samples (due, key, shown, partition, offset, after, grade, values, shares), and refused records by reason.

    Samples are in order. `after`: the time between the impression and the sample. `values` are of the labels that the
    sample is of, `shares` the F before the sample of each label that is weighed by it. `last_shares` gets the last.

    1. A record is late if it is older than the newest one before it in its partition (or a floor) less the lateness.
    2. An impression is a duplicate if one of its key came at most `dedupe_ms` before it.
    3. A label counts the events of its kind from `early_ms` before the impression to the end of its window.
    4. If events count until later, the impression is looked at again then: it is a sample of grade SETTLED, or its
       events are only counted for the share. With the rule "importance_weighted" it is a sample of grade LATE too, at
       its first event, if that came after the window; labels of one window with that event's time are in one sample.
    5. With the release "event" a sample is due at its first event, if it has one, but not before the impression. Each
       label has its own window then.
    6. An event that no look at an impression finds is unmatched.

    `floors`: (cursor, partition, offset) -> the newest time that the clock was set to before that record. A topic is
    read by one cursor for each look, events by one: so the same record may be late for one look alone.
    """
    rows, refused = [], defaultdict(list)
    topics = {topic for topic, _ in logs}
    events: dict[tuple[int, str], list[tuple[int, float]]] = defaultdict(list)
    looks = sorted({look for label in labels.values() for look in label.looks})

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
    for after_ms, grade in looks:
        shown: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        cursor = cursor_of(labels, after_ms, grade)
        of_window = [label for label in labels.values() if (label.window_ms, FIRST) == (after_ms, grade)]
        for partition in [p for p in logs if p[0] == "imp"]:
            for offset, record in passed(cursor, partition):
                shown[record.key].append((record.ms, partition[1], offset))
        for key, ranks in shown.items():
            for before, rank in zip([None, *sorted(ranks)], sorted(ranks), strict=False):
                if before is not None and rank[0] - before[0] <= dedupe_ms:
                    refused["duplicate"].append((cursor, *rank))
                    continue
                due = rank[0] + after_ms
                if release == "event":
                    (kind,) = (label.kind for label in labels.values() if (after_ms, grade) in label.looks)
                    near = [ms for ms, _ in events[key, kind] if -early_ms <= ms - rank[0] <= after_ms]
                    due = max(rank[0], min(near, default=due))
                rows.append((due, key, *rank, after_ms, grade))
                late = {
                    label.late_ms(rank[0], early_ms, [ms for ms, _ in events[key, label.kind]]) for label in of_window
                }
                rows += [(ms, key, *rank, after_ms, LATE) for ms in late if ms is not None]
    samples, shares = [], {name: Share() for name, label in labels.items() if label.has_late}
    found = {name: defaultdict(list) for name in labels}  # by key, the times of looks: from, until
    for row in sorted(rows):
        due, key, shown_ms, _, _, after_ms, grade = row
        known = tuple(shares[name]() for name, label in labels.items() if label.has_late and label.late != "scale")
        values = []
        for name, label in labels.items():
            if grade == LATE:
                times = [ms for ms, _ in events[key, label.kind]]
                if label.window_ms == after_ms and label.late_ms(shown_ms, early_ms, times) == due:
                    values.append(1.0)
                    found[name][key].append((shown_ms - early_ms, due))
                continue
            if (after_ms, grade) not in label.looks:
                continue
            near = [e for e in events[key, label.kind] if e[0] - shown_ms >= -early_ms]
            within = [e for e in near if e[0] - shown_ms <= label.window_ms]
            until = [e for e in near if e[0] - shown_ms <= label.until_ms]
            value, final = label_value(label.value, within), label_value(label.value, until)
            found[name][key].append((shown_ms - early_ms, shown_ms + after_ms))
            if grade == FIRST:
                values.append(value)
                if within and label.has_late:
                    shares[name].early_within += value
                continue
            if grade == SETTLED:
                values.append(final)
            if until:
                shares[name].settle(value, final - value)
        if values:
            samples.append((*row, tuple(values), known))
    for name, label in labels.items():
        refused["unmatched"] += [
            (name, key, ms)
            for (key, kind), times in events.items()
            for ms, _ in times
            if kind == label.kind and not any(start <= ms <= end for start, end in found[name][key])
        ]
    if last_shares is not None:
        last_shares.update({name: share() for name, share in shares.items()})
    return samples, refused
