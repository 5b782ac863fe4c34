"""The stream of a torture: every record is a function of (seed, offset), so every process can compute it."""

import json
from functools import cache
from typing import Any

import numpy as np

NUM_USERS, NUM_ITEMS = 500, 4_000
RECORD_MS = 400  # event time between two records
START_MS = 1_700_000_000_000
BAD_EVERY = 97
BAD = b"{ not json"


def make_click(seed: int, offset: int) -> dict[str, Any]:
    """Return the fields of one record; items have a long tail, most occur once or twice."""
    random = np.random.default_rng([seed, offset])
    return {
        "user_id": int(random.integers(NUM_USERS)),
        "item_id": f"item-{random.zipf(1.3) % NUM_ITEMS}",
        "genres": [f"g{genre}" for genre in random.integers(0, 8, random.integers(0, 4))],
        "last_items": [f"item-{item}" for item in random.zipf(1.3, random.integers(0, 6)) % NUM_ITEMS],
        "age": float(random.integers(18, 80)),
        "ts": START_MS + RECORD_MS * offset,
        "click": int(random.random() < 0.3),
        "bought": int(random.random() < 0.1),
    }


@cache
def click(seed: int, offset: int) -> dict[str, Any] | None:
    """Return the fields; None for a malformed record."""
    return None if offset % BAD_EVERY == BAD_EVERY - 1 else make_click(seed, offset)


def message(seed: int, offset: int) -> bytes:
    """Return the record's value."""
    fields = click(seed, offset)
    return BAD if fields is None else json.dumps(fields).encode()
