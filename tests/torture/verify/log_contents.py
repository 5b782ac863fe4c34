"""Everything that a log says at its end: by key, and beside the keys; bit by bit."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from springtide_client.errors import CorruptRecordError
from springtide_client.format.records import Tip, VersionMeta
from springtide_client.format.tensors import Arrays
from springtide_client.keys import encode_id
from springtide_client.log.directory import LogDirectory
from springtide_client.rows.layers import merge_layers

from app.version_log.read.replay_state import ReplayState
from tests.torture.clicks import NUM_ITEMS

Key = tuple[int, int]
# what depends on when versions were cut and who cut them
TIMING_DEPENDENT_FIELDS = (
    "created_ms",
    "complete_until_ms",
    "durable",
    "record_ms",
    "positions",
    "executed_commands",
    "scores",
)


@dataclass(frozen=True)
class LogContents:
    """`rows`: the bytes of value and optimizer state, the count, last seen."""

    tip: Tip
    meta: VersionMeta
    rows: dict[Key, tuple[bytes, bytes, int, int]]
    arrays: Arrays
    sketch: bytes
    texts: frozenset[Key]

    @property
    def offset(self) -> int:
        """The next record to read of the one partition."""
        return sum(position["offset"] for position in self.meta.positions.values())

    def differences(self, other: "LogContents") -> list[str]:
        """What is not bitwise the same; [] where all is."""
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
        told = facts(self.meta, other.meta)
        if self.offset != other.offset:  # malformed records right behind the last sample, read by one of them alone
            told = [fact for fact in told if fact[0] != "dead_letters"]
        return found + [f"{n}: {a} and {b}" for n, a, b in told if a != b]


def same(one: Any, other: Any) -> bool:
    """Whether two arrays are there and equal bit by bit."""
    return (
        one is not None
        and other is not None
        and one.dtype == other.dtype
        and one.shape == other.shape
        and one.tobytes() == other.tobytes()
    )


def facts(one: VersionMeta, other: VersionMeta) -> list[tuple[str, Any, Any]]:
    """Name and value in both, of what must not depend on kills."""
    names = [name for name in VersionMeta.__struct_fields__ if name not in (*TIMING_DEPENDENT_FIELDS, "trainer")]
    pairs = [(name, getattr(one, name), getattr(other, name)) for name in names]
    trainer = ("loss", "skipped_steps", "watermarks")
    return pairs + [(name, one.trainer.get(name), other.trainer.get(name)) for name in trainer]


def read_log_contents(log: Path, *, window_samples: int) -> LogContents:
    """As far as the log can be read: a dead trainer's half record at its end is no part of it."""
    directory = LogDirectory(log)
    base = directory.open_base()
    assert base is not None, "the log has no base"
    base.verify()
    overlay = ReplayState(base, window_samples=window_samples)
    try:
        for record in directory.records(base.tip):
            overlay.apply(record)
    except CorruptRecordError:
        pass
    layer = merge_layers(base.layer, overlay.changed_rows())
    layer = layer.take(np.flatnonzero(layer.live_mask(overlay.meta.expiry_cutoffs)))
    assert layer.state is not None
    rows = {
        (int(layer.feature[i]), int(layer.id[i])): (
            layer.value[i].tobytes(),
            layer.state[i].tobytes(),
            int(layer.count[i]),
            int(layer.last_seen[i]),
        )
        for i in range(len(layer))
    }
    sketch = b"" if overlay.sketch is None else overlay.sketch.tobytes()
    return LogContents(
        overlay.tip, overlay.meta, rows, overlay.arrays, sketch, texts_of([*overlay.id_strings, base.id_strings])
    )


def texts_of(parts: list[Mapping[str, Any] | None]) -> frozenset[Key]:
    """The keys of which the log tells the text."""
    return frozenset(
        (int(feature), int(row_id))
        for part in parts
        if part is not None
        for feature, row_id in zip(part["feature"], part["id"], strict=True)
    )


def item_ids() -> dict[str, int]:
    """The ids behind the texts."""
    return {f"item-{number}": encode_id(f"item-{number}")[0] for number in range(NUM_ITEMS)}
