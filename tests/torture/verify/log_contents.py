"""Everything that a log holds at its end, for bitwise comparison."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from springtide.app.version_log.read.exact_state import PARAMETERS, ExactStates, find_state
from springtide.app.version_log.read.index import LogIndex
from springtide.app.version_log.read.replay_state import ReplayState
from springtide_client.errors import CorruptRecordError
from springtide_client.format.records import Head, VersionMeta
from springtide_client.format.tensors import Arrays, map_tensors
from springtide_client.keys import encode_id
from springtide_client.log.base import Base
from springtide_client.log.directory import LogDirectory
from springtide_client.rows.layers import merge_layers
from tests.torture.clicks import NUM_ITEMS

Key = tuple[int, int]
# fields that depend on when versions were written and by which trainer
TIMING_DEPENDENT_FIELDS = (
    "created_ms",
    "complete_until_ms",
    "catching_up",
    "durable",
    "exact_state",
    "record_ms",
    "positions",
    "executed_commands",
    "scores",
    "change",
)


@dataclass(frozen=True)
class LogContents:
    """`rows`: the bytes of value and optimizer state, the count, the last-seen time, by (feature, id)."""

    head: Head
    meta: VersionMeta
    rows: dict[Key, tuple[bytes, bytes, int, int]]
    arrays: Arrays
    sketch: bytes
    texts: frozenset[Key]

    @property
    def offset(self) -> int:
        """Return the offset of the next record to read from the one partition."""
        return sum(position["offset"] for position in self.meta.positions.values())

    def differences(self, other: "LogContents") -> list[str]:
        """Return a line for each difference; [] if all is bitwise the same."""
        found = []
        for key in sorted(self.rows.keys() | other.rows.keys()):
            mine, theirs = self.rows.get(key), other.rows.get(key)
            if mine != theirs:
                names = ("row", "optimizer state", "count", "last seen")
                what = "row missing" if mine is None or theirs is None else ""
                found.append(f"{key}: {what or [n for n, a, b in zip(names, mine, theirs, strict=True) if a != b]}")
        for name in sorted(self.arrays.keys() | other.arrays.keys()):
            if not same(self.arrays.get(name), other.arrays.get(name)):
                found.append(f"{name} differs")
        if self.sketch.strip(b"\0") != other.sketch.strip(b"\0"):
            found.append("the sketch differs")
        fields = comparable_fields(self.meta, other.meta)
        if (
            self.offset != other.offset
        ):  # malformed records right after the last sample may have been read by one of the two only
            fields = [fact for fact in fields if fact[0] != "dead_letters"]
        return found + [f"{n}: {a} and {b}" for n, a, b in fields if a != b]


def same(one: Any, other: Any) -> bool:
    """Return True if both arrays exist and are bitwise equal."""
    return (
        one is not None
        and other is not None
        and one.dtype == other.dtype
        and one.shape == other.shape
        and one.tobytes() == other.tobytes()
    )


def comparable_fields(one: VersionMeta, other: VersionMeta) -> list[tuple[str, Any, Any]]:
    """Return name and both values of each field that must not depend on kills."""
    names = [name for name in VersionMeta.__struct_fields__ if name not in (*TIMING_DEPENDENT_FIELDS, "trainer")]
    pairs = [(name, getattr(one, name), getattr(other, name)) for name in names]
    trainer = ("loss", "skipped_steps", "clipped_steps", "watermarks")
    return pairs + [(name, one.trainer.get(name), other.trainer.get(name)) for name in trainer]


def read_log_contents(
    log: Path, *, window_samples: int, exact: bool = False, version: int | None = None
) -> LogContents:
    """Return what a reader sees at a version; None: at the end, without a dead trainer's incomplete record.

    `exact`: what a starting trainer sees, the newest version with an exact state of the net, and that state.
    """
    directory = LogDirectory(log)
    base = directory.open_base() if version is None else LogIndex(directory).base_before(version)
    assert base is not None, "the log has no base"
    base.verify()
    state = ReplayState(base, window_samples=window_samples)
    last = float("inf") if version is None else version
    last = newest_exact(directory, base) if exact else last
    try:
        for record in directory.records(base.head) if last > base.head.number else ():
            state.apply(record)
            if record.number >= last:
                break
    except CorruptRecordError:
        pass
    assert version in (None, state.head.number), f"{version} cannot be read, only {state.head}"
    rows = {}
    for table in state.tables:
        layer = merge_layers(table.base_layer(base), state.changed_rows(table))
        layer = layer.take(np.flatnonzero(layer.live_mask(state.meta.expiry_cutoffs)))
        for i in range(len(layer)):
            rows[int(layer.feature[i]), int(layer.id[i])] = (
                layer.value[i].tobytes(),
                layer.state[i].tobytes(),
                int(layer.count[i]),
                int(layer.last_seen[i]),
            )
    sketch = b"" if state.sketch is None else state.sketch.tobytes()
    arrays = exact_arrays(log, state) if exact else state.arrays
    return LogContents(state.head, state.meta, rows, arrays, sketch, string_keys([*state.id_strings, base.id_strings]))


def newest_exact(directory: LogDirectory, base: Base) -> int:
    """Return the newest version that a trainer can continue from."""
    index = LogIndex(directory)
    entries = [entry for entry in index.entries if entry.number > base.head.number]
    count = ExactStates(directory.path, base, index.find).newest(entries)
    return entries[count - 1].number if count else base.head.number


def exact_arrays(log: Path, state: ReplayState) -> Arrays:
    """Return the arrays with the exact parameters as `dense.*`, wherever the log holds them."""
    arrays = dict(state.arrays)
    if state.state_head is not None:
        file = find_state(log, state.state_head)
        assert file is not None
        arrays |= map_tensors(file)
    exact = {name: array for name, array in arrays.items() if name.startswith(PARAMETERS)}
    arrays |= {f"dense.{name.removeprefix(PARAMETERS)}": array for name, array in exact.items()}
    return {name: array for name, array in arrays.items() if name not in exact}


def string_keys(parts: list[Mapping[str, Any] | None]) -> frozenset[Key]:
    """Return the keys whose strings are in the log."""
    return frozenset(
        (int(feature), int(row_id))
        for part in parts
        if part is not None
        for feature, row_id in zip(part["feature"], part["id"], strict=True)
    )


def item_ids() -> dict[str, int]:
    """Return the id of each item's string."""
    return {f"item-{number}": encode_id(f"item-{number}")[0] for number in range(NUM_ITEMS)}
