"""What samples read of what the stream remembers, from all that happened: no rows, no order of arrival."""

from collections.abc import Mapping, Sequence
from typing import Any

from springtide_client.memory import Memory

Event = tuple[int, int, tuple[int, ...]]  # when it became known and its event time in ms, its values


def read(events: Sequence[Event], event_ms: int, memory: Memory) -> list[tuple[int, tuple[int, ...]]]:
    """Return the event times and values that a sample of this time reads, the oldest first."""
    tick, since_ms = event_ms // memory.tick_ms, event_ms - memory.ttl_ms
    seen = sorted(
        (happened_ms, values)
        for known_ms, happened_ms, values in events
        if known_ms // memory.tick_ms + 2 <= tick and (not memory.ttl_ms or happened_ms > since_ms)
    )
    found: list[tuple[int, tuple[int, ...]]] = []
    for happened_ms, values in reversed(seen):
        place = memory.place_of_distinct
        if place >= 0 and any(values[place] == other[place] for _, other in found):
            continue
        found.append((happened_ms, values))
        if len(found) == memory.last:
            break
    return found[::-1]


def with_sequences(rows: Sequence[Mapping[str, Any]], memory: Memory, *, label: str = "click") -> list[dict[str, Any]]:
    """Return rows that bring the sequences of a memory themselves, made of all rows; ids are whole numbers."""
    events: dict[Any, list[Event]] = {}
    for row in rows:
        if memory.when is None or row[label] > 0:
            values = tuple(row[field] for field in memory.keep)
            events.setdefault(row[memory.of], []).append((row["ts"] + memory.delay_ms, row["ts"], values))
    made = []
    for row in rows:
        elements = read(events.get(row[memory.of], []), row["ts"], memory)
        lists = {f"{memory.name}.{field}": [v[k] for _, v in elements] for k, field in enumerate(memory.keep)}
        if memory.has_gap:
            lists[memory.gap_name] = [max(0, (row["ts"] - ms) // 1000).bit_length() for ms, _ in elements]
        made.append({**row, **lists})
    return made


def with_fields(rows: Sequence[Mapping[str, Any]], memory: Memory) -> list[dict[str, Any]]:
    """Return rows whose remembered field, of any kind, has the value that the memory has for them."""
    (field,) = memory.keep
    known: dict[Any, list[tuple[int, Any]]] = {}
    for row in rows:
        if row.get(field) not in (None, []):
            known.setdefault(row[memory.of], []).append((row["ts"], row[field]))
    made = []
    for row in rows:
        tick = row["ts"] // memory.tick_ms
        read = [
            (ms, value)
            for ms, value in known.get(row[memory.of], [])
            if (ms + memory.delay_ms) // memory.tick_ms + 2 <= tick
        ]
        newest = max(read, key=lambda one: one[0], default=(0, None))[1]
        made.append({name: value for name, value in {**row, field: newest}.items() if value is not None})
    return made
