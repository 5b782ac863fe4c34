"""Seeded random clicks with every kind of feature, and records that cannot be decoded."""

import json
import time
from typing import Any

import numpy as np


def make_click(random: np.random.Generator, *, now_ms: int | None = None) -> dict[str, Any]:
    """Return the fields of one valid record."""
    return {
        "user_id": int(random.integers(500)),
        "item_id": f"item-{random.zipf(1.5) % 300}",
        "genres": [f"g{genre}" for genre in random.integers(0, 8, random.integers(0, 4))],
        "last_items": [f"item-{item}" for item in random.integers(0, 300, random.integers(0, 6))],
        "age": float(random.integers(18, 80)),
        "ts": now_ms if now_ms is not None else int(time.time() * 1000),
        "click": int(random.random() < 0.3),
        "comment": "not in the schema",
    }


def make_clicks(number: int, *, seed: int = 0) -> list[bytes]:
    """Return `number` valid records as JSON."""
    random = np.random.default_rng(seed)
    now_ms = int(time.time() * 1000)
    return [json.dumps(make_click(random, now_ms=now_ms)).encode() for _ in range(number)]


def corrupt(record: bytes, kind: int) -> tuple[bytes | None, str]:
    """Return the record made invalid in one of ten ways, and the reason that its dead letter must state."""
    valid = json.loads(record)
    if kind == 0:
        return record[: len(record) // 2], "bad_json"
    if kind == 1:
        return b"\xff\xfe not json", "bad_json"
    if kind == 2:
        return None, "empty"
    if kind == 3:
        return json.dumps([valid]).encode(), "wrong_type"
    if kind == 4:
        del valid["click"]
        return json.dumps(valid).encode(), "missing_label"
    if kind == 5:
        return json.dumps(valid | {"click": 7}).encode(), "label_range"
    if kind == 6:
        return json.dumps(valid | {"user_id": {"nested": 1}}).encode(), "wrong_type"
    if kind == 7:
        return json.dumps(valid | {"age": float("nan")}).encode(), "not_finite"
    if kind == 8:
        return json.dumps(valid | {"ts": -5}).encode(), "bad_timestamp"
    return json.dumps(valid | {"comment": "x" * (1 << 20)}).encode(), "too_large"
